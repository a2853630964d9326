"""The engine for functions of a few axes: names, anonymous dimensions, layouts, errors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import axonym as axn
from axonym.engine.batched import apply_batched
from axonym.errors import AxisClashError, AxisNotFoundError, AxisSizeError, BroadcastError, OperandError
from tests.laws import placed

pytestmark = pytest.mark.sampled


def _inv(matrix: jax.Array) -> jax.Array:
    return jnp.linalg.inv(matrix)


def _eigh(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    values, vectors = jnp.linalg.eigh(matrix)
    return values, vectors


def _count_below(ascending: jax.Array, limit: jax.Array) -> jax.Array:
    return jnp.searchsorted(ascending, limit)


def inv(x: axn.NamedArray, row: str = "row", col: str = "col", **options: Any) -> axn.NamedArray:
    return apply_batched(_inv, [x], [(row, col)], (row, col), in_place=True, **options)


def count_below(ascending: Any, limit: Any, **options: Any) -> axn.NamedArray:
    return apply_batched(_count_below, [ascending, limit], ["step", ()], (), each=True, **options)


ONCE: dict[str, Any] = {
    "quantile": lambda x, axes: axn.quantile(x, 0.3, axes("c", "a")),
    "percentile": lambda x, axes: axn.percentile(x, axn.named([10.0, 90.0], "q"), axes("b")),
    "weights": lambda x, axes: axn.quantile(x, 0.3, axes("a"), method="inverted_cdf", weights=abs(x)),
    "roll": lambda x, axes: axn.roll(x, (1, 2), axes("a", "c")),
    "roll by data": lambda x, axes: axn.roll(x, jnp.array(1), axes("a", "c")),
    "fftshift": lambda x, axes: axn.fftshift(x, axes("a", "b")),
    "ifftshift": lambda x, axes: axn.ifftshift(x, axes("a")),
    "compress": lambda x, axes: axn.compress(x > 0, x, axes("a", "b"), size=axn.Axis("kept", 3)),
    "standardize": lambda x, axes: axn.standardize(x, axes("a", "b"), epsilon=jnp.float32(1e-3)),
    "bincount": lambda x, axes: axn.bincount((x > 0).astype(int), axn.Axis("n", 2), axes("a"), weights=x),
    "histogram": lambda x, axes: axn.histogram(x, axn.Axis("bin", 3), axes("a", "b"), weights=x),
    "solve": lambda x, axes: axn.linalg.solve(x, x["a", 0, "c", 0], axes("b"), axes("c")),
    "pinv": lambda x, axes: axn.linalg.pinv(x, axes("a", "b"), axes("c")),
}


@pytest.mark.parametrize("name", ONCE)
def test_axes_are_read_once(name: str) -> None:
    x = axn.named(np.random.default_rng(3).normal(size=(2, 4, 4)).astype(np.float32), ("a", "b", "c"))
    given, expected = (ONCE[name](x, axes) for axes in (lambda *names: iter(names), lambda *names: names))
    assert jax.tree.structure(given) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, given, expected)


@pytest.fixture
def matrices() -> np.ndarray:
    half = np.random.default_rng(0).normal(size=(4, 3, 3)).astype(np.float32)
    return half @ half.transpose(0, 2, 1) + np.eye(3, dtype=np.float32)


def test_the_result_keeps_the_order_of_the_first_operand_in_place(matrices: np.ndarray) -> None:
    x = axn.named(np.moveaxis(matrices, 0, 1), ("row", "batch", "col"))
    result = inv(x)
    assert result.names == ("row", "batch", "col")
    np.testing.assert_allclose(np.moveaxis(np.asarray(result.array), 1, 0), np.linalg.inv(matrices), rtol=1e-3)


def test_batch_axes_come_before_those_of_each_result(matrices: np.ndarray) -> None:
    x = axn.named(matrices, ("batch", "row", "col")).rearrange(("col", "batch", "row"))
    values, vectors = apply_batched(_eigh, [x], [("row", "col")], (("k",), ("row", "k")))
    assert values.names == ("batch", "k")
    assert vectors.names == ("batch", "row", "k")
    np.testing.assert_allclose(values.array, np.linalg.eigh(matrices)[0], rtol=1e-4)


def test_each_maps_over_what_either_operand_has() -> None:
    steps = np.sort(np.random.default_rng(1).normal(size=(2, 5)))
    limits = np.random.default_rng(2).normal(size=(3, 2))
    result = count_below(axn.named(steps, ("batch", "step")), axn.named(limits, ("draw", "batch")))
    assert result.names == ("draw", "batch")
    expected = [[np.searchsorted(steps[b], limits[d, b]) for b in range(2)] for d in range(3)]
    np.testing.assert_array_equal(result.array, expected)


def test_a_plain_array_stands_for_its_core_axes() -> None:
    result = count_below(np.arange(4.0), axn.named([0.5, 2.5], "x"))
    np.testing.assert_array_equal(result.array, [1, 3])


def test_outer_needs_no_operand_with_all_batch_axes() -> None:
    steps, limits = axn.named(np.arange(6.0).reshape(2, 3), ("a", "step")), axn.named([0.5, 4.5], "b")
    assert count_below(steps, limits, outer=True).names == ("a", "b")
    np.testing.assert_array_equal(count_below(steps, limits, outer=True).array, [[1, 3], [0, 2]])


@pytest.mark.parametrize("each", [False, True])
def test_anonymous_dimensions_are_batch_dimensions(matrices: np.ndarray, each: bool) -> None:
    x = axn.named(matrices, ("batch", "row", "col"))
    result = inv(x.untag("batch"), each=each)
    assert result.names == ("row", "col")
    np.testing.assert_allclose(result.array, np.linalg.inv(matrices), rtol=1e-3)
    assert inv(x.rename({"batch": "a"}).untag("a").tag("b"), each=each).names == ("b", "row", "col")


@pytest.mark.parametrize("types", [(AxisType.Explicit,) * 2, (AxisType.Explicit, AxisType.Auto)])
def test_core_axes_are_gathered_and_batch_axes_stay(matrices: np.ndarray, types: tuple[AxisType, ...]) -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=types)
    x = axn.named(np.stack([matrices, 2 * matrices]), ("b", "batch", "row", "col"))
    with jax.set_mesh(mesh):
        layout = {"batch": "data", "b": "model" if types[1] is AxisType.Explicit else None}
        for call in (inv, jax.jit(inv)):
            result = call(placed(x, mesh, layout))
            spec = jax.typeof(result.array).sharding.spec
            assert spec == PartitionSpec(layout["b"], "data", None, None)
            np.testing.assert_allclose(np.asarray(result.array)[0], np.linalg.inv(matrices), rtol=1e-3)
        gathered = inv(placed(x.rename({"b": "d"})["d", 0], mesh, {"row": None, "col": None}))
        assert gathered.names == ("batch", "row", "col")


def test_works_where_another_mesh_axis_is_manual(matrices: np.ndarray, explicit_mesh: jax.sharding.Mesh) -> None:
    def block(array: jax.Array) -> jax.Array:
        return inv(axn.NamedArray(array, ("batch", "row", "col"))).array

    with jax.set_mesh(explicit_mesh):
        mapped = jax.shard_map(
            block, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"), axis_names={"data"}
        )
        given = jax.device_put(matrices, NamedSharding(explicit_mesh, PartitionSpec("data")))
        np.testing.assert_allclose(jax.jit(mapped)(given), np.linalg.inv(matrices), rtol=1e-3)


def test_explicit_operands_that_differ_meet_by_name(explicit_mesh: jax.sharding.Mesh) -> None:
    steps = axn.named(np.sort(np.random.default_rng(1).normal(size=(4, 6))), ("batch", "step"))
    limits = axn.named(np.random.default_rng(2).normal(size=(4,)), "batch")
    with jax.set_mesh(explicit_mesh):
        result = count_below(
            placed(steps, explicit_mesh, {"step": "model", "batch": "data"}),
            placed(limits, explicit_mesh, {"batch": "model"}),
        )
    np.testing.assert_array_equal(result.array, count_below(steps, limits).array)


X = axn.ones((axn.Axis("batch", 2), axn.Axis("row", 3), axn.Axis("col", 3)))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: inv(X, "rwo"),
            AxisNotFoundError,
            "inv: no axis named 'rwo'\n  array has: batch=2, row=3, col=3\n  hint: did you mean 'row'?",
        ),
        (
            lambda: count_below(axn.ones({"pos": 3}), axn.ones({"step": 2})),
            AxisNotFoundError,
            "count_below: operand 1 has no axis named 'step'\n  operand 1 has: pos=3\n  operand 2 has: step=2",
        ),
        (
            lambda: axn.linalg.solve(X.rename({"row": "pos"}), axn.ones({"batch": 2, "po": 3}), "pos", "col"),
            AxisNotFoundError,
            "solve: operand 2 has no axis named 'pos'\n"
            "  operand 1 has: batch=2, pos=3, col=3\n"
            "  operand 2 has: batch=2, po=3\n"
            "  hint: did you mean 'po'?",
        ),
        (
            lambda: axn.linalg.solve(X, axn.ones({"batch": 2, "row": 3}), "rwo", "col"),
            AxisNotFoundError,
            "solve: no axis named 'rwo'\n"
            "  operand 1 has: batch=2, row=3, col=3\n"
            "  operand 2 has: batch=2, row=3\n"
            "  hint: did you mean 'row'?",
        ),
        (
            lambda: inv(X, "row", "row"),
            AxisClashError,
            "inv: axis 'row' is given twice\n  axes: row, row",
        ),
        (
            lambda: apply_batched(_inv, [X], [("row", "col")], ("batch", "col")),
            AxisClashError,
            "inv: in the result, axis 'batch' would appear twice\n  array has: batch=2, row=3, col=3",
        ),
        (
            lambda: apply_batched(_inv, [X], [(axn.Axis("row", 4), "col")], ("row", "col")),
            AxisSizeError,
            "inv: axis 'row' was given with size 4, but has size 3\n  array has: batch=2, row=3, col=3",
        ),
        (
            lambda: count_below(axn.ones({"step": 3, "a": 2}), axn.ones({"b": 2})),
            BroadcastError,
            "count_below: no operand has the axes of all others\n"
            "  operand 1 has: step=3, a=2\n"
            "  operand 2 has: b=2\n"
            "  hint: if the outer product is meant, give an operand the others' axes first: x.broadcast_axis(b)",
        ),
        (
            lambda: count_below(axn.ones({"step": 3, "a": 2}), axn.ones({"a": 4})),
            AxisSizeError,
            "count_below: axis 'a' has two sizes: 2 and 4\n"
            "  operand 1 has: step=3, a=2\n"
            "  operand 2 has: a=4\n"
            '  hint: if they are the same axis, cut the longer one, x["a", :2]; '
            'if not, rename one: x.rename({"a": ...})',
        ),
        (
            lambda: count_below(jnp.ones((2, 2)), X),
            OperandError,
            "count_below: a plain array of shape (2, 2) does not match axes: step\n"
            "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
        ),
        (
            lambda: inv(jnp.ones((2, 2))),
            OperandError,
            "inv: expected a NamedArray, got a plain array\n"
            "  its shape: (2, 2)\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text


def test_anonymous_dimensions_of_size_1_are_repeated() -> None:
    sorted_, values = np.arange(8.0).reshape(2, 4), np.array([[1.5, 5.5, 9.0]])
    one, other = axn.NamedArray(jnp.asarray(sorted_), ("a",)), axn.NamedArray(jnp.asarray(values), ("b",))
    found = axn.searchsorted(one, other, axis="a")
    np.testing.assert_array_equal(found.array, [np.searchsorted(row, values[0]) for row in sorted_])
