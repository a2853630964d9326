"""What a named array prints as: alone, in a format, in a tree, on a mesh, and where there is nothing to print."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec as P

import axonym as axn
from axonym.errors import AxisSizeError, LostAxisError, OperandError

A, B = axn.make_axes(a=2, b=3)


def x() -> axn.NamedArray:
    return axn.arange((A, B))


def holding(leaf: Any, *names: str) -> axn.NamedArray:
    """Put anything into a NamedArray, as JAX's transformations do."""
    return jax.tree.unflatten(jax.tree.structure(axn.NamedArray(0, names)), [leaf])


def deleted() -> axn.NamedArray:
    array = axn.zeros(A)
    array.array.delete()
    return array


TEXTS = [
    (axn.named([1, 2], "a"), "NamedArray(int32[a=2])\n[1 2]"),
    (x(), "NamedArray(int32[a=2, b=3])\n[[0 1 2]\n [3 4 5]]"),
    (axn.named(1.5, ()), "NamedArray(float32[])\n1.5"),
    (axn.zeros(axn.Axis("a", 16), dtype=bool), "NamedArray(bool[a=16])\n" + str(np.zeros(16, bool))),
    (axn.zeros(axn.Axis("a", 17)), "NamedArray(float32[a=17])"),
    (axn.zeros(axn.Axis("a", 0)), "NamedArray(float32[a=0])\n[]"),
    (axn.zeros(A, dtype=jnp.bfloat16), "NamedArray(bfloat16[a=2])\n[0 0]"),
    (axn.named([1, 2], "a").untag("a"), "NamedArray(int32[anonymous (2,)])\n[1 2]"),
    (axn.NamedArray(np.ones(2), "a"), "NamedArray(float64[a=2])\n[1. 1.]"),
    (axn.NamedArray(np.float32(2), ()), "NamedArray(float32[])\n2.0"),
    (axn.NamedArray(jax.random.split(jax.random.key(0), 2), "a"), "NamedArray(key<fry>[a=2])"),
    (axn.NamedArray(jax.ShapeDtypeStruct((2,), jnp.int8), "a"), "NamedArray(int8[a=2])"),
    (deleted(), "NamedArray(float32[a=2])\ndeleted"),
    (axn.NamedArray(None, "a"), "NamedArray(None, ('a',))"),
    (holding(3, "a"), "NamedArray(3, ('a',))"),
    (holding(jnp.float32, "a"), f"NamedArray({jnp.float32!r}, ('a',))"),
    (holding(x(), "c"), "NamedArray(NamedArray(int32[a=2, b=3]), ('c',))"),
    (holding(jnp.ones(2), "a", "b"), "NamedArray(float32[names a, b on an array of shape (2,)])\n[1. 1.]"),
]


@pytest.mark.parametrize(("array", "text"), TEXTS, ids=[text.split("\n")[0] for _, text in TEXTS])
def test_text(array: axn.NamedArray, text: str) -> None:
    assert repr(array) == str(array) == f"{array}" == text


def test_traced_arrays_have_no_elements() -> None:
    seen = []
    jax.jit(lambda x: seen.append(str(x)))(x())
    jax.vmap(lambda x: seen.append(str(x)))(x().untag("a"))
    jax.grad(lambda x: (seen.append(str(x)), x.sum().scalar())[1])(x().astype(jnp.float32))
    assert seen == ["NamedArray(int32[a=2, b=3])", "NamedArray(int32[b=3])", "NamedArray(float32[a=2, b=3])"]


@pytest.fixture(params=["auto", "explicit"])
def mesh(request: pytest.FixtureRequest, auto_mesh: Mesh, explicit_mesh: Mesh) -> Mesh:
    return auto_mesh if request.param == "auto" else explicit_mesh


def test_an_array_on_a_mesh_shows_where_it_lies(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        make = lambda mapping: axn.shard(axn.zeros({"a": 8, "b": 4, "c": 2}), mapping)  # noqa: E731
        assert repr(make({})) == "NamedArray(float32[a=8, b=4, c=2])"
        assert repr(make({"a": "data"})) == "NamedArray(float32[a=8@data, b=4, c=2])"
        assert repr(make({"b": "data", "c": "model"})) == "NamedArray(float32[a=8, b=4@data, c=2@model])"
        both = make({"a": ("data", "model")})
        assert repr(both) == "NamedArray(float32[a=8@(data,model), b=4, c=2])"
        assert repr(both.untag("a")) == "NamedArray(float32[anonymous (8@(data,model),), b=4, c=2])"
        assert repr(both.untag("a", "b")) == "NamedArray(float32[anonymous (8@(data,model), 4), c=2])"
        assert repr(axn.shard(axn.zeros({"a": 4}), {"a": "data"})) == "NamedArray(float32[a=4@data])\n[0. 0. 0. 0.]"
        assert repr(jax.tree.map(lambda a: P("data"), both)) == f"NamedArray({P('data')!r}, ('a', 'b', 'c'))"
        lost = jax.tree.unflatten(jax.tree.structure(both), [axn.shard(axn.zeros({"a": 4}), {"a": "data"}).array])
        assert repr(lost).startswith("NamedArray(float32[names a, b, c on an array of shape (4,)])")


def test_a_traced_array_shows_what_its_type_says(explicit_mesh: Mesh, auto_mesh: Mesh) -> None:
    for mesh, text in [(explicit_mesh, "float32[a=8@data]"), (auto_mesh, "float32[a=8]")]:
        seen = []
        with axn.set_mesh(mesh):
            jax.jit(lambda x: seen.append(repr(x)))(axn.shard(axn.zeros({"a": 8}), {"a": "data"}))  # noqa: B023
        assert seen == [f"NamedArray({text})"]


def test_a_format_is_for_one_element() -> None:
    loss = axn.named(2 / 3, ())
    assert f"{loss:.3f} {loss:>8.1e}" == "0.667  6.7e-01"
    assert f"{axn.named(7, ()):03d}" == "007"
    assert f"{axn.named(2.5, ()).astype(jnp.bfloat16):.2f}" == "2.50"
    assert f"{axn.NamedArray(np.float64(0.5), ()):%}" == "50.000000%"


class Inner(eqx.Module):
    bias: axn.NamedArray | None


class Net(eqx.Module):
    weight: axn.NamedArray
    inner: Inner
    raw: jax.Array


def test_a_printed_tree_has_one_line_for_each_array() -> None:
    net = Net(x(), Inner(axn.zeros(A)), jnp.ones(2))
    text = "Net(\n  weight=NamedArray(int32[a=2, b=3]),\n  inner=Inner(bias=NamedArray(float32[a=2])),\n  raw=f32[2]\n)"
    assert repr(net) == eqx.tree_pformat(net) == text
    assert eqx.tree_pformat(x()) == "NamedArray(int32[a=2, b=3])"
    none = jax.tree.map(lambda _: None, net)
    assert eqx.tree_pformat(none.weight) == "NamedArray(None, ('a', 'b'))"
    assert eqx.tree_pformat(holding(x(), "c")) == "NamedArray(NamedArray(int32[a=2, b=3]), ('c',))"
    assert eqx.tree_pformat(eqx.filter_eval_shape(lambda: net.inner)) == "Inner(bias=NamedArray(float32[a=2]))"


def test_a_tree_printed_with_its_elements_is_indented() -> None:
    net = Inner(axn.zeros(A))
    assert eqx.tree_pformat(net, short_arrays=False) == "Inner(bias=NamedArray(float32[a=2]) [0. 0.])"
    text = "Inner(\n  bias=NamedArray(int32[a=2, b=3])\n  [[0 1 2]\n   [3 4 5]]\n)"
    assert eqx.tree_pformat(Inner(x()), short_arrays=False, width=40) == text


BAD: list[tuple[str, Any, type[Exception], str]] = [
    (
        "dimensions",
        lambda: f"{x():.2f}",
        OperandError,
        "format: format '.2f' applies to a single element, but the array has dimensions\n"
        "  array has: a=2, b=3\n"
        "  hint: reduce or index it first; without a format, the array is shown as by print(x)",
    ),
    (
        "a traced array",
        lambda: jax.jit(lambda x: f"{x.sum():.2f}")(x()),
        OperandError,
        "format: the array has no values yet\n  array has: no axes\n"
        '  hint: inside jax.jit, print with jax.debug.print("{x}", x=x)',
    ),
    (
        "no array",
        lambda: f"{holding(None):.2f}",
        OperandError,
        "format: a NamedArray holds an object of type NoneType, not an array\n  its names: none",
    ),
    ("a wrong format", lambda: f"{x().sum():d.}", ValueError, "Invalid format specifier 'd.' for object of type 'int'"),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text


def test_debug_print_formats_what_it_prints(capfd: pytest.CaptureFixture[str]) -> None:
    jax.jit(lambda x: jax.debug.print("sum {s:.1f}", s=x.sum()))(x())
    jax.effects_barrier()
    assert capfd.readouterr().out == "sum 15.0\n"


def test_lost_axes_print_and_raise_at_use() -> None:
    lost = holding(jnp.ones(2), "a", "b")
    repr(lost)
    with pytest.raises(LostAxisError):
        f"{lost:.1f}"
    with pytest.raises(AxisSizeError):
        x().scalar()
