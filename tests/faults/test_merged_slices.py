"""Starts out of range, and parts that the compiler may merge with what made an array; see `tests/upstream`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from measure import collectives

import axonym as axn
from tests.laws import count_equations

pytestmark = pytest.mark.sampled

A = axn.Axis("a", 16)
NUMBERS = np.arange(16, dtype=np.float32)
SPLIT = {"a": ("data", "model")}
Function = Callable[..., axn.NamedArray]

INNER: list[tuple[str, Function, Any]] = [
    ("slice", lambda x, i: axn.slice(x, "a", start=i, length=2), [8, 9]),
    ("int", lambda x, i: x["a", i], 9),
    ("array", lambda x, i: x["a", jnp.stack([i])], [9]),
    ("clip", lambda x, i: axn.take(x, "a", i, mode="clip"), 9),
    ("set", lambda x, i: x.at["a", i].set(-1.0), [6, 7, 8, 9]),
    ("add", lambda x, i: x.at["a", jnp.stack([i])].add(5.0), [6, 7, 8, 9]),
    ("clipped multiply", lambda x, i: x.at["a", i].multiply(2.0, mode="clip"), [6, 7, 8, 18]),
    ("updated_slice", lambda x, i: axn.updated_slice(x, {"a": i}, -1.0), [6, 7, 8, -1]),
]


@pytest.mark.parametrize(("fn", "expected"), [row[1:] for row in INNER], ids=[row[0] for row in INNER])
def test_a_part_out_of_range_of_a_slice_stays_inside_of_it(fn: Function, expected: Any) -> None:
    call = jax.jit(lambda x, start, i: fn(axn.slice(x, "a", start=start, length=4), i))
    assert call(axn.named(NUMBERS, "a"), 6, jnp.int32(7)).tolist() == expected


def test_one_element_of_an_array_that_is_split_just_before_is_updated_alone(explicit_mesh: Mesh) -> None:
    updates: list[Function] = [
        lambda x, i: x.at["a", i].add(100.0),
        lambda x, i: x.at["a", [5]].add(100.0),
        lambda x, i: axn.updated_slice(x, {"a": i}, 110.0),
        lambda x, i: axn.updated_slice(x, {"a": axn.named(jnp.stack([i]), "one")}, 110.0),
    ]
    with jax.set_mesh(explicit_mesh):
        x = axn.shard(axn.named(NUMBERS[None], ("one", "a")), {})
        call = jax.jit(lambda x, i: [fn(axn.shard(x * 2, SPLIT), i) for fn in updates])
        for result in call(x, jnp.int32(5)):
            assert result.sum("one").tolist() == [*range(0, 10, 2), 110, *range(12, 32, 2)]


@pytest.mark.parametrize("mesh", ["auto_mesh", "explicit_mesh"])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_start_out_of_range_along_a_split_axis_is_moved(
    mesh: str, compiled: bool, request: pytest.FixtureRequest
) -> None:
    wrap: Any = jax.jit if compiled else lambda fn: fn
    update = wrap(lambda x, i: axn.updated_slice(x, {"a": i}, 99.0))
    gradient = wrap(jax.grad(lambda x, i: x["a", i].scalar()))
    with jax.set_mesh(request.getfixturevalue(mesh)):
        x = axn.shard(axn.named(NUMBERS, "a"), SPLIT)
        for start, there in ((20, 15), (-20, 0), (-3, 13)):
            assert update(x, jnp.int32(start)).tolist() == np.where(there == NUMBERS, 99, NUMBERS).tolist()
            assert gradient(x, jnp.int32(start)).tolist() == (there == NUMBERS).tolist()


def test_one_element_of_a_split_axis_moves_alone(explicit_mesh: Mesh) -> None:
    with jax.set_mesh(explicit_mesh):
        x = axn.shard(axn.ones((A.resize(1024), axn.Axis("b", 8))), SPLIT)
        read = jax.jit(lambda x, i: x["a", i]).lower(x, jnp.int32(3)).compile()
        assert [found.bytes for found in collectives(read)] == [8 * 4]


def test_an_update_is_in_place_also_in_a_loop() -> None:
    x, row = axn.zeros(axn.make_axes(a=4096, b=64)), axn.ones(axn.Axis("b", 64))

    def loop(x: axn.NamedArray, row: axn.NamedArray) -> axn.NamedArray:
        return jax.lax.fori_loop(0, 9, lambda i, x: x.at["a", i].set(row), x)

    for fn in (loop, lambda x, row: x.at["a", jnp.argmax(row.array)].add(row)):
        used = jax.jit(fn, donate_argnums=0).lower(x, row).compile().memory_analysis()
        assert used.alias_size_in_bytes == x.array.nbytes
        assert used.temp_size_in_bytes < 4096


def test_where_no_device_looks_at_one_position_alone_nothing_is_added(auto_mesh: Mesh) -> None:
    with jax.set_mesh(auto_mesh):
        x, many = axn.ones(A), axn.arange(axn.Axis("i", 16))
        mine = count_equations(jax.grad(lambda x: x["a", many].sum().scalar()), x)
        by_hand = jax.grad(lambda x: x.at[many.array].get(mode="clip").sum())
        assert mine <= count_equations(by_hand, x.array)
