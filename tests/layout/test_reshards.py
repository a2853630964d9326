"""Arrays that operations move between devices by themselves are reported, where that is asked for."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import ArgumentError, ShardingError
from axonym.partitioning import limit_reshards

B, E, M = axn.make_axes(batch=8, embed=4, mlp=8)


@pytest.fixture
def x(explicit_mesh: jax.sharding.Mesh) -> Any:
    with axn.set_mesh(explicit_mesh):
        yield axn.shard(
            axn.named(np.arange(32, dtype=np.float32).reshape(8, 4), (B, E)), {"batch": "data"}, strict=False
        )


def parted(x: axn.NamedArray) -> axn.NamedArray:
    return x.unflatten_axis("batch", (axn.Axis("micro", 2), axn.Axis("batch", 4)))


def text_of(function: Callable[..., Any], line: int) -> str:
    return (
        "limit_reshards: an operation moves an array of 128 bytes between devices, though nobody asked for it\n"
        "  array has: batch=8, embed=4\n"
        f"  its layout: {jax.P('data', None)}, then {jax.P(None, None)}\n"
        "  limit: 127 bytes\n"
        f"  in: {function.__name__}, {__file__}, line {line}\n"
        "  hint: lay it out before, by axn.shard or the mapping; or write that it may move: axn.shard(x, {...})"
    )


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, axn.named_jit], ids=["eager", "jit", "named_jit"])
def test_an_axis_that_is_gathered_to_be_split_is_reported(x: axn.NamedArray, wrap: Callable[..., Any]) -> None:
    text = text_of(parted, inspect.getsourcelines(parted)[1] + 1)
    expected = parted(x)  # without a limit, this is no error
    for limit, fails in ((127, True), (128, False)):
        for _ in range(2):
            with limit_reshards(limit):
                if not fails:
                    np.testing.assert_array_equal(wrap(parted)(x).array, expected.array)
                    continue
                with pytest.raises(ShardingError) as error:
                    wrap(parted)(x)
                assert str(error.value) == text
    jax.clear_caches()  # a warning comes once
    with limit_reshards(127, action="warn"), pytest.warns(UserWarning, match="limit_reshards") as told:
        got = wrap(parted)(x)
    np.testing.assert_array_equal(got.array, expected.array)
    assert [str(one.message) for one in told] == [text]
    assert told[0].filename == __file__


def test_operands_that_disagree_are_reported(x: axn.NamedArray) -> None:
    other = axn.shard(x, {"embed": "data"})
    weight = axn.shard(axn.ones((E, M)), {"embed": "data"})
    moves: dict[str, Any] = {
        "sum": lambda: x + other,
        "product": lambda: axn.dot(x, weight, axis="embed"),
        "along": lambda: axn.sort(x, "batch"),
        "slice": lambda: jax.jit(lambda x: x["batch", 1:])(x),
    }
    for move in moves.values():
        move()
        with limit_reshards(), pytest.raises(ShardingError, match="limit_reshards: an operation moves an array of"):
            move()


def test_what_was_asked_for_is_not_reported(x: axn.NamedArray) -> None:
    weight = axn.shard(axn.ones((E, M)), {"embed": "data"})
    with warnings.catch_warnings(), limit_reshards(action="error"):
        warnings.simplefilter("error")
        axn.shard(x, {"embed": "data"})
        axn.named_jit(lambda x: x * 2, in_axis_resources={"embed": "data"}, out_axis_resources={"embed": "model"})(x)
        x + axn.ones((B, E))  # each device keeps a part of what it has
        jax.jit(lambda x: axn.softmax(2 * x, "embed").sum("batch"))(x)
        with axn.axis_mapping({"batch": "data"}):  # weights that are gathered where they are used, as in FSDP
            axn.dot(x, weight, axis="embed")


def test_auto_axes_and_arrays_without_a_mesh_are_the_compilers_concern(auto_mesh: jax.sharding.Mesh) -> None:
    with axn.set_mesh(auto_mesh), limit_reshards():
        parted(axn.shard(axn.ones((B, E)), {"batch": "data"}))
    with limit_reshards():
        parted(axn.named(jnp.ones((8, 4)), (B, E)))


@pytest.mark.parametrize("given", [{"limit_bytes": -1}, {"limit_bytes": 1, "action": "raise"}])
def test_what_is_no_limit_is_refused(given: Any) -> None:
    with pytest.raises(ArgumentError) as error:
        limit_reshards(**given)
    shown = f"limit_bytes={given['limit_bytes']!r}, action={given.get('action', 'error')!r}"
    assert str(error.value) == (
        f'limit_reshards: {shown}\n  hint: write limit_reshards(2**20, action="warn"), or action="error"'
    )
