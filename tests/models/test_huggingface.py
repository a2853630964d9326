"""Files of Hugging Face: experts are joined without reading them; files without a head, and such that need more."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import axonym as axn
from axonym import state_dict as sd
from axonym.models import Decoder, DecoderConfig, load, read_config, save
from tests.nn.layouts import compiled, fails, made

CONFIG = DecoderConfig(64, 2, embed=16, mlp=32, heads=2, kv_heads=1, head_dim=8)


@pytest.mark.parametrize("tied", [True, False])
def test_files_without_a_head_are_read(tmp_path: Path, tied: bool) -> None:
    model = made(Decoder.init, dataclasses.replace(CONFIG, tied=tied))
    save(model, tmp_path)
    whole = sd.load_state_dict(tmp_path)
    # As `LlamaModel.save_pretrained` writes them.
    bare = {key.removeprefix("model."): np.array(whole[key]) for key in whole if not key.startswith("lm_head.")}
    sd.save_state_dict(bare, tmp_path / "model.safetensors")
    if tied:
        again = load(tmp_path)
    else:
        text = "the files are of a model without its head: scores of tokens are those of random weights"
        with pytest.warns(UserWarning, match=text):
            again = load(tmp_path)
        spread = again.unembedding.weight.array.std()
        assert 0.015 < spread < 0.025
        again = dataclasses.replace(again, unembedding=model.unembedding)
    for mine, its in zip(jax.tree.leaves(model.blocks), jax.tree.leaves(again.blocks), strict=True):
        np.testing.assert_array_equal(np.sort(mine, axis=None), np.sort(its, axis=None))
    tokens = axn.arange(axn.Axis("pos", 5))
    np.testing.assert_allclose(*(compiled(each, tokens).array for each in (again, model)), rtol=1e-5, atol=1e-6)


TINY = {
    "vocab_size": 64,
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "moe_intermediate_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
}


@pytest.mark.parametrize(
    ("name", "settings", "further"),
    [
        (
            "deepseek_v3",
            {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "qk_rope_head_dim": 4, "first_k_dense_replace": 1},
            "model.layers.2.eh_proj.weight",
        ),
        (
            "qwen3_next",
            {"num_experts": 4, "head_dim": 8, "linear_num_value_heads": 4, "linear_num_key_heads": 2},
            "mtp.fc.weight",
        ),
    ],
)
def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path, name: str, settings, further: str) -> None:
    model = made(Decoder.init, read_config({"model_type": name, **TINY, **settings}))
    save(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == name
    whole = sd.load_state_dict(tmp_path)
    arrays = {key: np.array(whole[key]) for key in whole}
    sd.save_state_dict({**arrays, further: np.ones((3, 3), np.float32)}, tmp_path / "model.safetensors")
    own, read = (sd.to_state_dict(each) for each in (model, load(tmp_path)))
    for key in own:
        np.testing.assert_array_equal(np.sort(own[key], axis=None), np.sort(read[key], axis=None), err_msg=key)


def test_weights_that_need_more_than_a_cast_are_refused(tmp_path: Path) -> None:
    save(made(Decoder.init, CONFIG), tmp_path, quantization_config={"quant_method": "fp8"})
    text = f"{tmp_path} is quantized, its quantization_config says quant_method='fp8': save it in bfloat16 first"
    fails(ValueError, text, lambda: load(tmp_path))
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "quantization_config": None}))
    load(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    text = f"{tmp_path} has pytorch_model.bin and no safetensors: save it with those first"
    fails(ValueError, text, lambda: load(tmp_path))
