"""How attention over split positions fits into meshes, maps and other splits."""

import functools

import jax.numpy as jnp
import pytest

import axonym as axn
from axonym import nn
from tests.nn.attending import with_gradients
from tests.nn.split import CAUSAL, MAPPING, attend, check, expected, inputs, on

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize(
    ("method", "where"),
    [("ring", "vmap"), ("ring", "outer"), ("ring", "inner"), ("all-gather", "vmap"), ("all-to-all", "outer")],
)
def test_in_shard_maps_and_under_vmap(method, where, auto_mesh, explicit_mesh):
    q, k, v = inputs()
    k = k["batch", 0]  # its gradient is summed over the batch
    whole = jnp.broadcast_to(k.array, (2, *k.array.shape))
    out, (by_q, by_k, by_v) = expected(CAUSAL, q.array, whole, v.array)
    call = lambda *x: attend(*x, mask=nn.causal(), implementation=method)  # noqa: E731
    over = functools.partial(axn.shard_map, call, MAPPING, strict=False)
    mesh, run = {
        "vmap": (auto_mesh, axn.vmap(call, "batch")),
        "outer": (explicit_mesh, over(manual_axes=("model",))),  # of which positions are no part
        "inner": (auto_mesh, over()),
    }[where]
    check(on(mesh, MAPPING, with_gradients(run), q, k, v)[0], (out, (by_q, by_k.sum(0), by_v)))


def test_axes_that_are_split_over_several_mesh_axes_or_none(auto_mesh, explicit_mesh):
    given = inputs()
    wanted = expected(CAUSAL, *(x.array for x in given))
    for mesh, mapping, method in (
        (auto_mesh, {"pos": ("model", "data")}, "ring"),  # in this order
        (explicit_mesh, {"pos": "model", "heads": "data"}, "all-gather"),
    ):
        run = with_gradients(lambda *x: attend(*x, mask=nn.causal(), implementation=method))  # noqa: B023
        check(on(mesh, mapping, run, *given)[0], wanted)
