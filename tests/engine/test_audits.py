"""Reports of indices out of range, and the block that raises them."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import AxisSizeError
from tests.laws import count_equations

X = "array has: a=16, b=4"
EMBEDDING = nn.Embedding.init(axn.Axis("vocab", 16), axn.Axis("embed", 4), key=jax.random.key(0))
FAR: list[tuple[Any, str]] = [
    (lambda x, i: x["a", i], f"index: index 20 is out of range for a=16\n  {X}"),
    (lambda x, i: x["a", jnp.stack([i - 9, i])], f"index: index 20 is out of range for a=16\n  {X}"),
    (lambda x, i: x["a", axn.dslice(i, 2)], f"index: index 20 is out of range for a=16\n  {X}"),
    (lambda x, i: x.at["a", -i].add(1.0), f"at: index -20 is out of range for a=16\n  {X}"),
    (lambda x, i: x.at["a", i].get(mode="promise_in_bounds"), f"at: index 20 is out of range for a=16\n  {X}"),
    (lambda x, i: axn.take(x, "a", i), f"take: index 20 is out of range for a=16\n  {X}"),
    (lambda x, i: axn.take(x, "a", axn.named(i, ())), f"take: index 20 is out of range for a=16\n  {X}"),
    (
        lambda x, i: axn.slice(x, "a", start=i, length=2),
        f"slice: start 20 is out of range for a piece of 2 in a=16\n  {X}",
    ),
    (
        lambda x, i: axn.updated_slice(x, {"a": i}, 1.0),
        f"updated_slice: start 20 is out of range for a piece of 1 in a=16\n  {X}",
    ),
    (
        lambda x, i: EMBEDDING(axn.named(i, ())),
        "take: index 20 is out of range for vocab=16\n  array has: vocab=16, embed=4",
    ),
    (
        lambda x, i: nn.cross_entropy_loss(x, "a", axn.named(jnp.full(4, i), "b")),
        "cross_entropy_loss: class 20 is out of range for a=16\n  targets have: b=4",
    ),
    (
        lambda x, i: nn.chunked_cross_entropy_loss(x["a", 0], x, "b", "a", axn.named(i, ())),
        "chunked_cross_entropy_loss: class 20 is out of range for a=16\n  targets have: no axes",
    ),
]


@pytest.fixture
def x() -> axn.NamedArray:
    return axn.named(np.arange(64, dtype=np.float32).reshape(16, 4), ("a", "b"))


@pytest.mark.parametrize("mesh", [None, "auto_mesh", "explicit_mesh"])
def test_what_programs_find_is_raised_where_the_block_ends(
    mesh: str | None, x: axn.NamedArray, request: pytest.FixtureRequest
) -> None:
    calls = [jax.jit(call) for call, _ in FAR]

    def run(checked: AbstractContextManager[None], i: int) -> None:
        with checked:
            for call in calls:
                call(there, jnp.int32(i))

    with nullcontext() if mesh is None else jax.set_mesh(request.getfixturevalue(mesh)):
        there = x if mesh is None else axn.shard(x, {"a": ("data", "model")})
        checked = axn.debug.checks()
        with pytest.raises(AxisSizeError) as caught:
            run(checked, 20)
        # A finding that is there already is not repeated.
        assert str(caught.value) == "\n".join(dict.fromkeys(text for _, text in FAR))
        run(checked, 3)


def test_negative_ids_are_found(x: axn.NamedArray) -> None:
    """They read a row from the end of the table, whatever they were meant for; an index may be negative."""
    ids, found = (
        axn.named(jnp.array([3, -1]), "pos"),
        "Embedding: id -1 is out of range for vocab=16\n  ids have: pos=2",
    )
    for call in (EMBEDDING, jax.jit(lambda ids: EMBEDDING(ids))):
        with pytest.raises(AxisSizeError) as caught, axn.debug.checks():
            call(ids)
        assert str(caught.value) == found
    with axn.debug.checks():
        x["a", ids]
    assert count_equations(EMBEDDING, ids) <= count_equations(
        lambda ids: EMBEDDING.weight.array.at[ids].get(mode="fill"), ids.array
    )


def test_gradients_loops_and_maps_are_checked(x: axn.NamedArray) -> None:
    def total(x: axn.NamedArray, i: jax.Array) -> jax.Array:
        read = axn.vmap(lambda row: row["a", i], "b")(x)
        last, _ = axn.scan(lambda total, k: (total + x["a", k + i], total), "k")(read, axn.arange(axn.Axis("k", 3)))
        return last.sum().scalar()

    for call in (total, jax.jit(jax.grad(total)), jax.jit(jax.grad(jax.checkpoint(total)))):
        with pytest.raises(AxisSizeError, match=r"index 16 is out of range for a=16\n.*a=16, b=4$"), axn.debug.checks():
            jax.block_until_ready(call(x, jnp.int32(14)))


def test_a_cache_that_is_overfull_is_found() -> None:
    Pos, Key = axn.Axis("pos", 2), axn.Axis("embed", 2)
    cache = nn.KVCache.init("key_pos", axn.make_axes(key_pos=3, embed=2))
    more = axn.ones((Pos, Key))
    extend = jax.jit(lambda cache: cache.extend(Pos, more, more))
    with axn.debug.checks():
        cache = extend(cache)
    text = "KVCache: length 4 is out of range for key_pos=3\n  cache has: key_pos=3, embed=2"
    with pytest.raises(AxisSizeError) as caught, axn.debug.checks():
        extend(cache)
    assert str(caught.value) == text


def test_outside_of_the_block_nothing_is_added(x: axn.NamedArray, compiles: list[str]) -> None:
    read = jax.jit(lambda x, i: x["a", i])
    i = jnp.int32(3)
    before = count_equations(lambda x, i: x["a", i], x, i)
    read(x, i)
    with axn.debug.checks():
        read(x, i)
    count = len(compiles)
    read(x, i)
    assert len(compiles) == count
    assert count_equations(lambda x, i: x["a", i], x, i) == before


def test_an_error_in_the_block_keeps_what_was_found(x: axn.NamedArray) -> None:
    def fail() -> None:
        with axn.debug.checks():
            raise ZeroDivisionError(x["a", jnp.int32(20)])

    with pytest.raises(ZeroDivisionError) as caught:
        fail()
    assert caught.value.__notes__ == [f"index: index 20 is out of range for a=16\n  {X}"]
