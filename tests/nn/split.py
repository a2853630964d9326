"""What tests of attention over split positions share: inputs, masks, attention by hand, and a run on a mesh."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import axonym as axn
from axonym import nn
from tests.nn.attending import by_hand, with_gradients
from tests.nn.layouts import draw

B, H, G, P, D = axn.make_axes(batch=2, heads=4, group=2, pos=16, head_dim=8)
K = P.derive("key")
MAPPING = {"batch": "model", "pos": "data"}  # four parts of the positions
RANDOM = np.random.default_rng(0)
IDS = np.sort(RANDOM.integers(0, 3, (2, 16)), 1).astype(np.int32)
SEEN = RANDOM.random((16, 16)) < 0.6
ORDER = RANDOM.permutation(16).astype(np.int32)
LENGTHS = np.array([3, 9], np.int32)

ROW, COLUMN = np.arange(16)[:, None], np.arange(16)
CAUSAL = ROW >= COLUMN


def attend(q: Any, k: Any, v: Any, **options: Any) -> axn.NamedArray:
    options = {"block_size": (3, 2), **options}
    return nn.dot_product_attention("pos", "pos.key", "head_dim", q, k, v, **options)


def inputs() -> tuple[axn.NamedArray, ...]:
    return draw(B, H, G, P, D), draw(B, H, K, D, seed=1), draw(B, H, K, D, seed=2)


# A mask, and the same as an array over batch, queries and keys.
MASKS = {
    "causal": (lambda: nn.causal(), CAUSAL),
    "causal window": (lambda: nn.causal() & nn.window(4), CAUSAL & (ROW - COLUMN < 4)),
    "window": (lambda: nn.window(6), abs(ROW - COLUMN) < 6),
    "none": (lambda: None, np.full((16, 16), True)),
    "segments or prefix": (
        lambda: nn.causal() & nn.segments(axn.named(IDS, ("batch", "pos"))) | nn.prefix(axn.named(LENGTHS, "batch")),
        CAUSAL & (IDS[:, :, None] == IDS[:, None]) | (LENGTHS[:, None, None] > COLUMN),
    ),
    "an array": (lambda: nn.AttentionMask.of(axn.named(SEEN, ("pos", "pos.key"))), SEEN),
    "positions": (
        lambda: nn.causal().at(axn.named(ORDER, "pos")) & nn.window(9),
        (ORDER[:, None] >= ORDER) & (ORDER[:, None] - ORDER < 9),
    ),
}


def expected(seen: Any, *plain: Any) -> Any:
    seen = np.broadcast_to(seen, (2, 16, 16))[:, None, None]
    return with_gradients(functools.partial(by_hand, seen=seen, xp=jnp))(*plain)


def check(found: Any, wanted: Any) -> None:
    """Compare results and gradients with the tolerances that the guide promises."""
    (out, gradients), (theirs, others) = found, wanted
    np.testing.assert_allclose(out.array, theirs, atol=2e-6)
    for gradient, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(getattr(gradient, "array", gradient), other, atol=1e-5)


def on(mesh: jax.sharding.Mesh, mapping: axn.ResourceMapping, run: Callable[..., Any], *given: Any) -> Any:
    """Run on a mesh; return the result and the compiled program."""
    with axn.set_mesh(mesh):
        program = axn.named_jit(run, mapping, strict=False)
        placed = axn.shard(given, mapping, strict=False)
        return program(*placed), program.lower(*placed).compile()
