"""Configurations of Hugging Face, as published: with the numbers of parameters that their models have."""

import dataclasses
import math

import equinox as eqx
import jax
import pytest

import axonym as axn
import axonym.nn as nn
from axonym.models import Decoder, DecoderConfig, ExpertsConfig, Rope, read_config, write_config
from tests.nn.layouts import fails

LLAMA = {"model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": False}
QWEN = {"hidden_act": "silu", "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 24}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "head_dim": 256, "query_pre_attn_scalar": 256}


def sizes(vocab, layers, embed, mlp, heads, kv_heads, positions, eps):
    return {
        "vocab_size": vocab,
        "num_hidden_layers": layers,
        "hidden_size": embed,
        "intermediate_size": mlp,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
        "rms_norm_eps": eps,
    }


LLAMA3_SCALING = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
PUBLISHED = {
    "gpt2": (
        124_439_808,
        {
            "model_type": "gpt2",
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "n_positions": 1024,
            "vocab_size": 50257,
        },
    ),
    "Llama-2-7b": (6_738_415_616, {**LLAMA, **sizes(32000, 32, 4096, 11008, 32, 32, 4096, 1e-5), "rope_scaling": None}),
    "Llama-3.1-8B": (
        8_030_261_248,
        {
            **LLAMA,
            **sizes(128256, 32, 4096, 14336, 32, 8, 131072, 1e-5),
            "rope_theta": 500000.0,
            "rope_scaling": LLAMA3_SCALING,
        },
    ),
    "Mistral-7B-v0.1": (
        7_241_732_096,
        {"model_type": "mistral", **sizes(32000, 32, 4096, 14336, 32, 8, 32768, 1e-5), "sliding_window": 4096},
    ),
    "Qwen2.5-0.5B": (
        494_032_768,
        {
            "model_type": "qwen2",
            **QWEN,
            **sizes(151936, 24, 896, 4864, 14, 2, 32768, 1e-6),
            "rope_theta": 1e6,
            "tie_word_embeddings": True,
        },
    ),
    "Qwen3-0.6B": (
        596_049_920,
        {
            "model_type": "qwen3",
            **QWEN,
            **sizes(151936, 28, 1024, 3072, 16, 8, 40960, 1e-6),
            "head_dim": 128,
            "rope_theta": 1e6,
            "tie_word_embeddings": True,
        },
    ),
    "gemma-2-2b": (
        2_614_341_888,
        {
            "model_type": "gemma2",
            **GEMMA,
            **sizes(256000, 26, 2304, 9216, 8, 4, 8192, 1e-6),
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "sliding_window": 4096,
        },
    ),
    "gemma-3-1b": (
        999_885_952,
        {
            "model_type": "gemma3_text",
            **GEMMA,
            **sizes(262144, 26, 1152, 6912, 4, 1, 32768, 1e-6),
            "sliding_window": 512,
            "sliding_window_pattern": 6,
            "rope_theta": 1000000,
            "rope_local_base_freq": 10000,
        },
    ),
    "Mixtral-8x7B-v0.1": (
        46_702_792_704,
        {
            "model_type": "mixtral",
            **sizes(32000, 32, 4096, 14336, 32, 8, 32768, 1e-5),
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "rope_theta": 1000000.0,
            "sliding_window": None,
        },
    ),
    "Qwen3-30B-A3B": (
        30_532_122_624,
        {
            "model_type": "qwen3_moe",
            **sizes(151936, 48, 2048, 6144, 32, 4, 40960, 1e-6),
            "head_dim": 128,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
            "rope_theta": 1000000.0,
        },
    ),
    "Qwen1.5-MoE-A2.7B": (
        14_315_784_192,
        {
            "model_type": "qwen2_moe",
            **QWEN,
            **sizes(151936, 24, 2048, 5632, 16, 16, 8192, 1e-6),
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "norm_topk_prob": False,
            "rope_theta": 1000000.0,
        },
    ),
}
GPT_OSS_ROPE = {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096}
# Further forms of decoders, which other tests of published models leave out.
FORMS = {
    "pythia-160m": (
        162_322_944,
        {
            "model_type": "gpt_neox",
            **sizes(50304, 12, 768, 3072, 12, 12, 2048, 1e-5),
            "rotary_pct": 0.25,
            "rotary_emb_base": 10000,
        },
    ),
    "gpt-oss-20b": (
        20_914_757_184,
        {
            "model_type": "gpt_oss",
            **sizes(201088, 24, 2880, 2880, 64, 8, 131072, 1e-5),
            "head_dim": 64,
            "layer_types": ["sliding_attention", "full_attention"] * 12,
            "num_local_experts": 32,
            "rope_scaling": {**GPT_OSS_ROPE, "beta_fast": 32.0, "beta_slow": 1.0},
            "rope_theta": 150000,
            "sliding_window": 128,
            "swiglu_limit": 7.0,
        },
    ),
    "SmolLM3-3B": (
        3_075_098_624,
        {
            "model_type": "smollm3",
            **sizes(128256, 36, 2048, 11008, 16, 4, 65536, 1e-6),
            "rope_theta": 5000000.0,
            "no_rope_layers": [1, 1, 1, 0] * 9,
        },
    ),
    "granite-3.0-2b": (
        2_533_531_648,
        {
            "model_type": "granite",
            **sizes(49155, 40, 2048, 8192, 32, 8, 4096, 1e-5),
            "attention_multiplier": 0.015625,
            "embedding_multiplier": 12.0,
            "logits_scaling": 8.0,
            "residual_multiplier": 0.22,
            "tie_word_embeddings": True,
        },
    ),
    "Phi-4-mini": (
        3_836_021_760,
        {
            "model_type": "phi3",
            **sizes(200064, 32, 3072, 8192, 24, 8, 131072, 1e-5),
            "partial_rotary_factor": 0.75,
            "sliding_window": 262144,
            "tie_word_embeddings": True,
        },
    ),
    "OLMo-2-1124-7B": (
        7_298_617_344,
        {"model_type": "olmo2", **sizes(100352, 32, 4096, 11008, 32, 32, 4096, 1e-6), "rope_theta": 500000},
    ),
    "gemma-2b": (
        2_506_172_416,
        {"model_type": "gemma", **sizes(256000, 18, 2048, 16384, 8, 1, 8192, 1e-6), "hidden_act": "gelu"},
    ),
}
# Layers of several kinds; the numbers are those of transformers, with the biases of the choice of experts.
MIXED = {
    "DeepSeek-V3": (
        671_026_419_200,
        {
            "model_type": "deepseek_v3",
            **sizes(129280, 61, 7168, 18432, 128, 128, 163840, 1e-6),
            "rope_scaling": {
                "type": "yarn",
                "factor": 40,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
            },
        },
    ),
    "Qwen3-Next-80B-A3B": (
        79_674_391_296,
        {
            "model_type": "qwen3_next",
            **sizes(151936, 48, 2048, 5120, 16, 2, 262144, 1e-6),
            "head_dim": 256,
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "full_attention_interval": 4,
        },
    ),
}
PUBLISHED_ALL = {**PUBLISHED, **FORMS, **MIXED}
published = pytest.mark.parametrize("name", PUBLISHED_ALL)


@published
def test_published_models_have_their_numbers_of_parameters(name):
    count, settings = PUBLISHED_ALL[name]
    model = eqx.filter_eval_shape(Decoder.init, read_config(settings), key=jax.random.key(0))
    assert axn.parameters.count(model) == count


@pytest.mark.parametrize("name", {**PUBLISHED, **FORMS})
def test_every_axis_of_a_published_model_has_a_role(name):
    _, settings = PUBLISHED_ALL[name]
    model = eqx.filter_eval_shape(Decoder.init, read_config(settings), key=jax.random.key(0))
    inputs = {"out": {"kv_heads", "group", "head_dim"}, "down": {"mlp"}, "embedding": {"vocab"}, "positions": {"pos"}}
    for own in axn.parameters.walk(model):
        *_, layer, field = own.path.split(".")
        owner = layer.removeprefix("un")
        is_vector = field in ("bias", "sinks") or layer.endswith("norm")
        kind = "shift" if field == "bias" else "scale" if is_vector else "matrix"
        assert own.kind == ("table" if owner in ("embedding", "positions") else kind)
        stacks = {"layers", "experts"} & {*own.sizes}
        summed = set() if is_vector else inputs.get(owner, {"embed"})
        assert {*own.list_axes("stack", "expert")} == stacks
        assert {*own.list_axes("input", "table")} == summed
        assert {*own.list_axes("output")} == {*own.sizes} - stacks - summed
        assert {*own.heads} == {"kv_heads", "group"} & {*own.sizes}


@published
def test_what_is_written_reads_the_same(name):
    config = read_config(PUBLISHED_ALL[name][1])
    written = write_config(config)
    assert written["model_type"] == PUBLISHED_ALL[name][1]["model_type"]
    assert read_config(written) == config


def test_settings_that_are_told_in_words():
    llama = read_config(PUBLISHED["Llama-3.1-8B"][1])
    assert llama.rope == Rope(500000.0, nn.Llama3Scaling(8.0, 1.0, 4.0, 8192))
    gemma = read_config(PUBLISHED["gemma-3-1b"][1])
    assert gemma.pattern == ("local",) * 5 + ("global",)
    assert (gemma.window, gemma.rope, gemma.local_rope) == (512, Rope(1e6), Rope(1e4))
    assert read_config(PUBLISHED["gemma-2-2b"][1]).pattern == ("local", "global")
    mistral = read_config(PUBLISHED["Mistral-7B-v0.1"][1])
    assert (mistral.window, mistral.pattern) == (4096, ("local",))
    qwen = read_config(PUBLISHED["Qwen2.5-0.5B"][1])
    assert (qwen.window, qwen.pattern) == (None, ("global",))
    upper = read_config(PUBLISHED["Qwen2.5-0.5B"][1] | {"use_sliding_window": True, "max_window_layers": 20})
    assert upper.pattern == ("global",) * 20 + ("local",) * 4
    assert read_config(PUBLISHED["Qwen3-30B-A3B"][1]).experts == ExpertsConfig(128, 8, 768)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"model_type": "bert"},
            "unknown model_type 'bert'; known: gpt2, llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, "
            "qwen3_next, deepseek_v3, gpt_oss, granite, gpt_neox, smollm3, phi3, olmo2, gemma, gemma2, gemma3_text",
        ),
        (
            {"rope_scaling": {"type": "axial"}},
            "unknown rope_type 'axial'; known: default, linear, dynamic, llama3, yarn, longrope",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor=0.5 is not supported, only 1.0",
        ),
        ({"hidden_act": "relu"}, "unknown activation 'relu'; known: silu, gelu, gelu_pytorch_tanh, gelu_new"),
        ({"hidden_size": None, "vocab_size": None}, "config.json of a llama lacks vocab_size, hidden_size"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "config.json of a llama lacks low_freq_factor"),
        (
            {"model_type": "gemma", "use_bidirectional_attention": True},
            "use_bidirectional_attention=True is not supported, only None",
        ),
    ],
)
def test_what_the_decoder_lacks_is_an_error(changes, text):
    settings = {**PUBLISHED["Llama-2-7b"][1], **changes}
    fails(ValueError, text, lambda: read_config(settings))


def test_a_configuration_of_no_family_is_an_error():
    config = dataclasses.replace(DecoderConfig(), gated=False, logit_cap=20.0)
    fails(
        ValueError,
        "no family of Hugging Face has this configuration; the nearest, llama, differs in: gated=False, logit_cap=20.0",
        lambda: write_config(config),
    )
    fails(
        ValueError,
        "gemma2 has no words for this configuration, and differs in: gated=False",
        lambda: write_config(
            dataclasses.replace(config, norm="shifted", norm_places="both", embed_scale=math.sqrt(2048)), "gemma2"
        ),
    )


def test_how_a_model_is_trained_is_no_part_of_its_settings():
    config = dataclasses.replace(DecoderConfig(), dropout=0.1, checkpointing=False)
    # Files have the outputs of linear layers first, whatever the order here.
    assert read_config(write_config(config)) == DecoderConfig(out_first=True)
