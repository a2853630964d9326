"""What `config.json` of Hugging Face says, in the words of `DecoderConfig`, and back; family by family."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import nn
from .config import DecoderConfig, ExpertsConfig, Kind, Rope

Settings = Mapping[str, Any]
KINDS: dict[str, Kind] = {"full_attention": "global", "sliding_attention": "local"}
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
        forms: fields that are the same in all models of the family.
        biases: from settings to the layers that have biases where they are true.
        defaults: settings that files may lack, with the values of transformers 5; a null is a value of its own.
        only: settings of which this decoder knows one value.
        rope: settings of rotary positions that files may have outside of `rope_parameters`, by their names there.
        activations: names of theirs that mean another one of ours than elsewhere.
        out_first: whether files store the outputs of linear layers before their inputs.
        is_local: whether a layer is local, where a file does not list the layers: a function of settings and number.
    """

    architecture: str
    sizes: Mapping[str, str]
    forms: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    biases: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    only: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rope: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"rope_theta": "rope_theta"}
    )
    activations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    out_first: bool = True
    is_local: Callable[[Settings, int], bool] = lambda settings, layer: False


def always(settings: Settings, layer: int) -> bool:
    """Return true: all layers have the window, if there is one."""
    return True


def upper(settings: Settings, layer: int) -> bool:
    """Return whether a layer of Qwen is local: those from some layer on, if at all."""
    return bool(settings.get("use_sliding_window")) and layer >= settings.get(
        "max_window_layers", 28
    )


def between(settings: Settings, layer: int) -> bool:
    """Return whether a layer of Gemma is local: all but every n-th."""
    period: int = settings["sliding_window_pattern"]
    return (layer + 1) % period != 0


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
UNTIED = {"tie_word_embeddings": False, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
# Qwen has a window only where `use_sliding_window` says so.
QWEN = {**UNTIED, "sliding_window": 4096, "num_key_value_heads": 32}
GEMMA = {
    **SIZES,
    "activation": "hidden_activation",
    "score_size": "query_pre_attn_scalar",
    "score_cap": "attn_logit_softcapping",
    "logit_cap": "final_logit_softcapping",
}
GEMMA_FORMS = {"norm": "shifted", "norm_places": "both", "embed_scale": True}
GEMMA_DEFAULTS = {
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "num_key_value_heads": 4,
    "sliding_window": 4096,
}
DENSE = {"decoder_sparse_step": 1, "mlp_only_layers": []}

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
        {"norm": "layer", "gated": False, "biases": QKVO | MLP, "rope": None},
        defaults={
            "tie_word_embeddings": True,
            "n_inner": None,
            "layer_norm_epsilon": 1e-5,
            "resid_pdrop": 0.1,
        },
        only={
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
        out_first=False,
    ),
    "llama": Family(
        "LlamaForCausalLM", SIZES, biases={"attention_bias": QKVO, "mlp_bias": MLP}, defaults=UNTIED
    ),
    "mistral": Family(
        "MistralForCausalLM",
        SIZES,
        defaults={**UNTIED, "num_key_value_heads": 8, "sliding_window": 4096},
        is_local=always,
    ),
    "mixtral": Family(
        "MixtralForCausalLM",
        SIZES,
        defaults={
            **UNTIED,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        is_local=always,
    ),
    "qwen2": Family("Qwen2ForCausalLM", SIZES, {"biases": QKV}, defaults=QWEN, is_local=upper),
    "qwen2_moe": Family(
        "Qwen2MoeForCausalLM",
        SIZES,
        biases={"qkv_bias": QKV},
        defaults={
            **QWEN,
            "qkv_bias": True,
            "num_key_value_heads": 16,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "norm_topk_prob": False,
        },
        only=DENSE,
        is_local=upper,
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        SIZES,
        {"head_norms": "each"},
        biases={"attention_bias": QKVO},
        defaults={**QWEN, "head_dim": 128},
        is_local=upper,
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        SIZES,
        {"head_norms": "each"},
        biases={"attention_bias": QKVO},
        # A file may have the number of experts under either of two names.
        defaults={
            **QWEN,
            "num_key_value_heads": 4,
            "num_local_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "norm_topk_prob": False,
        },
        only=DENSE,
        is_local=lambda settings, layer: bool(settings.get("use_sliding_window")),
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        {**SIZES, "dropout": "resid_pdrop"},
        defaults={**UNTIED, "rms_norm_eps": 1e-5, "resid_pdrop": 0.0},
        rope={"rope_theta": "rope_theta", "partial_rotary_factor": "partial_rotary_factor"},
        is_local=always,
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        SIZES,
        {"norm_places": "behind", "head_norms": "all"},
        biases={"attention_bias": QKVO},
        defaults={**UNTIED, "rms_norm_eps": 1e-5},
    ),
    "gemma": Family(
        "GemmaForCausalLM",
        SIZES,
        {"norm": "shifted", "embed_scale": True},
        biases={"attention_bias": QKVO},
        defaults={
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-6,
            "hidden_act": "gelu_pytorch_tanh",
            "num_key_value_heads": 16,
            "head_dim": 256,
        },
        only={"use_bidirectional_attention": None},
        # Files of the first release say so, and mean the approximation.
        activations={"gelu": "gelu_tanh"},
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        GEMMA,
        GEMMA_FORMS,
        biases={"attention_bias": QKVO},
        defaults={
            **GEMMA_DEFAULTS,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window_pattern": 2,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        only={"use_bidirectional_attention": None},
        is_local=between,
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        GEMMA,
        {**GEMMA_FORMS, "head_norms": "each"},
        biases={"attention_bias": QKVO},
        defaults={
            **GEMMA_DEFAULTS,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window_pattern": 6,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
        },
        only={"use_bidirectional_attention": False},
        is_local=between,
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


def read_config(given: Settings) -> DecoderConfig:
    """Return the configuration that the settings of a `config.json` describe.

    Raises:
        ValueError: if they ask for something that this decoder lacks.
    """
    family = family_of(given)
    try:
        return _read(family, {**family.defaults, **given})
    except KeyError as error:
        raise ValueError(f"config.json of a {given['model_type']} lacks {error.args[0]}") from None


def _read(family: Family, settings: Settings) -> DecoderConfig:
    for key, value in family.only.items():
        if settings.get(key) not in (None, value):
            raise ValueError(f"{key}={settings[key]!r} is not supported, only {value!r}")
    fields = {field: settings[key] for field, key in family.sizes.items() if key in settings}
    missing = [
        key
        for field, key in family.sizes.items()
        if fields.get(field) is None and field not in OPTIONAL
    ]
    if missing:
        raise KeyError(", ".join(missing))
    fields["activation"] = _activation(fields["activation"], family)
    fields["kv_heads"] = fields.get("kv_heads") or fields["heads"]
    fields["head_dim"] = fields.get("head_dim") or fields["embed"] // fields["heads"]
    fields["mlp"] = fields.get("mlp") or 4 * fields["embed"]
    fields["tied"] = bool(fields.get("tied"))
    if fields.get("score_size") == fields["head_dim"]:
        fields["score_size"] = None
    biased = (layers for key, layers in family.biases.items() if settings.get(key))
    fields["biases"] = frozenset().union(*biased)
    fields |= _read_ropes(family, settings) if family.forms.get("rope", True) else {}
    fields |= _read_pattern(family, settings, fields["layers"])
    fields["experts"] = _read_experts(settings)
    # In the order of the files, weights are read as they are, without a transpose.
    return DecoderConfig(**(fields | dict(family.forms)), out_first=family.out_first)


# What a file may leave out or set to null, since it follows from others or is none.
OPTIONAL = {"kv_heads", "head_dim", "mlp", "tied", "score_size", "score_cap", "logit_cap"}


def read_file(folder: Path) -> DecoderConfig:
    """Return the configuration of the model in a folder."""
    return read_config(json.loads((folder / "config.json").read_text()))


def write_config(cfg: DecoderConfig, family: str | None = None) -> dict[str, Any]:
    """Return the settings that describe a configuration, for a `config.json`.

    Args:
        cfg: the configuration.
        family: the `model_type`; by default the first whose settings, read again, give the same configuration.

    Raises:
        ValueError: if there is none, or the given one is none.
    """
    asked_families = FAMILIES if family is None else {family: family_of({"model_type": family})}
    # How a model is trained is no part of what it is, and files have an order of their own.
    asked = dataclasses.replace(
        cfg, checkpointing=DecoderConfig.checkpointing, out_first=False, rounds=1
    )
    differ: dict[str, list[str]] = {}
    for name, known in asked_families.items():
        settings = _write(name, known, cfg)
        again = dataclasses.replace(read_config(settings), out_first=False)
        if "dropout" not in known.sizes:
            again = dataclasses.replace(again, dropout=asked.dropout)
        if again == asked:
            return settings
        fields = (field.name for field in dataclasses.fields(asked))
        differ[name] = [field for field in fields if getattr(again, field) != getattr(asked, field)]
    nearest = min(differ, key=lambda name: len(differ[name]))
    problem = f"{family} has no words for this configuration, and differs in: "
    if family is None:
        problem = f"no family of Hugging Face has this configuration; the nearest, {nearest}, differs in: "
    raise ValueError(
        problem + ", ".join(f"{field}={getattr(asked, field)!r}" for field in differ[nearest])
    )


def _write(name: str, family: Family, cfg: DecoderConfig) -> dict[str, Any]:
    """Spell a configuration in the settings of a family, which may not have words for all of it."""
    settings = {key: getattr(cfg, field) for field, key in family.sizes.items()}
    settings[family.sizes["activation"]] = next(
        theirs for theirs, ours in ACTIVATIONS.items() if ours == cfg.activation
    )
    if "score_size" in family.sizes:
        settings["query_pre_attn_scalar"] = cfg.score_size or cfg.head_dim
    settings |= {key: layers <= cfg.biases for key, layers in family.biases.items()}
    settings |= {key: value for key, value in family.only.items() if value is not None}
    settings |= _write_ropes(name, cfg) if cfg.rope is not None else {}
    settings |= _write_pattern(name, cfg)
    settings |= _write_experts(name, cfg)
    return {"architectures": [family.architecture], "model_type": name, **settings}


def _activation(name: str, family: Family) -> str:
    known = {**ACTIVATIONS, **family.activations}
    if name not in known:
        raise ValueError(f"unknown activation {name!r}; known: {', '.join(known)}")
    return known[name]


def _read_ropes(family: Family, settings: Settings) -> dict[str, Any]:
    """Read rotary positions, in the words of newer files or of older ones."""
    outside = {name: settings[key] for name, key in family.rope.items() if key in settings}
    given = settings.get("rope_scaling") or settings.get("rope_parameters")
    if given is None and "rope_local_base_freq" in settings:
        local = {"rope_theta": settings["rope_local_base_freq"]}
        given = {"full_attention": {}, "sliding_attention": local}
    if given is not None and "full_attention" in given:
        return {
            "rope": _read_rope(family, {**outside, **given["full_attention"]}),
            "local_rope": _read_rope(family, {**outside, **given["sliding_attention"]}),
        }
    return {"rope": _read_rope(family, {**outside, **(given or {})})}


def _read_rope(family: Family, given: Settings) -> Rope:
    kind = given.get("rope_type", given.get("type", "default"))
    share = given.get("partial_rotary_factor", 1.0)
    if share != 1.0 and "partial_rotary_factor" not in family.rope:
        raise ValueError(f"partial_rotary_factor={share} is not supported, only 1.0")
    scaling: nn.FrequencyScaling | None
    if kind == "default":
        scaling = None
    elif kind == "linear":
        scaling = nn.LinearScaling(given["factor"])
    elif kind == "llama3":
        names = (
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        )
        scaling = nn.Llama3Scaling(*(given[name] for name in names))
    else:
        raise ValueError(f"unknown rope_type {kind!r}; known: default, linear, llama3")
    return Rope(given.get("rope_theta", 10000.0), scaling, share)


def _write_ropes(name: str, cfg: DecoderConfig) -> dict[str, Any]:
    rope = _write_rope(cfg.rope or Rope())
    if "partial_rotary_factor" in FAMILIES[name].rope and cfg.rope is not None:
        rope["partial_rotary_factor"] = cfg.rope.share
    if name != "gemma3_text":
        # Newer releases read the first, older ones the others.
        outside = {key: rope[inside] for inside, key in FAMILIES[name].rope.items()}
        return {"rope_parameters": rope, **outside}
    local = _write_rope(cfg.local_rope or cfg.rope or Rope())
    return {"rope_parameters": {"full_attention": rope, "sliding_attention": local}}


def _write_rope(rope: Rope) -> dict[str, Any]:
    written: dict[str, Any] = {"rope_type": "default", "rope_theta": rope.theta}
    if isinstance(rope.scaling, nn.LinearScaling):
        written |= {"rope_type": "linear", "factor": rope.scaling.factor}
    elif isinstance(rope.scaling, nn.Llama3Scaling):
        written |= {
            "rope_type": "llama3",
            "factor": rope.scaling.factor,
            "low_freq_factor": rope.scaling.low,
            "high_freq_factor": rope.scaling.high,
            "original_max_position_embeddings": rope.scaling.original_length,
        }
    return written


def _read_pattern(family: Family, settings: Settings, layers: int) -> dict[str, Any]:
    """Read which layers are local, as the shortest pattern that repeats."""
    window = settings.get("sliding_window")
    listed = settings.get("layer_types")
    kinds: tuple[Kind, ...]
    if not window or settings.get("use_sliding_window") is False:
        return {}
    if listed is not None:
        kinds = tuple(KINDS[each] for each in listed)
    else:
        kinds = tuple(
            "local" if family.is_local(settings, layer) else "global" for layer in range(layers)
        )
    if "local" not in kinds:
        return {}
    periods = range(1, layers + 1)
    period = next(n for n in periods if all(kinds[i] == kinds[i % n] for i in range(layers)))
    return {"window": window, "pattern": kinds[:period]}


def _write_pattern(name: str, cfg: DecoderConfig) -> dict[str, Any]:
    if name in ("gpt2", "llama", "olmo2", "gemma"):
        return {}
    settings: dict[str, Any] = {"sliding_window": cfg.window}
    if name.startswith("qwen"):
        settings["use_sliding_window"] = cfg.window is not None
    if name in ("mistral", "mixtral", "phi3", "qwen3_moe"):
        return settings
    kinds = [cfg.pattern[layer % len(cfg.pattern)] for layer in range(cfg.layers)]
    theirs = {ours: each for each, ours in KINDS.items()}
    return {**settings, "layer_types": [theirs[kind] for kind in kinds]}


def _read_experts(settings: Settings) -> ExpertsConfig | None:
    count = settings.get("num_experts", settings.get("num_local_experts"))
    if count is None:
        return None
    chosen = settings["num_experts_per_tok"]
    if settings["model_type"] == "mixtral":
        return ExpertsConfig(count, chosen, settings["intermediate_size"])
    shared = settings.get("shared_expert_intermediate_size")
    return ExpertsConfig(
        count, chosen, settings["moe_intermediate_size"], settings["norm_topk_prob"], shared
    )


def _write_experts(name: str, cfg: DecoderConfig) -> dict[str, Any]:
    experts = cfg.experts
    if experts is None or name not in ("mixtral", "qwen2_moe", "qwen3_moe"):
        return {}
    settings: dict[str, Any] = {"num_experts_per_tok": experts.chosen}
    if name == "mixtral":
        return {**settings, "num_local_experts": experts.count, "intermediate_size": experts.mlp}
    if experts.shared is not None:
        settings["shared_expert_intermediate_size"] = experts.shared
    return {
        **settings,
        "num_experts": experts.count,
        "moe_intermediate_size": experts.mlp,
        "norm_topk_prob": experts.normalize,
    }
