"""What loops share: names in a step, steps that follow a checkpoint policy by themselves, and loops kept compiled."""

import dataclasses
import functools
import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import ScanCheckpointPolicy
from axonym.transform.loop import collect_checkpoint_names, loop
from tests.laws import count_equations, count_kept

pytestmark = pytest.mark.sampled

N = axn.Axis("steps", 4)


def test_names_are_found_however_deep():
    def step(x):
        inner = jax.jit(lambda x: axn.tree_checkpoint_name(x, "in jit"))
        looped = jax.lax.scan(lambda c, _: (axn.tree_checkpoint_name(c, "in scan"), None), inner(x), length=2)[0]
        branches = [lambda x: axn.tree_checkpoint_name(x, "in cond"), lambda x: x]
        return jax.checkpoint(lambda x: axn.tree_checkpoint_name(x, "in remat"))(jax.lax.switch(0, branches, looped))

    assert collect_checkpoint_names(step, jnp.ones(())) == {"in jit", "in scan", "in cond", "in remat"}
    assert collect_checkpoint_names(jnp.sin, jnp.ones(())) == set()


def test_a_step_that_is_checkpointed_is_not_checkpointed_again():
    def kept(policy, checkpointed):
        def run(x):
            step = lambda c, x: (axn.sin(c) * x, None)  # noqa: E731
            return loop("f", step, N, policy, False, 1, checkpointed=checkpointed)(axn.ones(()), x)[0]

        x = axn.ones(N)
        np.testing.assert_allclose(run(x).array, np.sin(np.sin(np.sin(np.sin(1)))), rtol=1e-6)
        return count_kept(run, x), count_equations(jax.grad(lambda x: run(x).scalar()), x)

    groups = ScanCheckpointPolicy(nested=2)
    assert kept(True, False)[0] < kept(True, True)[0] == kept(False, False)[0]
    (with_steps, most), (groups_alone, fewer) = (kept(groups, each) for each in (False, True))
    assert with_steps == groups_alone
    assert most > fewer


# loops that are kept compiled
B = axn.Axis("batch", 3)
X, START = axn.ones((B, N)), axn.zeros(B)


def test_an_axis_whose_size_is_symbolic():
    (size,) = jax.export.symbolic_shape("b")
    x = axn.NamedArray(jax.ShapeDtypeStruct((size, 3), jnp.float32), ("steps", B))
    sums = axn.scan(lambda carry, row: (carry + row, carry), N.name, remat=True)
    exported = jax.export.export(jax.jit(sums))(START, x)
    last, before = exported.call(START, X.rearrange((N, B)))
    np.testing.assert_allclose(last.array, np.full(3, 4))
    np.testing.assert_allclose(before.array, np.arange(4)[:, None] * np.ones((4, 3)))


def test_without_jit_steps_get_values():
    seen = []

    def step(carry, row):
        seen.append(float(row.sum()))
        return carry + row

    with jax.disable_jit():
        total = axn.fold(step, N)(START, X)
        doubled = axn.map(lambda row: row * 2 if row.sum() > 0 else row, N)(X)
    assert seen == [3.0] * 4
    np.testing.assert_allclose(total.array, np.full(3, 4))
    np.testing.assert_allclose(doubled.array, np.full((4, 3), 2))


REMAT = [False, True, "nested", ScanCheckpointPolicy(save_block_internals=["missing"])]


@pytest.mark.parametrize("remat", REMAT)
@pytest.mark.parametrize("kind", ["scan", "fold", "map"])
@pytest.mark.filterwarnings("ignore:.*no value inside of a step has this name")
def test_a_step_is_traced_by_the_first_call_alone(kind, remat):
    seen, counts = [], []

    def step(*args):
        seen.append(1)
        *carry, x, scale = args
        return {"scan": lambda c: (c + x, c * scale), "fold": lambda c: c + x, "map": lambda: x * scale}[kind](*carry)

    for i in range(3):
        start, x, scale = START + i, X * i, axn.full(B, 2.0 + i)
        sums = np.cumsum([start.array, *x.array.T], 0)
        results = getattr(axn, kind)(step, N, remat=remat)(*([] if kind == "map" else [start]), x, scale)
        expected = {"scan": (sums[-1], sums[:-1] * (2 + i)), "fold": sums[-1], "map": x.array.T * (2 + i)}[kind]
        jax.tree.map(np.testing.assert_allclose, jax.tree.leaves(results), jax.tree.leaves(expected))
        counts.append(len(seen))
    assert counts[0] == counts[-1]


def test_a_step_is_the_same_where_it_is_for_raw_jax():
    def count(loop, start, x):
        seen = []

        def step(carry, x):
            seen.append(1)
            return carry + x, carry

        for each in (x, x * 2, x.astype(jnp.bfloat16), x.astype(jnp.bfloat16)):
            loop(step)(start, each)
        return len(seen)

    ours = count(lambda step: axn.scan(step, N), START, X)
    assert ours == count(lambda step: functools.partial(jax.lax.scan, step), START.array, X.array.T) == 2


@dataclasses.dataclass
class Times:
    """Steps that are equal where what they close over is, though it may be of another dtype."""

    by: Any

    def __hash__(self):
        return hash(self.by)

    def __call__(self, carry, x):
        return carry, x * self.by


def test_equal_steps_are_not_the_same_step():
    whole, half = Times(jnp.int32(2).item()), Times(2.5 - 0.5)
    assert (whole, hash(whole)) == (half, hash(half))
    x = axn.arange(N)
    for _ in range(2):
        for step, dtype in ((whole, jnp.int32), (half, jnp.float32)):
            _, doubled = axn.scan(step, N)(0.0, x)
            assert doubled.dtype == dtype
            np.testing.assert_array_equal(doubled.array, np.arange(N.size) * 2)


def test_bound_methods_see_their_object_as_it_is_when_they_are_asked_for():
    times = Times(2.0)
    for by in (2.0, 3.0):
        times.by = by
        _, scaled = axn.scan(times.__call__, N)(START, X)
        np.testing.assert_array_equal(scaled.array, np.full((N.size, 3), by))


def test_arrays_that_a_step_closes_over_are_no_constants_of_a_program(compiles):
    scale, table = jnp.float32(2.0), jnp.full(3, 2.0)
    for step, times in (
        (lambda carry, x: (carry, x * scale), 0),
        (lambda carry, x: (carry, x * axn.named(table, B)), 1),
    ):
        axn.scan(step, N)(START, X)
        before = len(compiles)
        _, scaled = axn.scan(step, N)(START, X)
        assert len(compiles) - before == times
        np.testing.assert_array_equal(scaled.array, np.full((N.size, 3), 2))


def test_a_step_that_raises_runs_once():
    seen = []

    def step(carry, x):
        seen.append(1)
        raise TypeError("of the step itself")

    with pytest.raises(TypeError, match="of the step itself"):
        axn.scan(step, N)(START, X)
    assert len(seen) == 1


CONSTANTS = [2.0, 3.0, 3, True, 1, 0.0, -0.0, "text", "other", np.float32(2), np.float64(2), jnp.tanh, jnp.sin, None]


@pytest.mark.parametrize("wrapped", [lambda x: x, lambda x: axn.NamedArray(x, ())])
def test_constants_among_the_arguments_are_part_of_the_program(wrapped):
    step = lambda carry, x, constant: (carry + x, repr(getattr(constant, "array", constant)))  # noqa: E731
    for _ in range(2):
        for constant in CONSTANTS:
            last, told = axn.scan(step, N)(START, X, wrapped(constant))
            assert told == repr(constant)
            np.testing.assert_array_equal(last.array, np.full(3, 4))


def test_constants_in_the_carry_are_part_of_the_program():
    step = lambda carry, x: ((carry[0] + x, carry[1]), repr(carry[1]))  # noqa: E731
    for _ in range(2):
        for constant in ["text", "other", jnp.tanh, jnp.sin, None]:
            (_, kept), told = axn.scan(step, N)((START, constant), X)
            assert (kept, told) == (constant, repr(constant))
    for number in (2, 3, 2.0):
        (_, last), _ = axn.scan(lambda carry, x: ((carry[0], carry[1] * 2), None), N)((START, number), X)
        assert (last.dtype, float(last)) == (jnp.result_type(type(number)), number * 16)


def test_what_a_step_returns_may_depend_on_shapes_and_dtypes():
    def step(carry, x):
        return carry, {"whole": x} if x.dtype == jnp.int32 else (x, x.names)

    for _ in range(2):
        assert axn.scan(step, N)(0.0, X)[1][1] == ("batch",)
        assert axn.scan(step, N)(0.0, X.astype(jnp.int32))[1]["whole"].names == ("steps", "batch")
        assert axn.scan(step, N)(0.0, X.rename({"batch": "other"}))[1][1] == ("other",)


def test_unroll_true_is_not_one():
    step = lambda c, x: (c + x, c)  # noqa: E731
    once, all_ = (axn.scan(step, N, unroll=unroll) for unroll in (1, True))
    np.testing.assert_array_equal(once(START, X)[1].array, all_(START, X)[1].array)
    text = lambda run: jax.jit(run).lower(START, X).as_text()  # noqa: E731
    assert ("while" in text(once), "while" in text(all_)) == (True, False)


def test_nothing_is_kept_alive_that_the_caller_dropped():
    def run():
        table = jnp.arange(3.0)
        whole, start = axn.arange(B) * 2.0, axn.arange(B) * 3.0

        def step(carry, x, whole, ask=None):
            return carry + x * whole + table.sum(), carry

        axn.scan(step, N)(start, X, whole)
        axn.scan(fixed, N)(start, X, whole, lambda: table)
        return [weakref.ref(each) for each in (step, table, whole.array, start.array)]

    def fixed(carry, x, whole, ask):
        return carry + x * whole * ask().sum(), None

    dropped = run()
    gc.collect()
    assert [each() for each in dropped] == [None] * 4


def test_a_step_serves_in_programs_and_outside_of_them():
    def step(carry, x, w):
        return carry * w + x, carry

    run = lambda w: axn.scan(step, N)(START, X, w)[0].sum().scalar()  # noqa: E731
    raw = lambda w: 3 * (1 + w + w**2 + w**3)  # noqa: E731
    for _ in range(2):
        for w in (2.0, 3.0):
            value = axn.NamedArray(jnp.float32(w), ())
            for f in (run, jax.jit(run)):
                np.testing.assert_allclose(f(value), raw(w))
                np.testing.assert_allclose(jax.grad(f)(value).array, jax.grad(raw)(w))
            np.testing.assert_allclose(jax.vmap(run)(axn.NamedArray(jnp.full(2, w), ())), [raw(w)] * 2)


def test_a_step_that_closes_over_what_is_traced():
    run = lambda w: axn.fold(lambda c, x: c * w + x, N)(START, X).sum().scalar()  # noqa: E731
    for w in (2.0, 3.0):
        np.testing.assert_allclose(jax.jit(run)(w), 3 * (1 + w + w**2 + w**3))
        np.testing.assert_allclose(jax.grad(run)(w), 3 * (1 + 2 * w + 3 * w**2), rtol=1e-6)


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_each_call_is_laid_out_by_its_own_mapping(kind, request):
    Wide = axn.Axis("batch", 8)
    x, start = np.ones((8, 4), np.float32), axn.zeros(Wide)

    def step(carry, x):
        carry = axn.auto_sharded(carry + x)
        return carry, carry

    with axn.set_mesh(request.getfixturevalue(kind)):
        for mesh_axis in ("data", "model", None, "data"):
            with axn.axis_mapping({"batch": mesh_axis}):
                last, ys = axn.scan(step, N)(axn.auto_sharded(start), axn.auto_sharded(axn.named(x, (Wide, N))))
            spec = jax.sharding.PartitionSpec(mesh_axis)
            assert last.array.sharding.is_equivalent_to(jax.NamedSharding(last.array.sharding.mesh, spec), 1)
            np.testing.assert_array_equal(ys.array, np.cumsum(x, 1).T)


class Scale:
    """Steps that JAX can neither hash nor refer to weakly."""

    __slots__ = ("by",)
    __hash__ = None

    def __init__(self, by):
        self.by = by

    def __call__(self, carry, x):
        return carry + x * self.by, carry


@pytest.mark.parametrize("step", [Scale(2.0), functools.partial(Scale(2.0)), Scale(2.0).__call__])
def test_any_callable_is_a_step(step):
    for _ in range(2):
        np.testing.assert_array_equal(axn.scan(step, N)(START, X)[0].array, np.full(3, 8))
