"""What devices send each other: no element depends on more than a walk says, whichever dimension devices share."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym import nn
from axonym.testing.proof.claims import Claim, check
from tests.nn.test_every_layer import ROWS
from tests.testing.proof.dependence import compile_programs, refute, trace_call
from tests.testing.proof.test_claims import KINDS, masked

B, T, E = axn.make_axes(batch=8, time=8, embed=8)
P = jax.P
# What a device does with its part, and which dimensions of arguments and of results devices share.
EXCHANGES: dict[str, tuple[Callable[[jax.Array], jax.Array], Any, Any]] = {
    "sum": (lambda x: x + lax.psum(x, "data"), P("data"), P("data")),
    "largest": (lambda x: lax.pmax(x, "data"), P(None, "data"), P()),
    "gather": (lambda x: lax.all_gather(x, "data", tiled=True), P("data"), P()),
    "gather beside": (lambda x: lax.all_gather(x, "data", axis=1).reshape(8, 8, 8), P(None, "data"), P()),
    "gather both": (lambda x: lax.all_gather(x, ("data", "model"), tiled=True), P(("data", "model")), P()),
    "exchange": (lambda x: lax.all_to_all(x, "data", 1, 0, tiled=True), P("data"), P(None, "data")),
    "exchange back": (lambda x: lax.all_to_all(x, "data", 0, 1, tiled=True), P(None, "data"), P("data")),
    "exchange in place": (lambda x: lax.all_to_all(x, "data", 1, 1, tiled=True), P("data"), P("data")),
    "scatter": (lambda x: lax.psum_scatter(x, "data", scatter_dimension=1, tiled=True), P("data"), P(None, "data")),
    "scatter one": (lambda x: lax.psum_scatter(x[:, :4], "data", scatter_dimension=1), P("data"), P(None, "data")),
    "send on": (lambda x: lax.ppermute(x, "data", [(i, (i + 1) % 4) for i in range(4)]), P("data"), P("data")),
    "number": (lambda x: x * lax.axis_index("data"), P("data"), P("data")),
    "two mesh axes": (lambda x: lax.cumsum(x, 0), P(("model", "data"), None), P(("model", "data"), None)),
}


def test_collectives_are_followed(auto_mesh: jax.sharding.Mesh) -> None:
    def share(name: str) -> Callable[[axn.NamedArray], Any]:
        body, given, result = EXCHANGES[name]
        shared = jax.shard_map(body, mesh=auto_mesh, in_specs=given, out_specs=result, check_vma=False)

        def call(x: axn.NamedArray) -> Any:
            array = shared(x.array)
            return axn.NamedArray(array, x.names) if array.shape == x.array.shape else array

        return call

    x = axn.named(np.random.default_rng(0).normal(size=(8, 8, 8)).astype(np.float32), (B, T, E))
    traced = {name: trace_call(share(name), [x]) for name in EXCHANGES}
    run = compile_programs(traced.values())
    for k, (name, one) in enumerate(traced.items()):
        for axis in ("batch", "time", "embed"):
            assert refute(one, axis, lambda arrays, k=k: run(arrays)[k], [x.array]) == [], (name, axis)
    # These give each device something else of the same array.
    same = {"exchange", "exchange back", "gather", "gather beside", "two mesh axes"}
    claims = Claim("equivariant", "batch"), Claim("independent", "time")
    proven = {name for name, one in traced.items() if all(check(one, claim) for claim in claims)}
    assert proven == same


@pytest.mark.parametrize("mapping", [{"time": "data", "batch": "model"}, {"batch": ("data", "model"), "embed": None}])
@pytest.mark.parametrize("mode", ["auto", "explicit"])
def test_layouts_change_no_proof(mode: str, mapping: Any, auto_mesh: Any, explicit_mesh: Any) -> None:
    """With positions on devices, heads and examples are exchanged for them."""
    layer = ROWS["Attention"].layer()
    with axn.set_mesh(auto_mesh if mode == "auto" else explicit_mesh):

        def run(layer: nn.Attention, x: axn.NamedArray) -> axn.NamedArray:
            with axn.axis_mapping(mapping):
                return masked(layer, axn.auto_sharded(x))

        given = layer, axn.shard(axn.ones((B, T, E.resize(4))), mapping, strict=False)
        for traced in (trace_call(run, given, is_gradient=flag) for flag in (False, True)):
            for kind, axis in KINDS:
                assert check(traced, Claim(kind, axis, has_totals=traced.cotangents > 0)), (kind, axis)
