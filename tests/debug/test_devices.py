"""The inside of a `shard_map`, operation by operation, equals the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P

from axonym.debug.devices import Split, fetch
from axonym.debug.dimensions import Part, start


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_parts_of_devices_are_stacked_computed_and_joined(kind):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)
    x = jax.device_put(np.arange(48.0, dtype="f4").reshape(8, 6), jax.NamedSharding(mesh, P("data", "model")))
    dims = start(("batch", "embed"), (8, 6))
    spec = P("data", "model")
    split = Split.of({"mesh": mesh, "newly_manual_axes": frozenset({"data", "model"}), "in_specs": (spec,)}, [dims])
    assert split.steps == {"data": ("batch", 2), "model": ("embed", 3)}
    with jax.set_mesh(mesh):
        stacked = split.stack(x, spec)
        assert stacked.shape == (8, 2, 3)
        run = split.run(lambda x, y: [jax.lax.psum(x, "data") + y], (True, False))
        (summed,) = run(stacked, jnp.float32(1))
        found = split.join(summed, P(None, "model"))
    np.testing.assert_array_equal(fetch(found), np.asarray(x).reshape(4, 2, 6).sum(0) + 1)
    local = split.cut(dims, spec)
    assert local == ((Part("batch", 2),), (Part("embed", 3),))
    assert split.cut(local, spec, is_back=True) == dims
    assert split.list_devices(local) == (Part("batch", 4, 2), Part("embed", 2, 3))
    assert split.list_devices(local[1:]) == (Part("mesh axis data", 4, 2), Part("embed", 2, 3))
