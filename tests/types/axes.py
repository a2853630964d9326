"""The algebra of axes under a type checker: axes with sizes give axes with sizes, which can be used as such."""

from collections.abc import Mapping, Sequence
from typing import assert_type

import jax

import axonym as axn
from axonym import Axis, AxisSelection, AxisSpec, NamedArray, nn

Batch, Pos, Embed = axn.make_axes(batch=2, pos=4, embed=8)


def algebra(x: NamedArray, sizes: Mapping[str, int], names: Sequence[str], any_of_these: AxisSelection) -> None:
    assert_type(axn.concat_axes(Embed, x.axes), tuple[Axis, ...])
    assert_type(axn.concat_axes(sizes, Embed), dict[str, int])
    assert_type(axn.union_axes([Embed], x.axes), tuple[Axis, ...])
    assert_type(axn.union_axes(x.axes, sizes), AxisSpec)
    assert_type(axn.intersect_axes(x.axes, ("batch", Pos)), tuple[Axis, ...])
    assert_type(axn.without_axes(Batch, names), tuple[Axis, ...])
    assert_type(axn.without_axes(sizes, "batch"), dict[str, int])
    assert_type(axn.eliminate_axes(x.axes, "batch"), tuple[Axis, ...])
    assert_type(axn.replace_axis(x.axes, "embed", sizes), tuple[Axis, ...])
    assert_type(axn.replace_axis(sizes, Embed, Pos), dict[str, int])
    assert_type(axn.concat_axes(x.axes, names), AxisSelection)
    assert_type(axn.replace_axis(x.axes, "embed", "mlp"), AxisSelection)
    assert_type(axn.eliminate_axes(names, "batch"), AxisSelection)
    assert_type(axn.union_axes(any_of_these, x.axes), AxisSelection)


def results_are_axes(x: NamedArray, key: jax.Array) -> int:
    rest = axn.eliminate_axes(x.axes, "batch")
    y = axn.zeros(rest) + axn.random.normal(key, axn.replace_axis(rest, "embed", Embed))
    nn.Linear.init(axn.concat_axes(Embed, Pos), Axis("mlp", 16), key=key)
    y.broadcast_to(axn.union_axes(Batch, y.axes))
    axn.ones(axn.without_axes({"batch": 2, "pos": 4}, "batch"))
    return axn.axis_size(rest) + sum(axis.size for axis in rest)


def without_sizes(x: NamedArray) -> None:
    axn.zeros(axn.concat_axes(x.axes, "mlp"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
