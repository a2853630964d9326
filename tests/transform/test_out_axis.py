"""`out_axis` of `vmap`, `scan` and `map`: where the new axis of results goes, against `jax.vmap`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import axonym as axn
from axonym.errors import ArgumentError

pytestmark = pytest.mark.sampled

B, T, E, F = axn.make_axes(batch=8, time=6, embed=4, features=3)


def draw(*axes: axn.Axis) -> axn.NamedArray:
    return axn.random.normal(jax.random.key(0), axes)


def outer(row):
    """Return the result of one step: an array with names, a plain one, and no array."""
    named = row.broadcast_axis(F) * axn.arange(F)
    plain = jnp.outer(named.sum("features").array, jnp.arange(3.0))
    return {"named": named, "plain": plain, "text": "as it is"}


def looped(x, out_axis):
    _, outputs = axn.scan(lambda carry, row: (carry, outer(row)), "time", out_axis=out_axis)(0, x)
    return outputs


WAYS = {
    "vmap": lambda x, out_axis: axn.vmap(outer, "time", out_axis=out_axis)(x),
    "map": lambda x, out_axis: axn.map(outer, "time", out_axis=out_axis)(x),
    "scan": looped,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("out_axis", [0, 1, 2, -1, -2, -3])
def test_the_place_of_the_new_axis(way, out_axis):
    x = draw(T, E)
    found = WAYS[way](x, out_axis)
    rows = [outer(x["time", i]) for i in range(T.size)]
    order = np.insert(np.array(["features", "embed"], object), out_axis if out_axis >= 0 else 3 + out_axis, "time")
    assert found["named"].names == tuple(order)
    for path in ("named", "plain"):
        expected = np.stack([getattr(row[path], "array", row[path]) for row in rows], out_axis)
        np.testing.assert_allclose(getattr(found[path], "array", found[path]), expected, rtol=1e-6)
    assert found["text"] == "as it is"


def test_anonymous_dimensions_stay_in_front():
    x = draw(T, E, F)
    found = axn.map(lambda row: row.untag("features"), "time", out_axis=-1)(x)
    assert found.names == ("embed", "time")
    np.testing.assert_array_equal(found.tag("features").rearrange(x.names).array, x.array)


@pytest.mark.parametrize(
    ("out_axis", "names"), [(0, "batch time embed"), (1, "embed batch time"), (-1, "embed batch time")]
)
def test_several_axes_of_vmap_stay_together(out_axis, names):
    x = draw(B, T, E)
    found = axn.vmap(lambda row: row * 2, ("batch", "time"), out_axis=out_axis)(x)
    assert found.names == tuple(names.split())
    np.testing.assert_array_equal(found.rearrange(x.names).array, 2 * x.array)


@pytest.mark.parametrize("way", WAYS)
def test_layouts_move_along(way, explicit_mesh):
    with axn.set_mesh(explicit_mesh):
        x = axn.shard(draw(T, B, E), {"batch": "data"})
        found = jax.jit(lambda x: WAYS[way](x, -1)["named"])(x)
    assert found.names == ("features", "batch", "embed", "time")
    assert found.array.sharding.spec == P(None, "data", None, None)


@pytest.mark.parametrize("way", WAYS)
def test_places_that_are_none(way):
    with pytest.raises(ArgumentError) as caught:
        WAYS[way](draw(T, E), 3)
    assert str(caught.value) == (
        f"{way}: out_axis=3 is no place for axis 'time' beside 2 others\n"
        "  the result of one step has: features, embed\n"
        "  hint: 0 is before all others, and -1 behind them"
    )


def test_a_name_is_no_place():
    with pytest.raises(ArgumentError) as caught:
        axn.map(outer, "time", out_axis="time")(draw(T, E))
    assert str(caught.value) == (
        "map: out_axis is the place of axis 'time', an int, not 'time'\n"
        "  hint: 0 is before all others, and -1 behind them"
    )
