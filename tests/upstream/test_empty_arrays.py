"""JAX 0.10 cannot fetch what a program returns without elements, if another dimension is split.

`faults/empty_arrays.py` can go when every supported version passes the first test without the error.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import axonym as axn

IS_MENDED = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 12)


def test_an_array_without_elements_has_shards_of_other_shapes_than_its_type(explicit_mesh: Mesh) -> None:
    with jax.set_mesh(explicit_mesh):
        empty = jax.device_put(jnp.ones((8, 8)), PartitionSpec(None, "model"))[3:3]
    assert empty.sharding.spec == PartitionSpec(None, "model")
    if IS_MENDED:
        assert np.asarray(empty).shape == (0, 8)
    else:
        with pytest.raises(ValueError, match=r"could not broadcast input array from shape \(0,8\) into shape \(0,4\)"):
            np.asarray(empty)


def test_named_arrays_without_elements_are_fetched(explicit_mesh: Mesh, mixed_mesh: Mesh) -> None:
    forms = {
        "a list": lambda x: x["a", []],
        "a slice": lambda x: x["a", 3:3],
        "repeat": lambda x: axn.repeat(x, 0, "a"),
        "elementwise": lambda x: axn.sin(x["a", 3:3]) + x["a", 0],
        "a product": lambda x: axn.dot(x["a", 3:3], x.rename({"a": "c"}), axis="b"),
        "concatenate": lambda x: axn.concatenate("a", [x["a", 3:3], x["a", 5:5]]),
        "along": lambda x: axn.cumsum(x["a", 3:3], "a"),
        "a gradient": axn.grad(lambda x: (x["a", 3:3] ** 2).sum()),
        "vmap": axn.vmap(lambda x: x["a", 3:3], "b"),
        "map": lambda x: axn.map(lambda row: row * 2, "a")(x["a", 3:3]),
        "a layout": lambda x: axn.auto_sharded(x["a", 3:3]),
    }
    for mesh in (explicit_mesh, mixed_mesh):
        with axn.set_mesh(mesh), axn.axis_mapping({"b": "model"}):
            x = axn.shard(axn.ones((axn.Axis("a", 8), axn.Axis("b", 8))), {"a": "data", "b": "model"})
            in_a_program = jax.jit(lambda x: {case: fn(x) for case, fn in forms.items()})(x)
            for case, fn in forms.items():
                for result in (fn(x), in_a_program[case]):
                    assert np.asarray(result.array).shape == result.array.shape, case
                    assert repr(result), case
            joined = axn.concatenate("a", [x["a", 3:3], x])
            np.testing.assert_array_equal(joined.array, np.ones((8, 8)))
