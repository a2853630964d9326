"""Forty operations of all kinds, each in the usual spelling of `jax.numpy` and by name.

Both spellings are functions of the same `Arrays`, which hold plain arrays for the one and named arrays for the other,
so that they can be timed on concrete arrays and on tracers alike. `bar` is the largest ratio of times that is accepted
for concrete arrays: 1.1 where `jax.numpy` needs one call, 0.6 where it needs several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import axonym as axn

B, S, E, Out, H, D = axn.make_axes(b=4, s=8, e=16, o=32, h=4, d=4)


class Arrays(NamedTuple):
    """What the operations work on; arrays are small, so that the cost of a call is what counts.

    Attributes:
        x: axes b, s, e.
        w: axes e, o.
        tail: axis e.
        middle: axis s.
        turned: axes e, b, s.
        mask: axis s, booleans.
        picks: axis k, indices of s.
        labels: axes b, s, indices of e.
        square: axes b, m, n, positive definite.
        vector: axes b, m.
        ids: axis s, segments.
    """

    x: Any
    w: Any
    tail: Any
    middle: Any
    turned: Any
    mask: Any
    picks: Any
    labels: Any
    square: Any
    vector: Any
    ids: Any


class Operation(NamedTuple):
    """One operation in both spellings."""

    bar: float | None
    usual: Callable[[Arrays], Any]
    named: Callable[[Arrays], Any]


def plain_arrays() -> Arrays:
    """Make the arrays."""
    x, w, half = (
        jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(((4, 8, 16), (16, 32), (4, 6, 6)))
    )
    return Arrays(
        x=x,
        w=w,
        tail=jnp.ones(16),
        middle=jnp.ones(8),
        turned=jnp.transpose(x, (2, 0, 1)),
        mask=jnp.arange(8) > 3,
        picks=jnp.array([1, 5, 2]),
        labels=jnp.arange(32).reshape(4, 8) % 16,
        square=half @ jnp.swapaxes(half, 1, 2) + jnp.eye(6),
        vector=jnp.ones((4, 6)),
        ids=jnp.array([0, 0, 1, 1, 2, 2, 2, 0]),
    )


def named_arrays(plain: Arrays) -> Arrays:
    """Name them."""
    axes = ("b s e", "e o", "e", "s", "e b s", "s", "k", "b s", "b m n", "b m", "s")
    return Arrays(*(axn.NamedArray(array, names.split()) for array, names in zip(plain, axes, strict=True)))


_per_row = axn.vmap(lambda v: axn.tanh(v).sum("e"), "b")


def operations() -> dict[str, Operation]:
    """Return the operations by name."""
    return {
        name: Operation(*row)
        for table in (_elementwise(), _reductions(), _shapes(), _others())
        for name, row in table.items()
    }


def _elementwise() -> dict[str, Any]:
    return {
        "add, same names": (1.1, lambda a: a.x + a.x, lambda n: n.x + n.x),
        "add, broadcast at the end": (1.1, lambda a: a.x + a.tail, lambda n: n.x + n.tail),
        "add, broadcast in the middle": (0.6, lambda a: a.x + a.middle[:, None], lambda n: n.x + n.middle),
        "add, permuted": (0.6, lambda a: a.x + jnp.transpose(a.turned, (1, 2, 0)), lambda n: n.x + n.turned),
        "multiply by a number": (1.1, lambda a: a.x * 2.0, lambda n: n.x * 2.0),
        "compare": (1.1, lambda a: a.x > 0.0, lambda n: n.x > 0.0),
        "exp": (1.1, lambda a: jnp.exp(a.x), lambda n: axn.exp(n.x)),
        "clip": (1.1, lambda a: jnp.clip(a.x, -1.0, 1.0), lambda n: n.x.clip(-1.0, 1.0)),
        "where": (
            0.6,
            lambda a: jnp.where(a.mask[:, None], a.x, 0.0),
            lambda n: axn.where(n.mask, n.x, 0.0),
        ),
        "astype": (1.1, lambda a: a.x.astype(jnp.bfloat16), lambda n: n.x.astype(jnp.bfloat16)),
    }


def _reductions() -> dict[str, Any]:
    return {
        "sum": (1.1, lambda a: jnp.sum(a.x, 2), lambda n: n.x.sum("e")),
        "sum, two axes": (1.1, lambda a: jnp.sum(a.x, (0, 2)), lambda n: n.x.sum(("b", "e"))),
        "mean, masked": (
            0.6,
            lambda a: jnp.mean(a.x, 1, where=a.mask[:, None]),
            lambda n: n.x.mean("s", where=n.mask),
        ),
        "var": (1.1, lambda a: jnp.var(a.x, 2), lambda n: n.x.var("e")),
        "argmax": (1.1, lambda a: jnp.argmax(a.x, 2), lambda n: n.x.argmax("e")),
        "logsumexp": (0.6, lambda a: jax.nn.logsumexp(a.x, 2), lambda n: axn.logsumexp(n.x, "e")),
        "softmax": (0.6, lambda a: jax.nn.softmax(a.x, 2), lambda n: axn.softmax(n.x, "e")),
        "median": (1.1, lambda a: jnp.median(a.x, 2), lambda n: axn.median(n.x, "e")),
        "cumsum": (1.1, lambda a: jnp.cumsum(a.x, 1), lambda n: n.x.cumsum("s")),
        "sort": (1.1, lambda a: jnp.sort(a.x, 1), lambda n: n.x.sort("s")),
        "diff": (1.1, lambda a: jnp.diff(a.x, axis=1), lambda n: axn.diff(n.x, "s")),
        "roll": (1.1, lambda a: jnp.roll(a.x, 2, 1), lambda n: axn.roll(n.x, 2, "s")),
        "flip": (1.1, lambda a: jnp.flip(a.x, 1), lambda n: axn.flip(n.x, "s")),
    }


def _shapes() -> dict[str, Any]:
    return {
        "transpose": (0.6, lambda a: jnp.transpose(a.x, (1, 2, 0)), lambda n: n.x.rearrange(("s", "e", "b"))),
        "head split": (
            0.6,
            lambda a: a.x.reshape(4, 8, 4, 4).transpose(0, 2, 1, 3),
            lambda n: n.x.unflatten_axis("e", (H, D)).rearrange(("b", "h", "s", "d")),
        ),
        "head split, by a pattern": (
            0.6,
            lambda a: a.x.reshape(4, 8, 4, 4).transpose(0, 2, 1, 3),
            lambda n: n.x.rearrange("b s (h d) -> b h s d", h=4),
        ),
        "flatten two axes": (
            1.1,
            lambda a: a.x.reshape(32, 16),
            lambda n: n.x.flatten_axes(("b", "s"), "token"),
        ),
        "concatenate": (1.1, lambda a: jnp.concatenate([a.x, a.x], 1), lambda n: axn.concatenate("s", [n.x, n.x])),
        "stack": (1.1, lambda a: jnp.stack([a.x, a.x]), lambda n: axn.stack("new", [n.x, n.x])),
        "pad": (
            1.1,
            lambda a: jnp.pad(a.x, ((0, 0), (1, 2), (0, 0))),
            lambda n: axn.pad(n.x, {"s": (1, 2)}),
        ),
        "repeat": (1.1, lambda a: jnp.repeat(a.x, 2, 1), lambda n: axn.repeat(n.x, 2, "s")),
        "tril": (1.1, lambda a: jnp.tril(a.x), lambda n: axn.tril(n.x, "s", "e")),
    }


def _others() -> dict[str, Any]:
    return {
        "dot": (1.1, lambda a: a.x @ a.w, lambda n: n.x.dot(n.w, axis="e")),
        "dot, spelled as einsum": (
            0.6,
            lambda a: jnp.einsum("bse,eo->bso", a.x, a.w),
            lambda n: n.x.dot(n.w, axis="e"),
        ),
        "int index": (0.6, lambda a: a.x[:, 3], lambda n: n.x["s", 3]),
        "slice": (0.6, lambda a: a.x[:, 2:5], lambda n: n.x["s", 2:5]),
        "take": (1.1, lambda a: jnp.take(a.x, a.picks, axis=1), lambda n: n.x.take("s", n.picks)),
        "take, by an axis with its size": (
            1.2,
            lambda a: jnp.take(a.x, a.picks, axis=1),
            lambda n: n.x.take(S, n.picks),
        ),
        "take one per position": (
            0.6,
            lambda a: jnp.take_along_axis(a.x, a.labels[..., None], 2)[..., 0],
            lambda n: n.x["e", n.labels],
        ),
        "set elements": (1.1, lambda a: a.x.at[:, a.picks].set(0.0), lambda n: n.x.at["s", n.picks].set(0.0)),
        "segment sum": (
            0.6,
            lambda a: jax.vmap(lambda rows: jax.ops.segment_sum(rows, a.ids, 3))(a.x),
            lambda n: axn.segment_sum(n.x, n.ids, axn.Axis("segment", 3)),
        ),
        "solve": (
            0.6,
            lambda a: jnp.linalg.solve(a.square, a.vector[..., None])[..., 0],
            lambda n: axn.linalg.solve(n.square, n.vector, "m", "n"),
        ),
        "vmap": (0.6, lambda a: jax.vmap(lambda v: jnp.tanh(v).sum(-1))(a.x), lambda n: _per_row(n.x)),
    }
