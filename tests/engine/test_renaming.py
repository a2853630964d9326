"""What is compiled for any names stays out of what depends on names: errors, and layouts by the mapping."""

import traceback
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import axonym as axn
from axonym.errors import AxisSizeError, ShardingError


def x_of(*names: str) -> axn.NamedArray:
    return axn.named(np.arange(64.0, dtype=np.float32).reshape(8, 8), names)


def test_an_error_tells_the_names_of_its_own_call() -> None:
    short = axn.named(np.ones(5, np.float32), "pos")
    for names in (("a", "b"), ("batch", "pos")):
        assert (x_of(*names) + x_of(*names)).names == names
        np.testing.assert_array_equal(axn.dot(x_of(*names), x_of(*names), axis=names[0]).names, names[1:])
    with pytest.raises(AxisSizeError, match=r"axis 'pos' has two sizes: 8 and 5") as error:
        x_of("batch", "pos") + short
    assert "axis '1'" not in "".join(traceback.format_exception(error.value))
    with pytest.raises(AxisSizeError, match=r"axis 'pos' has two sizes: 8 and 5"):
        axn.dot(x_of("batch", "pos"), short, axis="pos")


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_a_mapping_lays_out_the_names_of_its_own_call(jit: bool, kind: str, request: pytest.FixtureRequest) -> None:
    """With the names that share a program in both orders; `0` and `1` are names too."""
    mapping = {"a": "data", "b": "model", "c": "model", "0": "data", "1": "data"}

    def layout(*names: str) -> Any:
        product = lambda x: axn.dot(x, x.rename({names[0]: "z"}), axis=names[1])  # noqa: E731
        return (jax.jit(product) if jit else product)(x_of(*names)).array.sharding.spec

    def spec(*entries: str | None) -> PartitionSpec:
        return PartitionSpec(*entries)

    with jax.set_mesh(request.getfixturevalue(f"{kind}_mesh")):
        for mapped in (True, False, True):
            with axn.axis_mapping(mapping) if mapped else nullcontext():
                for names, wanted in ((("a", "k"), "data"), (("c", "k"), "model"), (("d", "k"), None)):
                    expected = spec(wanted, None) if mapped else spec(None, None)
                    found = layout(*names)
                    assert (*found, None, None)[:2] == (*expected,)


def test_a_move_is_reported_by_the_names_of_its_own_call(explicit_mesh: jax.sharding.Mesh) -> None:
    def moved(*names: str) -> axn.NamedArray:
        x, y = (axn.shard(x_of(*names), {name: "data"}) for name in names)
        return x + y

    with jax.set_mesh(explicit_mesh):
        moved("a", "b")
        with axn.partitioning.limit_reshards(16), pytest.raises(ShardingError, match=r"array has: pos=8, embed=8"):
            moved("pos", "embed")
