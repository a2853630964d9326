"""Folders of examples/lm as vLLM reads them: its files, its parameters, and which parts of the files fill them.

The loaders are written down from vLLM: `filter_duplicate_safetensors_files` in model_loader/weight_utils.py, and
`load_weights` in models/llama.py and models/mixtral.py.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from axonym.models import Decoder, DecoderConfig, ExpertsConfig, save

SIZES: dict[str, Any] = {"vocab": 96, "layers": 2, "embed": 32, "mlp": 48, "heads": 4, "kv_heads": 2, "head_dim": 16}
CONFIGS = {
    "LlamaForCausalLM": DecoderConfig(**SIZES),
    "Qwen3ForCausalLM": DecoderConfig(**SIZES, head_norms="each", tied=True),
    "MixtralForCausalLM": DecoderConfig(**SIZES, experts=ExpertsConfig(count=3, chosen=2, mlp=48)),
}
JOINED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


def weights(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what is in the files that the index lists, or in all where there is no index."""
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.exists():
        listed = set(json.loads(index.read_text())["weight_map"].values())
        files = [file for file in files if file.name in listed]
    for file in files:
        with safe_open(file, framework="numpy") as opened:
            assert opened.metadata()["format"] == "pt"
            for key in opened.keys():  # noqa: SIM118  # it is no mapping
                yield key, opened.get_tensor(key)


def parameters(settings: dict[str, Any]) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Return the parameters that vLLM makes of a configuration: the parts in a file of each, with their shapes."""
    embed, mlp, head = settings["hidden_size"], settings["intermediate_size"], settings["head_dim"]
    queries, keys = settings["num_attention_heads"] * head, settings["num_key_value_heads"] * head
    found: dict[str, list[tuple[str, tuple[int, ...]]]] = {}

    def add(name: str, *shapes: tuple[int, ...]) -> None:
        (stem, last) = name.rsplit(".", 1) if "." in name else ("", name)
        parts = JOINED.get(last, (last,))
        found[name] = [(f"{stem}.{part}.weight".lstrip("."), each) for part, each in zip(parts, shapes, strict=True)]

    add("model.embed_tokens", (settings["vocab_size"], embed))
    add("model.norm", (embed,))
    if not settings["tie_word_embeddings"]:
        add("lm_head", (settings["vocab_size"], embed))
    for i in range(settings["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        add(f"{layer}.input_layernorm", (embed,))
        add(f"{layer}.post_attention_layernorm", (embed,))
        add(f"{layer}.self_attn.qkv_proj", (queries, embed), (keys, embed), (keys, embed))
        add(f"{layer}.self_attn.o_proj", (embed, queries))
        if settings["model_type"] == "qwen3":
            add(f"{layer}.self_attn.q_norm", (head,))
            add(f"{layer}.self_attn.k_norm", (head,))
        if settings["model_type"] == "mixtral":
            add(f"{layer}.block_sparse_moe.gate", (settings["num_local_experts"], embed))
            for expert in range(settings["num_local_experts"]):
                name = f"{layer}.block_sparse_moe.experts.{expert}"
                add(f"{name}.w1", (mlp, embed))
                add(f"{name}.w2", (embed, mlp))
                add(f"{name}.w3", (mlp, embed))
        else:
            add(f"{layer}.mlp.gate_up_proj", (mlp, embed), (mlp, embed))
            add(f"{layer}.mlp.down_proj", (embed, mlp))
    return found


def bfloat16(model: Decoder) -> Decoder:
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), model)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_files_fill_the_parameters_of_vllm(architecture: str, tmp_path: Path) -> None:
    model = bfloat16(Decoder.init(CONFIGS[architecture], key=jax.random.key(0)))
    # An earlier save in the same place must not be read with this one.
    save(bfloat16(Decoder.init(CONFIGS[architecture], key=jax.random.key(1))), tmp_path, max_bytes=7_000)
    save(model, tmp_path, max_bytes=10_000)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["architectures"] == [architecture]
    assert settings["dtype"] == "bfloat16"

    read = list(weights(tmp_path))
    state = dict(read)
    assert len(read) == len(state)
    assert all(x.dtype == ml_dtypes.bfloat16 for x in state.values())
    wanted = [part for parts in parameters(settings).values() for part in parts]
    assert {name: x.shape for name, x in state.items()} == dict(wanted)
    assert sum(math.prod(shape) for _, shape in wanted) == sum(x.size for x in jax.tree.leaves(model))

    # Grouped queries: query head i has the key i // (heads / kv_heads), which is named by (kv_heads, group).
    (block,) = model.blocks.repeated.stacked
    query = block.attention.query.weight["layers", 1].rearrange(("kv_heads", "group", "head_dim", "embed"))
    expected = np.asarray(query).reshape(64, 32)
    np.testing.assert_array_equal(state["model.layers.1.self_attn.q_proj.weight"], expected)
    np.testing.assert_array_equal(state["model.embed_tokens.weight"], np.asarray(model.embedding.weight))


def test_names_of_files_are_those_that_vllm_looks_for(tmp_path: Path) -> None:
    model = Decoder.init(CONFIGS["LlamaForCausalLM"], key=jax.random.key(0))
    save(model, tmp_path / "one")
    assert [file.name for file in (tmp_path / "one").glob("*.safetensors")] == ["model.safetensors"]
    save(model, tmp_path / "several", max_bytes=10_000)
    names = [file.name for file in (tmp_path / "several").glob("*.safetensors")]
    assert len(names) > 1
    assert all(re.fullmatch(r"model-\d{5}-of-\d{5}\.safetensors", name) for name in names)
