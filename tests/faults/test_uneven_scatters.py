"""Positions that do not divide among devices: written and read as on one device, and differentiated too."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import axonym as axn

Bins = axn.Axis("bins", 3)
SPLITS = ({"pos": "data"}, {"pos": "model"}, {"pos": ("data", "model")})


def values(x: axn.NamedArray) -> axn.NamedArray:
    """Make seven values of eight, and of a zero that is not there something else."""
    return axn.exp(x["pos", 1:])


def ids(x: axn.NamedArray) -> axn.NamedArray:
    return (values(x) * 7).astype(int) % 3


WRITES: dict[str, Callable[[axn.NamedArray], axn.NamedArray]] = {
    "sum": lambda x: axn.segment_sum(values(x), ids(x), Bins),
    "clipped sum": lambda x: axn.segment_sum(values(x), ids(x) * 2, Bins, mode="clip"),
    "mean": lambda x: axn.segment_mean(values(x), ids(x), Bins),
    "prod": lambda x: axn.segment_prod(values(x) + 1, ids(x), Bins),
    "max": lambda x: axn.segment_max(-values(x), ids(x), Bins),
    "min": lambda x: axn.segment_min(values(x), ids(x), Bins),
    "bincount": lambda x: axn.bincount(ids(x), Bins),
    "weights": lambda x: axn.bincount(ids(x), Bins, weights=values(x)),
    "add": lambda x: axn.zeros(Bins).at["bins", ids(x)].add(values(x)),
    "add a number": lambda x: axn.zeros(Bins).at["bins", ids(x)].add(1),
    "add clipped": lambda x: axn.zeros(Bins).at["bins", ids(x) * 2].add(values(x), mode="clip"),
    "add from the end": lambda x: axn.zeros(Bins).at["bins", ids(x) - 3].add(values(x)),
    "multiply": lambda x: axn.ones(Bins).at["bins", ids(x)].multiply(values(x) + 1),
    "at max": lambda x: axn.full(Bins, -9.0).at["bins", ids(x)].max(-values(x)),
    "set": lambda x: axn.zeros(axn.Axis("pos", 7)).at["pos", axn.arange(axn.Axis("pos", 7))].set(values(x)),
}


def split(tree: Any, mapping: dict[str, Any]) -> Any:
    return axn.shard(tree, mapping)


@pytest.mark.parametrize("mapping", SPLITS, ids=str)
def test_writes_equal_those_on_one_device(auto_mesh: Mesh, mapping: dict[str, Any]) -> None:
    def every(x: axn.NamedArray) -> dict[str, axn.NamedArray]:
        return {name: write(x) for name, write in WRITES.items()}

    x = axn.named(np.linspace(-1, 1, 8, dtype=np.float32), "pos")
    expected = jax.jit(every)(x)
    with axn.set_mesh(auto_mesh):
        found = jax.jit(every)(split(x, mapping))
    for name in WRITES:
        np.testing.assert_allclose(found[name].array, expected[name].array, rtol=1e-5, err_msg=name)


def assert_same_gradient(loss: Callable[..., jax.Array], mesh: Mesh, mapping: dict[str, Any]) -> None:
    """Compare the gradient of a loss of a table and of tokens with that on one device."""
    table = axn.random.normal(jax.random.key(0), axn.make_axes(vocab=4, embed=3))
    tokens = axn.random.randint(jax.random.key(1), axn.make_axes(batch=2, pos=8), 0, 4)
    expected = jax.jit(jax.grad(loss))(table, tokens)
    with axn.set_mesh(mesh):
        found = jax.jit(jax.grad(loss))(table, split(tokens, mapping))
    np.testing.assert_allclose(found.array, expected.array, rtol=1e-5)


@pytest.mark.parametrize("mapping", SPLITS, ids=str)
def test_gradients_of_what_is_read_equal_those_on_one_device(auto_mesh: Mesh, mapping: dict[str, Any]) -> None:
    """Read one table by shifted tokens, at plain positions, beside another index, and at pairs."""

    def loss(table: axn.NamedArray, tokens: axn.NamedArray) -> jax.Array:
        embedded = table["vocab", tokens["pos", 1:]]
        pairs = table["vocab", tokens["pos", :-1], "embed", tokens["pos", 1:] % 3]
        middle = axn.exp(table.take("vocab", tokens["pos", 1:4]))
        return (axn.exp(embedded).sum() + axn.exp(pairs).sum() + middle.sum()).scalar()

    assert_same_gradient(loss, auto_mesh, mapping)


@pytest.mark.parametrize("mapping", SPLITS, ids=str)
@pytest.mark.parametrize("at", [slice(0, 1), slice(7, 8)], ids=["first", "last"])
def test_gradients_of_one_position_equal_those_on_one_device(
    auto_mesh: Mesh, mapping: dict[str, Any], at: slice
) -> None:
    def loss(table: axn.NamedArray, tokens: axn.NamedArray) -> jax.Array:
        one = tokens["pos", at]
        pairs = table["vocab", one, "embed", tokens["pos", 1:].rename({"pos": "other"}) % 3]
        return (axn.exp(table["vocab", one]).sum() + axn.exp(pairs).sum()).scalar()

    assert_same_gradient(loss, auto_mesh, mapping)


def test_a_batch_of_one_row_reads_as_much_on_all_meshes() -> None:
    Vocab, Embed, Batch, Pos = axn.make_axes(vocab=64, embed=16, batch=1, pos=32)

    def slope(table: axn.NamedArray, ids: axn.NamedArray) -> axn.NamedArray:
        return jax.grad(lambda table: (table["vocab", ids] ** 2).sum().scalar())(table)

    args = axn.zeros((Vocab, Embed)), axn.zeros((Batch, Pos), dtype=int)
    alone, many = (axn.cost(slope, {}, {"data": size}, *args, target="v5e", depth="traced") for size in (1, 16))
    assert many.totals == alone.totals


def test_the_slope_of_a_product_at_positions_that_are_promised_to_differ(auto_mesh: Mesh) -> None:
    """JAX differentiates it only with the promise, which additional positions must keep."""
    at = axn.named(np.array([2, 0, 5]), "picked")

    def loss(x: axn.NamedArray, factors: axn.NamedArray) -> jax.Array:
        return (x.at["pos", at].multiply(factors, unique_indices=True) ** 2).sum().scalar()

    x, factors = axn.arange(axn.Axis("pos", 8)) + 1.0, axn.named(jnp.array([1.0, 2.0, 3.0]), "picked")
    expected = jax.grad(loss, argnums=(0, 1))(x, factors)
    with axn.set_mesh(auto_mesh):
        found = jax.jit(jax.grad(loss, argnums=(0, 1)))(axn.shard(x, {"pos": "data"}), factors)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.array, other.array, rtol=1e-6)
