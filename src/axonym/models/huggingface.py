"""Checkpoints of Hugging Face: folders with a `config.json` and safetensors files, read and written."""

import dataclasses
import json
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.typing import DTypeLike
from numpy.typing import NDArray

from .. import nn, state_dict as sd
from ..layout.assignment import ResourceMapping
from ..quant import decode_mxfp4
from ..state_dict.fused import Fusion, combine, join_fused, split_fused
from .config import DecoderConfig
from .decoder import Attention, Decoder
from .files import read_json
from .settings import read_config, write_config

# From parts of our keys to parts of theirs. A star stands for the number of an expert.
LLAMA = {
    "embedding": "model.embed_tokens",
    "blocks": "model.layers",
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
    "norm": "model.norm",
    "unembedding": "lm_head",
}
GEMMA = {
    **LLAMA,
    "attention_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}
QWEN_MOE = {
    **LLAMA,
    "mlp.routed.router": "mlp.gate",
    "mlp.routed": "mlp.experts.*",
    "mlp.shared": "mlp.shared_expert",
    "mlp.shared_gate": "mlp.shared_expert_gate",
}
DEEPSEEK = {
    **QWEN_MOE,
    "mlp.routed.choice_bias": "mlp.gate.e_score_correction_bias",
    "mlp.shared": "mlp.shared_experts",
    "attention.query_latent": "self_attn.q_a_proj",
    "attention.query_norm": "self_attn.q_a_layernorm",
    "attention.query": "self_attn.q_b_proj.0",
    "attention.rotary_query": "self_attn.q_b_proj.1",
    "attention.latent": "self_attn.kv_a_proj_with_mqa.0",
    "attention.latent_norm": "self_attn.kv_a_layernorm",
    "attention.rotary_key": "self_attn.kv_a_proj_with_mqa.1",
    "attention.key": "self_attn.kv_b_proj.0",
    "attention.value": "self_attn.kv_b_proj.1",
}
# Where queries have no latent.
SHORT = {"attention.query": "self_attn.q_proj.0", "attention.rotary_query": "self_attn.q_proj.1"}
QWEN_NEXT = {
    **QWEN_MOE,
    "attention.query": "self_attn.q_proj.0",
    "attention.gate": "self_attn.q_proj.1",
    "delta.query": "linear_attn.in_proj_qkvz.0",
    "delta.key": "linear_attn.in_proj_qkvz.1",
    "delta.value": "linear_attn.in_proj_qkvz.2",
    "delta.gate": "linear_attn.in_proj_qkvz.3",
    "delta.strength": "linear_attn.in_proj_ba.0",
    "delta.forget": "linear_attn.in_proj_ba.1",
    "delta.convs": "linear_attn.conv1d",
    "delta.decay.log_rate": "linear_attn.A_log",
    "delta.decay.bias": "linear_attn.dt_bias",
    "delta.norm": "linear_attn.norm",
    "delta.out": "linear_attn.out_proj",
}
MIXTRAL = {
    **LLAMA,
    "mlp.routed.router": "block_sparse_moe.gate",
    "mlp.routed.gate": "block_sparse_moe.experts.*.w1",
    "mlp.routed.up": "block_sparse_moe.experts.*.w3",
    "mlp.routed.down": "block_sparse_moe.experts.*.w2",
}
GPT_OSS = {
    **LLAMA,
    "attention.sinks": "self_attn.sinks",
    "mlp.routed.router": "mlp.router",
    "mlp.routed.gate.weight": "mlp.experts.gate_up_proj.0",
    "mlp.routed.gate.bias": "mlp.experts.gate_up_proj_bias.0",
    "mlp.routed.up.weight": "mlp.experts.gate_up_proj.1",
    "mlp.routed.up.bias": "mlp.experts.gate_up_proj_bias.1",
    "mlp.routed.down.weight": "mlp.experts.down_proj",
    "mlp.routed.down.bias": "mlp.experts.down_proj_bias",
}
GPT2 = {
    "embedding": "transformer.wte",
    "positions": "transformer.wpe",
    "blocks": "transformer.h",
    "attention_norm": "ln_1",
    "attention.query": "attn.c_attn.0",
    "attention.key": "attn.c_attn.1",
    "attention.value": "attn.c_attn.2",
    "attention.out": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
    "norm": "transformer.ln_f",
    "unembedding": "lm_head",
}
NEOX = {
    **LLAMA,
    "embedding": "gpt_neox.embed_in",
    "blocks": "gpt_neox.layers",
    "attention.query": "attention.query_key_value.0",
    "attention.key": "attention.query_key_value.1",
    "attention.value": "attention.query_key_value.2",
    "attention.out": "attention.dense",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
    "norm": "gpt_neox.final_layer_norm",
}
OLMO2 = {
    **LLAMA,
    "attention_post_norm": "post_attention_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}
PHI3 = {
    **LLAMA,
    "attention.query": "self_attn.qkv_proj.0",
    "attention.key": "self_attn.qkv_proj.1",
    "attention.value": "self_attn.qkv_proj.2",
    "mlp.gate": "mlp.gate_up_proj.0",
    "mlp.up": "mlp.gate_up_proj.1",
}
KEYS = {
    "gpt2": GPT2,
    "gpt_oss": GPT_OSS,
    "gpt_neox": NEOX,
    "phi3": PHI3,
    "olmo2": OLMO2,
    "gemma2": GEMMA,
    "gemma3_text": GEMMA,
    "mixtral": MIXTRAL,
    "deepseek_v3": DEEPSEEK,
    "qwen3_next": QWEN_NEXT,
    "qwen2_moe": QWEN_MOE,
    "qwen3_moe": QWEN_MOE,
}


def find_keys(name: str, config: DecoderConfig) -> Mapping[str, str]:
    """Return the table from parts of our keys to parts of those of a family."""
    is_short = config.latent is not None and config.latent.queries is None
    return KEYS.get(name, LLAMA) | (SHORT if is_short else {})


# Some weights are stored as (in, out), and the heads of sinks as one dimension.
LAYOUTS: dict[str, Mapping[type, sd.Layout]] = {
    "gpt2": {nn.Linear: sd.in_first},
    "gpt_oss": {
        nn.MoELinear: sd.in_first,
        Attention: lambda layer: {"sinks": sd.Stored((("kv_heads", "group"),))},
    },
}


def find_fusions(name: str, cfg: DecoderConfig) -> tuple[Fusion, ...]:
    """Return which layers are joined in one array in files of a family."""
    width, keys = cfg.heads * cfg.head_dim, cfg.kv_heads * cfg.head_dim
    if name == "gpt2":
        return (Fusion("attn.c_attn", (width, keys, keys), axis=-1),)
    if name == "gpt_neox":
        return (Fusion("attention.query_key_value", 3 * (cfg.head_dim,), cfg.heads),)
    if name == "phi3":
        gates = Fusion("mlp.gate_up_proj", (cfg.mlp, cfg.mlp))
        return Fusion("self_attn.qkv_proj", (width, keys, keys)), gates
    if cfg.delta is not None:
        memory, group = cfg.delta, cfg.delta.heads // cfg.delta.key_heads
        one, values = memory.key_heads * memory.key_dim, group * memory.value_dim
        parts = memory.key_dim, memory.key_dim, values, values
        return (
            Fusion("self_attn.q_proj", (cfg.head_dim, cfg.head_dim), cfg.heads),
            Fusion("linear_attn.in_proj_qkvz", parts, memory.key_heads),
            Fusion("linear_attn.in_proj_ba", (group, group), memory.key_heads),
            Fusion("linear_attn.conv1d", (one, one, memory.key_heads * values)),
        )
    if name == "gpt_oss" and cfg.experts is not None:
        # Gates and what they multiply take turns; MXFP4 has outputs before inputs.
        ends, turns = {"": -1, "_bias": -1, "_blocks": 1, "_scales": 1}, ((1, 1), cfg.experts.mlp)
        return tuple(Fusion(f"experts.gate_up_proj{end}", *turns, ends[end]) for end in ends)
    if cfg.latent is not None:
        queries = (cfg.head_dim, cfg.latent.rotary), cfg.heads
        return (
            Fusion("self_attn.q_proj", *queries),
            Fusion("self_attn.q_b_proj", *queries),
            Fusion("self_attn.kv_a_proj_with_mqa", (cfg.latent.keys, cfg.latent.rotary)),
            Fusion("self_attn.kv_b_proj", (cfg.head_dim, cfg.latent.values), cfg.heads),
        )
    return ()


# What files hold besides parameters: masks, frequencies of rotary positions, and layers that predict further tokens.
NO_PARAMETERS = re.compile(
    r".*\.((attn|attention)\.(masked_)?bias|rotary_emb\.inv_freq)|(model\.)?mtp\..*"
)


def load(
    folder: str | os.PathLike[str],
    mapping: ResourceMapping | None = None,
    mesh: jax.sharding.Mesh | None = None,
    dtype: DTypeLike | None = None,
    *,
    dropout: float | None = None,
    check: bool = False,
) -> Decoder:
    """Read a model; each device reads its part of each array.

    Args:
        folder: with `config.json` and `model.safetensors`, or several such files and their index.
        mapping: lays out the parameters.
        mesh: by default the mesh of `axn.set_mesh`.
        dtype: of the parameters; by default as in the file.
        dropout: the probability of dropping; by default as in the file.
        check: compare all arrays with their checksums, which files of `save` have.

    Raises:
        ValueError: if the model is of an unknown family or quantized, or files do not fit its configuration.

    Examples:
        >>> import tempfile
        >>> from axonym.models import Decoder, DecoderConfig, load, save
        >>> config = DecoderConfig(64, 2, embed=16, mlp=32, heads=2, kv_heads=1, head_dim=8)
        >>> model = Decoder.init(config, key=jax.random.key(0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(model, folder)
        ...     load(folder).embedding.weight.names
        ('vocab', 'embed')
    """
    folder = Path(folder)
    settings = read_json(folder / "config.json")
    config, name = read_config(settings), settings["model_type"]
    method = read_method(folder, settings)
    if dropout is not None:
        config = dataclasses.replace(config, dropout=dropout)
    keys = find_keys(name, config)
    root = keys["embedding"].split(".")[0] + "."
    files = find_parameters(sd.load_state_dict(folder, check=check), config, root)
    state = split_fused(files, find_fusions(name, config))
    if method == "mxfp4":  # with outputs before inputs, as only these are
        state = combine(
            state, ("_blocks", "_scales"), lambda *both: decode_mxfp4(*both).swapaxes(-1, -2)
        )
    kept = dtype or next(state.spec(key).dtype for key in state)
    template = eqx.filter_eval_shape(Decoder.init, config, key=jax.random.key(0))
    template = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, kept), template)
    model: Decoder = sd.from_torch_compatible_state_dict(
        template,
        state,
        rename=keys,
        layouts=LAYOUTS.get(name, {}),
        cast=True,
        mapping=mapping,
        mesh=mesh,
    )
    return model


def read_method(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Return how weights are quantized, if at all; refuse unknown methods, and file formats that run programs."""
    quantized = settings.get("quantization_config")
    method = quantized.get("quant_method", "unknown") if quantized else None
    if method not in (None, "mxfp4"):
        problem = f"{folder} is quantized, its quantization_config says quant_method={method!r}"
        raise ValueError(f"{problem}: save it in bfloat16 first")
    pickles = sorted(file.name for file in folder.glob("pytorch_model*.bin"))
    if pickles and not any(folder.glob("*.safetensors")):
        raise ValueError(f"{folder} has {pickles[0]} and no safetensors: save it with those first")
    return method


def save(
    model: Decoder,
    folder: str | os.PathLike[str],
    *,
    family: str | None = None,
    max_bytes: int = 5_000_000_000,
    **settings: Any,
) -> None:
    """Write a model as Hugging Face does.

    Args:
        model: the model.
        folder: is made if need be.
        family: the `model_type` of the files, such as "llama"; by default the first that has words for all of the
            configuration.
        max_bytes: the most that one file holds.
        settings: further settings for `config.json`, such as `eos_token_id`. Special tokens that are not given are
            null: what a file leaves out, Hugging Face takes from the first models of the family.

    Raises:
        ValueError: if no family of Hugging Face, or not the given one, has such a configuration.
    """
    folder, config = Path(folder), write_config(model.config, family)
    name = config["model_type"]
    dtype = str(model.embedding.weight.dtype)
    folder.mkdir(parents=True, exist_ok=True)
    state = sd.to_torch_compatible_state_dict(
        model, rename=find_keys(name, model.config), layouts=LAYOUTS.get(name, {})
    )
    sd.save_state_dict(
        join_fused(state, find_fusions(name, model.config)),
        folder / "model.safetensors",
        max_bytes=max_bytes,
    )
    if jax.process_index() == 0:
        nulls = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
        written = {**config, "dtype": dtype, **nulls, **settings}
        (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n")


def find_parameters(
    files: Mapping[str, NDArray[Any]], config: DecoderConfig, root: str
) -> dict[str, NDArray[Any]]:
    """Return the parameters of files by the keys of the tables."""
    found: dict[str, NDArray[Any]] = {}
    # Files of a model without its head have no root.
    rooted = any(key.startswith(root) for key in files)
    for stored, array in files.items():
        key = re.sub(r"^embed_out\.", "lm_head.", stored)
        if not rooted and not key.startswith("lm_head."):
            key = root + stored
        if config.latent is not None and key.startswith(f"{root}layers.{config.layers}."):
            continue  # DeepSeek counts the layers that predict further tokens among the others
        if not NO_PARAMETERS.fullmatch(key) and not (config.tied and key.startswith("lm_head.")):
            found[key] = array
    if not rooted and not config.tied and "lm_head.weight" not in found:
        told = "the files are of a model without its head: scores of tokens are those of random weights"
        warnings.warn(told, stacklevel=3)
        head = np.random.default_rng(0).standard_normal((config.vocab, config.embed), np.float32)
        found["lm_head.weight"] = (0.02 * head).astype(next(iter(files.values())).dtype)
    return found
