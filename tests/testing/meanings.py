"""What the axes of all layers, families of language models and models of the gallery mean, in one table.

A row says which claims hold. A claim that does not hold, and is meant not to, stands there with its reason; nothing
else is excused.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

import axonym as axn
from axonym import NamedArray, nn
from axonym.models import Decoder, DecoderConfig, DeltaConfig, LatentConfig, read_config
from tests.models.test_families import PUBLISHED_ALL
from tests.nn.layouts import draw
from tests.nn.test_every_layer import ROWS, E, M, drawn

KEY = jax.random.key(0)
B, S, P = axn.make_axes(batch=4, seq=2, pos=6)
Make = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]


@dataclasses.dataclass(frozen=True)
class Meaning:
    """What the axes of a model mean.

    Attributes:
        make: makes the function and its arguments.
        independent: axes whose positions do not affect each other.
        causal: axes whose positions see no later ones.
        equivariant: axes that can be permuted.
        invariant: axes of parameters that can be permuted.
        declared: reasons by claim that need not hold.
        padded: makes a function, its arguments, and a mask of the positions that are no padding.
    """

    make: Make
    independent: tuple[str, ...] = ("batch",)
    causal: tuple[str, ...] = ()
    equivariant: tuple[str, ...] = ("batch",)
    invariant: tuple[str, ...] = ()
    declared: Mapping[str, str] = dataclasses.field(default_factory=dict)
    padded: Callable[[], tuple[Callable[..., Any], tuple[Any, ...], NamedArray]] | None = None


# Axes that do not divide stay whole.
DATA, MODEL = (axn.partitioning.first_fitting(axis, None) for axis in ("data", "model"))
LAYOUTS: dict[str, Any] = {
    "data": {"batch": ("data", "model")},
    "sharded": axn.Mappings({"embed": "data", "channels": "data", "vocab": MODEL}, {"batch": ("data", "model")}),
    "tensor": {"batch": "data", **dict.fromkeys(("heads", "kv_heads", "mlp", "channels"), "model")},
    "context": {"batch": "data", **dict.fromkeys(("time", "pos", "height", "lat"), "model")},
    "mixed": axn.Mappings({"layers": DATA, "experts": "model"}, {"batch": "data", "experts": "model"}),
}


def with_loss(f: Callable[..., Any], *args: Any) -> tuple[NamedArray, Any]:
    """Return a loss that all results add to, and the results."""
    found = f(*args)
    leaves = jax.tree.leaves(found, is_leaf=axn.is_named_array)
    own = [x for x in leaves if axn.is_named_array(x) and np.issubdtype(x.dtype, np.inexact)]
    return sum((axn.sin(abs(x) if np.iscomplexobj(x.array) else x).mean() for x in own), axn.zeros(())), found


def even(x: Any) -> Any:
    """Return an array whose positions in time are an even number."""
    has_time = axn.is_named_array(x) and x.has_axis("time")
    return axn.concatenate("time", [x, x["time", :1]]) if has_time else x


def of_row(name: str, axes: tuple[axn.Axis, ...] | None = None, call: Any = None, init: Any = None) -> Make:
    """Make a layer of the table of all layers, perhaps in another form."""
    row = ROWS[name]
    row = dataclasses.replace(row, axes=axes or row.axes, call=call or row.call, make=init or row.make)
    return lambda: (functools.partial(call_row, row.call), (drawn(row.make), row.input(B, S)))


def call_row(call: Callable[..., Any], layer: Any, x: NamedArray) -> Any:
    return call(layer, x)


def masked(layer: Any, x: NamedArray) -> NamedArray:
    return layer(x, nn.causal())


def padded(name: str, axis: str, call: Callable[[Any, NamedArray, NamedArray], Any]) -> Any:
    """Make a layer, its input, and which positions of it count."""

    def make() -> tuple[Callable[..., Any], tuple[Any, ...], NamedArray]:
        _, (layer, x) = of_row(name)()
        Pos = x.resolve_axis(axis)
        real = axn.arange(Pos).broadcast_axis(B) < axn.named([2, 1, 2, 1], B)
        return functools.partial(call_padded, call), (layer, x, real), real

    return make


def call_padded(call: Callable[..., Any], layer: Any, x: NamedArray, real: NamedArray) -> Any:
    return call(layer, x, real)


def hiding(layer: Any, x: NamedArray, real: NamedArray) -> NamedArray:
    """Hide padding among the keys."""
    return layer(x, real.rename({"time": "time.key"}))


def routing(layer: Any, x: NamedArray, real: NamedArray) -> NamedArray:
    return layer(x, where=real)[0]


def first(layer: Any, x: NamedArray) -> NamedArray:
    return layer(x)[0]


BATCH_NORM = "in training, the statistics are those of the batch"
DRAWN = "a mask is drawn for each place, whatever is there"
OTHERS: dict[str, Meaning] = {
    "Attention": Meaning(
        of_row("Attention"),
        equivariant=("batch", "time"),
        invariant=("heads",),
        padded=padded("Attention", "time", hiding),
    ),
    "Attention, causal": Meaning(of_row("Attention", call=masked), causal=("time",)),
    "BatchNorm": Meaning(of_row("BatchNorm"), declared={"independent: batch": BATCH_NORM}),
    "Conv, causal": Meaning(
        of_row("Conv", init=lambda: nn.Conv.init("time", E, M, 3, padding=[(2, 0)], key=KEY)), causal=("time",)
    ),
    "DiagonalSSM": Meaning(of_row("DiagonalSSM"), causal=("time",)),
    "Dropout": Meaning(
        of_row("Dropout"),
        declared={"equivariant: batch": DRAWN, "mean over: batch": "every example draws a mask of its own"},
    ),
    "Embedding": Meaning(of_row("Embedding"), ("batch", "time"), ("time",), ("batch", "time")),
    "GatedDeltaNet": Meaning(of_row("GatedDeltaNet", call=first), causal=("time",), invariant=("heads",)),
    "GroupNorm": Meaning(
        of_row("GroupNorm"), causal=("time",), declared={"causal: time": "groups are normalised over all positions"}
    ),
    "LatentAttention": Meaning(
        of_row("LatentAttention"),
        equivariant=("batch", "time"),
        invariant=("heads",),
        padded=padded("LatentAttention", "time", hiding),
    ),
    "LatentAttention, causal": Meaning(of_row("LatentAttention", call=masked), causal=("time",)),
    "LayerNorm": Meaning(of_row("LayerNorm"), ("batch", "seq")),
    "Mamba2": Meaning(of_row("Mamba2", call=first), causal=("time",), invariant=("heads",)),
    "MixtureOfExperts": Meaning(
        of_row("MixtureOfExperts"),
        ("batch", "seq"),
        invariant=("experts",),
        padded=padded("MixtureOfExperts", "seq", routing),
    ),
    "MixtureOfExperts, capacity": Meaning(
        of_row(
            "MixtureOfExperts",
            init=lambda: nn.MixtureOfExperts.init(
                E, axn.Axis("experts", 2), M, 1, key=KEY, capacity_factor=0.5, tokens="seq"
            ),
        ),
        ("batch", "seq"),
        invariant=("experts",),
        declared={"independent: seq": "tokens of a sequence share a capacity"},
    ),
    "MoELinear": Meaning(of_row("MoELinear"), ("batch", "experts"), equivariant=("batch", "experts")),
    "Recurrent": Meaning(of_row("Recurrent"), causal=("time",)),
    "RmsNorm": Meaning(of_row("RmsNorm"), ("batch", "seq")),
    "TransformerBlock": Meaning(
        of_row("TransformerBlock"),
        equivariant=("batch", "time"),
        invariant=("heads", "mlp"),
        padded=padded("TransformerBlock", "time", hiding),
    ),
    "TransformerBlock, causal": Meaning(of_row("TransformerBlock", call=masked), causal=("time",)),
}
LAYERS = {name: Meaning(of_row(name)) for name in ROWS} | OTHERS


def small(cfg: DecoderConfig) -> DecoderConfig:
    """Return a configuration of the same form, with two layers, or one of each kind, and narrow ones."""
    experts, kinds = cfg.experts, tuple(dict.fromkeys(cfg.pattern))
    if experts is not None:
        sizes = {"count": 4, "chosen": 2, "mlp": 24, "shared_count": 1, "chosen_groups": 1}
        groups, shared = min(experts.groups, 2), None if experts.shared is None else 24
        experts = dataclasses.replace(experts, **sizes, groups=groups, shared=shared)
    return dataclasses.replace(
        cfg,
        vocab=14,
        layers=max(2, len(kinds)),
        pattern=kinds,
        embed=16,
        mlp=24,
        heads=4,
        kv_heads=4 if cfg.kv_heads == cfg.heads else 2,
        head_dim=8,  # some rotate a quarter of it
        positions=16,
        window=3 if cfg.window else None,
        experts=experts,
        latent=None if cfg.latent is None else LatentConfig(12, 4, 6, cfg.latent.queries and 8),
        delta=None if cfg.delta is None else DeltaConfig(4, 2, 6, 8, 3),
        dropout=0.0,
        checkpointing=False,
    )


def scored(cfg: DecoderConfig) -> Make:
    """Make a decoder and tokens."""

    def make() -> tuple[Callable[..., Any], tuple[Any, ...]]:
        model = drawn(lambda: Decoder.init(small(cfg), key=KEY))
        tokens = np.random.default_rng(0).integers(0, 14, (B.size, P.size))
        return model, (axn.named(jax.device_put(tokens), (B, P)),)

    return make


def padded_loss(cfg: DecoderConfig) -> Any:
    """Make the loss of a decoder, tokens, and which of them count."""

    def make() -> tuple[Callable[..., Any], tuple[Any, ...], NamedArray]:
        model, (tokens,) = scored(cfg)()
        real = axn.arange(P).broadcast_axis(B) < axn.named([6, 4, 3, 5], B)
        # Held by the function: a table of positions is no array of this sequence.
        return jax.tree_util.Partial(call_loss, model), (tokens, real), real

    return make


def call_loss(model: Decoder, tokens: NamedArray, real: NamedArray) -> NamedArray:
    return model.loss(tokens, where=real["pos", 1:], balance=0.1)


def of_family(cfg: DecoderConfig) -> Meaning:
    """Say what the axes of a decoder mean; all heads of queries may have their own keys."""
    heads = ("kv_heads",) if cfg.heads == cfg.kv_heads else ("kv_heads", "group")
    return Meaning(scored(cfg), causal=("pos",), invariant=(*heads, "mlp"), padded=padded_loss(cfg))


FAMILIES = {name: of_family(read_config(settings)) for name, (_, settings) in PUBLISHED_ALL.items()}


def of_gallery(name: str, init: str, *inputs: Callable[[], NamedArray], first: bool = False) -> Make:
    """Make a model of the gallery and its inputs; its programs need more than the other rows."""

    def make() -> tuple[Callable[..., Any], tuple[Any, ...]]:
        model = drawn(lambda: getattr(importlib.import_module(name), init).init(KEY))
        return functools.partial(call_first, model) if first else model, tuple(make() for make in inputs)

    return make


def call_first(model: Any, *args: NamedArray) -> Any:
    return model(*args)[0]


def images() -> NamedArray:
    return draw(B, *axn.make_axes(height=8, width=8))


def letters() -> NamedArray:
    return axn.named(np.random.default_rng(0).integers(0, 128, (B.size, P.size)), (B, P))


GALLERY = {
    "vit": Meaning(of_gallery("vit", "VisionTransformer", images), invariant=("heads",)),
    "diffusion": Meaning(of_gallery("diffusion", "UNet", images, lambda: draw(B), lambda: axn.arange(B))),
    "mixture of experts": Meaning(
        of_gallery("mixture_of_experts", "Decoder", letters, first=True),
        causal=("pos",),
        declared={"causal: pos": "tokens of a sequence share a capacity, and first choices come first"},
    ),
    "weather": Meaning(
        of_gallery("weather", "Forecast", lambda: draw(B, *axn.make_axes(level=3, lat=8, lon=16, channels=4)))
    ),
}
