"""Where arrays go, and the stored forms of arrays."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, strategies as st

import axonym as axn
from axonym import nn
from axonym.errors import AxisError, LostAxisError
from axonym.state_dict import (
    from_state_dict,
    from_torch_compatible_state_dict,
    to_state_dict,
    to_torch_compatible_state_dict,
)
from axonym.state_dict.layouts import Stored
from axonym.state_dict.places import Place, form, places
from tests.nn.layouts import same_trees

L, G, E, M = axn.make_axes(layers=3, groups=2, embed=4, mlp=6)
KEY = jax.random.key(0)


@st.composite
def stored_arrays(draw):
    """Draw an array with named dimensions, and a stored form with a part of these in it."""
    names = "abcd"[: draw(st.integers(0, 4))]
    shape = tuple(draw(st.sampled_from([1, 2, 4])) for _ in names)
    split = {name: (f"{name}{name}", 2) for name, size in zip(names, shape, strict=True) if size > 1}
    split = {name: split[name] for name in draw(st.sets(st.sampled_from(sorted(split))))} if split else {}
    parts = [*names, *(part for part, _ in split.values())]
    order = draw(st.permutations(parts))[: draw(st.integers(0, len(parts)))]
    dims: list[tuple[str, ...]] = []
    for name in order:
        dims = [*dims[:-1], (*dims[-1], name)] if dims and draw(st.booleans()) else [*dims, (name,)]
    flipped = draw(st.sets(st.sampled_from(parts))) if parts else set()
    return tuple(names), shape, Stored(dims, tuple(flipped), split)


@given(stored_arrays())
def test_a_form_is_what_its_dims_say_and_is_undone(drawn):
    names, shape, stored = drawn
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    found = form("x", names, shape, stored)
    result = found.store(array)
    assert result.shape == found.shape
    assert result.flags.c_contiguous
    assert all(stride > 0 for stride in result.strides)
    np.testing.assert_array_equal(found.restore(result), array)

    # Element by element: each name's position, in the order of the stored dimensions.
    listed = [name for dim in stored.dims for name in dim]
    parts = [part for name in names for part in ((stored.split[name][0], name) if name in stored.split else (name,))]
    sizes = dict(zip(names, shape, strict=True))
    for name, (part, count) in stored.split.items():
        sizes |= {part: count, name: sizes[name] // count}
    order = [*(name for name in parts if name not in listed), *listed]
    flat = result.reshape([sizes[name] for name in order])
    for at in np.ndindex(*flat.shape):
        place = {n: sizes[n] - 1 - i if n in stored.flipped else i for n, i in zip(order, at, strict=True)}
        whole = {n: place[stored.split[n][0]] * sizes[n] + place[n] if n in stored.split else place[n] for n in names}
        assert flat[at] == array[tuple(whole[n] for n in names)]


@given(stored_arrays(), st.data())
def test_an_array_is_read_in_any_order_by_the_names_it_was_saved_with(drawn, data):
    names, shape, stored = drawn
    leaf = axn.NamedArray(np.arange(np.prod(shape, dtype=int)).reshape(shape), names)
    saved = Place("x", leaf, names, shape, ("x",), (), form("x", names, shape, stored))
    order = tuple(data.draw(st.permutations(saved.form.parts)))
    other = dataclasses.replace(saved, form=dataclasses.replace(saved.form, groups=tuple((name,) for name in order)))
    found = other.form_of(saved.axes, str)
    array = saved.form.store(leaf.array)
    assert found.shape == array.shape
    np.testing.assert_array_equal(found.restore(array), leaf.array)
    if names:
        assert other.form_of(saved.axes, str.upper) is None
        upper = tuple(tuple(axis._replace(name=axis.name.upper()) for axis in dim) for dim in saved.axes)
        np.testing.assert_array_equal(other.form_of(upper, str.upper).restore(array), leaf.array)


class Inner(eqx.Module):
    weights: nn.Stacked
    histories: jax.Array
    scale: float

    @staticmethod
    def init(*, key):
        return Inner(nn.Stacked.init(G, nn.Linear)(E, M, key=key), jnp.arange(2.0), 3.0)


make = eqx.filter_jit(nn.Stacked.init(L, Inner))


def test_keys_have_the_numbers_of_layers_at_every_depth():
    tree = make(key=KEY)
    weight, bias, histories, scale = places(tree, {})
    assert scale is None
    assert weight.path == "stacked.weights.stacked.weight"
    assert list(weight.entries())[:3] == [
        ("0.weights.0.weight", (0, 0)),
        ("0.weights.1.weight", (0, 1)),
        ("1.weights.0.weight", (1, 0)),
    ]
    assert [key for key, _ in histories.entries()] == ["0.histories", "1.histories", "2.histories"]
    array = np.asarray(tree.stacked.weights.stacked.weight.array)
    for (_, (i, j)), _ in zip(weight.entries(), range(6), strict=True):
        np.testing.assert_array_equal(weight.read((i, j)), array[i, j])
    np.testing.assert_array_equal(histories.read((2,)), [0, 1])
    assert bias.form.text == "mlp=6"


def test_layers_that_alternate_are_numbered_by_depth():
    tree = nn.Interleaved.init(axn.Axis("layers", 5), (nn.LayerNorm, nn.RmsNorm))(E)
    tree = axn.tree.map(lambda x: axn.NamedArray(np.arange(x.size).reshape(x.array.shape), x.names), tree)
    found = list(places({"blocks": tree}, {}))
    keys = {key: (place, index) for place in found for key, index in place.entries()}
    assert sorted(keys) == [f"blocks.{i}.{name}" for i in range(5) for name in ("bias", "weight")]
    for i, layer in enumerate(tree.unstacked()):
        place, index = keys[f"blocks.{i}.weight"]
        np.testing.assert_array_equal(place.read(index), layer.weight.array)
    paths = [path for path, _ in jax.tree.leaves_with_path({"blocks": tree}, is_leaf=axn.is_named_array)]
    assert [place.path for place in found] == [jax.tree_util.keystr(p, simple=True, separator=".") for p in paths]


def test_a_block_reads_the_layers_in_it_and_no_others():
    tree = make(key=KEY)
    weight, *_ = places(tree, {})
    stored = {index: weight.read(index) for index in ((1, 0), (2, 0))}  # and no others
    block = weight.block((slice(1, 3), slice(0, 1), slice(0, 4), slice(2, 4)), stored)
    np.testing.assert_array_equal(block, np.asarray(tree.stacked.weights.stacked.weight.array)[1:3, :1, :, 2:4])


def test_arrays_of_numpy_and_without_names():
    tree = {"raw": np.arange(6).reshape(2, 3), "some": axn.NamedArray(np.ones((2, 4)), ("embed",)), "none": None}
    raw, some = places(tree, {})
    assert raw.form.text == "dimension 0=2, dimension 1=3"
    assert some.form.text == "dimension 0=2, embed=4"
    np.testing.assert_array_equal(raw.read(()), tree["raw"])
    stack = nn.Stacked(Inner(None, np.arange(6).reshape(3, 2), 1.0), L, axn.ScanCheckpointPolicy.make(False))
    (histories, _) = places(stack, {})
    np.testing.assert_array_equal(histories.read((1,)), [2, 3])


@pytest.mark.parametrize("convert", [to_state_dict, to_torch_compatible_state_dict])
def test_an_optimiser_may_keep_fewer_dimensions_than_names(convert):
    model = {"one": nn.Linear.init(E, M, key=KEY), "layers": nn.Stacked.init(L, nn.Linear)(E, M, key=KEY)}
    state = optax.adafactor(1e-3, min_dim_size_to_factor=4).init(model)
    found = convert(state)
    shapes = {key: found.spec(key).shape for key in found if ".v_row." in f".{key}"}
    assert shapes == {
        "0.v_row.layers.stacked.weight": (3, 4),  # which dimension is that of layers is not known
        "0.v_row.layers.stacked.bias": (1,),
        "0.v_row.one.weight": (4,),
        "0.v_row.one.bias": (1,),
    }
    marked = jax.tree.unflatten(jax.tree.structure(state), [x + i for i, x in enumerate(jax.tree.leaves(state))])
    back = from_state_dict if convert is to_state_dict else from_torch_compatible_state_dict
    same_trees(back(jax.eval_shape(lambda: state), convert(marked)), marked, rtol=0, atol=0)
    with pytest.raises(LostAxisError):  # of a model it is a mistake
        convert(jax.tree.map(lambda x: x[0], model["one"]))


def test_an_array_that_the_layers_of_a_stack_share_is_refused():
    tree = {"blocks": nn.Stacked(nn.Linear.init(E, M, key=KEY), L, axn.ScanCheckpointPolicy.make(False))}
    with pytest.raises(AxisError) as error:
        list(places(tree, {}))
    assert str(error.value) == (
        "state dict: blocks.stacked.weight is in a Stacked over 'layers', but has no such axis\n"
        "  it has: embed=4, mlp=6"
    )
