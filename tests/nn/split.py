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
from tests.nn.layouts import draw, lies

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
        compiled = program.lower(*placed).compile()
        return compiled(*placed), compiled


def check_mask(case: str, method: str, mesh: jax.sharding.Mesh) -> None:
    """Compare a method under a mask with attention by hand."""
    make, seen = MASKS[case]
    given = inputs()
    run = with_gradients(lambda *x: attend(*x, mask=make(), implementation=method))
    found, _ = on(mesh, MAPPING, run, *given)
    assert lies(found[0], mesh, MAPPING)
    check(found, expected(seen, *(x.array for x in given)))


def check_scores(method: str, mesh: jax.sharding.Mesh) -> None:
    """Compare biases of keys and of pairs, sinks and a soft cap with attention by hand."""
    q, k, v = inputs()
    pairs, sinks = draw(H, P, K, seed=4), draw(H, G, seed=5)

    def run(q: Any, k: Any, v: Any, bias: Any, pairs: Any, sinks: Any) -> axn.NamedArray:
        options = {"sinks": sinks, "soft_cap": 2.0, "mask": nn.causal(), "implementation": method}
        return attend(q, k, v, bias=bias + pairs, **options)

    def plain(q: Any, k: Any, v: Any, bias: Any, pairs: Any, sinks: Any) -> Any:
        both = bias[:, None, None] + pairs[:, None]
        return by_hand(q, k, v, CAUSAL, both, sinks, 2.0, xp=jnp)

    given = q, k, v, draw(H, K, seed=3), pairs, sinks
    check(on(mesh, MAPPING, with_gradients(run), *given)[0], with_gradients(plain)(*(x.array for x in given)))


def check_dropout(method: str, mesh: jax.sharding.Mesh) -> None:
    """Compare what is dropped with one device; a bias over keys goes where they go."""
    options = {"dropout": 0.4, "key": jax.random.key(0), "mask": nn.causal()}
    given = *inputs(), draw(H, K, seed=3)

    def run(q: Any, k: Any, v: Any, bias: Any, implementation: str) -> axn.NamedArray:
        return attend(q, k, v, bias=bias, **options, implementation=implementation)

    alone = with_gradients(functools.partial(run, implementation="plain"))(*given)
    found, _ = on(mesh, MAPPING, with_gradients(functools.partial(run, implementation=method)), *given)
    check(found, (alone[0].array, [x.array for x in alone[1]]))
