"""Attention after an exchange: values and gradients."""

import functools

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym import nn
from benchmarks.measure import collectives, totals
from tests.nn.attending import by_hand, with_gradients
from tests.nn.layouts import draw, lies
from tests.nn.split import CAUSAL, MAPPING, MASKS, G, H, K, P, attend, check, expected, inputs, on


@pytest.mark.parametrize(
    ("case", "method", "kind"),
    [
        ("causal", "all-gather", "auto"),
        ("none", "all-to-all", "explicit"),
        ("segments or prefix", "all-to-all", "auto"),
    ],
)
def test_value_and_gradients(case, method, kind, auto_mesh, explicit_mesh):
    make, seen = MASKS[case]
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    given = inputs()
    run = with_gradients(lambda *x: attend(*x, mask=make(), implementation=method))
    found, _ = on(mesh, MAPPING, run, *given)
    assert lies(found[0], mesh, MAPPING)
    check(found, expected(seen, *(x.array for x in given)))


def test_biases_sinks_and_caps(auto_mesh):
    q, k, v = inputs()
    pairs, sinks = draw(H, P, K, seed=4), draw(H, G, seed=5)

    def run(q, k, v, bias, pairs, sinks):
        options = {"sinks": sinks, "soft_cap": 2.0, "mask": nn.causal(), "implementation": "all-to-all"}
        return attend(q, k, v, bias=bias + pairs, **options)

    def plain(q, k, v, bias, pairs, sinks):
        both = bias[:, None, None] + pairs[:, None]
        return by_hand(q, k, v, CAUSAL, both, sinks, 2.0, xp=jnp)

    given = q, k, v, draw(H, K, seed=3), pairs, sinks
    check(on(auto_mesh, MAPPING, with_gradients(run), *given)[0], with_gradients(plain)(*(x.array for x in given)))


def test_what_is_dropped_is_the_same_as_on_one_device(explicit_mesh):
    """A bias over keys is split by heads with them."""
    options = {"dropout": 0.4, "key": jax.random.key(0), "mask": nn.causal()}
    given = *inputs(), draw(H, K, seed=3)

    def run(q, k, v, bias, implementation):
        return attend(q, k, v, bias=bias, **options, implementation=implementation)

    alone = with_gradients(functools.partial(run, implementation="plain"))(*given)
    found, _ = on(explicit_mesh, MAPPING, with_gradients(functools.partial(run, implementation="all-to-all")), *given)
    check(found, (alone[0].array, [x.array for x in alone[1]]))


def test_a_map_over_mesh_axes_is_not_gathered(explicit_mesh):
    """XLA gathers the mapped axis for an all-to-all; the parts are sent one by one."""
    given = inputs()
    each = axn.vmap(lambda *x: attend(*x, mask=nn.causal(), implementation="all-to-all"), "batch")
    found, program = on(explicit_mesh, MAPPING, with_gradients(each), *given)
    check(found, expected(CAUSAL, *(x.array for x in given)))
    assert set(totals(collectives(program))) <= {"collective-permute", "all-reduce"}
