"""Boxes written by a loop, the program of a TPU, against an assignment in numpy; and who gets which program."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.nn.attention.cache.filling import write_boxes
from tests.nn.layouts import draw

pytestmark = pytest.mark.sampled

L, B, H, D, T, P = axn.make_axes(layers=2, batch=3, heads=2, head_dim=4, pos=3, key_pos=7)
OLD, NEW = draw(L, B, H, P, D), draw(H, T, B, D, seed=1)
LENGTHS = {
    "one length": (2, ()),
    "one length, and some do not fit": (5, ()),
    "one length, which is too much": (12, ()),
    "a length for each, some of them before the first position": ([-1, -2, -9], ("batch",)),
    "a length for each": ([0, 5, 4], ("batch",)),
    "a length for each, and none fits": ([7, 8, 30], ("batch",)),
    "a length for each of two axes": ([[0, 1], [3, 4], [6, 7]], ("batch", "heads")),
}


def from_start(start: axn.NamedArray) -> axn.NamedArray:
    return start.broadcast_axis(T) + axn.arange(T)


def expected(old, new, start):
    """Axes {batch, heads, key_pos, head_dim} and {batch, heads, pos, head_dim}."""
    old = np.array(old)
    for b, h in np.ndindex(3, 2):
        for i, token in enumerate(new[b, h]):
            if 0 <= start[b, h] + i < 7:
                old[b, h, start[b, h] + i] = token
    return old


@pytest.mark.parametrize("chunk", [True, False])
@pytest.mark.parametrize("kind", LENGTHS)
def test_a_loop_writes_what_fits(kind: str, chunk: bool) -> None:
    start, each = LENGTHS[kind]
    new, places = NEW["pos", 0], axn.named(start, each)
    if chunk:
        new, places = NEW, from_start(places)
    across = each or ("batch",)
    at_once = lambda new, places: write_boxes(OLD, new, {"layers": jnp.int8(1), "key_pos": places}, each, across)  # noqa: E731
    found = jax.jit(at_once)(new, places)
    rows = np.asarray(axn.rearrange(NEW, ("batch", "heads", "pos", "head_dim")).array)
    at = np.asarray(start)
    whole = np.broadcast_to(at.reshape(at.shape + (1,) * (2 - at.ndim)), (3, 2))
    wanted = np.array(OLD.array)
    wanted[1] = expected(wanted[1], np.asarray(rows[:, :, : 3 if chunk else 1]), whole)
    assert found.names == OLD.names
    np.testing.assert_array_equal(found.array, wanted)


def test_gradients_pass_through_a_loop() -> None:
    places = from_start(axn.named([0, 5, 4], "batch"))

    def loss(old, new):
        return (write_boxes(old, new, {"layers": 0, "key_pos": places}, ("batch",), ("batch",)) ** 2).sum().scalar()

    old, new = jax.jit(jax.grad(loss, (0, 1)))(OLD, NEW)
    written = write_boxes(
        axn.zeros(OLD.axes), axn.ones(NEW.axes), {"layers": 0, "key_pos": places}, ("batch",), ("batch",)
    )
    np.testing.assert_allclose(old.array, 2 * OLD.array * (1 - written.array), rtol=1e-6)
    fits = np.array([[True] * 3, [True, True, False], [True] * 3])
    kept = np.where(fits[:, None, :, None], NEW.rearrange(("batch", "heads", "pos", "head_dim")).array, 0)
    np.testing.assert_allclose(new.rearrange(("batch", "heads", "pos", "head_dim")).array, 2 * kept, rtol=1e-6)


def program(platform, lengths=(), window=None, number=1):
    """The text of the program that writes to a cache of several layers."""

    def extend(cache, keys):
        return cache.extend("pos", keys, keys, layer=("layers", 1))

    cache = nn.KVCache.stacked(L, "key_pos", (B, H, P.resize(64), D), lengths=lengths, window=window)
    keys = axn.ones((B, H, T.resize(number), D))
    return jax.jit(extend).trace(cache, keys).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("lengths", [(), B], ids=["one length", "lengths"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_tpu_gets_loops_and_others_scatters(lengths, number: int) -> None:
    for platform in ("cpu", "cuda"):
        assert program(platform, lengths, number=number).count("stablehlo.while") == 0
    text = program("tpu", lengths, number=number)
    assert text.count("stablehlo.while") == 2
    assert len(re.findall(r"dynamic_update_slice .* -> tensor<2x3x2x64x4xf32>", text)) == 2


def test_tokens_around_the_end_of_a_ring_are_scattered() -> None:
    assert program("tpu", window=3, number=2).count("stablehlo.while") == 0
    assert program("tpu", window=3).count("stablehlo.while") == 2


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_devices_write_their_parts_in_loops(kind: str, request: pytest.FixtureRequest) -> None:
    mesh = request.getfixturevalue(kind)
    E = B.resize(4)

    def loops(mapping, lengths):
        def extend(cache, keys):
            with axn.axis_mapping(mapping):
                return cache.extend("pos", keys, keys)

        with axn.set_mesh(mesh), axn.axis_mapping(mapping):
            cache = nn.KVCache.init("key_pos", (E, H, P.resize(64), D), lengths=lengths)
            keys = axn.shard(axn.ones((E, H, T.resize(1), D)))
            return (
                jax.jit(extend).trace(cache, keys).lower(lowering_platforms=("tpu",)).as_text().count("stablehlo.while")
            )

    assert loops({"heads": "model"}, E) == 2
    assert loops({"batch": "data"}, ()) == 2
    assert loops({"batch": "data"}, E) == 2
    assert loops({"key_pos": "data"}, ()) == 2
