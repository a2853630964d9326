"""Thin matrices (LoRA) in PEFT's format: a folder with `adapter_config.json` and `adapter_model.safetensors`.

`read_adapter` puts those of a folder beside the weights of a decoder, and `write_adapter` writes what `axn.nn.add_lora`
or `finetune.py` has put there. Where files hold several layers in one array, such as queries, keys and values, PEFT has
one pair of matrices for all of them. Then layers share the first matrix when they are read, and are joined to a pair of
higher rank when they are written.
"""

import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

import axonym as axn
import axonym.nn as nn
from axonym import state_dict as sd
from axonym.models import Decoder, write_config
from axonym.models.files import read_json
from axonym.models.huggingface import find_fusions, find_keys
from axonym.state_dict.fused import Fusion

CONFIG, WEIGHTS, PREFIX = "adapter_config.json", "adapter_model.safetensors", "base_model.model."
# This module reads these settings, or they do not concern the matrices. All others must be null, false or empty.
READ = {
    *("r", "lora_alpha", "lora_dropout", "use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out"),
    *("task_type", "inference_mode", "auto_mapping", "base_model_name_or_path", "revision", "peft_version"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "runtime_config"),
    *("megatron_core", "qalora_group_size"),
}
ONLY = {"peft_type": ("LORA",), "bias": ("none",), "init_lora_weights": (True, False, "gaussian", "eva")}


class Pair(NamedTuple):
    """The two matrices of a layer, in the order of torch, and the factor of their product."""

    down: np.ndarray  # (rank, inputs)
    up: np.ndarray  # (outputs, rank)
    factor: float


def read_adapter(
    model: Decoder,
    folder: str | os.PathLike[str],
    *,
    family: str | None = None,
    mapping: Mapping[str, Any] | None = None,
) -> Decoder:
    """Return a decoder with the thin matrices of a folder beside its weights; `nn.merge_lora` adds them.

    Args:
        model: the decoder that they were trained for.
        folder: of PEFT.
        family: the `model_type` of its files; by default the first that has words for the configuration.
        mapping: lays out the matrices.

    Raises:
        ValueError: if the folder asks for something else than matrices of linear layers, or they do not fit the model.
    """
    folder = Path(folder)
    settings = read_json(folder / CONFIG)
    check_settings(folder / CONFIG, settings)
    name = family or write_config(model.config)["model_type"]
    keys, fusions = find_keys(name, model.config), find_fusions(name, model.config)
    pairs = split_pairs(read_pairs(folder, settings), fusions)
    template, modules = eqx.filter_eval_shape(lambda: model), list_modules(model, keys)
    if left := sorted(pairs.keys() - {key for own in modules.values() for key in own}):
        raise ValueError(f"{folder / WEIGHTS} has matrices of {left[0]}, which is no linear layer of the model")
    sizes: dict[Any, tuple[int, float]] = {}
    aligned: dict[str, Pair] = {}
    for path, own in modules.items():
        if given := [pairs[key] for key in own if key in pairs]:
            # Stacked layers have one rank and one factor.
            rank, factor = max(len(pair.down) for pair in given), given[0].factor or 1.0
            sizes[path] = rank, factor * rank
            nothing = given[0]._replace(factor=0.0)
            aligned |= {key: align(pairs.get(key, nothing), rank, factor) for key in own}

    def wrap(path: Any, each: Any) -> Any:
        if path not in sizes:
            return each
        rank, alpha = sizes[path]
        dropout = settings.get("lora_dropout") or 0.0
        make = functools.partial(nn.LoraLinear.init, key=jax.random.key(0), alpha=alpha, dropout=dropout)
        return eqx.filter_eval_shape(make, each, rank)

    # A mapping may have axes that no matrix has.
    options: dict[str, Any] = {"strict": False, "cast": True, "rename": keys, "mapping": mapping}

    def fill(side: str) -> Any:
        state = {f"{key}.weight": getattr(pair, side) for key, pair in aligned.items()}
        tree = pick(adapted, side)
        return sd.from_torch_compatible_state_dict(tree, state, **options)

    adapted = jax.tree.map_with_path(wrap, template, is_leaf=is_layer)
    whole = jax.tree.map(
        lambda each, own: dataclasses.replace(each, base=own) if is_lora(each) else own,
        adapted,
        model,
        is_leaf=is_layer,
    )
    for side in ("down", "up"):
        whole = jax.tree.map(
            lambda each, own: each if own is None else dataclasses.replace(each, **{side: own}),  # noqa: B023
            whole,
            fill(side),
            is_leaf=lambda each: each is None or is_layer(each),
        )
    return whole


def write_adapter(
    model: Decoder, folder: str | os.PathLike[str], *, family: str | None = None, base: str | None = None
) -> None:
    """Write the thin matrices of a decoder as PEFT does, without the weights beside them.

    Args:
        model: a decoder with `axn.nn.LoraLinear` layers.
        folder: is made if need be.
        family: the `model_type` of the model; by default the first that has words for the configuration.
        base: where the weights are, a folder or a name of the Hub, for `adapter_config.json`.

    Raises:
        ValueError: if the model has no such layers.
    """
    folder, name = Path(folder), family or write_config(model.config)["model_type"]
    keys = find_keys(name, model.config)
    layers: dict[Any, Any] = dict(jax.tree.leaves_with_path(model, is_leaf=is_layer))
    factors: dict[str, float] = {}
    for path, own in list_modules(model, keys).items():
        if is_lora(layers[path]):
            factors.update(dict.fromkeys(own, float(layers[path].alpha / layers[path].Rank.size)))
    if not factors:
        raise ValueError("the model has no thin matrices: axn.nn.add_lora(model, rank, key=key) makes some")
    downs, ups = (sd.to_torch_compatible_state_dict(pick(model, side), rename=keys) for side in ("down", "up"))
    pairs = {key: Pair(downs[f"{key}.weight"], ups[f"{key}.weight"], factor) for key, factor in factors.items()}
    pairs = join_pairs(pairs, find_fusions(name, model.config))
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {f"{PREFIX}{key}.lora_A.weight": pair.down for key, pair in pairs.items()}
    arrays |= {f"{PREFIX}{key}.lora_B.weight": pair.up for key, pair in pairs.items()}
    sd.save_state_dict(arrays, folder / WEIGHTS, metadata={"format": "pt"})
    ranks = {key: len(pair.down) for key, pair in pairs.items()}
    alphas = {key: pair.factor * len(pair.down) for key, pair in pairs.items()}
    rank, alpha = max(ranks.values()), max(alphas.values())
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {re.escape(key): own for key, own in ranks.items() if own != rank},
        "alpha_pattern": {re.escape(key): own for key, own in alphas.items() if own != alpha},
        "target_modules": sorted(pairs),
        "fan_in_fan_out": name == "gpt2",
        "bias": "none",
        "inference_mode": True,
    }
    if jax.process_index() == 0:
        (folder / CONFIG).write_text(json.dumps(settings, indent=2) + "\n")


def check_settings(file: Path, settings: Mapping[str, Any]) -> None:
    """Refuse settings that would change what the matrices mean."""
    for key, value in settings.items():
        known = ONLY.get(key)
        if (value not in known) if known else (value and key not in READ):
            wanted = " or ".join(map(repr, known)) if known else "what is off"
            raise ValueError(f"{file} says {key}={value!r}, but only {wanted} is read")


def read_pairs(folder: Path, settings: Mapping[str, Any]) -> dict[str, Pair]:
    """Return the matrices of a folder by the keys of layers."""
    state, found = sd.load_state_dict(folder / WEIGHTS), dict[str, dict[str, np.ndarray]]()
    for key in state:
        if not (match := re.fullmatch(rf"{re.escape(PREFIX)}(.+)\.lora_([AB])\.weight", key)):
            raise ValueError(f"{folder / WEIGHTS} has {key}, which is no matrix of a linear layer")
        found.setdefault(match[1], {})[match[2]] = np.asarray(state[key])
    pairs: dict[str, Pair] = {}
    for key, both in found.items():
        rank = find_setting(settings, "rank_pattern", key, settings.get("r", 8))
        alpha = find_setting(settings, "alpha_pattern", key, settings.get("lora_alpha", 8))
        shapes: list[tuple[int, ...]] = [both[side].shape if side in both else () for side in "AB"]
        if [len(shape) for shape in shapes] != [2, 2] or not shapes[0][0] == shapes[1][1] == rank:
            raise ValueError(f"{folder}: {key} has matrices of shapes {shapes[0]} and {shapes[1]}, but the rank {rank}")
        factor = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
        pairs[key] = Pair(both["A"], both["B"], factor)
    return pairs


def find_setting(settings: Mapping[str, Any], patterns: str, key: str, usual: float) -> Any:
    """Return a setting of a layer: that of the first pattern for the end of its key, or the usual one."""
    given = (settings.get(patterns) or {}).items()
    return next((own for pattern, own in given if re.match(rf"(.*\.)?({pattern})$", key)), usual)


def split_pairs(pairs: Mapping[str, Pair], fusions: Sequence[Fusion]) -> dict[str, Pair]:
    """Return pairs of the layers of a model, for those of files that hold several of them in one array."""
    found: dict[str, Pair] = {}
    for key, pair in pairs.items():
        fusion = next((one for one in fusions if key.endswith(f".{one.key}")), None)
        if fusion is None:
            found[key] = pair
            continue
        for i in range(len(fusion.sizes)):
            found[f"{key}.{i}"] = pair._replace(up=fusion._replace(axis=0).split(pair.up, i))
    return found


def join_pairs(pairs: Mapping[str, Pair], fusions: Sequence[Fusion]) -> dict[str, Pair]:
    """Return pairs of files; a layer of several has a rank that is the sum of theirs."""
    found: dict[str, Pair] = {}
    parts: dict[str, dict[int, Pair]] = {}
    for key, pair in pairs.items():
        owner, _, number = key.rpartition(".")
        if any(owner.endswith(f".{fusion.key}") for fusion in fusions):
            parts.setdefault(owner, {})[int(number)] = pair
        else:
            found[key] = pair
    for owner, own in parts.items():
        fusion = next(fusion for fusion in fusions if owner.endswith(f".{fusion.key}"))
        factor = next(iter(own.values())).factor or 1.0
        rank, start, ups = sum(len(pair.down) for pair in own.values()), 0, []
        for i, size in enumerate(fusion.sizes):
            up = np.zeros((size * fusion.heads, rank), np.float32)
            if i in own:
                stop = start + len(own[i].down)
                up[:, start:stop] = own[i].up * (own[i].factor / factor)
                start = stop
            ups.append(up)
        down = np.concatenate([own[i].down for i in sorted(own)])
        found[owner] = Pair(down, fusion._replace(axis=0).join(ups).astype(down.dtype), factor)
    return found


def align(pair: Pair, rank: int, factor: float) -> Pair:
    """Return a pair of the same product with a rank that is at least as large, and a factor."""
    more = (0, rank - len(pair.down))
    up = pair.up if pair.factor == factor else pair.up * np.asarray(pair.factor / factor, pair.up.dtype)
    return Pair(np.pad(pair.down, (more, (0, 0))), np.pad(up, ((0, 0), more)), factor)


def list_modules(model: Decoder, keys: Mapping[str, str]) -> dict[Any, list[str]]:
    """Return the keys of each linear layer, by its path: as many as layers are stacked."""
    found: dict[Any, list[str]] = {}
    for path, each in jax.tree.leaves_with_path(model, is_leaf=is_layer):
        if isinstance(each, nn.Linear | nn.LoraLinear):
            own = each.base if isinstance(each, nn.LoraLinear) else each
            alone = jax.tree.map_with_path(lambda at, _: own if at == path else None, model, is_leaf=is_layer)  # noqa: B023
            weights = (key for key in sd.to_state_dict(alone, rename=keys) if key.endswith(".weight"))
            found[path] = [key.removesuffix(".weight") for key in weights]
    return found


def pick(model: Any, side: str) -> Any:
    """Return one side of all pairs, in their places, and nothing elsewhere."""
    return jax.tree.map(lambda each: getattr(each, side) if is_lora(each) else None, model, is_leaf=is_layer)


def is_lora(each: object) -> bool:
    return isinstance(each, nn.LoraLinear)


def is_layer(each: object) -> bool:
    return isinstance(each, nn.Linear | nn.LoraLinear) or axn.is_named_array(each)
