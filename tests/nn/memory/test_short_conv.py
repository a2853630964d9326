"""Short convolutions, against `numpy.convolve`."""

import jax
import numpy as np

import axonym as axn
from axonym.errors import ArgumentError
from axonym.nn.memory.short_conv import ShortConv
from tests.nn.layouts import compiled, draw, fails, made, same

Batch, Time, Heads, Dim = axn.make_axes(batch=2, time=7, heads=2, head_dim=3)
CONV = made(ShortConv.init, (Heads, Dim), 4, use_bias=True)
X = draw(Batch, Time, Heads, Dim)


def by_numpy(x: np.ndarray) -> np.ndarray:
    """Convolve {time, heads, head_dim}."""
    out, (weight, bias) = np.zeros(x.shape), (np.asarray(p.array, np.float64) for p in (CONV.weight, CONV.bias))
    for h, d in np.ndindex(2, 3):
        # The last tap is that of the position itself, which `numpy.convolve` takes for the first.
        out[:, h, d] = np.convolve(x[:, h, d], weight[::-1, h, d])[: len(x)] + bias[h, d]
    return out


def test_sums_go_back_to_the_begin_of_a_sequence() -> None:
    begins = np.zeros((2, 7), bool)
    begins[1, [2, 3]] = True
    y, recent = compiled(CONV, X, "time", begins=axn.named(begins, ("batch", "time")))
    x = np.asarray(X.array, np.float64)
    expected = [by_numpy(x[0]), np.concatenate([by_numpy(x[1, a:b]) for a, b in ((0, 2), (2, 3), (3, 7))])]
    same(y, X.names, np.stack(expected))
    assert recent.axes == (Batch, axn.Axis("tap", 3), Heads, Dim)
    np.testing.assert_array_equal(recent.array, X.array[:, 4:])


def test_one_tap_has_nothing_recent() -> None:
    conv = made(ShortConv.init, Heads, 1, use_bias=False)
    x = X["head_dim", 0]
    y, recent = compiled(conv, x, "time")
    same(y, x.names, x.array * conv.weight.array)
    again, after = compiled(conv, x, "time", recent)
    same(again, x.names, y.array)
    assert recent.axes == after.axes == (Batch, axn.Axis("tap", 0), Heads)


def test_a_window_has_a_position() -> None:
    fails(
        ArgumentError,
        "ShortConv.init: window must be an int of at least 1, not -1",
        lambda: ShortConv.init(Heads, -1, key=jax.random.key(0), use_bias=False),
    )
