"""The decoder of `axonym.models` against `transformers` on torch: logits, gradients, generation, and files both ways.

Models are tiny and random, and saved as `transformers` saves them. All parameters are drawn anew, with numbers so large
that each of them matters.
"""

import copy
import functools
import json
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

import axonym as axn
from axonym.models import load, read_config, save

SMALL = {
    "vocab_size": 67,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2 = {"vocab_size": 67, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": None}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
QWEN_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

NEOX = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"} | {"hidden_size": 64}

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 2,
}

ROWS = {
    "gpt2": ("GPT2Config", GPT2),
    "gpt2 untied": ("GPT2Config", {**GPT2, "tie_word_embeddings": False, "n_inner": 40, "activation_function": "gelu"}),
    "llama": ("LlamaConfig", SMALL),
    "llama tied, biased": (
        "LlamaConfig",
        {**SMALL, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
    ),
    "llama, linear": ("LlamaConfig", {**SMALL, "rope_parameters": LINEAR, "num_key_value_heads": 1}),
    "llama 3": ("LlamaConfig", {**SMALL, "rope_parameters": LLAMA3, "rms_norm_eps": 1e-5, "head_dim": 16}),
    "mistral": ("MistralConfig", {**SMALL, "sliding_window": 4}),
    "mistral, no window": ("MistralConfig", {**SMALL, "sliding_window": None, "head_dim": 16}),
    "qwen2": ("Qwen2Config", {**SMALL, "tie_word_embeddings": True}),
    "qwen2, upper window": (
        "Qwen2Config",
        {**SMALL, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "num_hidden_layers": 3},
    ),
    "qwen3": ("Qwen3Config", {**SMALL, "head_dim": 16}),
    "qwen3 tied, biased": ("Qwen3Config", {**SMALL, "tie_word_embeddings": True, "attention_bias": True}),
    # Positions beyond the original length, for all of these.
    "llama, dynamic": (
        "LlamaConfig",
        {
            **SMALL,
            "head_dim": 16,
            "max_position_embeddings": 5,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e3, "factor": 4.0},
        },
    ),
    "llama, yarn": ("LlamaConfig", {**SMALL, "head_dim": 24, "rope_parameters": YARN}),
    "qwen3, yarn": (
        "Qwen3Config",
        {**SMALL, "head_dim": 16, "rope_parameters": {**YARN, "truncate": False, "mscale": 0.7, "mscale_all_dim": 0.3}},
    ),
    "phi3, longrope": (
        "Phi3Config",
        {
            **SMALL,
            "hidden_size": 64,
            "original_max_position_embeddings": 4,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e3,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
                "long_factor": [1.0, 2.0, 3.0, 4.0, 6.0, 9.0],
            },
        },
    ),
    "phi3, longrope within": (
        "Phi3Config",
        {
            **SMALL,
            "original_max_position_embeddings": 40,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e3,
                "short_factor": [1.0, 1.1, 1.2, 1.3],
                "long_factor": [1.0, 2.0, 4.0, 9.0],
            },
        },
    ),
    "gpt_oss": ("GptOssConfig", {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt_oss, odd": (
        "GptOssConfig",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "head_dim": 24,
            "sliding_window": 4,
            "layer_types": ["full_attention", "full_attention", "sliding_attention"],
            "num_local_experts": 5,
            "num_experts_per_tok": 3,
            "swiglu_limit": 0.6,
            "swiglu_alpha": 1.3,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "rope_parameters": {**YARN, "truncate": False},
        },
    ),
    "granite": ("GraniteConfig", SMALL),
    "granite, multipliers": (
        "GraniteConfig",
        {
            **SMALL,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.1,
            "logits_scaling": 1.7,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "gpt_neox": ("GPTNeoXConfig", NEOX),
    "gpt_neox, in turn": (
        "GPTNeoXConfig",
        {
            **NEOX,
            "use_parallel_residual": False,
            "attention_bias": False,
            "hidden_act": "gelu_new",
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e3, "factor": 2.0, "partial_rotary_factor": 0.5},
        },
    ),
    "smollm3": ("SmolLM3Config", {**SMALL, "num_hidden_layers": 5}),
    "smollm3, windows": (
        "SmolLM3Config",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "no_rope_layers": [0, 1, 0],
            "use_sliding_window": True,
            "sliding_window": 4,
            "tie_word_embeddings": False,
            "attention_bias": True,
        },
    ),
    "phi3": ("Phi3Config", {**SMALL, "num_hidden_layers": 3}),
    "phi3, partial": (
        "Phi3Config",
        {
            **SMALL,
            "sliding_window": 5,
            "num_key_value_heads": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.5},
        },
    ),
    "olmo2": ("Olmo2Config", {**SMALL, "num_hidden_layers": 3}),
    "olmo2, biased": ("Olmo2Config", {**SMALL, "attention_bias": True, "num_key_value_heads": 1, "rms_norm_eps": 1e-3}),
    "gemma": ("GemmaConfig", {**SMALL, "head_dim": 16}),
    "gemma, legacy": ("GemmaConfig", {**SMALL, "head_dim": 24, "hidden_act": "gelu", "num_key_value_heads": 4}),
    "gemma2": (
        "Gemma2Config",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "head_dim": 16,
            "sliding_window": 4,
            "query_pre_attn_scalar": 12,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma2, no caps": (
        "Gemma2Config",
        {
            **SMALL,
            "head_dim": 8,
            "sliding_window": 64,
            "query_pre_attn_scalar": 8,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "attention_bias": True,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {**SMALL, "num_hidden_layers": 7, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 10},
    ),
    "gemma3, scaled": (
        "Gemma3TextConfig",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "head_dim": 16,
            "sliding_window": 5,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "mixtral": ("MixtralConfig", {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral, window": (
        "MixtralConfig",
        {**SMALL, "num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 4, "tie_word_embeddings": True},
    ),
    "qwen2 moe": ("Qwen2MoeConfig", {**SMALL, **QWEN_MOE, "shared_expert_intermediate_size": 40}),
    "qwen3 moe": ("Qwen3MoeConfig", {**SMALL, **QWEN_MOE, "head_dim": 16, "norm_topk_prob": True}),
    "qwen2 moe, dense": (
        "Qwen2MoeConfig",
        {**SMALL, **QWEN_MOE, "num_hidden_layers": 3, "mlp_only_layers": [1], "shared_expert_intermediate_size": 40},
    ),
    "qwen3 moe, every other": (
        "Qwen3MoeConfig",
        {**SMALL, **QWEN_MOE, "num_hidden_layers": 4, "decoder_sparse_step": 2, "head_dim": 8},
    ),
    "qwen3 moe, raw weights": ("Qwen3MoeConfig", {**SMALL, **QWEN_MOE, "norm_topk_prob": False, "num_experts": 5}),
}
DEEPSEEK = {
    **SMALL,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "kv_lora_rank": 12,
    "q_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 6,
    "v_head_dim": 10,
    "first_k_dense_replace": 1,
}
QWEN_NEXT = {
    **SMALL,
    **QWEN_MOE,
    "num_hidden_layers": 4,
    "head_dim": 8,
    "shared_expert_intermediate_size": 40,
    "linear_num_value_heads": 6,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 6,
    "linear_conv_kernel_dim": 3,
}
ROWS |= {
    "qwen3 next": ("Qwen3NextConfig", QWEN_NEXT),
    "qwen3 next, pattern": (
        "Qwen3NextConfig",
        {
            **QWEN_NEXT,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "linear_attention", "full_attention"],
            "mlp_only_layers": [1],
            "attention_bias": True,
            "norm_topk_prob": False,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-3,
            "rope_parameters": {**YARN, "partial_rotary_factor": 0.5},
        },
    ),
    "qwen3 next, other interval": ("Qwen3NextConfig", {**QWEN_NEXT, "full_attention_interval": 2, "head_dim": 16}),
    "deepseek v3": (
        "DeepseekV3Config",
        {**DEEPSEEK, "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3}, "n_shared_experts": 2},
    ),
    "deepseek v3, raw": (
        "DeepseekV3Config",
        {
            **DEEPSEEK,
            "q_lora_rank": None,
            "rope_interleave": False,
            "norm_topk_prob": False,
            "attention_bias": True,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 0.7,
            "first_k_dense_replace": 0,
            "rms_norm_eps": 1e-3,
        },
    ),
    "deepseek v3, dense": (
        "DeepseekV3Config",
        {
            **DEEPSEEK,
            "first_k_dense_replace": 3,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e3, "factor": 4.0, "mscale_all_dim": 0.8},
        },
    ),
}
TOKENS = np.random.default_rng(0).integers(67, size=(2, 13))
BATCH = axn.named(jnp.asarray(TOKENS, jnp.int32), ("batch", "pos"))

# The first row of a family always runs; others, whose names say how they differ, in turn.
rows = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.sampled] if "," in name else []) for name in ROWS]
)


# Sizes that the defaults of all families divide.
ROOM = {"num_attention_heads": 64, "linear_num_value_heads": 64, "hidden_size": 512, "n_embd": 96}


@pytest.mark.parametrize("name", [name for name in ROWS if "longrope" not in name])
def test_each_setting_that_is_left_out_is_that_of_transformers(name):
    kind, settings = ROWS[name]
    roomy = {key: ROOM.get(key, value) for key, value in settings.items()}
    for key in settings:
        # Lists have a number for each layer.
        lost = {key} | ({"layer_types", "no_rope_layers"} if key == "num_hidden_layers" else set())
        given = {other: value for other, value in roomy.items() if other not in lost}
        whole = getattr(transformers, kind)(**copy.deepcopy(given)).to_dict()
        assert read_config({"model_type": whole["model_type"], **given}) == read_config(whole), key


def choice_biases(model):
    """Return what files hold beside parameters: numbers without a gradient, for the choice of experts."""
    return [buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")]


@functools.cache
def theirs(name):
    kind, settings = ROWS[name]
    config = getattr(transformers, kind)(**settings)
    # The numbers of each run are the same, also those that no generator draws.
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in (*model.parameters(), *choice_biases(model)):
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("theirs")


@functools.cache
def ours(name, folder):
    theirs(name).save_pretrained(folder / name, max_shard_size="20KB")
    return load(folder / name)


@jax.jit
def logits(model, tokens):
    return model(tokens)


@functools.cache
def expected(name):
    with torch.no_grad():
        return theirs(name)(torch.as_tensor(TOKENS)).logits.numpy()


@rows
def test_logits_are_those_of_transformers(name, folder):
    found = logits(ours(name, folder), BATCH).rearrange(("batch", "pos", "vocab"))
    np.testing.assert_allclose(found.array, expected(name), atol=1e-4, rtol=1e-4)


@rows
def test_gradients_are_those_of_transformers(name, folder):
    model, other = ours(name, folder), theirs(name)
    value, gradients = jax.jit(jax.value_and_grad(lambda model: model.loss(BATCH).scalar()))(model)
    # A dynamic rope depends on the length that the model sees, and remembers the longest until it sees a short one.
    inputs, targets = torch.as_tensor(TOKENS[:, :-1]), torch.as_tensor(TOKENS[:, 1:])
    other(inputs[:, :1])
    loss = torch.nn.functional.cross_entropy(other(inputs).logits.flatten(0, 1), targets.flatten())
    np.testing.assert_allclose(value, loss.item(), rtol=1e-5)
    other.zero_grad()
    loss.backward()
    # A model whose parameters are the gradients goes the way of all models: so the keys are theirs.
    stored = [*other.parameters(), *choice_biases(other)]
    kept = [parameter.detach().clone() for parameter in stored]
    with torch.no_grad():
        for parameter in stored:
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        other.save_pretrained(folder / f"{name} gradients")
        for parameter, old in zip(stored, kept, strict=True):
            parameter.copy_(old)
    wanted = load(folder / f"{name} gradients")
    for (path, mine), its in zip(jax.tree.leaves_with_path(gradients), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(mine, its, atol=1e-4, rtol=1e-3, err_msg=jax.tree_util.keystr(path))


@rows
def test_what_is_written_is_loaded_by_transformers(name, folder, tmp_path):
    save(ours(name, folder), tmp_path, family=theirs(name).config.model_type, max_bytes=30_000)
    again, told = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(told.values()), told
    with torch.no_grad():
        found = again.eval()(torch.as_tensor(TOKENS)).logits.numpy()
    np.testing.assert_allclose(found, expected(name), atol=1e-5, rtol=1e-5)


@rows
def test_greedy_generation_is_that_of_transformers(name, folder):
    model, New = ours(name, folder), axn.Axis("new", 9)
    lengths = [13, 6]
    count = axn.named(lengths, "batch")
    found = continued(model, BATCH, count, New).rearrange(("batch", "new")).tolist()
    for row, length, tokens in zip(TOKENS, lengths, found, strict=True):
        prompt = torch.as_tensor(row[None, :length])
        mask = torch.ones_like(prompt)
        with torch.no_grad():
            theirs(name)(prompt[:, :1])
            text = theirs(name).generate(prompt, attention_mask=mask, do_sample=False, max_new_tokens=9)
        assert tokens == text[0, length:].tolist()


@functools.partial(jax.jit, static_argnames="New")
def continued(model, prompts, count, New):
    cache = model.cache(24, prompts.resolve_axis("batch"))
    return axn.nn.generate(model.extend, cache, prompts, New, count=count).tokens


def test_mxfp4_is_read_as_by_transformers(tmp_path):
    settings = {**SMALL, "num_hidden_layers": 1, "intermediate_size": 64, "num_local_experts": 3}
    config = transformers.GptOssConfig(**settings, num_experts_per_tok=2)
    model = transformers.AutoModelForCausalLM.from_config(config)
    state, rng = dict(model.state_dict()), np.random.default_rng(3)
    experts = "model.layers.0.mlp.experts"
    for name, out, given in (("gate_up_proj", 128, 32), ("down_proj", 32, 64)):
        del state[f"{experts}.{name}"]
        blocks = rng.integers(256, size=(3, out, given // 32, 16), dtype=np.uint8)
        scales = rng.integers(122, 128, size=blocks.shape[:-1], dtype=np.uint8)
        state |= {
            f"{experts}.{name}_blocks": torch.as_tensor(blocks),
            f"{experts}.{name}_scales": torch.as_tensor(scales),
        }
    safetensors.torch.save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    quantized = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (tmp_path / "config.json").write_text(json.dumps({**config.to_dict(), "quantization_config": quantized}))
    other = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path,
        dtype=torch.float32,
        attn_implementation="eager",
        quantization_config=transformers.Mxfp4Config(dequantize=True),
    )
    read = load(tmp_path)
    with torch.no_grad():
        wanted = other.eval()(torch.as_tensor(TOKENS)).logits.numpy()
    np.testing.assert_allclose(
        logits(read, BATCH).rearrange(("batch", "pos", "vocab")).array, wanted, atol=1e-4, rtol=1e-4
    )
    (block,) = load(tmp_path, dtype=jnp.bfloat16).blocks.repeated.stacked
    weights = other.model.layers[0].mlp.experts.gate_up_proj.detach().numpy()
    for layer, its in ((block.mlp.routed.gate, weights[..., ::2]), (block.mlp.routed.up, weights[..., 1::2])):
        own = layer.weight["layers", 0].rearrange(("experts", "embed", "mlp")).array
        assert own.dtype == jnp.bfloat16
        np.testing.assert_array_equal(own.astype(np.float32), its)
