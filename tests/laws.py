"""The laws that every operation on named arrays keeps, and the rows of the tables that they are checked over.

A row tells how to call an operation and what the same is in positional code: `call` takes named arrays, `reference`
takes jax arrays whose dimensions stand in the order of `operands`, and `oracle` does the same in numpy, which knows
nothing of JAX. One letter is one axis. A test file makes its table and subclasses `Values`, `Laws` or `Smooth`.
"""

import dataclasses
import functools
import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from measure import equations

import axonym as axn
from axonym.errors import AxonymError, LostAxisError
from tests.sample import SEED, in_ninth, in_sample
from tests.together import Job, together

# Sizes differ, so that a mix-up of two axes is a wrong shape; those of `a` and `b` divide over the 4 x 2 mesh.
# Matrices that have to be square are m x n.
SIZES = {"a": 4, "b": 2, "c": 3, "i": 8, "j": 5, "m": 3, "n": 3, "z": 2}


def _definite(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Make symmetric matrices over the last two axes, well away from singular ones."""
    half = rng.normal(size=shape).astype(np.float32)
    return half @ np.swapaxes(half, -1, -2) + 2 * np.eye(shape[-1], dtype=np.float32)


DOMAINS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "real": lambda rng, shape: rng.normal(size=shape).astype(np.float32),
    "positive": lambda rng, shape: rng.uniform(0.5, 2, shape).astype(np.float32),
    "unit": lambda rng, shape: rng.uniform(-0.9, 0.9, shape).astype(np.float32),
    "above one": lambda rng, shape: rng.uniform(1.1, 3, shape).astype(np.float32),
    "complex": lambda rng, shape: (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex64),
    "int": lambda rng, shape: rng.integers(-9, 9, shape).astype(np.int32),
    "shift": lambda rng, shape: rng.integers(0, 4, shape).astype(np.int32),
    "index": lambda rng, shape: rng.integers(0, 2, shape).astype(np.int32),
    "bool": lambda rng, shape: rng.integers(0, 2, shape).astype(bool),
    "distinct": lambda rng, shape: rng.permutation(math.prod(shape)).reshape(shape).astype(np.float32),
    "definite": _definite,
    "special": lambda rng, shape: rng.choice(np.array([0, -1.5, np.inf, -np.inf, np.nan], np.float32), shape),
}
FLOATS = {"real", "positive", "unit", "above one", "distinct", "definite"}


def in_order_of_the_largest(row: "Row", *stored: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Give the names that design.md promises: the first operand that contains all others decides."""
    every = set().union(*stored)
    largest = next(names for names in stored if set(names) == every)
    return [tuple(name for name in largest if name in out) for out in row.outs]


def batch_then(core: str, *outs: str) -> Callable[..., list[tuple[str, ...]]]:
    """Give the names of what is computed for each position of the batch axes of one operand, those not in `core`."""
    return lambda order: [(*(name for name in order if name not in core), *out) for out in outs]


@dataclasses.dataclass(frozen=True)
class Row:
    """One way to call one operation.

    Attributes:
        function: its public name, with which every message begins.
        call: the operation on named arrays.
        operands: the axes of each operand.
        reference: the same on jax arrays, as a careful author writes it; it decides values, dtypes and how many
            equations there may be.
        out: the axes of the result in the order in which `reference` returns them; a tuple for several results.
        oracle: the same in numpy; None where the values of `reference` have to do.
        domains: which values the operands have.
        names: the names of the results for the stored names of the operands, where the default does not hold.
        case: tells rows of one function apart.
        any_size: whether the call makes sense where an axis has no or one element.
        speaker: the function that messages begin with, where it is another one.
        anonymous: how many operands, from the first on, may have dimensions without names.
    """

    function: str
    call: Callable[..., Any]
    operands: tuple[str, ...]
    reference: Callable[..., Any]
    out: str | tuple[str, ...]
    oracle: Callable[..., Any] | None = None
    domains: tuple[str, ...] = ()
    names: Callable[..., Any] | None = None
    case: str = ""
    any_size: bool = True
    speaker: str = ""
    anonymous: int = 9

    def __str__(self) -> str:
        return f"{self.function}-{self.case}" if self.case else self.function

    @property
    def outs(self) -> tuple[str, ...]:
        return (self.out,) if isinstance(self.out, str) else self.out

    def domain(self, i: int) -> str:
        return self.domains[i] if self.domains else "real"

    def draw(self, seed: int, lead: tuple[int, ...] = (), **sizes: int) -> list[np.ndarray]:
        """Make values for the operands; `lead` are dimensions in front."""
        rng, table = np.random.default_rng(seed), {**SIZES, **sizes}
        shapes = [(*lead, *(table[name] for name in axes)) for axes in self.operands]
        return [DOMAINS[self.domain(i)](rng, shape) for i, shape in enumerate(shapes)]

    def orders(self) -> list[list[tuple[str, ...]]]:
        """Give up to three storage orders of all operands that differ: a drawn one, its mirror image, a drawn one."""
        first = self.shuffled(SEED)
        drawn = [first, [tuple(reversed(names)) for names in first], self.shuffled(SEED + 1)]
        return [orders for i, orders in enumerate(drawn) if orders not in drawn[:i]]

    def shuffled(self, seed: int) -> list[tuple[str, ...]]:
        """Give a storage order for each operand, another one for each row."""
        rng = np.random.default_rng([seed, zlib.crc32(str(self).encode())])
        return [tuple(map(str, rng.permutation(list(axes)))) for axes in self.operands]

    def results(self, value: Any) -> tuple[Any, ...]:
        return tuple(value) if isinstance(value, tuple | list) else (value,)

    def check(self, result: Any, expected: Any, orders: Sequence[tuple[str, ...]], lead: tuple[str, ...] = ()) -> None:
        """Compare names, dtypes and values; `lead` is a name in front of the results' own, see `for_each`."""
        results, wanted = self.results(result), self.results(expected)
        if self.names is None:
            names = in_order_of_the_largest(self, *orders)
        else:
            names = [tuple(one) for one in self.results(self.names(*("".join(order) for order in orders)))]
        assert len(results) == len(wanted) == len(names) == len(self.outs)
        for got, value, own, out in zip(results, wanted, names, self.outs, strict=True):
            assert isinstance(got, axn.NamedArray)
            assert got.names == (*lead, *own)
            assert_close(got.array, value, order_of(got, (*lead, *out)))


def order_of(x: axn.NamedArray, names: Sequence[str]) -> list[int]:
    """Tell which dimension of an array each of its names stands for."""
    assert sorted(x.names) == sorted(names)
    return [x.names.index(name) for name in names]


def positional(x: axn.NamedArray, names: Sequence[str]) -> jax.Array:
    """Take the array out, its dimensions in the order of `names`."""
    order = order_of(x, names)
    return x.array if order == sorted(order) else jnp.transpose(x.array, order)


def stored(array: Any, axes: str, order: Sequence[str]) -> axn.NamedArray:
    """Name an array whose dimensions are `axes`, and store it in another order."""
    # In numpy, as everything around the code under test: jnp would compile a program for each order and shape, and
    # `jnp.asarray` does, too.
    return axn.NamedArray(
        jax.device_put(np.transpose(np.asarray(array), [axes.index(name) for name in order])), tuple(order)
    )


def operands(
    row: Row, arrays: Sequence[Any], orders: Sequence[tuple[str, ...]], lead: str = ""
) -> list[axn.NamedArray]:
    """Name the operands of a row, each stored in its order; `lead` are axes in front of the row's own."""
    return [stored(a, lead + axes, order) for a, axes, order in zip(arrays, row.operands, orders, strict=True)]


def positional_results(row: Row, results: Any) -> tuple[jax.Array, ...]:
    """Take the results of a row's call out, as its reference returns them."""
    return tuple(positional(x, out) for x, out in zip(row.results(results), row.outs, strict=True))


def assert_close(got: Any, expected: Any, order: Sequence[int] | None = None) -> None:
    """Compare dtypes exactly and values as closely as the dtype allows.

    `order` permutes the dimensions of `got`; a list stands for the array that it makes when stacked.
    """
    for one in expected if isinstance(expected, list) else [expected]:
        if isinstance(one, jax.Array):
            assert got.dtype == one.dtype
            assert got.weak_type == one.weak_type
    got, expected = np.asarray(got), np.stack(expected) if isinstance(expected, list) else np.asarray(expected)
    got = got if order is None else np.transpose(got, order)
    if got.dtype == jnp.bfloat16:
        np.testing.assert_allclose(got.astype(np.float32), expected.astype(np.float32), rtol=2e-2, atol=1e-2)
    elif np.issubdtype(got.dtype, np.inexact):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)
    else:
        np.testing.assert_array_equal(got, expected)
    assert got.shape == expected.shape


def program(fn: Callable[..., Any], *args: Any) -> tuple[int, list[Any]]:
    """Trace a function: the number of its equations, nested ones included, and the types of its results."""
    traced = jax.make_jaxpr(fn)(*args)
    return len(list(equations(traced.jaxpr))), [(a.shape, a.dtype, a.weak_type) for a in traced.out_avals]


def count_equations(fn: Callable[..., Any], *args: Any) -> int:
    """Count the equations of a function: compare with what a careful author writes, as each costs time."""
    return program(fn, *args)[0]


def count_kept(fn: Callable[..., Any], *args: Any) -> int:
    """Count the numbers that a function keeps for its backward pass."""
    backward = jax.eval_shape(lambda *args: jax.vjp(fn, *args)[1], *args)
    return sum(leaf.size for leaf in jax.tree.leaves(backward))


def bytes_on_host(fn: Callable[..., Any], *args: Any) -> int:
    """Add up the sizes of what a function puts into the memory of the host; a loop counts once."""
    found = [each.aval for one in equations(jax.make_jaxpr(fn)(*args).jaxpr) for each in one.outvars]
    return sum(each.size * each.dtype.itemsize for each in found if each.memory_space == jax.memory.Space.Host)


def outcome(fn: Callable[[], Any]) -> Any:
    """Return the result of a function, or the type of what it raises."""
    try:
        return fn()
    except Exception as error:
        return (
            TypeError if isinstance(error, TypeError) else ValueError if isinstance(error, ValueError) else type(error)
        )


def attempt(fn: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a function, or what it raises."""
    try:
        return fn(*args)
    except Exception as error:
        return error


def same_types(row: "Row", arrays: Sequence[Any]) -> tuple[int, int]:
    """Compare the types of results, or the kind of error, and count the equations of the call and of the reference."""
    arrays = jax.device_put(list(arrays))
    named = operands(row, arrays, [tuple(axes) for axes in row.operands])
    expected = outcome(lambda: program(row.reference, *arrays))
    result = outcome(lambda: program(lambda *named: positional_results(row, row.call(*named)), *named))
    if not isinstance(expected, tuple) or not isinstance(result, tuple):
        assert result == expected
        return 0, 0
    assert result[1] == expected[1]
    return result[0], expected[0]


def as_dtype(array: np.ndarray, dtype: Any) -> Any:
    """Turn floats into values of another dtype that still differ from each other."""
    if dtype is bool:
        return array > 0
    if dtype is np.complex64:
        return (array + 1j * np.flip(array)).astype(dtype)
    return (array * 3 if dtype is np.int32 else array).astype(dtype)


def placed(x: axn.NamedArray, mesh: jax.sharding.Mesh, layout: dict[str, Any]) -> axn.NamedArray:
    """Put an array on a mesh."""
    spec = PartitionSpec(*(layout.get(name) for name in x.names))
    return axn.NamedArray(jax.device_put(np.asarray(x.array), NamedSharding(mesh, spec)), x.names)


def row_along(
    module: Any,
    name: str,
    axis: Any,
    at: Any,
    reference: Any,
    oracle: Any,
    *,
    case: str = "",
    domain: str = "real",
    **options: Any,
) -> Row:
    """Make the row of a function of an array and an axis: `at` is its place, which the references get."""
    fn = getattr(module, name)
    return Row(
        name,
        lambda x: fn(x, axis=axis, **options),
        ("abc",),
        lambda x: reference(x, at),
        "abc",
        None if oracle is None else lambda x: oracle(x, at),
        (domain,),
        case=case,
    )


def has_row_for_each(rows: Sequence[Row], module: Any, without: Sequence[str] = ()) -> None:
    """Fail for a public operation without a row; `without` names those that have tests of their own."""
    assert {row.function for row in rows} == set(module.__all__) - set(without)


def refuses_a_lost_axis(row: Row) -> None:
    """Take an axis of each operand away in turn, behind the back of its names."""
    named = operands(row, row.draw(7), [tuple(axes) for axes in row.operands])
    for i, axes in enumerate(row.operands):
        if axes:
            dims = [0 if j == i else None for j in range(len(named))]
            with pytest.raises(
                LostAxisError, match=f"^{row.speaker or row.function}: an array of shape .* cannot have the"
            ):
                jax.vmap(row.call, in_axes=dims)(*named)


def differentiated(row: Row, orders: Sequence[tuple[str, ...]], arrays: Sequence[np.ndarray]) -> Job:
    """Differentiate a weighted sum of the results, by name and in positional code."""
    which = [i for i in range(len(arrays)) if row.domain(i) in FLOATS]

    def total(results: Any) -> jax.Array:
        weights = [np.cos(np.arange(r.size, dtype=np.float32)).reshape(r.shape) for r in row.results(results)]
        return sum((weight * r).sum() for weight, r in zip(weights, row.results(results), strict=True))

    def named_total(*named: axn.NamedArray) -> jax.Array:
        return total(positional_results(row, row.call(*named)))

    def both(named: Sequence[axn.NamedArray], arrays: Sequence[jax.Array]) -> Any:
        expected = jax.grad(lambda *arrays: total(row.reference(*arrays)), which)(*arrays)
        return jax.grad(named_total, which)(*named), expected

    return both, (operands(row, arrays, orders), arrays)


def check_gradients(row: Row, orders: Sequence[tuple[str, ...]], gradients: Any, expected: Any) -> None:
    """Compare the gradients by the operands that have one."""
    which = [i for i in range(len(row.operands)) if row.domain(i) in FLOATS]
    for i, gradient, value in zip(which, gradients, expected, strict=True):
        assert gradient.names == orders[i]
        assert_close(gradient.array, value, order_of(gradient, row.operands[i]))


def differentiated_once(row: Row) -> Job:
    return differentiated(row, row.shuffled(9), row.draw(9))


def compiled(row: Row) -> Job:
    return row.call, operands(row, row.draw(1), row.shuffled(1))


def positionally(row: Row, seed: int) -> Job:
    """Apply the reference."""
    return row.reference, row.draw(seed)


def positionally_at(row: Row, seed: int, i: int, leads: Callable[[Row], Sequence[bool]]) -> Job:
    """Apply the reference at one position of a dimension in front, which `leads` tells of the operands."""
    arrays = row.draw(seed, lead=(SIZES["z"],))
    return row.reference, [a[i] if lead else a[0] for a, lead in zip(arrays, leads(row), strict=True)]


def for_each(
    rows: Sequence[Row], row: Row, seed: int, leads: Callable[[Row], Sequence[bool]]
) -> tuple[list[jax.Array], ...]:
    """Apply the reference for each position of a dimension in front, without `vmap`: it is compiled already."""
    parts = [row.results(together(positionally_at, rows, row, seed, i, leads)) for i in range(SIZES["z"])]
    return tuple(map(list, zip(*parts, strict=True)))


def all_lead(row: Row) -> list[bool]:
    return [True] * len(row.operands)


def anonymous_lead(row: Row) -> list[bool]:
    return [i < row.anonymous for i in range(len(row.operands))]


def in_orders(row: Row, first: int) -> Job:
    """Call once for each storage order, from one of them on."""
    arrays = row.draw(0)
    calls = [operands(row, arrays, orders) for orders in row.orders()[first:]]
    return lambda *calls: [row.call(*named) for named in calls], calls


def mapped_by_name(row: Row) -> Job:
    return axn.vmap(row.call, "z"), _led(row, 3)


def without_names_in_front(row: Row) -> Job:
    """Apply the call to dimensions without names, by `jax.vmap` for all operands, and directly for those that may."""

    def raw_and_direct(*named: axn.NamedArray) -> Any:
        anonymous = [x.untag("z") for x in named]
        some = [x.untag("z") if i < row.anonymous else x["z", 0] for i, x in enumerate(named)]
        results = jax.vmap(row.call)(*anonymous), row.call(*some)
        return jax.tree.map(lambda x: x.tag("z"), results, is_leaf=axn.is_named_array)

    return raw_and_direct, _led(row, 2)


def _led(row: Row, seed: int) -> list[axn.NamedArray]:
    """Draw operands with one more axis, stored last."""
    orders = [(*order, "z") for order in row.shuffled(seed)]
    return operands(row, row.draw(seed, lead=(SIZES["z"],)), orders, lead="z")


MIXED = [{"a": "data", "b": "model"}, {"a": "model", "i": "data"}, {"a": ("data",)}]


def laid_out_in_many_ways(row: Row, mesh: jax.sharding.Mesh) -> Job:
    """Shard each operand in its own way."""
    named = operands(row, row.draw(4), [tuple(reversed(axes)) for axes in row.operands])
    return row.call, [placed(x, mesh, layout) for x, layout in zip(named, itertools.cycle(MIXED), strict=False)]


def typed(array: Any, axes: str, mesh: jax.sharding.Mesh, layout: dict[str, Any]) -> axn.NamedArray:
    """Describe an array on a mesh."""
    sharding = NamedSharding(mesh, PartitionSpec(*(layout.get(name) for name in axes)))
    return axn.NamedArray(jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding), tuple(axes))


def gradients(row: Row) -> Callable[..., Any]:
    """Differentiate the sum of all results."""
    which = [i for i in range(len(row.operands)) if row.domain(i) in FLOATS]
    return jax.grad(lambda *named: sum(r.array.sum() for r in row.results(row.call(*named))), which)


@functools.cache
def _sample(rows: tuple[Row, ...]) -> list[Row]:
    return [row for row in rows if in_sample(row)]


class Table:
    """What is checked for the rows of a table, many of them at once.

    Attributes:
        laws_of_the_sample: which laws look at a third of the rows, another one at each commit, but for `--all-rows`.
    """

    # Those that compile programs, but for values in all orders and on Explicit axes: there an operation can fail by
    # itself, where its call of JAX has no rule for a layout. What only traces costs little and runs for all rows.
    laws_of_the_sample: ClassVar[tuple[str, ...]] = (
        "test_has_the_gradient_of_positional_code",
        "test_ignores_leading_dimensions_without_names",
        "test_keeps_its_meaning_under_jit",
        "test_works_on_auto_axes",
        "test_works_under_named_vmap",
    )

    @pytest.fixture
    def rows(self, request: pytest.FixtureRequest) -> Sequence[Row]:
        """Give the rows that a law of a class is parametrized with and looks at."""
        rows = _rows_of(request)
        if request.config.getoption("--all-rows") or request.node.originalname not in self.laws_of_the_sample:
            return rows
        return _sample(tuple(rows))

    @pytest.fixture
    def alike(self, row: Row, request: pytest.FixtureRequest) -> tuple[bool, Sequence[Row]]:
        """Tell whether a row also runs op by op, which is a ninth of them, and which rows do as it does."""
        if request.config.getoption("--all-rows"):
            return True, _rows_of(request)
        return in_ninth(row), [each for each in _rows_of(request) if in_ninth(each) == in_ninth(row)]


def _rows_of(request: pytest.FixtureRequest) -> Sequence[Row]:
    (rows,) = [mark.args[1] for mark in request.node.iter_markers("parametrize") if mark.args[0] == "row"]
    return rows


class Values(Table):
    """Values, dtypes and names, in whatever order the axes are stored."""

    def test_equals_positional_code_for_every_order_of_axes(
        self, row: Row, rows: Sequence[Row], alike: tuple[bool, Sequence[Row]]
    ) -> None:
        """Some call with one order op by op; the orders of many rows are one program, as compiling is what costs."""
        arrays, (is_eager, beside) = row.draw(0), alike
        if is_eager:
            results = [row.call(*operands(row, arrays, row.orders()[0])), *together(in_orders, beside, row, 1)]
        else:
            results = together(in_orders, beside, row, 0)
        expected = together(positionally, rows, row, 0)
        for result, orders in zip(results, row.orders(), strict=True):
            row.check(result, expected, orders)
            if row.oracle is not None:
                row.check(result, row.oracle(*arrays), orders)

    def test_results_vary_over_the_devices_of_a_shard_map_as_operands_do(
        self, row: Row, auto_mesh: jax.sharding.Mesh
    ) -> None:
        """By their types, which decide whether a collective is needed: a trace, which costs no compilation."""
        if str(row) in OF_NO_OPERAND:
            return
        operands = [jax.ShapeDtypeStruct((4, *array.shape), array.dtype) for array in row.draw(0)]

        def body(*blocks: jax.Array) -> jax.Array:
            named = [axn.named(block[0], tuple(axes)) for block, axes in zip(blocks, row.operands, strict=True)]
            for result in jax.tree.leaves(row.call(*named)):
                assert "data" in jax.typeof(result).mat.varying
            return jnp.zeros(())

        each, one = PartitionSpec("data"), PartitionSpec()
        jax.eval_shape(jax.shard_map(body, mesh=auto_mesh, in_specs=each, out_specs=one), *operands)

    def test_answers_along_each_empty_axis_as_jnp_does(self, row: Row) -> None:
        """Trace, with one axis after the other empty; where JAX has no answer, an error is ours."""
        if not row.any_size or row.function in NOT_OF_EMPTY or "mapping" in row.case:  # a length that is given
            return
        square = {"m", "n"} if "definite" in row.domains else set()  # such matrices are m x n
        for axes in {frozenset(square if axis in square else axis) for axis in "".join(row.operands)}:
            arrays = row.draw(5, **dict.fromkeys(axes, 0))
            named = operands(row, arrays, [tuple(axes) for axes in row.operands])
            expected = attempt(jax.eval_shape, row.reference, *arrays)
            got = attempt(jax.eval_shape, lambda *named: positional_results(row, row.call(*named)), *named)
            if isinstance(expected, Exception):
                # Nothing, as `unbind` returns, has no types to compare.
                assert isinstance(got, AxonymError | tuple) or row.function == "unbind", got
            elif isinstance(got, AxonymError):
                is_refused = row.oracle is not None and isinstance(attempt(row.oracle, *arrays), Exception)
                assert is_refused or "was given with size" in str(got)
            else:
                types = [(one.shape, one.dtype) for one in got]
                assert types == [(one.shape, one.dtype) for one in row.results(expected)]


# What these do along an empty axis is their own: results of a given size, positions that JAX moves into range, and an
# axis of coefficients that stays.
NOT_OF_EMPTY = {"argpartition", "insert", "partition", "poly", "unique", "unique_all", "unique_counts"}
# A result of these depends on no element; `sinc` is refused by jax 0.12 inside of a shard_map.
OF_NO_OPERAND = {"choose-one choice", "histogram-density", "polyfit-full", "sinc"}


class Sharded(Table):
    """Values on 8 devices."""

    def test_works_on_auto_axes(self, row: Row, rows: Sequence[Row], auto_mesh: jax.sharding.Mesh) -> None:
        self.on_mesh(row, rows, auto_mesh)

    def test_works_on_explicit_axes(
        self, row: Row, rows: Sequence[Row], alike: tuple[bool, Sequence[Row]], explicit_mesh: jax.sharding.Mesh
    ) -> None:
        self.on_mesh(row, rows, explicit_mesh, is_eager=alike[0])

    def on_mesh(self, row: Row, rows: Sequence[Row], mesh: jax.sharding.Mesh, *, is_eager: bool = False) -> None:
        """Shard each operand in its own way, under jit and a mapping; some also alike, eagerly."""
        arrays, orders = row.draw(4), [tuple(reversed(axes)) for axes in row.operands]
        named, expected = operands(row, arrays, orders), jax.tree.map(np.asarray, together(positionally, rows, row, 4))
        with jax.set_mesh(mesh):
            if is_eager:
                row.check(row.call(*(placed(x, mesh, MIXED[0]) for x in named)), expected, orders)
            with axn.axis_mapping({"a": "data", "b": "model"}):
                row.check(together(laid_out_in_many_ways, rows, row, mesh), expected, orders)

    def test_accepts_layouts_that_exclude_each_other(
        self, row: Row, explicit_mesh: jax.sharding.Mesh, mixed_mesh: jax.sharding.Mesh
    ) -> None:
        """Trace, with the gradient where there is one, which checks all types and costs no compilation."""
        layouts = [{"a": "data", "b": "model"}, {"i": "data", "a": "model"}, {"i": ("model", "data")}]
        arrays = row.draw(4)
        for mesh, mapping in ((explicit_mesh, None), (mixed_mesh, {"i": "data", "b": "model"})):
            named = [
                typed(array, axes, mesh, layout)
                for array, axes, layout in zip(arrays, row.operands, itertools.cycle(layouts), strict=False)
            ]
            with jax.set_mesh(mesh), nullcontext() if mapping is None else axn.axis_mapping(mapping):
                jax.eval_shape(
                    gradients(row) if hasattr(self, "test_has_the_gradient_of_positional_code") else row.call, *named
                )


class Mapped(Table):
    """Values under `axn.vmap`."""

    def test_works_under_named_vmap(self, row: Row, rows: Sequence[Row]) -> None:
        expected = for_each(rows, row, 3, all_lead)
        row.check(together(mapped_by_name, rows, row), expected, row.shuffled(3), lead=("z",))


class Differentiated(Table):
    """Gradients."""

    def test_has_the_gradient_of_positional_code(self, row: Row, rows: Sequence[Row]) -> None:
        check_gradients(row, row.shuffled(9), *together(differentiated_once, rows, row))


class Laws(Values, Sharded, Mapped):
    """What holds beyond the values."""

    def test_keeps_its_meaning_under_jit(self, row: Row, rows: Sequence[Row]) -> None:
        row.check(together(compiled, rows, row), together(positionally, rows, row, 1), row.shuffled(1))

    def test_ignores_leading_dimensions_without_names(self, row: Row, rows: Sequence[Row]) -> None:
        raw, direct = together(without_names_in_front, rows, row)
        row.check(raw, for_each(rows, row, 2, all_lead), row.shuffled(2), lead=("z",))
        row.check(direct, for_each(rows, row, 2, anonymous_lead), row.shuffled(2), lead=("z",))

    def test_refuses_an_array_that_lost_an_axis(self, row: Row) -> None:
        refuses_a_lost_axis(row)

    def test_has_no_more_equations_than_positional_code(self, row: Row) -> None:
        self.same_program(row, row.draw(8))

    @pytest.mark.parametrize("size", [0, 1])
    def test_takes_empty_and_single_axes_as_jnp_does(self, row: Row, size: int) -> None:
        if row.any_size:
            self.same_program(row, row.draw(5, b=size))

    @pytest.mark.parametrize("dtype", [bool, np.int32, jnp.bfloat16, np.complex64], ids=lambda t: t.__name__)
    def test_takes_the_dtypes_that_jnp_takes(self, row: Row, dtype: Any) -> None:
        arrays = [as_dtype(a, dtype) if row.domain(i) in FLOATS else a for i, a in enumerate(row.draw(6))]
        self.same_program(row, arrays)

    def same_program(self, row: Row, arrays: Sequence[Any]) -> None:
        """Compare what is traced, which costs no compilation: the types of results and how many equations there are."""
        found, allowed = same_types(row, arrays)
        assert found <= allowed


class Smooth(Laws, Differentiated):
    """The laws of what has a gradient."""


class Bulk(Values, Sharded, Mapped):
    """Laws of an operation that `apply_batched` or `along.along` lifts; what all of them do has its own tests."""

    def test_refuses_an_array_that_lost_an_axis(self, row: Row) -> None:
        refuses_a_lost_axis(row)

    def test_takes_single_axes_as_jnp_does(self, row: Row) -> None:
        if row.any_size:
            same_types(row, row.draw(5, b=1))

    @pytest.mark.parametrize("dtype", [bool, np.int32, jnp.bfloat16, np.complex64], ids=lambda t: t.__name__)
    def test_takes_the_dtypes_that_jnp_takes(self, row: Row, dtype: Any) -> None:
        same_types(row, [as_dtype(a, dtype) if row.domain(i) in FLOATS else a for i, a in enumerate(row.draw(6))])


class SmoothBulk(Bulk, Differentiated):
    """The same for what has a gradient."""
