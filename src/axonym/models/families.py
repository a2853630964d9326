"""Families of published models: the names of their settings, and the settings that they leave out."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from .config import Kind

Settings = Mapping[str, Any]
# The fields of `DecoderConfig` whose usual values each family lists, in this order.
USUAL = (
    *("vocab", "layers", "embed", "mlp", "heads", "kv_heads"),
    *("positions", "norm_eps", "tied", "activation"),
)
KINDS: dict[str, Kind] = {
    "full_attention": "global",
    "sliding_attention": "local",
    "linear_attention": "delta",
}
ACTIVATIONS = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


@dataclasses.dataclass(frozen=True)
class Family:
    """Models of one `model_type`.

    Attributes:
        architecture: the name of their class.
        sizes: from fields of `DecoderConfig` to their settings.
        usual: the values of transformers 5 for `USUAL`, where a file lacks them; a null is a value of its own.
        forms: fields that are the same in all models of the family, or functions of the other fields.
        biases: from settings to the layers that have biases where they are true.
        parts: from fields of `DecoderConfig` with fields of their own, such as `experts`, to the settings of these, and
            to the values of transformers 5 for settings that a file lacks, in the same order.
        defaults: the same for further settings.
        only: settings of which this decoder knows one value.
        rope: settings of rotary positions that files may have outside of `rope_parameters`, by their names there.
        rope_types: names of kinds of rotary positions that mean another one than elsewhere.
        activations: names of theirs that mean another one of ours than elsewhere.
        out_first: whether files store the outputs of linear layers before their inputs.
        is_rotated: whether a layer has rotary positions: a function of settings and number.
        grows: whether the `mscale_all_dim` of rotary positions is the growth of scores.
        is_local: whether a layer is local, where a file does not list the layers: a function of settings and number.
        other: the kind of such layers, where it is not local.
        is_dense: whether a layer has a perceptron in place of experts: a function of settings and number.
    """

    architecture: str
    sizes: Mapping[str, str]
    usual: tuple[int | float | str | None, ...]
    forms: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    biases: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    parts: Mapping[str, tuple[Mapping[str, str], tuple[Any, ...]]] = dataclasses.field(
        default_factory=dict
    )
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    only: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rope: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"rope_theta": "rope_theta"}
    )
    rope_types: Mapping[str, str] = dataclasses.field(default_factory=dict)
    activations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    out_first: bool = True
    grows: bool = False
    is_local: Callable[[Settings, int], bool] = lambda settings, layer: False
    other: Kind = "local"
    is_rotated: Callable[[Settings, int], bool] = lambda settings, layer: True
    is_dense: Callable[[Settings, int], bool] = lambda settings, layer: False


def upper(settings: Settings, layer: int) -> bool:
    """Return whether a layer of Qwen is local: if windows are used, all layers from `max_window_layers` on are."""
    return bool(settings.get("use_sliding_window")) and layer >= settings.get(
        "max_window_layers", 28
    )


def is_rotated(settings: Settings, layer: int) -> bool:
    """Return whether a layer of SmolLM3 has rotary positions: all but every n-th layer, or the layers in a list."""
    listed: list[int] | None = settings.get("no_rope_layers")
    interval: int = settings["no_rope_layer_interval"]
    return bool(listed[layer]) if listed is not None else (layer + 1) % interval != 0


def is_dense(settings: Settings, layer: int) -> bool:
    """Return whether a layer of Qwen has no experts: all but every n-th layer, and the layers in a list."""
    period: int = settings.get("decoder_sparse_step", 1)
    return (layer + 1) % period != 0 or layer in (settings.get("mlp_only_layers") or ())


SIZES = {
    "vocab": "vocab_size",
    "layers": "num_hidden_layers",
    "embed": "hidden_size",
    "mlp": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "positions": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
    "activation": "hidden_act",
}
QKV, QKVO, MLP = frozenset({"qkv"}), frozenset({"qkv", "out"}), frozenset({"mlp"})
# Qwen has it only where `use_sliding_window` says so.
WINDOW = {"sliding_window": 4096}
GEMMA = {
    **SIZES,
    "activation": "hidden_activation",
    "score_size": "query_pre_attn_scalar",
    "score_cap": "attn_logit_softcapping",
    "logit_cap": "final_logit_softcapping",
}
SHIFTED: dict[str, Any] = {
    "norm": "shifted",
    "embed_scale": lambda fields: math.sqrt(fields["embed"]),
}
GEMMA_FORMS = {**SHIFTED, "norm_places": "both"}
GEMMA_DEFAULTS = {"head_dim": 256, "query_pre_attn_scalar": 256, **WINDOW}
EXPERTS = {
    "count": "num_local_experts",
    "chosen": "num_experts_per_tok",
    "mlp": "intermediate_size",
}
CLAMPED_EXPERTS = {**EXPERTS, "clamp": "swiglu_limit", "slope": "swiglu_alpha"}
QWEN_EXPERTS = {
    **EXPERTS,
    "count": "num_experts",
    "mlp": "moe_intermediate_size",
    "normalize": "norm_topk_prob",
}
SHARED_EXPERTS = {**QWEN_EXPERTS, "shared": "shared_expert_intermediate_size"}
DEEPSEEK_EXPERTS = {
    **QWEN_EXPERTS,
    "count": "n_routed_experts",
    "scale": "routed_scaling_factor",
    "groups": "n_group",
    "chosen_groups": "topk_group",
    "shared": "moe_intermediate_size",
    "shared_count": "n_shared_experts",
}
LATENT = {
    "keys": "kv_lora_rank",
    "rotary": "qk_rope_head_dim",
    "values": "v_head_dim",
    "queries": "q_lora_rank",
}
DELTA = {
    "heads": "linear_num_value_heads",
    "key_heads": "linear_num_key_heads",
    "key_dim": "linear_key_head_dim",
    "value_dim": "linear_value_head_dim",
    "window": "linear_conv_kernel_dim",
}
MULTIPLIERS = {
    "embed_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "score_scale": "attention_multiplier",
    "logit_divisor": "logits_scaling",
}

FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        "GPT2LMHeadModel",
        {
            "vocab": "vocab_size",
            "layers": "n_layer",
            "embed": "n_embd",
            "mlp": "n_inner",
            "heads": "n_head",
            "positions": "n_positions",
            "norm_eps": "layer_norm_epsilon",
            "tied": "tie_word_embeddings",
            "activation": "activation_function",
            "dropout": "resid_pdrop",
        },
        (50257, 12, 768, None, 12, None, 1024, 1e-5, True, "gelu_new"),
        {"norm": "layer", "gated": False, "biases": QKVO | MLP, "rope": None},
        defaults={"resid_pdrop": 0.1},
        only={
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
        out_first=False,
    ),
    "llama": Family(
        "LlamaForCausalLM",
        SIZES,
        (32000, 32, 4096, 11008, 32, None, 2048, 1e-6, False, "silu"),
        biases={"attention_bias": QKVO, "mlp_bias": MLP},
    ),
    "mistral": Family(
        "MistralForCausalLM",
        SIZES,
        (32000, 32, 4096, 14336, 32, 8, 131072, 1e-6, False, "silu"),
        defaults=WINDOW,
        is_local=lambda settings, layer: True,
    ),
    "mixtral": Family(
        "MixtralForCausalLM",
        SIZES,
        (32000, 32, 4096, 14336, 32, 8, 131072, 1e-5, False, "silu"),
        parts={"experts": (EXPERTS, (8, 2, 14336))},
        defaults={"rope_theta": 1e6},
        is_local=lambda settings, layer: True,
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        SIZES,
        (151936, 32, 4096, 22016, 32, 32, 32768, 1e-6, False, "silu"),
        {"biases": QKV},
        defaults=WINDOW,
        is_local=upper,
    ),
    "qwen2_moe": Family(
        "Qwen2MoeForCausalLM",
        SIZES,
        (151936, 24, 2048, 5632, 16, 16, 32768, 1e-6, False, "silu"),
        biases={"qkv_bias": QKV},
        parts={"experts": (SHARED_EXPERTS, (60, 4, 1408, False, 5632))},
        defaults={**WINDOW, "qkv_bias": True},
        is_dense=is_dense,
        is_local=upper,
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        SIZES,
        (151936, 32, 4096, 22016, 32, 32, 32768, 1e-6, False, "silu"),
        {"head_norms": "each"},
        biases={"attention_bias": QKVO},
        defaults={**WINDOW, "head_dim": 128},
        is_local=upper,
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        SIZES,
        (151936, 24, 2048, 6144, 32, 4, 32768, 1e-6, False, "silu"),
        {"head_norms": "each"},
        biases={"attention_bias": QKVO},
        parts={"experts": (QWEN_EXPERTS, (128, 8, 768, False))},
        defaults=WINDOW,
        is_dense=is_dense,
        is_local=lambda settings, layer: bool(settings.get("use_sliding_window")),
    ),
    "qwen3_next": Family(
        "Qwen3NextForCausalLM",
        SIZES,
        (151936, 48, 2048, 5632, 16, 2, 32768, 1e-6, False, "silu"),
        {"norm": "shifted", "head_norms": "each", "gated_attention": True},
        biases={"attention_bias": QKVO},
        parts={
            "experts": (SHARED_EXPERTS, (512, 10, 512, True, 512)),
            "delta": (DELTA, (32, 16, 128, 128, 4)),
        },
        defaults={"head_dim": 256, "partial_rotary_factor": 0.25, "full_attention_interval": 4},
        only={"hidden_act": "silu"},
        rope={"rope_theta": "rope_theta", "partial_rotary_factor": "partial_rotary_factor"},
        is_local=lambda settings, layer: (layer + 1) % settings["full_attention_interval"] != 0,
        other="delta",
        is_dense=is_dense,
    ),
    "deepseek_v3": Family(
        "DeepseekV3ForCausalLM",
        {**SIZES, "head_dim": "qk_nope_head_dim"},
        (129280, 61, 7168, 18432, 128, 128, 4096, 1e-6, False, "silu"),
        {"experts": {"sigmoid": True, "shared_gate": False}},
        biases={"attention_bias": QKVO},
        parts={
            "experts": (DEEPSEEK_EXPERTS, (256, 8, 2048, True, 2.5, 8, 4, 2048, 1)),
            "latent": (LATENT, (512, 64, 128, 1536)),
        },
        defaults={"qk_nope_head_dim": 128, "first_k_dense_replace": 3, "rope_interleave": True},
        rope={"rope_theta": "rope_theta", "interleaved": "rope_interleave"},
        grows=True,
        is_dense=lambda settings, layer: layer < settings["first_k_dense_replace"],
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        SIZES,
        (201088, 36, 2880, 2880, 64, 8, 131072, 1e-5, False, "silu"),
        {"sinks": True, "biases": frozenset({"experts"})},
        biases={"attention_bias": QKVO},
        parts={"experts": (CLAMPED_EXPERTS, (128, 4, 2880, 7.0, 1.702))},
        defaults={
            "head_dim": 64,
            "sliding_window": 128,
            "attention_bias": True,
            "rope_theta": 150000.0,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 32.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        },
        is_local=lambda settings, layer: layer % 2 == 0,
    ),
    "granite": Family(
        "GraniteForCausalLM",
        {**SIZES, **MULTIPLIERS},
        (32000, 32, 4096, 11008, 32, None, 2048, 1e-6, False, "silu"),
        biases={"attention_bias": QKVO, "mlp_bias": MLP},
        defaults=dict.fromkeys(MULTIPLIERS.values(), 1.0),
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        {
            **{field: key for field, key in SIZES.items() if field not in ("kv_heads", "head_dim")},
            "norm_eps": "layer_norm_eps",
            "dropout": "hidden_dropout",
            "parallel": "use_parallel_residual",
        },
        (50432, 44, 6144, 24576, 64, None, 2048, 1e-5, False, "gelu"),
        {"norm": "layer", "gated": False, "biases": MLP},
        biases={"attention_bias": QKVO},
        defaults={
            "hidden_dropout": 0.0,
            "use_parallel_residual": True,
            "attention_bias": True,
            "rotary_emb_base": 10000.0,
            "rotary_pct": 0.25,
        },
        rope={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
    ),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        SIZES,
        (128256, 36, 2048, 11008, 16, 4, 32768, 1e-6, True, "silu"),
        biases={"attention_bias": QKVO, "mlp_bias": MLP},
        defaults={
            "rope_theta": 2e6,
            "use_sliding_window": False,
            "sliding_window": None,
            "no_rope_layer_interval": 4,
        },
        is_local=lambda settings, layer: not is_rotated(settings, layer),
        is_rotated=is_rotated,
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        {**SIZES, "dropout": "resid_pdrop"},
        (32064, 32, 3072, 8192, 32, None, 4096, 1e-5, False, "silu"),
        defaults={"resid_pdrop": 0.0, "original_max_position_embeddings": 4096},
        rope={"rope_theta": "rope_theta", "partial_rotary_factor": "partial_rotary_factor"},
        rope_types={"su": "longrope", "yarn": "longrope"},
        is_local=lambda settings, layer: True,
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        SIZES,
        (50304, 32, 4096, 11008, 32, None, 2048, 1e-5, False, "silu"),
        {"norm_places": "behind", "head_norms": "all"},
        biases={"attention_bias": QKVO},
    ),
    "gemma": Family(
        "GemmaForCausalLM",
        SIZES,
        (256000, 28, 3072, 24576, 16, 16, 8192, 1e-6, True, "gelu_pytorch_tanh"),
        SHIFTED,
        biases={"attention_bias": QKVO},
        defaults={"head_dim": 256},
        only={"use_bidirectional_attention": None},
        # Files of the first release say so, and mean the approximation.
        activations={"gelu": "gelu_tanh"},
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        GEMMA,
        (256000, 26, 2304, 9216, 8, 4, 8192, 1e-6, True, "gelu_pytorch_tanh"),
        GEMMA_FORMS,
        biases={"attention_bias": QKVO},
        defaults={
            **GEMMA_DEFAULTS,
            "sliding_window_pattern": 2,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        only={"use_bidirectional_attention": None},
        is_local=lambda settings, layer: (layer + 1) % settings["sliding_window_pattern"] != 0,
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        GEMMA,
        (262208, 26, 2304, 9216, 8, 4, 131072, 1e-6, True, "gelu_pytorch_tanh"),
        {**GEMMA_FORMS, "head_norms": "each"},
        biases={"attention_bias": QKVO},
        defaults={
            **GEMMA_DEFAULTS,
            "sliding_window_pattern": 6,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
        },
        only={"use_bidirectional_attention": False},
        is_local=lambda settings, layer: (layer + 1) % settings["sliding_window_pattern"] != 0,
    ),
}


def family_of(settings: Settings) -> Family:
    """Return the family of a model.

    Raises:
        ValueError: if it is none of those that this decoder knows.
    """
    name = settings.get("model_type")
    if name not in FAMILIES:
        raise ValueError(f"unknown model_type {name!r}; known: {', '.join(FAMILIES)}")
    return FAMILIES[name]
