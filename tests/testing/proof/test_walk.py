"""What a walk excludes does not happen: on all operations, on random programs, and in loops, branches and devices."""

import importlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.testing.proof.claims import Claim, check, prove
from tests.fuzz.program import Program
from tests.fuzz.reference import REFERENCE
from tests.fuzz.run import SETTINGS, programs_of
from tests.fuzz.table import RejectedError, Table
from tests.laws import Row, operands
from tests.sample import SEED, in_ninth
from tests.testing.proof.dependence import compile_programs, refute, trace_call

TESTS = Path(__file__).parents[2]
MODULES = [str(path.relative_to(TESTS).with_suffix("")) for path in sorted((TESTS / "ops").rglob("test_*.py"))]
T, B, E = axn.make_axes(time=6, batch=4, embed=3)


def rows_of(module: str) -> list[Row]:
    """Return the rows of all tables of a test file."""
    tables = vars(importlib.import_module(f"tests.{module.replace('/', '.')}")).values()
    rows = [row for table in tables if isinstance(table, list | tuple) for row in table if isinstance(row, Row)]
    return list(dict.fromkeys(row for row in rows if row.oracle is not None))


@pytest.mark.parametrize("module", MODULES)
def test_operations_depend_on_no_more_than_a_walk_says(module: str, pytestconfig: pytest.Config) -> None:
    """NumPy computes, so that nothing is compiled."""
    rows = rows_of(module)
    for row in rows if pytestconfig.getoption("--all-rows") else filter(in_ninth, rows):
        arrays = row.draw(0)
        traced = trace_call(row.call, operands(row, arrays, [tuple(axes) for axes in row.operands]))

        def compute(arrays: Any, row: Row = row, traced: Any = traced) -> list[np.ndarray]:
            with np.errstate(all="ignore"):
                results = row.results(row.oracle(*arrays))
            pairs = zip(results, row.outs, traced.results, strict=True)
            return [np.transpose(one, [out.index(name) for name in names]) for one, out, (_, names) in pairs]

        for axis in sorted(set("".join(row.operands))):
            if any(axes.count(axis) > 1 for axes in row.operands):
                continue
            assert refute(traced, axis, compute, arrays) == [], str(row)


@pytest.mark.parametrize("setting", ["jit", "shard_map", "shard_map-explicit"])
def test_random_programs_depend_on_no_more_than_a_walk_says(setting: str, auto_mesh: Any, explicit_mesh: Any) -> None:
    first = SEED % 10_000
    mesh = explicit_mesh if "explicit" in setting else auto_mesh if "shard" in setting else None
    if mesh is None:
        check_programs(setting, range(first, first + 25))
        return
    with axn.set_mesh(mesh):
        check_programs(setting, range(first, first + 8))


def check_programs(setting: str, seeds: range) -> None:
    for program in programs_of(SETTINGS[setting], seeds):
        given = list(program.inputs.values())
        # A number that is not finite is outside of what proofs are about.
        if not program.finite or any(0 in one.values.shape for one in given):
            continue
        traced = trace_call(call_of(program, setting), [axn.named(one.array(), one.names) for one in given])

        def compute(arrays: Any, program: Program = program, traced: Any = traced) -> list[np.ndarray]:
            pairs = zip(arrays, program.inputs.values(), strict=True)
            tables = [Table(values, one.names, one.dtype) for values, one in pairs]
            with np.errstate(all="ignore"):
                outs = program.function()(REFERENCE, *tables)
            pairs = zip(outs, traced.results, strict=True)
            return [np.transpose(out.values, [out.names.index(name) for name in names]) for out, (_, names) in pairs]

        for axis in sorted({name for one in given for name in one.names}):
            try:
                found = refute(traced, axis, compute, [one.values for one in given])
            except RejectedError:
                continue  # with other numbers, the reference has no answer
            assert found == [], program.source()


def call_of(program: Program, setting: str) -> Any:
    function = program.function()
    if setting == "jit":
        return lambda *inputs: function(axn, *inputs)
    over = ("data", ("data", "model"), "model")[program.seed % 3]
    return axn.shard_map(lambda *inputs: function(axn, *inputs), {"s": over}, strict=False)


def over(axis: str, function: Any) -> Any:
    """Apply a function of raw arrays whose first dimension is an axis, and whose results have it, too."""

    def call(x: axn.NamedArray) -> Any:
        first = x.rearrange([axis, *(name for name in x.names if name != axis)])
        return jax.tree.map(lambda array: axn.NamedArray(array, first.names), function(first.array))

    return call


def running(x: jax.Array, *, reverse: bool = False) -> jax.Array:
    return jax.lax.scan(lambda total, one: (total * 0.5 + one,) * 2, x[0] * 0, x, reverse=reverse)[1]


def previous(x: jax.Array) -> jax.Array:
    """Return at each step what the step before was given."""
    return jax.lax.scan(lambda before, one: (one, before), x[0] * 0, x)[1]


def last(x: jax.Array) -> jax.Array:
    """Add to all what the last step was given."""
    return x + jax.lax.scan(lambda before, one: (one, None), x[0] * 0, x)[0]


def chosen(x: jax.Array) -> jax.Array:
    """Choose a branch for all by the sum of all."""
    return jax.lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: x, x)


def counted(x: jax.Array) -> jax.Array:
    """Repeat until the sum of all is large."""
    return jax.lax.while_loop(lambda y: jnp.abs(y).sum() < 100, lambda y: y * 2 + 1, x)


def repeated(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 3, lambda i, y: jnp.sin(y) + i, x)


def rotated(x: jax.Array) -> jax.Array:
    """Add the neighbour, once more in each turn."""
    return jax.lax.fori_loop(0, 9, lambda i, y: y + jnp.roll(y, 1, 0), x)


def by_number(x: jax.Array, find: Any, *, reverse: bool = False) -> jax.Array:
    """Write for each number of a turn what is read at another one."""

    def step(state: Any, _: None) -> Any:
        i, y = state
        return (i + 1, y.at[i].set(jnp.sin(x[find(i)]))), None

    return jax.lax.scan(step, (0, x * 0), None, length=6, reverse=reverse)[0][1]


def by_number_of_a_total(x: jax.Array) -> jax.Array:
    """Write the sum of all that was read before."""

    def step(i: Any, state: Any) -> Any:
        total, y = state
        return total + x[i], y.at[i].set(total)

    return jax.lax.fori_loop(0, 6, step, (x[0] * 0, x * 0))[1]


def rows_in_place(x: jax.Array, shift: int = 0) -> jax.Array:
    """Change one row after another, of an array that the loop carries."""

    def step(i: Any, y: jax.Array) -> jax.Array:
        row = jax.lax.dynamic_index_in_dim(y, (i + shift) % 6, 0)
        return jax.lax.dynamic_update_slice_in_dim(y, jnp.sin(row) * 2, i, 0)

    return jax.lax.fori_loop(0, 6, step, x)


@jax.custom_vjp
def stopped(x: jax.Array) -> jax.Array:
    return jnp.tanh(x)


# The gradient mixes, and the value does not.
stopped.defvjp(lambda x: (jnp.tanh(x), x), lambda x, ct: (ct * 0 + ct.sum(0) * x,))

# For each axis that a function works along: whether positions are independent, causal, and permuted.
PROGRAMS: dict[str, tuple[Any, bool, bool]] = {
    "running": (running, False, True),
    "running back": (lambda x: running(x, reverse=True), False, False),
    "previous": (previous, False, True),
    "last": (last, False, False),
    "chosen": (chosen, False, False),
    "counted": (counted, False, False),
    "repeated": (repeated, True, True),
    "rotated": (rotated, False, False),
    "associative": (lambda x: jax.lax.associative_scan(jnp.add, x), False, True),
    "remat": (jax.checkpoint(lambda x: jnp.sin(jnp.cumsum(x, 0))), False, True),
    "custom": (stopped, True, True),
    "mapped": (lambda x: jax.lax.map(jnp.sin, x), True, True),
    "in batches": (lambda x: jax.lax.map(jnp.sin, x.reshape(2, 3, *x.shape[1:])).reshape(x.shape), True, True),
    "a window": (lambda x: x + jnp.pad(x, ((1, 0), (0, 0), (0, 0)))[:-1], False, True),
    "a window too late": (lambda x: x + jnp.pad(x, ((0, 1), (0, 0), (0, 0)))[1:], False, False),
    "by number": (lambda x: by_number(x, lambda i: i), True, True),
    # So it is here, too, but nothing follows numbers that go against the loop, or that stop at an end.
    "by number, back": (lambda x: by_number(x, lambda i: i, reverse=True), False, False),
    "by number of an earlier one": (lambda x: by_number(x, lambda i: jnp.maximum(i - 1, 0)), False, False),
    "by number of a later one": (lambda x: by_number(x, lambda i: (i + 1) % 6), False, False),
    "by number, totals": (by_number_of_a_total, False, True),
    "rows in place": (rows_in_place, True, True),
    "rows in place, and their neighbours": (lambda x: rows_in_place(x, 1), False, False),
    "back and forth": (lambda x: jnp.pad(x[1:], ((1, 0), (0, 0), (0, 0))), True, True),
    "pairs": (lambda x: jnp.repeat(x.reshape(3, 2, *x.shape[1:]).sum(1), 2, 0), False, False),
    "reversed twice": (lambda x: jnp.sin(x[::-1])[::-1], True, True),
    "mean": (lambda x: x - x.mean(0), False, False),
    "the first": (lambda x: x + x[0], False, True),
    "sorted": (lambda x: jnp.sort(x, 0), False, False),
}


def test_loops_branches_and_derivatives_are_followed() -> None:
    x = axn.named(np.random.default_rng(0).normal(size=(6, 4, 3)).astype(np.float32), (T, B, E))
    traced = {name: trace_call(over("time", function), [x]) for name, (function, *_) in PROGRAMS.items()}
    run = compile_programs(traced.values())
    for k, (name, along) in enumerate(traced.items()):
        for axis in ("time", "batch"):
            assert refute(along, axis, lambda arrays, k=k: run(arrays)[k], [x.array]) == [], name
        is_independent, is_causal = PROGRAMS[name][1:]
        verdicts = [bool(check(along, Claim(kind, "time"))) for kind in ("independent", "causal")]
        assert verdicts == [is_independent, is_causal], name
        # A choice for all depends on the whole batch.
        assert bool(check(along, Claim("equivariant", "batch"))) == (name not in ("chosen", "counted")), name


def test_gradients_of_loops_that_read_and_write_by_number_are_followed() -> None:
    x = axn.named(np.random.default_rng(0).normal(size=(6, 4, 3)).astype(np.float32), (T, B, E))
    names = {"by number": True, "by number of a later one": False, "rows in place": True}
    traced = [trace_call(over("time", PROGRAMS[name][0]), [x], is_gradient=True) for name in names]
    run = compile_programs(traced)
    for k, along in enumerate(traced):
        assert refute(along, "time", lambda arrays, k=k: run(arrays)[k], [x.array, x.array]) == []
    assert [bool(check(one, Claim("independent", "time"))) for one in traced] == [*names.values()]


def test_gradients_are_those_of_a_derivative_of_its_own() -> None:
    x = jax.ShapeDtypeStruct((6, 4, 3), jnp.float32)
    verdict = prove(
        over("time", stopped),
        [axn.NamedArray(x, ("time", "batch", "embed"))],
        Claim("independent", "time"),
        is_gradient=True,
    )
    assert not verdict
    assert verdict.path == "gradient of 0"
    assert "reduce_sum" in verdict.place


def test_nothing_is_proven_of_references_and_of_callbacks_that_act() -> None:
    x = axn.ones(T)

    def write(x: axn.NamedArray) -> axn.NamedArray:
        box = jax.new_ref(x.array)
        box[...] = box[...][::-1]
        return axn.NamedArray(box[...], x.names)

    def ask(x: axn.NamedArray) -> axn.NamedArray:
        kind = jax.ShapeDtypeStruct(x.array.shape, x.dtype)
        return axn.NamedArray(jax.pure_callback(lambda x: x[::-1], kind, x.array), x.names)

    assert "a reference" in prove(write, [x], Claim("independent", "time")).reason
    verdict = prove(ask, [x], Claim("independent", "time"))
    assert verdict.status == "unknown"
    assert verdict.place.startswith("pure_callback, which has no rule (test_walk.py:")
