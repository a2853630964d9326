"""How arrays are laid out while they are computed, and how operands agree on a layout."""

import jax
import jax.numpy as jnp
from hypothesis import given, strategies as st
from jax.sharding import AxisType, PartitionSpec
from measure import collectives, totals

import axonym as axn
from axonym.layout import explicit

P = PartitionSpec


MESH_AXES = st.lists(st.sampled_from(["x", "y", "z"]), unique=True, max_size=2).map(tuple)


@given(st.data())
def test_settle_uses_each_mesh_axis_once(data: st.DataObject) -> None:
    labels = tuple(data.draw(st.permutations("abc")))
    operands = [
        (own, data.draw(st.lists(MESH_AXES, min_size=len(own), max_size=len(own))))
        for own in data.draw(st.lists(st.permutations("abc").map(lambda p: p[:2]), max_size=3))
    ]
    table = explicit.settle(labels, operands)
    used = [axis for entry in table.values() for axis in entry]
    assert len(used) == len(set(used))
    assert tuple(table) == labels
    for label, entry in table.items():
        offers = [entries[own.index(label)] for own, entries in operands if label in own]
        first = next((offer for offer in offers if offer), ())
        assert set(entry) <= set(first)
    if operands and operands[0][1][0] and labels[0] == operands[0][0][0]:
        assert table[labels[0]] == operands[0][1][0]


def test_values_on_a_mesh_survive_a_change_of_layout(explicit_mesh: jax.sharding.Mesh) -> None:
    with jax.set_mesh(explicit_mesh):
        array = jax.device_put(jnp.arange(8.0).reshape(4, 2), jax.NamedSharding(explicit_mesh, P("data", "model")))
        assert explicit.get_layout(array) == (("data",), ("model",))
        assert explicit.has_explicit_axes(array)
        moved = explicit.reshard(array, [("model",), ()])
        assert explicit.get_layout(moved) == (("model",), ())
        assert moved.tolist() == array.tolist()
        assert explicit.reshard(moved, explicit.get_layout(moved)) is moved
    assert not explicit.has_explicit_axes(jnp.ones(2))


def test_where_two_axes_want_one_mesh_axis_the_mapping_decides(explicit_mesh: jax.sharding.Mesh) -> None:
    a, b = jnp.arange(32.0).reshape(4, 8), jnp.ones((4, 8))
    with jax.set_mesh(explicit_mesh):
        rows = axn.named(jax.device_put(a, P("data")), ("a", "b"))
        columns = axn.named(jax.device_put(b, P(None, "data")), ("a", "b"))
        for mapping, expected in [
            ({"a": "data"}, P("data", None)),
            ({"b": "data"}, P(None, "data")),
            ({"a": "model", "b": "data"}, P(None, "data")),
        ]:
            with axn.axis_mapping(mapping):
                for total in (rows + columns, columns + rows, jax.jit(lambda x, y: x + y)(rows, columns)):
                    assert jax.typeof(total.array).sharding.spec == expected
                    assert total.array.tolist() == (a + b).tolist()
                gradient = jax.jit(jax.grad(lambda x, y: (x * y).sum().array))(columns, rows)
                assert jax.typeof(gradient.array).sharding.spec == P(None, "data")
                assert gradient.array.tolist() == a.tolist()


def test_an_anonymous_dimension_leaves_the_mesh_axes_that_a_name_gets(explicit_mesh: jax.sharding.Mesh) -> None:
    a, b = jnp.arange(32.0).reshape(4, 8), jnp.arange(8.0)
    with jax.set_mesh(explicit_mesh), axn.axis_mapping({"a": "data"}):
        left = axn.named(jax.device_put(a, P("data", "model")), ("n", "a")).untag("n")
        right = axn.named(jax.device_put(b, P("data")), "a")
        total = left + right
        assert jax.typeof(total.array).sharding.spec == P(None, "data")
        assert total.array.tolist() == (a + b).tolist()


def test_operands_agree_on_the_labels_of_a_result(explicit_mesh: jax.sharding.Mesh) -> None:
    with jax.set_mesh(explicit_mesh):
        one = jax.device_put(jnp.arange(32.0).reshape(4, 8), P("data", "model"))
        two = jax.device_put(jnp.arange(32.0).reshape(8, 4), P("data", None))
        for first, others_whole, expected in (
            (0, False, (P("data", "model"), P(None, "data"))),
            (1, False, (P(None, "model"), P("data", None))),
            (1, True, (P(None, None), P("data", None))),
        ):
            out = [("a",), ("c",)][first]
            arrays, table = explicit.agree(
                out, [("a", "b"), ("c", "a")], (one, two), first=first, others_whole=others_whole
            )
            assert table == {out[0]: ("data",)}
            assert tuple(jax.typeof(array).sharding.spec for array in arrays) == expected
            assert [array.tolist() for array in arrays] == [one.tolist(), two.tolist()]
    arrays, table = explicit.agree("a", ["a"], [jnp.ones(2)])
    assert ([array.tolist() for array in arrays], table) == ([[1.0, 1.0]], {})


def test_partial_sums_are_scattered_and_not_the_weight_moved(explicit_mesh: jax.sharding.Mesh) -> None:
    x, w = jnp.arange(64.0).reshape(8, 8), jnp.arange(64.0).reshape(8, 8) % 5
    with jax.set_mesh(explicit_mesh), axn.axis_mapping({"batch": "data", "embed": "model"}):
        named = axn.named(jax.device_put(x, P("data", "model")), ("batch", "embed"))
        weight = axn.named(jax.device_put(w, P("model", None)), ("embed", "embed.out"))
        apply = jax.jit(lambda x, w: axn.dot(x, w, axis="embed"))
        out = apply(named, weight)
        assert jax.typeof(out.array).sharding.spec == P("data", "model")
        assert out.array.tolist() == (x @ w).tolist()
        sent = collectives(apply.lower(named, weight).compile())
    # Sums for two rows and all eight columns; half of the weight is twice as much.
    assert [each.bytes for each in sent] == [4 * 2 * 8]


def test_an_axis_of_the_result_is_not_moved_under_a_partial_sum() -> None:
    mesh = jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(AxisType.Explicit,) * 3)
    h, w = jnp.arange(4 * 8 * 4.0).reshape(4, 8, 4) % 7, jnp.arange(8 * 4 * 16.0).reshape(8, 4, 16) % 5
    expected = jnp.einsum("bhd,hde->be", h, w)
    with jax.set_mesh(mesh), axn.axis_mapping({"batch": "z", "embed": ("x", "y")}):
        named = axn.named(jax.device_put(h, P(None, ("y", "z"))), ("batch", "heads", "dim"))
        weight = axn.named(jax.device_put(w, P(("y", "z"), None, "x")), ("heads", "dim", "embed"))
        apply = jax.jit(lambda h, w: axn.dot(h, w, axis=("heads", "dim")))
        out = apply(named, weight)
        assert jax.typeof(out.array).sharding.spec == P("z", ("x", "y"))
        assert out.array.tolist() == expected.tolist()
        by_hand = jax.jit(lambda h, w: jnp.einsum("bhd,hde->be", h, w, out_sharding=P("z", ("x", "y"))))
        programs = apply.lower(named, weight).compile(), by_hand.lower(named.array, weight.array).compile()
        mine, theirs = (totals(collectives(program)) for program in programs)
        assert mine == theirs
