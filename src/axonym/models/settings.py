"""What `config.json` of Hugging Face says, in the words of `DecoderConfig`, and back."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from .. import nn
from .config import DecoderConfig, DeltaConfig, ExpertsConfig, Kind, LatentConfig, Rope
from .families import ACTIVATIONS, FAMILIES, KINDS, USUAL, Family, Settings, family_of, is_dense

Scaling = nn.FrequencyScaling | nn.LengthScaling


def read_config(given: Settings) -> DecoderConfig:
    """Return the configuration that the settings of a `config.json` describe.

    Raises:
        ValueError: if they ask for something that this decoder lacks.
    """
    family = family_of(given)
    try:
        usual = dict(zip(USUAL, family.usual, strict=True))
        sizes = {key: usual[field] for field, key in family.sizes.items() if field in usual}
        # Releases call it one or the other.
        counts = [given[key] for key in ("num_experts", "num_local_experts") if key in given]
        for names, values in family.parts.values():
            sizes |= dict(zip(names.values(), values, strict=True))
            sizes |= {names["count"]: counts[0]} if counts and "count" in names else {}
        return _read(family, {**sizes, **family.defaults, **given})
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
    if size := fields.pop("score_size", None):
        fields["score_scale"] = 1 / math.sqrt(size)
    if fields.get("score_scale") == 1 / math.sqrt(fields["head_dim"]):
        fields["score_scale"] = None
    biased = (layers for key, layers in family.biases.items() if settings.get(key))
    fields["biases"] = frozenset(family.forms.get("biases", ())).union(*biased)
    fields |= _read_ropes(family, settings) if family.forms.get("rope", True) else {}
    fields |= _read_pattern(family, settings, fields["layers"])
    for part, (names, _) in family.parts.items():
        own = {field: settings[key] for field, key in names.items() if key in settings}
        fields[part] = PARTS[part](**{**family.forms.get(part, {}), **own})
    if "latent" in fields:  # each head has keys of its own, whatever a file says
        fields["kv_heads"] = fields["heads"]
    # In the order of the files, weights are read as they are, without a transpose.
    forms: dict[str, Any] = {
        key: form(fields) if callable(form) else form for key, form in family.forms.items()
    }
    return DecoderConfig(**(forms | fields), out_first=family.out_first)


# A file may leave these out or set them to null: they follow from others, or the model does without them.
OPTIONAL = {"kv_heads", "head_dim", "mlp", "tied", "score_size", "score_cap", "logit_cap"}
PARTS: dict[str, Callable[..., Any]] = {
    "experts": ExpertsConfig,
    "latent": LatentConfig,
    "delta": DeltaConfig,
}


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
    """Express a configuration in the settings of a family, which may be unable to express all of it."""
    # Not a field of ours, but how Gemma tells a field.
    size = (cfg.score_scale or 1 / math.sqrt(cfg.head_dim)) ** -2
    values = {"score_size": int(round(size, 6)) if round(size, 6).is_integer() else size}
    values["score_scale"] = cfg.score_scale or 1 / math.sqrt(cfg.head_dim)
    settings = {
        key: values[field] if field in values else getattr(cfg, field)
        for field, key in family.sizes.items()
    }
    settings[family.sizes["activation"]] = next(
        theirs for theirs, ours in ACTIVATIONS.items() if ours == cfg.activation
    )
    settings |= {key: layers <= cfg.biases for key, layers in family.biases.items()}
    settings |= {key: value for key, value in family.only.items() if value is not None}
    settings |= _write_ropes(name, cfg) if cfg.rope is not None else {}
    settings |= _write_pattern(name, cfg)
    for part, (names, _) in family.parts.items():
        own = getattr(cfg, part)
        settings |= {key: getattr(own, field) for field, key in names.items() if own is not None}
    return {"architectures": [family.architecture], "model_type": name, **settings}


def _activation(name: str, family: Family) -> str:
    known = {**ACTIVATIONS, **family.activations}
    if name not in known:
        raise ValueError(f"unknown activation {name!r}; known: {', '.join(known)}")
    return known[name]


def _read_ropes(family: Family, settings: Settings) -> dict[str, Any]:
    """Read rotary positions, from the settings of newer or older files."""
    outside = {name: settings[key] for name, key in family.rope.items() if key in settings}
    outside["known"] = settings["max_position_embeddings"]
    given = settings.get("rope_scaling") or settings.get("rope_parameters")
    given = family.defaults.get("rope_parameters") if given is None else given
    if given is None and "rope_local_base_freq" in settings:
        local = {"rope_theta": settings["rope_local_base_freq"]}
        given = {"full_attention": {}, "sliding_attention": local}
    # Phi-3 has it here, and this one counts.
    old = {key: settings[key] for key in (OLD_LENGTH,) if key in settings}
    if given is not None and "full_attention" in given:
        return {
            "rope": _read_rope(family, {**outside, **given["full_attention"], **old}),
            "local_rope": _read_rope(family, {**outside, **given["sliding_attention"], **old}),
        }
    return {"rope": _read_rope(family, {**outside, **(given or {}), **old})}


OLD_LENGTH = "original_max_position_embeddings"


def _read_rope(family: Family, given: Settings) -> Rope:
    kind = given.get("rope_type", given.get("type", "default"))
    share = given.get("partial_rotary_factor")
    share = 1.0 if share is None else share
    if share != 1.0 and "partial_rotary_factor" not in family.rope:
        raise ValueError(f"partial_rotary_factor={share} is not supported, only 1.0")
    kind = family.rope_types.get(kind, kind)
    if kind not in SCALINGS:
        raise ValueError(f"unknown rope_type {kind!r}; known: {', '.join(SCALINGS)}")
    scaling, magnitude = SCALINGS[kind](given, given.get(OLD_LENGTH, given["known"]))
    growth = given.get("mscale_all_dim") or 0.0 if family.grows and scaling is not None else 0.0
    options = magnitude, bool(given.get("interleaved", False)), growth
    return Rope(given.get("rope_theta", 10000.0), scaling, share, *options)


def _read_llama3(given: Settings, length: int) -> tuple[Scaling, float]:
    low, high = given["low_freq_factor"], given["high_freq_factor"]
    return nn.Llama3Scaling(given["factor"], low, high, length), 1.0


def _read_yarn(given: Settings, length: int) -> tuple[Scaling, float]:
    factor = given["factor"] or given["known"] / length
    turns = (given.get("beta_fast") or 32, given.get("beta_slow") or 1)
    scaling = nn.YarnScaling(factor, *turns, length, given.get("truncate", True))

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    of_one, of_all = given.get("mscale"), given.get("mscale_all_dim")
    found = magnitude(of_one) / magnitude(of_all) if of_one and of_all else magnitude(1)
    asked = given.get("attention_factor")
    return scaling, found if asked is None else asked


def _read_longrope(given: Settings, length: int) -> tuple[Scaling, float]:
    lists = tuple(given["short_factor"]), tuple(given["long_factor"])
    factor = given.get("factor") or given["known"] / length
    found = math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0
    asked = given.get("attention_factor")
    return nn.LongRopeScaling(*lists, length), found if asked is None else asked


# From names of theirs to what they mean: functions of the settings and of the length of the old context.
SCALINGS: dict[str, Callable[[Settings, int], tuple[Scaling | None, float]]] = {
    "default": lambda given, length: (None, 1.0),
    "linear": lambda given, length: (nn.LinearScaling(given["factor"]), 1.0),
    "dynamic": lambda given, length: (nn.DynamicScaling(given["factor"], given["known"]), 1.0),
    "llama3": _read_llama3,
    "yarn": _read_yarn,
    "longrope": _read_longrope,
}


def _write_ropes(name: str, cfg: DecoderConfig) -> dict[str, Any]:
    assert cfg.rope is not None
    rope = _write_rope(cfg.rope)
    if "partial_rotary_factor" in FAMILIES[name].rope:
        rope["partial_rotary_factor"] = cfg.rope.share
    old = {OLD_LENGTH: rope[OLD_LENGTH]} if name == "phi3" and OLD_LENGTH in rope else {}
    if name != "gemma3_text":
        # Newer releases read the first, older ones the others.
        theirs, own = FAMILIES[name].rope.items(), {"interleaved": cfg.rope.interleaved, **rope}
        outside = {key: own[inside] for inside, key in theirs}
        return {"rope_parameters": rope, **outside, **old}
    local = _write_rope(cfg.local_rope or cfg.rope)
    return {"rope_parameters": {"full_attention": rope, "sliding_attention": local}}


def _write_rope(rope: Rope) -> dict[str, Any]:
    written: dict[str, Any] = {"rope_type": "default", "rope_theta": rope.theta}
    written |= {"mscale_all_dim": rope.growth} if rope.growth else {}
    scaling: Any = rope.scaling  # a function, of which these kinds are known
    match scaling:
        case nn.LinearScaling(factor=factor):
            return {**written, "rope_type": "linear", "factor": factor}
        case nn.DynamicScaling(factor=factor):
            return {**written, "rope_type": "dynamic", "factor": factor}
        case nn.Llama3Scaling():
            written |= {"rope_type": "llama3", "factor": scaling.factor}
            written |= {"low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
        case nn.YarnScaling():
            written |= {"rope_type": "yarn", "factor": scaling.factor, "truncate": scaling.truncate}
            written |= {"beta_fast": scaling.fast, "beta_slow": scaling.slow}
            written |= {"attention_factor": rope.magnitude}
        case nn.LongRopeScaling():
            lists = {"short_factor": list(scaling.short), "long_factor": list(scaling.long)}
            written |= {"rope_type": "longrope", **lists, "attention_factor": rope.magnitude}
        case _:
            return written
    return {**written, OLD_LENGTH: scaling.original_length}


def _read_pattern(family: Family, settings: Settings, layers: int) -> dict[str, Any]:
    """Read which layers are local or unrotated, as the shortest pattern that repeats."""
    window = settings.get("sliding_window")
    if settings.get("use_sliding_window") is False:
        window = None

    def kind_of(layer: int) -> Any:
        listed = settings.get("layer_types")
        is_local = family.is_local(settings, layer)
        kind = family.other if is_local else "global"
        kind = kind if listed is None else KINDS[listed[layer]]
        kind = "global" if kind == "local" and not window else kind
        form = "_dense" if family.is_dense(settings, layer) else ""
        return kind + (form if family.is_rotated(settings, layer) else "_unrotated")

    kinds: tuple[Kind, ...] = tuple(kind_of(layer) for layer in range(layers))
    periods = range(1, layers + 1)
    period = next(n for n in periods if all(kinds[i] == kinds[i % n] for i in range(layers)))
    has_window = any(kind.startswith("local") for kind in kinds)
    return {"window": window if has_window else None, "pattern": kinds[:period]}


def _write_pattern(name: str, cfg: DecoderConfig) -> dict[str, Any]:
    if name in ("gpt2", "gpt_neox", "llama", "granite", "olmo2", "gemma"):
        return {}
    dense = [i for i, kind in enumerate(cfg.kinds) if kind.endswith("dense")]
    if name == "deepseek_v3":
        return {"first_k_dense_replace": len(dense)}
    settings: dict[str, Any] = {"sliding_window": cfg.window}
    if FAMILIES[name].is_dense is is_dense:
        settings["mlp_only_layers"] = dense
    if name.startswith(("qwen", "smollm")):
        settings["use_sliding_window"] = cfg.window is not None
    if name in ("mistral", "mixtral", "phi3", "qwen3_moe"):
        return settings
    if name == "smollm3":
        settings["no_rope_layers"] = [int(not kind.endswith("unrotated")) for kind in cfg.kinds]
    # A kind without a word in the family is read as another kind, so a comparison finds the difference.
    has_delta = "delta" in FAMILIES[name].parts
    theirs: dict[str, str] = {
        ours: each for each, ours in KINDS.items() if ours != "delta" or has_delta
    }
    listed = [theirs.get(kind.split("_")[0], "full_attention") for kind in cfg.kinds]
    return {**settings, "layer_types": listed}
