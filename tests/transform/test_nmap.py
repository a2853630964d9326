"""`nmap`: positional functions on named arrays, against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import axonym as axn
from axonym.errors import AxisClashError, AxisSizeError, LostAxisError, OperandError
from tests.laws import count_equations

pytestmark = pytest.mark.sampled

A, B, C = axn.make_axes(a=2, b=3, c=4)


def draw(*axes: axn.Axis, seed: int = 0) -> axn.NamedArray:
    sizes = [axis.size for axis in axes]
    array = np.random.default_rng(seed).normal(size=sizes).astype(np.float32)
    return axn.named(jax.device_put(array), axes)


def same(x: axn.NamedArray, names: tuple[str, ...], array) -> None:
    assert isinstance(x, axn.NamedArray)
    assert x.names == names
    assert x.array.shape == np.shape(array)
    np.testing.assert_allclose(x.array, array, rtol=1e-5, atol=1e-6)


@given(
    left=st.permutations([A, B, C]).flatmap(lambda p: st.integers(0, 3).map(lambda n: p[:n])),
    right=st.permutations([A, B, C]).flatmap(lambda p: st.integers(1, 3).map(lambda n: p[:n])),
)
def test_every_name_is_mapped_over_whatever_the_orders(left, right):
    x, y = draw(*left), draw(*right, seed=1)
    names = tuple(dict.fromkeys([a.name for a in (*left, *right)]))
    letters = lambda axes: "".join(axis.name for axis in axes)  # noqa: E731
    expected = np.einsum(f"{letters(left)},{letters(right)}->{''.join(names)}", x.array, y.array)
    same(axn.nmap(jnp.multiply)(x, y), names, expected)


def test_a_function_that_saw_no_dimension_has_a_note():
    with pytest.raises(ValueError, match="out of bounds") as error:
        axn.nmap(jnp.fft.rfft)(draw(A, B))
    assert "nmap: the function saw single elements" in "".join(error.value.__notes__)
    with pytest.raises(ValueError, match="out of bounds") as error:
        axn.nmap(lambda a: jnp.sort(a, 2))(draw(A, B).untag("a"))
    assert "nmap" not in "".join(getattr(error.value, "__notes__", ()))


@given(order=st.permutations(["a", "b", "c"]), visible=st.permutations(["a", "b", "c"]), n=st.integers(0, 3))
def test_what_is_untagged_is_what_the_function_sees(order, visible, n):
    x = draw(A, B, C).rearrange(tuple(order))
    visible = visible[:n]
    rest = [name for name in order if name not in visible]
    seen = []
    y = axn.nmap(lambda a: (seen.append(a.shape), a)[1])(x.untag(*visible) if visible else x)
    assert seen == [tuple(x.shape[name] for name in visible)]
    y = y.tag(*visible) if visible else y
    same(y, (*visible, *rest), x.rearrange((*visible, *rest)).array)


def test_several_results_of_other_ranks():
    def f(a):
        return {"sorted": jnp.sort(a), "sum": a.sum(), "outer": a[:, None] * a, "n": 3, "none": None, "f": jnp.sin}

    x = draw(A, B, C)
    out = axn.nmap(f)(x.untag("b"))
    same(out["sorted"].tag("b"), ("b", "a", "c"), np.sort(np.moveaxis(x.array, 1, 0), 0))
    same(out["sum"], ("a", "c"), x.array.sum(1))
    assert out["outer"].array.shape == (3, 3, 2, 4)
    same(out["n"], ("a", "c"), np.full((2, 4), 3))
    assert out["none"] is None
    assert out["f"] is jnp.sin


def test_plain_arguments_are_passed_whole_and_keywords_too():
    raw = jnp.arange(3.0)
    y = axn.nmap(lambda a, r, *, k, axis: jnp.concatenate([a, r, k], axis=axis))(
        draw(A, B).untag("b"), raw, k=draw(A).untag("a"), axis=0
    )
    assert y.array.shape == (8, 2)
    assert y.names == ("a",)


def test_a_function_that_names_its_own_dimensions():
    y = axn.nmap(lambda a: axn.named(a, "z"))(draw(A, B).untag("b"))
    same(y, ("z", "a"), draw(A, B).array.T)


def test_a_function_that_returns_a_name_that_is_mapped_over():
    with pytest.raises(AxisClashError, match=r"^nmap: in what the function returned, axis 'a' would appear twice$"):
        axn.nmap(lambda a: axn.named(a, "a"))(draw(A, B).untag("b"))


def test_one_name_with_two_sizes():
    with pytest.raises(AxisSizeError) as error:
        axn.nmap(jnp.add)(draw(A, B), axn.ones({"b": 5}))
    assert str(error.value) == (
        "nmap: axis 'b' has two sizes: 3 and 5\n"
        "  operand 1 has: a=2, b=3\n"
        "  operand 2 has: b=5\n"
        '  hint: if they are the same axis, cut the longer one, x["b", :3]; if not, rename one: x.rename({"b": ...})'
    )


def test_no_named_array():
    with pytest.raises(OperandError, match=r"^nmap: no argument is a NamedArray\n  hint: call the function itself$"):
        axn.nmap(jnp.sin)(1.0)


def test_a_lost_axis():
    with pytest.raises(LostAxisError):
        axn.nmap(jnp.sin)(jax.tree.map(lambda a: a[0], draw(A, B)))


def test_an_empty_axis():
    same(axn.nmap(jnp.sum)(axn.zeros({"a": 0, "b": 3}).untag("b")), ("a",), np.zeros(0))


def test_under_jit_grad_and_raw_vmap():
    x = draw(A, B, C)
    f = lambda x: axn.nmap(jax.nn.logsumexp)(x.untag("c")).sum().scalar()  # noqa: E731
    expected = jax.grad(lambda x: jax.nn.logsumexp(x, -1).sum())(x.array)
    same(jax.jit(jax.grad(f))(x), ("a", "b", "c"), expected)
    y = jax.vmap(lambda row: axn.nmap(jnp.cumsum)(row.untag("c")))(x.untag("a"))
    same(y.tag("a", "c"), ("a", "c", "b"), np.moveaxis(np.cumsum(x.array, -1), 1, 2))


def test_an_elementwise_function_needs_no_transpose():
    assert count_equations(axn.nmap(jnp.sin), draw(A, B, C)) == 1


@pytest.fixture(params=["auto", "explicit"])
def mesh(request, auto_mesh, explicit_mesh):
    chosen = auto_mesh if request.param == "auto" else explicit_mesh
    with axn.set_mesh(chosen):
        yield chosen


@pytest.mark.parametrize("jit", [False, True])
def test_arguments_that_are_laid_out_differently(mesh, jit):
    X, Y = axn.make_axes(x=8, y=4)
    x, y = draw(X, Y), draw(Y, X, seed=1)
    f = axn.nmap(jnp.multiply)
    placed = axn.shard(x, {"x": "data", "y": "model"}), axn.shard(y, {"y": "data"}, strict=False)
    got = (jax.jit(f) if jit else f)(*placed)
    same(got, ("x", "y"), x.array * y.array.T)
    assert got.sharding.spec[0] == "data" or mesh.axis_types[0] == jax.sharding.AxisType.Auto


@pytest.mark.parametrize("jit", [False, True])
def test_an_anonymous_dimension_on_the_mesh_axis_of_a_name(mesh, jit):
    X, Y = axn.make_axes(x=8, y=4)
    x, w = axn.shard(draw(X, Y), {"x": "data"}, strict=False), axn.shard(draw(Y), {"y": "data"})
    f = lambda x, w: axn.nmap(jnp.dot)(x.untag("y"), w.untag("y"))  # noqa: E731
    same((jax.jit(f) if jit else f)(x, w), ("x",), draw(X, Y).array @ draw(Y).array)


def test_names_for_what_the_function_returns():
    x = draw(A, B, C)
    expected = np.einsum("abc,adc->acbd", x.array, x.array)
    outer = lambda a: jnp.outer(a, a)  # noqa: E731
    for names in (("left", "right"), axn.make_axes(left=3, right=3)):
        same(axn.nmap(outer, out_axis=names)(x.untag("b")), ("a", "c", "left", "right"), expected)
    # Axes that the function names itself come last, as they do in what it returns.
    half = lambda a: axn.NamedArray(jnp.outer(a, a), ("own",))  # noqa: E731
    same(axn.nmap(half, out_axis="left")(x.untag("b")), ("a", "c", "left", "own"), expected)


def test_names_that_do_not_fit_what_the_function_returns():
    x = draw(A, B).untag("b")
    with pytest.raises(AxisSizeError) as caught:
        axn.nmap(jnp.sum, out_axis="b")(x)
    assert str(caught.value) == (
        "nmap: out_axis has 1 names, but the function returned an array with 0 dimensions\n"
        "  it returned: shape (), beside a"
    )
    with pytest.raises(AxisSizeError, match=r"^tag: axis 'b' was given with size 5"):
        axn.nmap(jnp.sort, out_axis=axn.Axis("b", 5))(x)
    with pytest.raises(AxisClashError, match=r"^tag: axis 'a' would appear twice"):
        axn.nmap(jnp.sort, out_axis="a")(x)
