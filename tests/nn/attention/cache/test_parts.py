"""Devices that write into their own parts of a cache write what one device would, and send nothing."""

import re

import jax
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from tests.nn.layouts import draw

pytestmark = pytest.mark.sampled

L, B, H, P, D, T = axn.make_axes(layers=2, batch=4, heads=2, key_pos=32, head_dim=4, pos=3)
MAPPINGS = {
    "batch": {"batch": "data"},
    "batch and heads": {"batch": "data", "heads": "model"},
    "positions": {"key_pos": "data"},
    "batch and positions": {"batch": "model", "key_pos": "data"},
    "positions over all": {"key_pos": ("model", "data")},
}
# Some tokens lie across two parts of the positions; some are beyond the end.
STARTS = {"a length for each": (2, 6, 30, 31), "one length": 14, "one length, and some do not fit": 30}


def cache(start: int | tuple[int, ...], window: int | None = None) -> nn.KVCache:
    lengths = (B,) if isinstance(start, tuple) else ()
    made = nn.KVCache.stacked(L, P, (B, H, P, D), lengths=lengths, window=window)
    length = axn.zeros(made.length.axes, dtype=int) + axn.named(np.array(start), [axis.name for axis in lengths])
    return nn.KVCache(draw(*made.key.axes, seed=1), draw(*made.value.axes, seed=2), length, made.KPos, window)


def extended(cache: nn.KVCache, keys: axn.NamedArray) -> nn.KVCache:
    return cache.extend("pos", keys, -keys, layer=("layers", 1))


def expected(old: axn.NamedArray, keys: axn.NamedArray, start: int | tuple[int, ...], slots: int) -> np.ndarray:
    """Write into the second layer in numpy; slots go on at 0 behind the last one if there are fewer than places."""
    whole = np.array(old.rearrange(("layers", "batch", "key_pos", "heads", "head_dim")).array)
    tokens = np.asarray(keys.rearrange(("batch", "pos", "heads", "head_dim")).array)
    for b, first in enumerate(np.broadcast_to(start, B.size)):
        for i, token in enumerate(tokens[b]):
            if (first + i) % slots < P.size:
                whole[1, b, (first + i) % slots] = token
    return whole


def check(found: nn.KVCache, given: nn.KVCache, keys: axn.NamedArray, start: int | tuple[int, ...], slots: int) -> None:
    for one, old, new in ((found.key, given.key, keys), (found.value, given.value, -keys)):
        array = one.rearrange(("layers", "batch", "key_pos", "heads", "head_dim")).array
        np.testing.assert_array_equal(array, expected(old, new, start, slots))


@pytest.fixture(params=["auto_mesh", "explicit_mesh"])
def mesh(request: pytest.FixtureRequest) -> jax.sharding.Mesh:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)
def test_parts_make_up_the_whole_cache(mapping, start, mesh: jax.sharding.Mesh) -> None:
    keys = draw(H, T, B, D, seed=3)
    with axn.set_mesh(mesh):
        given = axn.shard(cache(start), mapping, strict=False)
        compiled = axn.named_jit(extended, mapping)
        check(compiled(given, keys), given, keys, start, 1000)


def test_a_ring_goes_on_in_the_first_part(mesh: jax.sharding.Mesh) -> None:
    with axn.set_mesh(mesh):
        for number in (1, 2):
            mapping, keys = MAPPINGS["batch and positions"], draw(H, T.resize(number), B, D, seed=3)
            given = axn.shard(cache((31, 32, 3, 46), window=28), mapping)
            found = axn.named_jit(extended, mapping)(given, keys)
            check(found, given, keys, (31, 32, 3, 46), P.size)


@pytest.mark.parametrize("mapping", [MAPPINGS["batch"], MAPPINGS["batch and positions"]])
def test_gradients_pass_through_parts(mapping, mesh: jax.sharding.Mesh) -> None:
    keys = draw(H, T, B, D, seed=3)
    given = cache(STARTS["a length for each"])

    def loss(old: axn.NamedArray, keys: axn.NamedArray) -> jax.Array:
        filled = extended(nn.KVCache(old, given.value, given.length, given.KPos), keys)
        return (filled.key**2).sum().scalar()

    gradient = jax.grad(loss, argnums=(0, 1))
    expected = jax.jit(gradient)(given.key, keys)
    with axn.set_mesh(mesh):
        found = axn.named_jit(gradient, mapping)(axn.shard(given.key, mapping), keys)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("mapping", [MAPPINGS["batch and heads"], MAPPINGS["batch and positions"]])
def test_devices_send_and_copy_no_part(mapping, auto_mesh: jax.sharding.Mesh) -> None:
    with axn.set_mesh(auto_mesh), axn.axis_mapping(mapping):
        given = axn.shard(cache(STARTS["a length for each"]))
        keys = axn.shard(draw(H, T, B, D), strict=False)
        compiled = axn.named_jit(extended, mapping, donate_args=(True, False)).lower(given, keys).compile()
    text = compiled.as_text()
    assert not re.search(r" (all-|reduce-scatter|collective-)", text)
    (part,) = {shard.data.shape for shard in given.key.array.addressable_shards}
    written = f"f32[{','.join(map(str, part))}]"
    assert written in text
    assert not re.search(re.escape(written) + r"\S* (copy|transpose)\(", text)


def test_the_compiler_writes_where_no_layout_is_known(auto_mesh: jax.sharding.Mesh) -> None:
    given, keys = cache(7), draw(H, T, B, D, seed=3)
    with axn.set_mesh(auto_mesh):
        check(jax.jit(extended)(given, keys), given, keys, 7, 1000)
        with axn.axis_mapping({"batch": "data"}):
            check(jax.jit(axn.vmap(extended, "batch"))(given, keys), given, keys, 7, 1000)
