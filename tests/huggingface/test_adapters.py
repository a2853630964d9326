"""Thin matrices in PEFT's format against `peft` on torch: logits of what it wrote, and of what it reads."""

import copy
import json
import re

import equinox as eqx
import jax
import numpy as np
import peft
import pytest
import torch
from adapters import read_adapter, write_adapter

import axonym as axn
import axonym.nn as nn
from axonym.models import load
from tests.huggingface.test_huggingface import BATCH, TOKENS, logits, theirs

# PEFT asks for a name that transformers will drop.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

ROWS = {
    "llama 3": {
        "target_modules": ["q_proj", "down_proj"],
        "r": 4,
        "lora_alpha": 12,
        "rank_pattern": {"layers.1.self_attn.q_proj": 2},
        "alpha_pattern": {"down_proj": 3},
    },
    # Several layers have one pair of matrices, or a layer has none.
    "phi3, partial": {"target_modules": ["qkv_proj", "o_proj", "gate_up_proj"], "r": 3, "use_rslora": True},
    "gpt2": {"target_modules": ["c_attn", "c_fc"], "r": 3, "layers_to_transform": [1], "fan_in_fan_out": True},
}


def scores(model):
    with torch.no_grad():
        return model.eval()(torch.as_tensor(TOKENS)).logits.numpy()


def near(model, expected):
    found = logits(model, BATCH).rearrange(("batch", "pos", "vocab")).array
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ROWS)
def test_adapters_are_those_of_peft_both_ways(name, tmp_path):
    options = {"task_type": "CAUSAL_LM", "init_lora_weights": False, **ROWS[name]}
    base, family = theirs(name), theirs(name).config.model_type
    base.save_pretrained(tmp_path / "base")
    adapted = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(**options))
    adapted.save_pretrained(tmp_path / "theirs")
    wanted, model = scores(adapted), load(tmp_path / "base")
    assert np.abs(wanted - scores(base)).max() > 0.1
    read = read_adapter(model, tmp_path / "theirs", family=family)
    near(read, wanted)
    near(nn.merge_lora(read), wanted)
    # Some layers of a fused array alone, and all layers of a stack.
    layers = ("attention.query", "attention.value", "mlp.up")
    own = nn.add_lora(model, 3, key=jax.random.key(1), alpha=5.0, where=lambda path: path.endswith(layers))
    thin, frozen = eqx.partition(own, nn.lora_filter(own))
    rng = np.random.default_rng(2)
    thin = jax.tree.map(lambda leaf: leaf + 0.3 * rng.standard_normal(leaf.shape, np.float32), thin)
    for mine in (read, eqx.combine(thin, frozen)):
        write_adapter(mine, tmp_path / "ours", family=family, base=str(tmp_path / "base"))
        near(mine, scores(peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "ours")))


def test_what_is_not_read_is_an_error(tmp_path):
    theirs("llama 3").save_pretrained(tmp_path / "base")
    model, file = load(tmp_path / "base"), tmp_path / "adapter_config.json"
    write_adapter(nn.add_lora(model, 2, key=jax.random.key(0)), tmp_path)
    settings = json.loads(file.read_text())
    for changes, text in [
        ({"use_dora": True}, f"{file} says use_dora=True, but only what is off is read"),
        ({"modules_to_save": ["lm_head"]}, f"{file} says modules_to_save=['lm_head'], but only what is off is read"),
        ({"bias": "all"}, f"{file} says bias='all', but only 'none' is read"),
        (
            {"init_lora_weights": "pissa"},
            f"{file} says init_lora_weights='pissa', but only True or False or 'gaussian'",
        ),
        (
            {"r": 3},
            f"{tmp_path}: model.layers.0.self_attn.q_proj has matrices of shapes (2, 32) and (64, 2), but the rank 3",
        ),
    ]:
        file.write_text(json.dumps({**settings, **changes}))
        with pytest.raises(ValueError, match=re.escape(text)):
            read_adapter(model, tmp_path)
    file.write_text(json.dumps(settings))
    state = dict(axn.state_dict.load_state_dict(tmp_path / "adapter_model.safetensors"))
    array = np.zeros((2, 32), np.float32)
    for key, text in [
        (
            "base_model.model.lm_head.weight",
            "has base_model.model.lm_head.weight, which is no matrix of a linear layer",
        ),
        ("base_model.model.model.norm.lora_A.weight", "model.norm has matrices of shapes (2, 32) and ()"),
    ]:
        axn.state_dict.save_state_dict({**state, key: array}, tmp_path / "adapter_model.safetensors")
        with pytest.raises(ValueError, match=re.escape(text)):
            read_adapter(model, tmp_path)
    with pytest.raises(ValueError, match="the model has no thin matrices"):
        write_adapter(model, tmp_path)
