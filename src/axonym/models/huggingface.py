"""Checkpoints of Hugging Face: folders with a `config.json` and safetensors files, read and written."""

import dataclasses
import functools
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.typing import DTypeLike
from numpy.typing import NDArray

from .. import nn, state_dict as sd
from ..layout.assignment import ResourceMapping
from .config import DecoderConfig
from .decoder import Decoder
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
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
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
    "mlp.routed.gate": "mlp.experts.*.gate_proj",
    "mlp.routed.up": "mlp.experts.*.up_proj",
    "mlp.routed.down": "mlp.experts.*.down_proj",
    "mlp.shared.gate": "mlp.shared_expert.gate_proj",
    "mlp.shared.up": "mlp.shared_expert.up_proj",
    "mlp.shared.down": "mlp.shared_expert.down_proj",
    "mlp.shared_gate": "mlp.shared_expert_gate",
}
DEEPSEEK = {
    **QWEN_MOE,
    "mlp.routed.choice_bias": "mlp.gate.e_score_correction_bias",
    "mlp.shared": "mlp.shared_experts",
    "mlp.shared.gate": "mlp.shared_experts.gate_proj",
    "mlp.shared.up": "mlp.shared_experts.up_proj",
    "mlp.shared.down": "mlp.shared_experts.down_proj",
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
MIXTRAL = {
    **LLAMA,
    "mlp.routed.router": "block_sparse_moe.gate",
    "mlp.routed.gate": "block_sparse_moe.experts.*.w1",
    "mlp.routed.up": "block_sparse_moe.experts.*.w3",
    "mlp.routed.down": "block_sparse_moe.experts.*.w2",
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
    "embedding": "gpt_neox.embed_in",
    "blocks": "gpt_neox.layers",
    "attention_norm": "input_layernorm",
    "attention.query": "attention.query_key_value.0",
    "attention.key": "attention.query_key_value.1",
    "attention.value": "attention.query_key_value.2",
    "attention.out": "attention.dense",
    "mlp_norm": "post_attention_layernorm",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
    "norm": "gpt_neox.final_layer_norm",
    "unembedding": "lm_head",
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
    "gpt_neox": NEOX,
    "phi3": PHI3,
    "olmo2": OLMO2,
    "gemma2": GEMMA,
    "gemma3_text": GEMMA,
    "mixtral": MIXTRAL,
    "deepseek_v3": DEEPSEEK,
    "qwen2_moe": QWEN_MOE,
    "qwen3_moe": QWEN_MOE,
}


def find_keys(name: str, config: DecoderConfig) -> Mapping[str, str]:
    """Return the table from parts of our keys to parts of those of a family."""
    is_short = config.latent is not None and config.latent.queries is None
    return KEYS.get(name, LLAMA) | (SHORT if is_short else {})


# GPT-2 stores weights as (in, out).
LAYOUTS: dict[str, Mapping[type, sd.Layout]] = {"gpt2": {nn.Linear: sd.in_first}}


class Fusion(NamedTuple):
    """Layers whose arrays lie side by side in one array of a file, `KEY.weight`.

    The parts have the keys `KEY.0.weight`, `KEY.1.weight` and so on.

    Attributes:
        key: the end of the key.
        sizes: the size of each part of a head, a function of the configuration.
        heads: the number of heads, if the parts of each one lie side by side: a function of the configuration.
        axis: along which they lie.
    """

    key: str
    sizes: Callable[[DecoderConfig], tuple[int, ...]]
    heads: Callable[[DecoderConfig], int] = lambda cfg: 1
    axis: int = 0

    def split(self, array: NDArray[Any], config: DecoderConfig, part: int) -> NDArray[Any]:
        """Return a part."""
        first, last = np.cumsum((0, *self.sizes(config)))[part : part + 2]
        own = self._by_head(array, config)[:, first:last]
        return np.moveaxis(own.reshape(-1, *own.shape[2:]), 0, self.axis)

    def join(self, parts: Sequence[NDArray[Any]], config: DecoderConfig) -> NDArray[Any]:
        """Return the array of all parts."""
        whole = np.concatenate([self._by_head(part, config) for part in parts], axis=1)
        return np.moveaxis(whole.reshape(-1, *whole.shape[2:]), 0, self.axis)

    def _by_head(self, array: NDArray[Any], config: DecoderConfig) -> NDArray[Any]:
        """Return a view whose first dimensions are heads and what lies side by side in each."""
        first = np.moveaxis(array, self.axis, 0)
        return first.reshape(self.heads(config), -1, *first.shape[1:])


def _sizes_of_heads(cfg: DecoderConfig) -> tuple[int, ...]:
    return (cfg.heads * cfg.head_dim, *2 * (cfg.kv_heads * cfg.head_dim,))


FUSIONS = {
    "gpt_neox": (
        Fusion("attention.query_key_value", lambda cfg: 3 * (cfg.head_dim,), lambda cfg: cfg.heads),
    ),
    "deepseek_v3": (
        *(
            Fusion(
                f"self_attn.{key}",
                lambda cfg: (cfg.head_dim, cfg.latent.rotary),
                lambda cfg: cfg.heads,
            )
            for key in ("q_proj", "q_b_proj")
        ),
        Fusion("self_attn.kv_a_proj_with_mqa", lambda cfg: (cfg.latent.keys, cfg.latent.rotary)),
        Fusion(
            "self_attn.kv_b_proj",
            lambda cfg: (cfg.head_dim, cfg.latent.values),
            lambda cfg: cfg.heads,
        ),
    ),
    "gpt2": (Fusion("attn.c_attn", _sizes_of_heads, axis=-1),),
    "phi3": (
        Fusion("self_attn.qkv_proj", _sizes_of_heads),
        Fusion("mlp.gate_up_proj", lambda cfg: (cfg.mlp, cfg.mlp)),
    ),
}
FUSED = re.compile(r"(.*)\.([012])\.(weight|bias)")
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")
# What old files hold besides parameters: masks, and the frequencies of rotary positions.
NO_PARAMETERS = re.compile(r".*\.((attn|attention)\.(masked_)?bias|rotary_emb\.inv_freq)")


class Arrays(Mapping[str, NDArray[Any]]):
    """Arrays by key, made one by one when they are looked up: so no more than one is in memory."""

    def __init__(self, specs: Mapping[str, Any], make: Callable[[str], NDArray[Any]]) -> None:
        self._specs, self._make = specs, make

    def __getitem__(self, key: str) -> NDArray[Any]:
        return self._make(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def spec(self, key: str) -> Any:
        """Return the shape and the dtype of an array, without making it."""
        return self._specs[key]


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
    _check_format(folder, settings)
    if dropout is not None:
        config = dataclasses.replace(config, dropout=dropout)
    keys = find_keys(name, config)
    root = keys["embedding"].split(".")[0] + "."
    state = split_fused(
        sd.load_state_dict(folder, check=check), config, FUSIONS.get(name, ()), root
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


def _check_format(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse weights that need more than a cast, and those of a format that runs programs."""
    if quantized := settings.get("quantization_config"):
        method = quantized.get("quant_method", "unknown")
        problem = f"{folder} is quantized, its quantization_config says quant_method={method!r}"
        raise ValueError(f"{problem}: save it in bfloat16 first")
    pickles = sorted(file.name for file in folder.glob("pytorch_model*.bin"))
    if pickles and not any(folder.glob("*.safetensors")):
        raise ValueError(f"{folder} has {pickles[0]} and no safetensors: save it with those first")


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
        join_fused(state, model.config, FUSIONS.get(name, ())),
        folder / "model.safetensors",
        max_bytes=max_bytes,
    )
    if jax.process_index() == 0:
        nulls = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
        written = {**config, "dtype": dtype, **nulls, **settings}
        (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n")


def split_fused(
    files: Mapping[str, NDArray[Any]], config: DecoderConfig, fusions: Sequence[Fusion], root: str
) -> Arrays:
    """Return the arrays of files by the keys of the tables: experts together, and parts of fused arrays apart."""
    makers: dict[str, Callable[[], NDArray[Any]]] = {}
    specs: dict[str, Any] = {}
    experts: dict[str, dict[int, str]] = {}
    # Files of a model without its head have no root.
    rooted = any(key.startswith(root) for key in files)
    for stored, array in files.items():
        key = (
            stored.replace("embed_out.", "lm_head.") if stored.startswith("embed_out.") else stored
        )
        if not rooted and not key.startswith("lm_head."):
            key = root + stored
        if NO_PARAMETERS.fullmatch(key) or (config.tied and key.startswith("lm_head.")):
            continue
        owner, _, field = key.rpartition(".")
        if fusion := next((one for one in fusions if owner.endswith(f".{one.key}")), None):
            for i, size in enumerate(fusion.sizes(config)):
                name, shape = f"{owner}.{i}.{field}", list(array.shape)
                shape[fusion.axis] = size * fusion.heads(config)
                specs[name] = jax.ShapeDtypeStruct(tuple(shape), array.dtype)
                makers[name] = functools.partial(fusion.split, array, config, i)
        elif expert := EXPERT.fullmatch(key):
            experts.setdefault(f"{expert[1]}.*.{expert[3]}", {})[int(expert[2])] = stored
        else:
            specs[key], makers[key] = array, functools.partial(np.asanyarray, array)
    if not rooted and not config.tied and "lm_head.weight" not in specs:
        told = "the files are of a model without its head: scores of tokens are those of random weights"
        warnings.warn(told, stacklevel=3)
        dtype = next(iter(files.values())).dtype
        head = (config.vocab, config.embed)
        specs["lm_head.weight"] = jax.ShapeDtypeStruct(head, dtype)
        rng = np.random.default_rng(0)
        makers["lm_head.weight"] = lambda: (0.02 * rng.standard_normal(head, np.float32)).astype(
            dtype
        )
    for key, numbered in experts.items():
        parts = [files[numbered[i]] for i in sorted(numbered)]
        specs[key] = jax.ShapeDtypeStruct((len(parts), *parts[0].shape), parts[0].dtype)
        makers[key] = functools.partial(stack_parts, parts)
    return Arrays(specs, lambda key: makers[key]())


def stack_parts(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Stack arrays; those of one file that lie in it at equal distances are not read, but seen as one array.

    The experts of a layer do, as long as the order of their names is that of their numbers.
    """
    # Not `StoredArray`, which knows the axes of the parts.
    plain = [part.view(np.ndarray) for part in parts]
    first = plain[0]
    places = [part.__array_interface__["data"][0] for part in plain]
    steps = set(np.diff(places).tolist())
    alike = {(part.shape, part.strides, part.dtype.str, id(buffer_of(part))) for part in plain}
    if len(steps) != 1 or len(alike) != 1 or isinstance(buffer_of(first), np.ndarray):
        return np.stack(plain)
    return np.lib.stride_tricks.as_strided(
        first, (len(plain), *first.shape), (steps.pop(), *first.strides), writeable=False
    )


def buffer_of(array: NDArray[Any]) -> object:
    """Return what holds the memory of an array: the map of a file, or an array itself."""
    held: object = array
    while isinstance(held, np.ndarray | memoryview):
        below = held.base if isinstance(held, np.ndarray) else held.obj
        if below is None:
            break
        held = below
    return held


def join_fused(state: sd.StateDict, config: DecoderConfig, fusions: Sequence[Fusion]) -> Arrays:
    """Return arrays by the keys of files, from those by the keys of the tables; the inverse of `apart`."""
    makers: dict[str, Callable[[], NDArray[Any]]] = {}
    specs: dict[str, Any] = {}
    fused_keys: dict[str, list[str]] = {}
    for key in state:
        spec = state.spec(key)
        if fusions and (fused := FUSED.fullmatch(key)):
            fused_keys.setdefault(f"{fused[1]}.{fused[3]}", []).append(key)
        elif "*" in key:
            for i in range(spec.shape[0]):
                name = key.replace("*", str(i))
                specs[name] = jax.ShapeDtypeStruct(spec.shape[1:], spec.dtype)
                makers[name] = functools.partial(lambda key, i: state[key][i], key, i)
        else:
            specs[key], makers[key] = spec, functools.partial(state.__getitem__, key)
    for name, parts in fused_keys.items():
        owner = name.rpartition(".")[0]
        fusion = next(one for one in fusions if owner.endswith(f".{one.key}"))
        shapes = [list(state.spec(part).shape) for part in parts]
        shapes[0][fusion.axis] = sum(shape[fusion.axis] for shape in shapes)
        specs[name] = jax.ShapeDtypeStruct(tuple(shapes[0]), state.spec(parts[0]).dtype)
        makers[name] = functools.partial(
            lambda one, parts: one.join([state[part] for part in parts], config),
            fusion,
            sorted(parts),
        )
    return Arrays(specs, lambda key: makers[key]())
