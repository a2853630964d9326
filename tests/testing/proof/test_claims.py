"""What is proven of layers and of families of models, how much of what they claim, and how an answer reads."""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from decoder import Decoder, within

import axonym as axn
from axonym import nn
from axonym.testing.proof.claims import Claim, Kind, check, trace
from tests.nn.test_every_layer import ROWS, Row
from tests.sample import third_of
from tests.testing.proof.dependence import compile_programs, refute

B, S, T, E, M = axn.make_axes(batch=8, seq=2, time=3, embed=4, mlp=6)
KEY = jax.random.key(0)


def masked(layer: Any, x: axn.NamedArray) -> axn.NamedArray:
    return layer(x, mask=nn.causal())


# Layers along positions, in the form that is causal.
LAYERS: dict[str, Row] = {
    **ROWS,
    "Attention": Row(ROWS["Attention"].make, (T, E), masked),
    "Conv": Row(lambda: nn.Conv.init("time", E, M, 3, padding=[(2, 0)], key=KEY), (T, E)),
    "TransformerBlock": Row(ROWS["TransformerBlock"].make, (T, E), masked),
}
# What is not so, and by design: examples of a batch norm see each other, and a mask of dropout differs by position.
NOT_SO = {
    ("BatchNorm", "independent", "batch"),
    ("BatchNorm", "equivariant", "batch"),
    ("Dropout", "equivariant", "batch"),
    ("GroupNorm", "causal", "time"),
    ("ConvTranspose", "causal", "time"),
}
# What is so and not proven: tokens are sorted by the experts that they choose, and sorted back.
UNDECIDED = {"MixtureOfExperts", "Mixtral-8x7B-v0.1", "Qwen3-30B-A3B", "Qwen1.5-MoE-A2.7B"}


def claims_of(name: str) -> Iterator[tuple[Kind, str]]:
    """Yield what the axes of a layer mean."""
    yield from (("independent", "batch"), ("equivariant", "batch"))
    if T in LAYERS[name].axes:
        yield "causal", "time"


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_what_their_axes_mean(name: str) -> None:
    row = LAYERS[name]
    given = eqx.filter_eval_shape(row.make), row.input(B, S)
    forward, backward = (trace(row.call, given, {}, is_gradient=flag) for flag in (False, True))
    for kind, axis in claims_of(name):
        for traced in (forward, backward):
            verdict = check(traced, Claim(kind, axis, has_totals=traced is backward))
            is_expected = (name, kind, axis) not in NOT_SO and name not in UNDECIDED
            if not (name in UNDECIDED or (row.integers and traced is backward)):
                assert bool(verdict) == is_expected, (kind, axis, str(verdict))


def test_what_is_proven_of_layers_is_so() -> None:
    """A third of them, forward and backward: each is a program to compile."""
    for name in third_of(LAYERS):
        row = LAYERS[name]
        given = row.layer(), row.input(axn.Axis("batch", 3), S)
        several = [trace(row.call, given, {}), trace(row.call, given, {}, is_gradient=True)]
        rng = np.random.default_rng(0)
        leaves = jax.tree.leaves(given)
        for traced in several:
            program = traced.program.jaxpr
            more = [rng.normal(size=one.aval.shape).astype(one.aval.dtype) for one in program.invars[len(leaves) :]]
            run = compile_programs([traced])
            for axis in {"batch", "time"} & {axis for names in traced.arguments for axis in names}:
                assert refute(traced, axis, lambda arrays, run=run: run(arrays)[0], [*leaves, *more]) == [], name


def residual(model: Decoder, x: axn.NamedArray) -> axn.NamedArray:
    """Apply a decoder to embedded tokens, by which there are gradients."""
    return model.scores(model.blocks.scan(x, model.rotations(x.resolve_axis("pos")), within(None), None)[0])
