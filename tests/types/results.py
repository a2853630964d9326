"""Results and arguments of operations under a type checker, where they depend on what is given."""

from typing import Any, assert_type

import numpy as np

import axonym as axn
from axonym import Axis, NamedArray, mup, nn, tree

Found = Axis("found", 3)


def results(x: NamedArray, layer: nn.Linear) -> None:
    assert_type(axn.unique(x, Found, return_index=False), NamedArray)
    assert_type(axn.unique(x, Found, return_counts=True), tuple[NamedArray, ...])
    assert_type(axn.intersect1d(x, x, Found, return_indices=True), tuple[NamedArray, NamedArray, NamedArray])
    assert_type(axn.polyfit(x, x, 2), NamedArray)
    assert_type(axn.broadcast_arrays(x, x), tuple[NamedArray, ...])
    assert_type(axn.broadcast_arrays(x, None), tuple[Any, ...])
    assert_type(tree.resize_axis(layer, "embed", 16), nn.Linear)
    assert_type(mup.Mup({"embed": 8}).initial(layer), nn.Linear)
    assert_type(x.dtype, np.dtype[Any])


def mappings(x: NamedArray, names: dict[str, str], at: dict[str, int], axes: list[Axis]) -> None:
    assert_type(x.rename(names), NamedArray)
    assert_type(x.rename({axis: axis.name.upper() for axis in axes}), NamedArray)
    assert_type(axn.index(x, at), NamedArray)
    assert_type(x[at], NamedArray)
    assert_type(x.at[at].set(0), NamedArray)
    assert_type(axn.pad(x, at), NamedArray)
    assert_type(axn.tile(x, at), NamedArray)
    assert_type(x.updated_slice(at, x), NamedArray)
