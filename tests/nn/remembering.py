"""Layers with a memory by hand, position by position: what their tests share."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from tests.nn.layouts import draw, halved, made, same, same_trees, value_and_gradients

B, T, E, H, G, K, V = axn.make_axes(batch=8, time=11, embed=4, heads=2, group=3, key_dim=4, value_dim=5)
KINDS = [nn.GatedDeltaNet, nn.Mamba2]
each_kind = pytest.mark.parametrize("kind", KINDS)
NAMES, MEMORY = ("batch", "time", "embed"), ("batch", "heads", "group", "key_dim", "value_dim")
X = draw(B, T, E)
# Padding at the start of four sequences and at the end of others, of which one is empty.
PLACE, NUMBER = np.arange(11), np.arange(8)[:, None]
REAL = np.stack([b <= PLACE if b < 4 else (11, 9, 2, 0)[b - 4] > PLACE for b in range(8)])
BEGINS = np.random.default_rng(1).random((8, 11)) < 0.2


def layer(kind: Any, **options: Any) -> Any:
    return halved(made(kind.init, "time", E, (H, G), K, V, KeyHeads=H, **{"chunk": 4, **options}))


def named(**masks: Any) -> dict[str, axn.NamedArray]:
    return {name: axn.named(mask, ("batch", "time")) for name, mask in masks.items()}


@eqx.filter_jit
def run(layer: Any, x: axn.NamedArray, state: Any = None, **masks: axn.NamedArray) -> Any:
    return layer(x, state, **masks)


def first(layer: Any, x: axn.NamedArray) -> axn.NamedArray:
    return layer(x)[0]


def by_hand(layer: Any, x: Any, real: Any = None, begins: Any = None, xp: Any = np) -> tuple[Any, Any]:
    """Run a layer over a sequence {time, embed}: return its results, and the memory after the last position."""
    read = (lambda p: np.asarray(p.array, np.float64)) if xp is np else (lambda p: p.array)
    sigmoid: Callable[[Any], Any] = lambda x: 1 / (1 + xp.exp(-x))  # noqa: E731
    is_delta = isinstance(layer, nn.GatedDeltaNet)
    empty = xp.zeros((2, 3, 4, 5))
    seen, memory, outs = [], empty, []
    for t in range(len(x)):
        if real is not None and not real[t]:
            outs.append(xp.zeros(4))
            continue
        if begins is not None and begins[t]:
            seen, memory = [], empty
        seen = [*seen[-3:], x[t]]
        inputs = []
        for part, conv in zip((layer.query, layer.key, layer.value), layer.convs, strict=True):
            taps = read(conv.weight)[-len(seen) :]
            y = sum(xp.tensordot(own, read(part.weight), 1) * tap for own, tap in zip(seen, taps, strict=True))
            y = y if conv.bias is None else y + read(conv.bias)
            inputs.append(y * sigmoid(y))
        q, k, v = inputs
        forget, z = (xp.tensordot(x[t], read(part.weight), 1) for part in (layer.forget, layer.gate))
        step = xp.log1p(xp.exp(forget + read(layer.decay.bias)))
        a, z = xp.exp(-step * xp.exp(read(layer.decay.log_rate)))[..., None, None], z * sigmoid(z)
        if is_delta:
            q, k = (y / xp.sqrt((y**2).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
            b = sigmoid(xp.tensordot(x[t], read(layer.strength.weight), 1))[..., None, None]
            change = xp.eye(4) - b * (k[:, None, :, None] * k[:, None, None, :])
            memory = a * (change @ memory) + b * k[:, None, :, None] * v[:, :, None, :]
            y = xp.einsum("hi,hgiv->hgv", q / 2, memory)
            y = y / xp.sqrt((y**2).mean(-1, keepdims=True) + 1e-6) * read(layer.norm.weight) * z
        else:
            memory = a * memory + step[..., None, None] * k[:, None, :, None] * v[:, :, None, :]
            y = (xp.einsum("hi,hgiv->hgv", q, memory) + read(layer.skip)[..., None] * v) * z
            y = y / xp.sqrt((y**2).mean() + 1e-5) * read(layer.norm.weight)
        outs.append(xp.tensordot(y, read(layer.out.weight), 3))
    return xp.stack(outs), memory


def expect(layer: Any, **masks: Any) -> tuple[Any, Any]:
    each = [{name: mask[b] for name, mask in masks.items()} for b in range(8)]
    pairs = [by_hand(layer, np.asarray(X.array[b], np.float64), **each[b]) for b in range(8)]
    return np.stack([y for y, _ in pairs]), np.stack([memory for _, memory in pairs])


def check_values(model: Any) -> None:
    """Compare results and memories, with all kinds of masks."""
    for real, begins in ((None, None), (REAL, None), (None, BEGINS), (REAL, BEGINS)):
        masks = {name: mask for name, mask in (("where", real), ("begins", begins)) if mask is not None}
        y, (memory, _) = run(model, X, **named(**masks))
        expected, last = expect(model, **{"real" if name == "where" else name: mask for name, mask in masks.items()})
        shown = 1.0 if real is None else real[..., None]
        same(axn.named(y.rearrange(NAMES).array * shown, NAMES), NAMES, expected)
        same(memory, MEMORY, last)


def check_gradients(model: Any) -> None:
    """Compare with what JAX makes of the loop, for a padded sequence of two documents."""
    x, real, begins = X["batch", 1, "time", :7], REAL[1, :7], PLACE[:7] == 4
    masks = {"where": axn.named(real, "time"), "begins": axn.named(begins, "time")}

    def ours(model: Any, x: axn.NamedArray) -> axn.NamedArray:
        y, (memory, _) = model(x, **masks)
        return y.sum("embed") * masks["where"] + (memory**2).sum()

    def theirs(model: Any, x: axn.NamedArray) -> axn.NamedArray:
        y, memory = by_hand(model, x.array, real, begins, xp=jnp)
        return axn.named(y.sum(-1) + (memory**2).sum(), "time")

    out, found = value_and_gradients(ours)(model, x)
    expected, others = value_and_gradients(theirs)(model, x)
    same(out, ("time",), expected.array)
    same_trees(found, others, rtol=1e-4, atol=1e-4)
