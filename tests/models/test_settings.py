"""Settings of Hugging Face that files leave out, or that are null."""

import pytest

from axonym.models import ExpertsConfig, Rope, read_config

# What transformers 5.24 takes for what a `config.json` leaves out: by its configurations made without arguments.
LEFT_OUT = {
    "mistral": {"norm_eps": 1e-6, "kv_heads": 8, "window": 4096, "pattern": ("local",), "rope": Rope(1e4)},
    "mixtral": {
        "norm_eps": 1e-5,
        "kv_heads": 8,
        "window": None,
        "rope": Rope(1e6),
        "experts": ExpertsConfig(8, 2, 14336),
    },
    "qwen2": {"norm_eps": 1e-6, "kv_heads": 32, "window": None, "biases": {"qkv"}},
    "qwen2_moe": {"kv_heads": 16, "biases": {"qkv"}, "experts": ExpertsConfig(60, 4, 1408, False, 5632)},
    "qwen3": {"kv_heads": 32, "head_dim": 128, "biases": set()},
    "qwen3_moe": {"kv_heads": 4, "experts": ExpertsConfig(128, 8, 768, False)},
    "gemma2": {
        "kv_heads": 4,
        "window": 4096,
        "pattern": ("local", "global"),
        "score_cap": 50.0,
        "logit_cap": 30.0,
        "tied": True,
    },
    "gemma3_text": {
        "kv_heads": 4,
        "window": 4096,
        "pattern": ("local",) * 5 + ("global",),
        "score_cap": None,
        "logit_cap": None,
        "rope": Rope(1e6),
        "local_rope": Rope(1e4),
    },
    "llama": {"norm_eps": 1e-6, "kv_heads": 32, "tied": False, "rope": Rope(1e4)},
}
SIZES_ALONE = {
    "vocab_size": 1000,
    "num_hidden_layers": 6,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_settings_that_are_left_out_are_those_of_transformers(name):
    read = read_config({"model_type": name, **SIZES_ALONE})
    assert {field: getattr(read, field) for field in LEFT_OUT[name]} == LEFT_OUT[name]


def test_a_null_is_a_value_of_its_own():
    nulls = {"sliding_window": None, "attn_logit_softcapping": None, "final_logit_softcapping": None}
    read = read_config({"model_type": "gemma2", **SIZES_ALONE, **nulls})
    assert (read.window, read.score_cap, read.logit_cap, read.pattern) == (None, None, None, ("global",))
    read = read_config({"model_type": "mistral", **SIZES_ALONE, "num_key_value_heads": None, "head_dim": None})
    assert (read.kv_heads, read.head_dim) == (32, 128)
    assert read_config({"model_type": "qwen2_moe", **SIZES_ALONE, "qkv_bias": False}).biases == set()
