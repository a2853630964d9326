"""Annotations under a type checker: each is the array type that it names, so that methods and operators are typed."""

from typing import assert_type

import equinox as eqx
import jax

import axonym as axn
from axonym import Axis, Named, NamedArray
from axonym.typing import Bool, Float, f32, i32

Embed = Axis("embed", 64)


def attend(
    q: f32[NamedArray, "batch ... embed"],
    ids: i32[NamedArray, ("batch", Embed)],
    mask: Bool[NamedArray, {"batch", ...}] | None = None,
) -> Float[NamedArray, "batch embed"]:
    assert_type(q, NamedArray)
    assert_type(ids.names, tuple[str, ...])
    assert_type(mask, NamedArray | None)
    return q.sum("embed") + 1


class Layer(eqx.Module):
    weight: Named[NamedArray, "embed mlp"]
    scale: axn.Named[NamedArray, ""]
    bias: axn.typing.Float[NamedArray, "mlp"] | None = None


def call(layer: Layer, x: NamedArray) -> None:
    assert_type(attend(x, x), NamedArray)
    assert_type(layer.weight * x, NamedArray)
    assert_type(layer.scale.scalar(), jax.Array)
    assert_type(layer.bias, NamedArray | None)
    assert_type(x.matches_axes("batch embed"), bool)
    assert_type(x.resolve_axis("embed"), Axis)
    assert_type(x.resolve_axis(("batch", "embed")), tuple[Axis, ...])
    assert_type(x.axis_size(Embed), int)
    assert_type(x.axis_indices(["embed"]), tuple[int, ...])


def refused(x: NamedArray) -> None:
    attend("no array", x)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
