"""Named arrays in treescope: rendered to text, and drawn by name."""

import html
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import treescope

import axonym as axn

# At its first rendering treescope lists what numpy exports, deprecated names included.
pytestmark = pytest.mark.filterwarnings("ignore:The chararray class is deprecated:DeprecationWarning")

A, B, C = axn.make_axes(a=2, b=3, c=4)


class Layer(eqx.Module):
    weight: axn.NamedArray
    bias: axn.NamedArray | None = None


def text(value: object, **options: bool) -> str:
    """Render to one line, however treescope breaks it."""
    line = " ".join(treescope.render_to_text(value, **options).split())
    return line.replace("( ", "(").replace(", )", ")")


def test_names_sizes_and_layout_in_front_of_the_array() -> None:
    array = axn.named(np.float32([1, 2]), A.resize(2))
    assert text(array) == "NamedArray(float32[a=2], array=<jax.Array([1., 2.], dtype=float32)>)"
    assert text(array, roundtrip_mode=True) == "<NamedArray(float32[a=2], array=<jax.Array([1., 2.], dtype=float32)>)>"
    assert "weight=NamedArray(float32[a=2, b=3], array=" in text(Layer(axn.zeros((A, B))))


@pytest.mark.parametrize(
    ("leaf", "shown"),
    [
        (None, "NamedArray(('a',), array=None)"),
        (np.float32([1, 2]), "NamedArray(float32[a=2], array=np.array([1., 2.], dtype=float32))"),
        (jax.random.split(jax.random.key(0), 2), "NamedArray(key<fry>[a=2], array=<jax.Array key<fry>(2,)>)"),
        (jax.ShapeDtypeStruct((2,), jnp.int8), "NamedArray(int8[a=2], array=ShapeDtypeStruct("),
        (axn.named(1.0, ()), "NamedArray(('a',), array=NamedArray(float32[], array=<jax.Array(1., dtype="),
    ],
    ids=["None", "numpy", "keys", "shape", "a named array"],
)
def test_what_a_named_array_may_hold(leaf: object, shown: str) -> None:
    assert text(jax.tree.unflatten(jax.tree.structure(axn.zeros(A)), [leaf])).startswith(shown)


def test_traced_and_deleted_arrays() -> None:
    seen = []
    jax.jit(lambda x: seen.append(text(x)))(axn.zeros(A))
    assert seen[0].startswith("NamedArray(float32[a=2], array=")
    gone = axn.zeros(A)
    gone.array.delete()
    assert "deleted" in text(gone)


def test_an_array_that_a_tree_holds_twice_is_not_marked() -> None:
    array = axn.zeros(A)
    assert "Repeated" not in text([array, array])
    assert text([array, array]).count(text(array)) == 2


def test_arrays_are_drawn_by_name() -> None:
    figure = treescope.render_array(axn.arange((A, B, C)), rows=["c"], columns=["b", "a"])
    page = html.unescape(treescope.render_to_html(figure, compressed=False))
    assert re.findall(r'"label": "(\w: \d)"', page) == ["b: 3", "a: 2", "c: 4"]


def test_the_adapter() -> None:
    array = axn.arange((A, B, C)).untag("a")
    adapter = treescope.type_registries.lookup_ndarray_adapter(array)
    first, *others = adapter.get_axis_info_for_array_data(array)
    assert (first.axis_logical_index, first.size) == (0, 2)
    assert [(info.axis_name, info.size) for info in others] == [("b", 3), ("c", 4)]
    data, mask = adapter.get_array_data_with_truncation(array, None, (None, None, 1))
    assert data.shape == (2, 3, 3)
    np.testing.assert_array_equal(data[..., 0], array.array[..., 0])
    assert not mask[..., 1].any()
    assert adapter.should_autovisualize(array)
    assert adapter.get_numpy_dtype(array) == np.int32


def test_a_mask_is_lined_up_by_name() -> None:
    array, mask = axn.arange((A, B)), axn.arange(B) > 0
    adapter = treescope.type_registries.lookup_ndarray_adapter(array)
    _, shown = adapter.get_array_data_with_truncation(array, mask, (None, None))
    np.testing.assert_array_equal(shown, [[False, True, True]] * 2)


def test_what_cannot_be_drawn_has_no_adapter() -> None:
    lookup = treescope.type_registries.lookup_ndarray_adapter
    tree = jax.tree.structure(axn.zeros(A))
    for leaf in (None, jnp.zeros(()), axn.zeros(A), jax.ShapeDtypeStruct((2,), jnp.int8)):
        assert lookup(jax.tree.unflatten(tree, [leaf])) is None


def test_the_autovisualizer_draws_named_arrays(explicit_mesh: jax.sharding.Mesh) -> None:
    with axn.set_mesh(explicit_mesh):
        array = axn.shard(axn.arange({"row": 8, "column": 4}), {"row": "data"})
    with treescope.active_autovisualizer.set_scoped(treescope.ArrayAutovisualizer()):
        page = treescope.render_to_html({"x": array}, compressed=False)
    assert "NamedArray int32[row=8@data, column=4]" in page
    assert "row" in page
    assert "Sharded across 8 CPU devices" in page
