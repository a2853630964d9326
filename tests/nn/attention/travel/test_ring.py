"""Attention in a ring: values, gradients, precision and memory."""

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym import nn
from tests.nn.attending import with_gradients
from tests.nn.split import (
    MAPPING,
    attend,
    check_dropout,
    check_mask,
    check_scores,
    inputs,
    on,
)

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize(
    ("case", "method", "kind"),
    [
        ("causal window", "ring", "auto"),
        ("window", "ring", "explicit"),
        ("segments or prefix", "ring", "explicit"),
        ("an array", "ring", "auto"),
        ("positions", "ring", "auto"),
    ],
)
def test_value_and_gradients(case, method, kind, auto_mesh, explicit_mesh):
    check_mask(case, method, {"auto": auto_mesh, "explicit": explicit_mesh}[kind])


def test_biases_sinks_and_caps(auto_mesh):
    check_scores("ring", auto_mesh)


def test_what_is_dropped_is_the_same_as_on_one_device(explicit_mesh):
    check_dropout("ring", explicit_mesh)


def test_narrow_numbers_are_as_exact_as_block_by_block(auto_mesh):
    given = [x.astype(jnp.bfloat16) for x in inputs()]
    wide = with_gradients(lambda *x: attend(*x, mask=nn.causal(), implementation="plain"))(
        *(x.astype(jnp.float32) for x in given)
    )

    def error(found):
        both = zip(jax.tree.leaves(found), jax.tree.leaves(wide), strict=True)
        return [float(jnp.abs(x.astype(jnp.float32) - y).max()) for x, y in both]

    run = lambda method: with_gradients(lambda *x: attend(*x, mask=nn.causal(), implementation=method))  # noqa: E731
    theirs = error(run("blockwise")(*given))
    own = error(on(auto_mesh, MAPPING, run("ring"), *given)[0])
    assert all(x <= 1.1 * y for x, y in zip(own, theirs, strict=True))


def test_memory_is_linear_in_the_positions_of_a_device():
    """With 32768 positions on eight devices, no block of scores is larger than 512 by 512."""
    mesh = jax.make_mesh((8,), ("context",), axis_types=(jax.sharding.AxisType.Auto,))

    def temp_bytes(size):
        Long = axn.make_axes(pos=size, heads=8, head_dim=16)
        q = jax.eval_shape(lambda: axn.zeros(Long))
        given = q, *[q.rename({"pos": "pos.key"})] * 2
        run = with_gradients(lambda *x: attend(*x, mask=nn.causal(), implementation="ring", block_size=512))
        with axn.set_mesh(mesh):
            program = axn.named_jit(run, {"pos": "context"})
            compiled = program.lower(*axn.shard(given, {"pos": "context"})).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    few, many = temp_bytes(16384), temp_bytes(32768)
    assert many < 2.1 * few
    assert many < 4 * 8 * 4096 * 4096 / 10  # a tenth of the scores of one device
