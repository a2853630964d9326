"""Checkpoint policies: what is kept, what is computed again, and that gradients stay the same."""

import dataclasses
import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import ScanCheckpointPolicy
from axonym.errors import AxisSizeError, OperandError
from tests.laws import bytes_on_host, count_kept

pytestmark = pytest.mark.sampled

L, B, E = axn.make_axes(layers=16, batch=4, embed=8)
Policy = ScanCheckpointPolicy

SHORT = [False, True, "save_all", "full", "recompute", "nested", "offload"]
POLICIES = [
    *SHORT,
    Policy(nested=2),
    Policy(nested=8),
    Policy(nested=16),
    Policy(save_block_internals=True),
    Policy(save_block_internals=["hidden"]),
    Policy(save_block_internals=["inner"], nested=True),
    Policy(offload_block_internals=["hidden"]),
    Policy(save_block_internals=("inner",), offload_block_internals=["hidden"], nested=4),
    Policy(save_carries="offload", nested=True),
    Policy(save_carries="offload", save_block_internals=True),
    Policy(save_inputs=True),
    Policy(save_inputs="offload", save_block_internals=["inner"]),
    Policy(simple=True, save_carries="offload", save_block_internals=True),
    Policy(prevent_cse=True),
    Policy(save_carries=False),
    Policy(alternating=[True, False]),
    Policy(alternating=["offload", Policy(save_block_internals=["inner"]), False, True]),
]


def data():
    rng = np.random.default_rng(0)
    w = axn.named((rng.normal(size=(16, 8, 8)) * 0.1).astype(np.float32), (L, E, "out"))
    return w, axn.named(rng.normal(size=(4, 8)).astype(np.float32), (B, E))


def layer(h, w):
    inner = axn.tree_checkpoint_name(axn.dot(h, w, axis="embed"), "inner")
    return axn.tree_checkpoint_name(axn.tanh(inner).rename({"out": "embed"}), "hidden") + h


def loss(w, x, remat=False, **options):
    return (axn.fold(layer, L, remat=remat, **options)(x, w) ** 2).mean().scalar()


def raw_loss(w, x):
    for i in range(16):
        x = jnp.tanh(x @ w[i]) + x
    return (x**2).mean()


@functools.cache
def raw_gradients(reverse):
    """Compute the loss and its gradients without names, scan and checkpoints."""
    w, x = data()
    weights = w.array[::-1] if reverse else w.array
    return jax.jit(jax.value_and_grad(raw_loss, argnums=(0, 1)))(weights, x.array)


@pytest.mark.parametrize(
    ("remat", "options"),
    [(policy, {}) for policy in POLICIES]
    + [
        (p, o)
        for p in (True, "nested", "offload", [False, True])
        for o in ({"unroll": 3}, {"unroll": True}, {"reverse": True})
    ],
    ids=lambda p: p if isinstance(p, str) else None,
)
def test_gradients_are_those_without_checkpointing(remat, options):
    w, x = data()
    value, (dw, dx) = jax.jit(jax.value_and_grad(lambda w, x: loss(w, x, remat, **options), argnums=(0, 1)))(w, x)
    expected, (ew, ex) = raw_gradients(options.get("reverse", False))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(dw.array[::-1] if options.get("reverse") else dw.array, ew, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dx.array, ex, rtol=1e-4, atol=1e-5)


@functools.cache
def outputs_and_gradients(remat):
    w, x = data()

    def outputs(w):
        return axn.scan(lambda h, w: (layer(h, w), h.sum("embed")), L, remat=remat)(x, w)[1]

    @jax.jit
    def run(w):
        out, pull = jax.vjp(outputs, w)
        return out, pull(out)[0]

    return run(w)


@pytest.mark.parametrize("remat", POLICIES, ids=lambda p: p if isinstance(p, str) else None)
def test_outputs_and_their_gradients(remat):
    got, gradient = outputs_and_gradients(remat)
    expected, expected_gradient = outputs_and_gradients(False)
    assert got.names == ("layers", "batch")
    np.testing.assert_allclose(got.array, expected.array, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient.array, expected_gradient.array, rtol=1e-4, atol=1e-4)


@functools.cache
def temporary_bytes(remat, depth=256):
    w = jax.ShapeDtypeStruct((depth, 32, 32), jnp.float32)
    x = jax.ShapeDtypeStruct((64, 32), jnp.float32)

    def f(w, x):
        w, x = axn.NamedArray(w, ("layers", "embed", "out")), axn.NamedArray(x, ("batch", "embed"))
        return (axn.fold(layer, "layers", remat=remat)(x, w) ** 2).sum().scalar()

    return jax.jit(jax.grad(f, argnums=(0, 1))).lower(w, x).compile().memory_analysis().temp_size_in_bytes


def test_each_policy_keeps_what_it_says():
    carry = 64 * 32 * 4
    everything, carries, nested = map(temporary_bytes, (False, True, "nested"))
    named = temporary_bytes(Policy(save_block_internals=["inner"]))
    assert everything > carries + 128 * carry
    assert 256 * carry <= carries < 256 * carry + 16 * carry
    assert 2 * 256 * carry <= named < 2 * 256 * carry + 16 * carry
    assert nested < carries / 4


def test_few_groups_keep_more_than_the_root():
    assert temporary_bytes("nested") < temporary_bytes(Policy(nested=4)) < temporary_bytes(True)


def test_nested_groups_cost_what_they_cost_by_hand():
    remat = lambda f: jax.checkpoint(f, prevent_cse=False)  # noqa: E731
    inner = remat(lambda h, w: (jnp.tanh(h @ w) + h, None))

    def by_hand(w, x):
        groups = w.reshape(16, 16, 32, 32)
        h, _ = jax.lax.scan(remat(lambda h, group: jax.lax.scan(inner, h, group)), x, groups)
        return (h**2).sum()

    shapes = jax.ShapeDtypeStruct((256, 32, 32), jnp.float32), jax.ShapeDtypeStruct((64, 32), jnp.float32)
    compiled = jax.jit(jax.grad(by_hand, argnums=(0, 1))).lower(*shapes).compile()
    assert temporary_bytes("nested") <= compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(("unroll", "written_out"), [(1, False), (4, False), (16, True), (True, True), (100, True)])
def test_a_loop_that_is_written_out_is_kept_from_being_merged(unroll, written_out):
    # On the CPU the compiler drops the barrier, so that memory would show nothing.
    text = jax.jit(jax.grad(lambda w, x: loss(w, x, True, unroll=unroll))).lower(*data()).as_text()
    assert ("optimization_barrier" in text) == written_out


def test_offloading_carries_while_contractions_are_saved():
    both, saved = Policy(save_carries="offload", save_block_internals=True), Policy(save_block_internals=True)
    products = lambda remat: len(re.findall(r" dot\(", gradient_of(remat).lower(*data()).compile().as_text()))  # noqa: E731
    assert kept(both)[1] > 0
    assert products(both) == products(saved) < products(True)


def gradient_of(remat):
    return jax.jit(jax.grad(lambda w, x: loss(w, x, remat), (0, 1)))


def kept(remat):
    """Count the numbers that are kept between the forward and the backward pass, and the bytes sent to the host."""
    return count_kept(lambda w, x: loss(w, x, remat), *data()), bytes_on_host(gradient_of(remat), *data())


def test_what_is_kept_to_the_number():
    carry = 4 * 8
    (everything, host), carries = kept(False), kept(True)[0]
    results = 2 if jax.__version_info__ < (0, 12) else 1  # those of each layer that JAX keeps
    assert everything == carries + 16 * results * carry
    for remat in ("save_all", Policy(nested=True, disable=True)):
        assert kept(remat) == (everything, host)
    for remat in (True, "full", "recompute", Policy(save_block_internals=["hidden"])):
        assert kept(remat) == (carries, 0)  # the next carry serves as what is hidden
    for remat in ("nested", Policy(nested=4)):
        assert kept(remat) == (carries - 12 * carry, 0)
    assert host == 0
    for simple in (Policy(simple=True, save_carries="offload", save_block_internals=True), Policy(save_inputs=True)):
        assert kept(simple) == (carries, 0)
    assert kept(Policy(save_block_internals=["inner"])) == (carries + 16 * carry, 0)
    assert kept(Policy(nested=True)) == (carries - 12 * carry, 0)
    # Of four layers, three keep their carries alone.
    assert kept([True, True, True, False]) == (carries + 4 * results * carry, 0)
    assert kept([True, Policy(save_block_internals=["inner"])]) == (carries + 8 * carry, 0)
    size, host = kept([True, "offload"])
    assert size == carries
    assert host > 0
    for offload in (Policy(save_carries="offload"), Policy(save_inputs="offload")):
        size, host = kept(offload)
        assert size == carries
        assert host > 0
    size, host = kept(Policy(nested=True, save_carries="offload"))  # what is within a group stays on the device
    assert size == carries - 12 * carry
    assert host > 0


def test_names_that_nothing_has():
    w, x = data()
    for policy, text in [
        (
            Policy(save_block_internals=["hiden", "inner"], nested=True),
            "scan: the checkpoint policy names 'hiden', but no value inside of a step has this name\n"
            "  names there: 'hidden', 'inner'\n"
            "  hint: did you mean 'hidden'?",
        ),
        (
            Policy(offload_block_internals=["nobody"]),
            "scan: the checkpoint policy names 'nobody', but no value inside of a step has this name\n"
            "  names there: 'hidden', 'inner'\n"
            "  hint: give it with tree_checkpoint_name",
        ),
    ]:
        with pytest.warns(UserWarning, match="checkpoint policy") as warned:
            jax.make_jaxpr(lambda p=policy: axn.scan(lambda h, w: (layer(h, w), None), L, remat=p)(x, w)[0])()
        assert [str(warning.message) for warning in warned] == [text]
    with pytest.warns(UserWarning, match="names there: none"):
        axn.scan(lambda h, w: (h + w, None), L, remat=Policy(save_block_internals=["inner"]))(
            axn.zeros(()), axn.ones(L)
        )
    Policy(disable=True, save_block_internals=["nobody"]).wrap(layer)
    steps = []

    def step(h, w):
        steps.append(1)
        return layer(h, w), None

    jax.make_jaxpr(lambda w: axn.scan(step, L, remat=Policy(save_block_internals=["inner"]))(x, w)[0])(w)
    assert len(steps) == 1  # looking for the names traces no step again


# groups
@pytest.mark.parametrize(("steps", "groups"), [(16, 4), (12, 3), (13, 1), (1, 1), (0, 1), (2, 1), (6, 2), (100, 10)])
def test_the_number_of_groups_is_the_largest_divisor_up_to_the_root(steps, groups):
    assert Policy(nested=True).groups(steps) == groups


def test_a_given_number_must_divide():
    assert Policy(nested=3).groups(12) == 3
    assert Policy(nested=3).groups(0) == 1
    for nested, steps in [(5, 12), (0, 12), (-3, 12), (24, 12)]:
        with pytest.raises(AxisSizeError) as error:
            Policy(nested=nested).groups(steps)
        assert str(error.value) == (
            f"ScanCheckpointPolicy: {steps} steps cannot be split into {nested} equal groups\n"
            "  hint: nested=True chooses a number"
        )


def test_policies_that_alternate_divide_the_steps():
    with pytest.raises(AxisSizeError) as error:
        axn.fold(layer, L, remat=[True, True, False])(*reversed(data()))
    assert str(error.value) == (
        "ScanCheckpointPolicy: 16 steps cannot have 3 policies in turn\n"
        "  hint: list as many policies as divide the steps"
    )
    with pytest.raises(OperandError) as wrapped:
        Policy.make([True, False]).wrap(layer)
    assert str(wrapped.value) == (
        "ScanCheckpointPolicy.wrap: policies that alternate are for a loop, not for one step\n"
        "  hint: wrap each step by one of `turns`"
    )
    for inner in ("nested", Policy(alternating=[True, False])):
        with pytest.raises(OperandError) as error:
            Policy.make([True, inner])
        assert str(error.value) == (
            "ScanCheckpointPolicy: policies that alternate are for single steps, and have no groups\n"
            "  hint: leave `nested` out of them, and list them flat"
        )


# the policy as a value
@pytest.mark.parametrize("short", SHORT)
def test_short_forms(short):
    assert isinstance(Policy.make(short), Policy)
    assert Policy.make(Policy.make(short)) is Policy.make(short)
    assert Policy.from_bool_or_str(short) is Policy.make(short)


def test_unknown_short_forms():
    with pytest.raises(OperandError) as error:
        Policy.make("nestd")
    assert str(error.value) == (
        "ScanCheckpointPolicy: 'nestd' is not a checkpoint policy\n"
        "  short forms: False, True, 'save_all', 'full', 'recompute', 'nested', 'offload'\n"
        "  hint: did you mean 'nested'?"
    )
    with pytest.raises(OperandError, match=r"did you mean 'nested'\?"):
        Policy.from_bool_or_str("nestd")
    for wrong in (1, 0, None, [], ["ful"], 1.0):
        with pytest.raises(OperandError, match="is not a checkpoint policy"):
            Policy.make(wrong)
    with pytest.raises(OperandError):
        axn.scan(lambda c: c, L, remat="all")


def test_contradictions_and_slips():
    with pytest.raises(OperandError, match="nothing is left to offload"):
        Policy(save_block_internals=True, offload_block_internals=["a"])
    with pytest.raises(OperandError, match=r"save_block_internals must be a list of names, not the str 'attn'"):
        Policy(save_block_internals="attn")
    with pytest.raises(OperandError, match="save_carries must be a bool or 'offload', not 'host'"):
        Policy(save_carries="host")
    with pytest.raises(OperandError, match="save_inputs must be a bool or 'offload', not 'device'"):
        Policy(save_inputs="device")


def test_a_policy_is_hashable_and_may_be_a_static_part_of_a_module():
    class Stack(eqx.Module):
        w: axn.NamedArray
        policy: Policy = eqx.field(static=True)

    make = lambda: Policy(save_block_internals=["hidden"], offload_block_internals=["inner"])  # noqa: E731
    assert hash(make()) == hash(make())
    assert make() == make()
    w, x = data()
    traces = []

    @jax.jit
    def f(stack, x):
        traces.append(1)
        return loss(stack.w, x, stack.policy)

    assert f(Stack(w, make()), x) == f(Stack(w, make()), x)
    assert len(traces) == 1
    assert dataclasses.replace(make(), nested=2).nested == 2


def test_names_are_given_to_arrays_and_to_nothing_else():
    tree = {"a": axn.ones(E), "act": jnp.tanh, "text": "x", "none": None, "n": 1.5}
    out = axn.tree_checkpoint_name(tree, "name")
    assert (out["act"], out["text"], out["none"], out["n"]) == (jnp.tanh, "x", None, 1.5)
    assert out["a"].names == ("embed",)


def test_a_policy_finds_what_has_a_name():
    def kept(name):
        policy = jax.checkpoint_policies.save_only_these_names(name)
        run = jax.checkpoint(lambda x: axn.sin(axn.tree_checkpoint_name(axn.sin(x), "mine")), policy=policy)
        return count_kept(run, axn.ones(E))

    assert kept("mine") == kept("other") + E.size


def test_map_and_vmap_inside_of_remat():
    w, x = data()
    f = lambda w, remat: axn.map(lambda w: axn.vmap(lambda h: layer(h, w), B)(x), L, remat=remat)(w).sum().scalar()  # noqa: E731
    for remat in (True, "nested", "offload"):
        got, expected = jax.grad(f)(w, remat), jax.grad(f)(w, False)
        np.testing.assert_allclose(got.array, expected.array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", [Policy(prevent_cse=True), Policy(prevent_cse=True, simple=True)])
def test_nothing_is_computed_thrice_in_a_function_around_a_loop(policy):
    def count_in(around, inside):
        def run(x, w):
            return axn.fold(lambda x, w: x + axn.tanh(x * w), "layers", remat=inside)(x, w)

        def total(x, w):
            return around.wrap(run)(x, w).sum().scalar()

        given = axn.ones(E), axn.ones((L, E))
        both = jax.jit(jax.value_and_grad(total, argnums=1))
        return both.lower(*given).compile().as_text().count(" tanh(")

    assert count_in(policy.around(), policy.inside()) == 2
    assert count_in(policy, policy) == 3
