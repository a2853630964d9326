"""The mesh axes that become Manual in a `shard_map`."""

import jax

from axonym.partitioning.manual import find_manual_axes, find_vmapped_axes


def test_a_call_takes_all_axes_or_those_that_it_asks_for() -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    assert find_manual_axes(mesh, None) == ("data", "model")
    assert find_manual_axes(mesh, ("model",)) == ("model",)
    assert find_vmapped_axes(mesh) == ()


def test_an_inner_call_leaves_out_the_axes_of_the_outer_one() -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    seen = []

    def inside(x: jax.Array) -> jax.Array:
        seen.append(find_manual_axes(jax.sharding.get_abstract_mesh(), None))
        return x

    spec = jax.P("data")
    with jax.set_mesh(mesh):
        local = jax.shard_map(inside, in_specs=spec, out_specs=spec, axis_names={"data"})
        x = jax.ShapeDtypeStruct((4,), "float32", sharding=jax.NamedSharding(mesh, spec))
        jax.eval_shape(local, x)
    assert seen == [("model",)]
