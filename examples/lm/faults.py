"""Where numbers first stopped being finite: a step is taken again, layer by layer, with a look at what each returns."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.experimental import multihost_utils
from rows import Batch
from trainer import Trainer

import axonym as axn
import axonym.nn as nn
from axonym import NamedArray
from axonym.models import Decoder
from axonym.models.decoder import Block, Rotations, within


class Look(eqx.Module):
    """What is wrong with an array.

    Attributes:
        what: which array it is.
        is_bad: whether a number is not finite.
        is_nan: whether one is NaN.
        bad: for each axis, at which of its positions there is a number that is not finite.
    """

    what: str = eqx.field(static=True)
    is_bad: NamedArray
    is_nan: NamedArray
    bad: dict[str, NamedArray]

    @staticmethod
    def at(what: str, x: NamedArray) -> "Look":
        """Look at an array."""
        wrong = ~axn.isfinite(x)
        bad: dict[str, NamedArray] = {}
        for name in x.names:
            others = tuple(other for other in x.names if other != name)
            bad[name] = wrong.any(others)
        return Look(what, wrong.any(), axn.isnan(x).any(), bad)

    def told(self) -> str | None:
        """Say where the array is not finite; None where all of it is."""
        if not fetched(self.is_bad):
            return None
        places = {name: fetched(found) for name, found in self.bad.items()}
        kind = "NaN" if fetched(self.is_nan) else "infinity"
        if not places:
            return f"{self.what}: {kind}"
        return f"{self.what}: {kind} at {', '.join(map(spelled, places, places.values()))}"


def fetched(x: NamedArray) -> np.ndarray:
    """Return the values of an array, on every process."""
    if x.array.is_fully_addressable:
        return np.asarray(x.array)
    return np.asarray(multihost_utils.process_allgather(x.array, tiled=True))


def spelled(name: str, bad: np.ndarray) -> str:
    """Say which positions of an axis are bad: `pos=7 to 15`, `batch=3, 5`, `all of embed`."""
    if bad.all():
        return f"all of {name}"
    at = np.flatnonzero(bad).tolist()
    if len(at) > 2 and at[-1] - at[0] == len(at) - 1:
        return f"{name}={at[0]} to {at[-1]}"
    more = ", ..." if len(at) > 4 else ""
    return f"{name}={', '.join(map(str, at[:4]))}{more}"


class Watched:
    """A layer in the place of a layer, which looks at what that one returns."""

    def __init__(self, layer: Any, path: str, looks: list[Look]) -> None:
        self._layer, self._path, self._looks = watched(layer, f"{path}.", looks), path, looks

    def __call__(self, *args: Any, **options: Any) -> Any:
        result = self._layer(*args, **options)
        array = result[0] if isinstance(result, tuple) else result
        self._looks.append(Look.at(self._path, array))
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def watched(module: Any, path: str, looks: list[Look]) -> Any:
    """Return a module of the same class whose layers are watched; within one trace of a program."""
    copy = object.__new__(type(module))
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        if isinstance(value, eqx.Module) and callable(value):
            value = Watched(value, f"{path}{field.name}", looks)
        object.__setattr__(copy, field.name, value)
    return copy


def first_fault(trainer: Trainer, model: Decoder, batch: Batch, key: jax.Array) -> str:
    """Say which array of a step was the first that is not finite: a parameter, what a layer returns, or a gradient.

    Args:
        trainer: takes the step.
        model: before the step.
        batch: of the step.
        key: of the step.
    """
    for found in axn.parameters.walk(model):
        told = Look.at(f"parameter {found.path}", in_order(found)).told()
        if told:
            return told
    count = batch.tokens.axis_size("microbatch")
    for i, own in enumerate(jax.random.split(key, count)):
        part = batch.part(i)
        told = next(forward(trainer, model, part, own), None)
        told = told or of_gradients(trainer.gradients(model, part, own))
        if told:
            return told
    return "nothing, when the step is taken again"


def forward(trainer: Trainer, model: Decoder, batch: Batch, key: jax.Array) -> Iterator[str]:
    """Yield which layers return numbers that are not finite, in the order of the computation."""
    run = functools.partial(axn.named_jit, axis_resources=trainer.mappings[1], strict=False)
    mask = None if batch.documents is None else nn.segments(batch.documents)
    k_embed, k_blocks = jax.random.split(key)

    @run
    def begin(model: Decoder, tokens: NamedArray) -> tuple[NamedArray, Rotations, list[Look]]:
        Pos = tokens.resolve_axis("pos")
        x = trainer.policy.cast_to_compute(model).embedded(tokens, Pos)
        dropped = model.dropout(x, key=k_embed, inference=False)
        return dropped, model.rotations(Pos), [Look.at("embedding", x)]

    @run
    def layer(
        block: Block, x: NamedArray, rotations: Rotations, mask: nn.AttentionMask | None, key: jax.Array
    ) -> tuple[NamedArray, list[Look]]:
        looks: list[Look] = []
        attend = within(mask)

        def looked(*args: Any, **options: Any) -> NamedArray:
            y = attend(*args, **options)
            looks.append(Look.at("attention, by scores", y))
            return y

        own = watched(trainer.policy.cast_to_compute(block), "", looks)
        x, _ = own(x, rotations, looked, key=key)
        return x, [*looks, Look.at("the sum", x)]

    @run
    def end(model: Decoder, x: NamedArray) -> list[Look]:
        return [Look.at("norm", trainer.policy.cast_to_compute(model).norm(x))]

    x, rotations, looks = begin(model, batch.tokens["pos", :-1])
    yield from all_told(looks)
    for i, own in enumerate(jax.random.split(k_blocks, model.config.layers)):
        x, looks = layer(model.blocks.get_layer(i), x, rotations, mask, own)
        yield from (f"blocks.{i}.{told}" for told in all_told(looks))
    yield from all_told(end(model, x))


def all_told(looks: list[Look]) -> Iterator[str]:
    """Yield what is told by looks that found something."""
    for look in looks:
        told = look.told()
        if told:
            yield told


def of_gradients(gradients: Decoder) -> str | None:
    """Say which gradient was the first that is not finite: the backward pass begins at the deepest layer."""
    deepest: tuple[tuple[int, int, int], str] | None = None
    for place, found in enumerate(axn.parameters.walk(gradients)):
        look = Look.at(f"the gradient of {found.path}", in_order(found))
        told = look.told()
        if told is None:
            continue
        layer = 0
        if found.layers:
            layer = int(np.flatnonzero(fetched(look.bad[found.layers[-1]]))[-1])
        depth = (stage(found.path), layer, place)
        if deepest is None or depth > deepest[0]:
            deepest = depth, told
    return None if deepest is None else deepest[1]


def in_order(found: axn.parameters.Parameter) -> NamedArray:
    """Return a parameter with its layers along one axis, in order of depth."""
    if len(found.layers) < 2:
        return found.array
    return axn.flatten_axes(found.array, found.layers, found.layers[-1])


def stage(path: str) -> int:
    """Return how late a parameter comes in the computation; tied tables count by where they look tokens up."""
    if path.startswith("blocks.repeated."):
        return 1
    if path.startswith("blocks.rest."):
        return 2
    return 3 if path.startswith(("norm", "unembedding")) else 0
