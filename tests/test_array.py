"""NamedArray: what it is made of, its methods, and how it leaves the names."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import AxisClashError, AxisNotFoundError, AxisSizeError, OperandError
from tests.laws import assert_close, count_equations

METHODS = """
all any argmax argmin argsort astype broadcast_axis broadcast_to clip conj cumprod cumsum dot flatten flatten_axes max
mean min prod ptp rearrange rename round slice sort split std sum tag take unbind unflatten_axis untag var
""".split()  # noqa: SIM905  # a list of 35 strings says less in more lines
A, B = axn.make_axes(a=2, b=3)


def x() -> axn.NamedArray:
    return axn.arange((A, B), dtype=jnp.float32)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_function(name: str) -> None:
    assert vars(axn.NamedArray)[name] is getattr(axn, name)


def test_every_method_that_is_a_function_is_listed_here() -> None:
    methods = {
        name
        for name, value in vars(axn.NamedArray).items()
        if isinstance(value, types.FunctionType) and value.__module__.startswith("axonym.ops") and name[0] != "_"
    }
    assert methods >= set(METHODS)
    assert all(vars(axn.NamedArray)[name] is getattr(axn, name) for name in methods)


def test_what_it_is() -> None:
    named = axn.NamedArray(jnp.ones((2, 3), jnp.bfloat16), (A, "b"))
    assert (named.names, named.axes, named.shape) == (("a", "b"), (A, B), {"a": 2, "b": 3})
    assert (named.dtype, named.ndim, named.size, named.nbytes) == (jnp.bfloat16, 2, 6, 12)
    assert (named.itemsize, named.weak_type) == (2, False)
    for x in (
        named,
        named.astype(bool),
        named.astype("int4"),
        axn.named(jax.random.split(jax.random.key(0), 6), "key"),
    ):
        abstract = jax.eval_shape(lambda x=x: x)
        assert (x.nbytes, x.itemsize) == (x.array.nbytes, x.array.itemsize)
        assert (abstract.size, abstract.nbytes, abstract.itemsize) == (6, x.array.nbytes, x.array.itemsize)
    assert axn.named(1.0, ()).weak_type
    assert named.has_axis("a")
    assert named.has_axis((A, "b"))
    assert named.has_axis(())
    assert not named.has_axis("c")
    assert not named.has_axis(A.resize(3))


def test_looking_up_axes_gives_what_was_asked_for() -> None:
    named = axn.zeros((A, B)).rearrange((B, A))
    assert (named.resolve_axis("b"), named.axis_size(A), named.axis_indices("a")) == (B, 2, 1)
    assert named.resolve_axis(("a", B)) == named.resolve_axis({"a": None, "b": 3}) == (A, B)
    assert named.axis_size(["a", "b"]) == (2, 3)
    assert named.axis_indices(("a", "b")) == (1, 0)
    assert (named.resolve_axis(()), named.axis_size(()), named.axis_indices(())) == ((), (), ())
    assert named.untag("b").axis_indices("a") == 1
    assert named.untag("a").axis_indices(B) == 1


def test_where_it_is(explicit_mesh: jax.sharding.Mesh) -> None:
    with axn.set_mesh(explicit_mesh):
        named = axn.shard(axn.zeros({"a": 8, "b": 3}), {"a": "data"})
    assert named.sharding == named.array.sharding
    assert named.devices() == named.array.devices() == set(explicit_mesh.devices.flat)
    assert (named.committed, named.is_fully_addressable, named.is_fully_replicated) == (True, True, False)
    alone = x()
    assert (alone.committed, alone.is_fully_addressable, alone.is_fully_replicated) == (False, True, True)
    assert alone.block_until_ready() is alone
    donated = x()
    assert not donated.is_deleted()
    jax.jit(lambda x: x + 1, donate_argnums=0)(donated)
    assert donated.is_deleted()


def test_making_one_keeps_the_payload() -> None:
    array = np.ones((2, 3))
    assert axn.NamedArray(array, ("a", "b")).array is array
    assert axn.NamedArray(array, "b").axes == (B,)
    assert axn.NamedArray(array, {"a": 2, "b": None}).axes == (A, B)
    assert axn.NamedArray(array, ()).names == ()
    assert axn.NamedArray(jax.ShapeDtypeStruct((2, 3), jnp.float32), (A, B)).axes == (A, B)
    assert axn.NamedArray(None, "a").array is None


def test_named_makes_arrays_of_anything() -> None:
    assert axn.named([[1, 2, 3], [4, 5, 6]], (A, "b")).axes == (A, B)
    assert axn.named(1.5, ()).item() == 1.5
    assert axn.named([1, 2], "a").dtype == jnp.int32
    assert axn.named(np.ones(3, np.float32), B).axes == (B,)
    assert isinstance(axn.named(np.ones(3), "b").array, jax.Array)


def test_is_named_array_keeps_arrays_whole() -> None:
    assert axn.is_named_array(x())
    assert not axn.is_named_array(x().array)
    (leaf,) = jax.tree.leaves({"w": x()}, is_leaf=axn.is_named_array)
    assert leaf.names == ("a", "b")


def test_leaving_the_names() -> None:
    np.testing.assert_array_equal(np.asarray(x()), np.arange(6).reshape(2, 3))
    assert np.asarray(x(), dtype=np.int64).dtype == np.int64
    assert np.array(x()).flags.writeable
    assert x().tolist() == [[0, 1, 2], [3, 4, 5]]
    scalar = x().sum()
    assert (scalar.item(), float(scalar), int(scalar), complex(scalar), bool(scalar)) == (15, 15, 15, 15, True)
    assert scalar.scalar() is scalar.array
    assert x().tobytes() == np.arange(6, dtype=np.float32).tobytes()
    assert x().tobytes("F") == np.arange(6, dtype=np.float32).reshape(2, 3).tobytes("F")


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int8, bool, jnp.complex64])
def test_asarray_gives_the_array(dtype: Any) -> None:
    named = axn.ones((A, B), dtype)
    for convert in (jnp.asarray, jnp.array):
        array = convert(named)
        assert isinstance(array, jax.Array)
        assert (array.dtype, array.shape) == (named.dtype, (2, 3))
        assert_close(array, named.array)
    assert np.asarray(named).dtype == dtype


def test_asarray_without_a_copy_refuses_to_convert() -> None:
    host = axn.NamedArray(np.ones(2, np.float32), "a")
    assert np.asarray(host, copy=False) is host.array
    with pytest.raises(ValueError, match="copy"):
        np.asarray(host, dtype=np.float16, copy=False)


def test_several_elements_are_no_number() -> None:
    with pytest.raises(OperandError) as raised:
        float(x())
    assert str(raised.value) == (
        "float: an array with dimensions is not a number\n"
        "  array has: a=2, b=3\n"
        "  hint: reduce or index it first; x.item() takes the only element"
    )
    with pytest.raises(AxisSizeError) as several:
        x().item()
    assert str(several.value) == (
        "item: the array has several elements\n"
        "  array has: a=2, b=3\n"
        "  hint: reduce it, as x.mean().item() does; x.tolist() has all"
    )


@pytest.mark.parametrize("transform", [jax.grad, axn.grad, jax.jit])
def test_item_of_a_traced_array_is_an_error_not_a_gradient_of_zero(transform: Any) -> None:
    with pytest.raises(OperandError) as raised:
        transform(lambda x: (x**2).sum().item())(x())
    assert str(raised.value) == (
        "item: a traced array cannot become a Python number: gradients would not go through it\n"
        "  array has: no axes\n"
        '  hint: go on with x.scalar(); to look at the value, write jax.debug.print("{x}", x=x)'
    )


def test_an_element_is_a_number() -> None:
    three = axn.named(3, ())
    assert (range(5)[three], np.arange(5)[three], "abcde"[three]) == (3, 3, "d")
    assert (round(axn.named(2.567, ()), 1).item(), round(axn.named(2.567, ())).item()) == (pytest.approx(2.6), 3.0)
    assert round(x() / 7, 2).names == ("a", "b")
    for wrong in (axn.named(3.0, ()), axn.named([3], "a"), x()):
        with pytest.raises(TypeError):
            range(5)[wrong]


def test_only_an_array_of_one_dimension_has_a_length() -> None:
    assert len(axn.ones(A)) == len(axn.ones(A).untag("a")) == A.size
    assert jax.eval_shape(lambda v: axn.ones({"n": len(v)}), axn.ones(A)).axes == (axn.Axis("n", A.size),)
    for wrong in (x(), axn.named(3, ())):
        with pytest.raises(TypeError, match=r"only an array of one dimension has a length, not one of [20]\n"):
            len(wrong)


def test_arrays_of_other_libraries_are_made_of_it() -> None:
    for convert in (np.asarray, np.from_dlpack, jax.dlpack.from_dlpack, axn.NamedArray.to_numpy):
        np.testing.assert_array_equal(convert(x()), x().array)
    np.testing.assert_array_equal(np.array(x(), int, copy=True), x().array)


def test_one_dimensional_arrays_plot() -> None:
    """As the arrays of NumPy do."""
    from matplotlib.figure import Figure

    v = axn.arange(axn.Axis("n", 4))
    w = v * 2
    axes = Figure().subplots()
    for (line,) in (axes.plot(v, w), axes.step(v, w), axes.plot(w)):
        np.testing.assert_array_equal(line.get_ydata(), [0, 2, 4, 6])
    counts, _, _ = axes.hist(w, bins=2)
    assert counts.tolist() == [2, 2]
    np.testing.assert_array_equal(axes.imshow(x()).get_array(), x().array)
    np.testing.assert_array_equal(axes.scatter(v, w).get_offsets(), [[0, 0], [1, 2], [2, 4], [3, 6]])
    assert axes.boxplot(w)["medians"][0].get_ydata().tolist() == [3, 3]
    axes.violinplot(w), axes.stem(v, w), axes.errorbar(v, w, yerr=w), axes.fill_between(v, w)
    for draw in (axes.bar, axes.hist2d):
        with pytest.raises(TypeError, match=r"np\.asarray\(x\)"):
            draw(v, w)


def test_equality_is_elementwise_so_there_is_no_hash() -> None:
    assert (x() == x()).dtype == bool
    with pytest.raises(TypeError, match="unhashable"):
        hash(x())
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x() == x())


def test_numpy_functions_do_not_swallow_names() -> None:
    for call in (lambda: np.sin(x()), lambda: np.add(x(), 1), lambda: jnp.sin(x())):
        with pytest.raises(TypeError):
            call()
    assert (np.float32(2) * x()).names == ("a", "b")
    assert (jnp.float32(2) * x()).names == ("a", "b")
    assert (np.array(2.0) - x()).names == ("a", "b")


def test_augmented_assignment_makes_a_new_array() -> None:
    old = new = x()
    new += 1
    assert (old.sum().item(), new.sum().item()) == (15, 21)


def test_broadcasting_keeps_the_order_of_the_containing_operand() -> None:
    c = axn.Axis("c", 4)
    whole, part = axn.ones((A, B, c)), axn.ones((c, A))
    assert (whole + part).names == (part + whole).names == ("a", "b", "c")
    same = axn.ones((B, A))
    assert (x() * same).names == ("a", "b")
    assert (same * x()).names == ("b", "a")
    assert axn.where(axn.ones((c, B, A), bool), part, 0.0).names == ("c", "b", "a")
    assert axn.where(part > 0, whole, part).names == ("a", "b", "c")


def test_the_meaning_of_a_sum_of_transposes() -> None:
    there, back = x(), x().rearrange(("b", "a"))
    assert_close((there + back).array, 2 * x().array)
    assert_close((back - there).array, jnp.zeros((3, 2)))


@jax.custom_jvp
def softmax_from_its_result(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x, -1)


@softmax_from_its_result.defjvp
def _(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    y = softmax_from_its_result(*primals)
    product = y * tangents[0]
    return y, product - y * product.sum(-1, keepdims=True)


HAND: list[tuple[str, Any, Any]] = [
    ("add", lambda x, y: x + x, lambda x, y: x + x),
    ("add, at the end", lambda x, y: x + y["a", 0], lambda x, y: x + y[:, 0][None]),
    ("add, in front", lambda x, y: x + y["b", 0], lambda x, y: x + y[0][:, None]),
    ("add, transposed", lambda x, y: x + y, lambda x, y: x + y.T),
    ("add a number", lambda x, y: x + 1.0, lambda x, y: x + 1.0),
    ("chain", lambda x, y: (x * 2 + 1) / 3 - x**2, lambda x, y: (x * 2 + 1) / 3 - x**2),
    ("sum", lambda x, y: x.sum("a"), lambda x, y: x.sum(0)),
    ("sum of all", lambda x, y: x.sum(), lambda x, y: x.sum()),
    ("mean", lambda x, y: x.mean("b"), lambda x, y: x.mean(1)),
    ("variance", lambda x, y: x.var("b"), lambda x, y: x.var(1)),
    ("softmax", lambda x, y: axn.softmax(x, "b"), lambda x, y: softmax_from_its_result(x)),
    ("dot", lambda x, y: axn.dot(x, y["a", 0], axis="b"), lambda x, y: x @ y[:, 0]),
    ("dot, transposed", lambda x, y: axn.dot(x, y.rename({"a": "c"}), axis="b"), lambda x, y: x @ y),
    ("transpose", lambda x, y: x.rearrange(("b", "a")), lambda x, y: x.T),
    ("no transpose", lambda x, y: x.rearrange(("a", "b")), lambda x, y: x),
    ("int", lambda x, y: x["a", 1], lambda x, y: x[1]),
    ("last", lambda x, y: x["b", -1], lambda x, y: jax.lax.squeeze(jax.lax.slice_in_dim(x, 2, 3, axis=1), (1,))),
    ("slice", lambda x, y: x["b", 1:], lambda x, y: x[:, 1:]),
    ("cast", lambda x, y: x.astype(jnp.bfloat16), lambda x, y: x.astype(jnp.bfloat16)),
    ("no cast", lambda x, y: x.astype(jnp.float32), lambda x, y: x.astype(jnp.float32)),
    ("where", lambda x, y: axn.where(x > 0, x, 0.0), lambda x, y: jnp.where(x > 0, x, 0.0)),
    ("rename", lambda x, y: x.rename({"a": "b", "b": "a"}), lambda x, y: x),
    (
        "split heads",
        lambda x, y: x.unflatten_axis("b", {"h": 3, "d": 1}).rearrange(("h", "a", "d")),
        lambda x, y: x.reshape(2, 3, 1).transpose(1, 0, 2),
    ),
]


@pytest.mark.parametrize(("named", "by_hand"), [hand[1:] for hand in HAND], ids=[hand[0] for hand in HAND])
def test_there_are_no_more_equations_than_by_hand(named: Any, by_hand: Any) -> None:
    y = axn.ones((B, A))
    assert count_equations(named, x(), y) <= count_equations(by_hand, x().array, y.array)


def test_eager_operations_compile_once_per_shape() -> None:
    fresh = axn.ones((axn.Axis("never used", 2), axn.Axis("before", 3)))
    (fresh + fresh) * fresh
    with jax.log_compiles(False), jax.transfer_guard("disallow"):
        for _ in range(2):
            fresh = (fresh + fresh) * fresh
    assert fresh.sum().item() > 0


INPUT = axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 6)))


def test_axes_may_come_one_by_one() -> None:
    assert axn.named(np.ones((2, 3)), (axis for axis in (A, "b"))).axes == (A, B)


LACKING = {
    "T transpose swapaxes": 'x.rearrange(("embed", ...)) stores the axes in another order',
    "reshape ravel": "x.flatten_axes and x.flatten merge axes, x.unflatten_axis splits one",
}
BAD: list[tuple[str, Any, type[Exception], str]] = [
    (
        "axn.NamedArray(np.ones(3), ('a', 'b'))",
        lambda x: axn.NamedArray(np.ones(3), ("a", "b")),
        AxisSizeError,
        "NamedArray: 2 axes for an array of shape (3,)\n  axes: a, b",
    ),
    (
        "axn.NamedArray(np.ones((3, 2)), ('a', 'a'))",
        lambda x: axn.NamedArray(np.ones((3, 2)), ("a", "a")),
        AxisClashError,
        "NamedArray: axis 'a' is given twice\n  axes: a, a",
    ),
    (
        "axn.NamedArray(np.ones((3, 2)), (axn.Axis('a', 3), axn.Axis('b', 3)))",
        lambda x: axn.NamedArray(np.ones((3, 2)), (axn.Axis("a", 3), axn.Axis("b", 3))),
        AxisSizeError,
        "NamedArray: axis 'b' was given with size 3, but that dimension has size 2\n"
        "  axes: a=3, b=3\n"
        "  shape of the array: (3, 2)",
    ),
    (
        "axn.NamedArray(np.ones(3), 3)",
        lambda x: axn.NamedArray(np.ones(3), 3),
        OperandError,
        'NamedArray: 3 is a position, but axes have names\n  hint: write the name of an axis, such as "batch"',
    ),
    (
        "axn.NamedArray(np.ones(3), (None,))",
        lambda x: axn.NamedArray(np.ones(3), (None,)),
        OperandError,
        "NamedArray: None is neither an Axis nor the name of one\n"
        '  hint: an axis is written as Axis("batch", 32), or as "batch"',
    ),
    (
        "axn.NamedArray(np.ones(3), {'a': 4})",
        lambda x: axn.NamedArray(np.ones(3), {"a": 4}),
        AxisSizeError,
        "NamedArray: axis 'a' was given with size 4, but that dimension has size 3\n"
        "  axes: a=4\n"
        "  shape of the array: (3,)",
    ),
    (
        "axn.NamedArray(np.ones(3), {1: 3})",
        lambda x: axn.NamedArray(np.ones(3), {1: 3}),
        OperandError,
        "NamedArray: 1 is not the name of an axis\n  hint: keys are names",
    ),
    (
        "axn.named([1, 2], ())",
        lambda x: axn.named([1, 2], ()),
        AxisSizeError,
        "named: 0 axes for an array of shape (2,)\n  axes: none",
    ),
    (
        "axn.named([1, 2], ('a', 'b'))",
        lambda x: axn.named([1, 2], ("a", "b")),
        AxisSizeError,
        "named: 2 axes for an array of shape (2,)\n  axes: a, b",
    ),
    *(
        (
            f"axn.named(np.ones((2, 3)), {text!r})",
            lambda x, text=text: axn.named(np.ones((2, 3)), text),
            AxisSizeError,
            f"named: 1 axes for an array of shape (2, 3)\n  axes: {text}\n"
            '  hint: a string is one name; write ("a", "b")',
        )
        for text in ("a b", "a, b")
    ),
    (
        "axn.named(np.ones((2, 3)), 'a')",
        lambda x: axn.named(np.ones((2, 3)), "a"),
        AxisSizeError,
        "named: 1 axes for an array of shape (2, 3)\n  axes: a",
    ),
    (
        "axn.named([1, 2], axn.Axis('a', 3))",
        lambda x: axn.named([1, 2], axn.Axis("a", 3)),
        AxisSizeError,
        "NamedArray: axis 'a' was given with size 3, but that dimension has size 2\n"
        "  axes: a=3\n"
        "  shape of the array: (2,)",
    ),
    (
        "axn.named([1, 2], ('a', 'a'))",
        lambda x: axn.named([1, 2], ("a", "a")),
        AxisClashError,
        "named: axis 'a' is given twice\n  axes: a, a",
    ),
    (
        "x.resolve_axis('bach')",
        lambda x: x.resolve_axis("bach"),
        AxisNotFoundError,
        "resolve_axis: no axis named 'bach'\n  array has: batch=4, embed=6\n  hint: did you mean 'batch'?",
    ),
    (
        "x.resolve_axis(axn.Axis('batch', 5))",
        lambda x: x.resolve_axis(axn.Axis("batch", 5)),
        AxisSizeError,
        "resolve_axis: axis 'batch' was given with size 5, but has size 4\n  array has: batch=4, embed=6",
    ),
    (
        "x.axis_size('heads')",
        lambda x: x.axis_size("heads"),
        AxisNotFoundError,
        "axis_size: no axis named 'heads'\n  array has: batch=4, embed=6",
    ),
    (
        "x.axis_indices(('batch', 'emb'))",
        lambda x: x.axis_indices(("batch", "emb")),
        AxisNotFoundError,
        "axis_indices: no axis named 'emb'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "axn.NamedArray(x, 'a')",
        lambda x: axn.NamedArray(x, "a"),
        OperandError,
        "NamedArray: the array has names already\n  array has: batch=4, embed=6\n"
        "  hint: rename its axes with x.rename, name its anonymous dimensions with x.tag, or pass x.array",
    ),
    (
        "axn.named(x, ('a', 'b'))",
        lambda x: axn.named(x, ("a", "b")),
        OperandError,
        "named: the array has names already\n  array has: batch=4, embed=6\n"
        "  hint: rename its axes with x.rename, name its anonymous dimensions with x.tag, or pass x.array",
    ),
    (
        "'batch' in x",
        lambda x: "batch" in x,
        OperandError,
        "in: `in` is ambiguous: it could test for an axis or for an element\n  array has: batch=4, embed=6\n"
        "  hint: write x.has_axis(name) or (x == value).any()",
    ),
    (
        "np.asarray(traced)",
        lambda x: jax.jit(np.asarray)(x),
        OperandError,
        "asarray: the array has no values yet\n"
        "  array has: batch=4, embed=6\n"
        "  hint: inside of jit there are none: compute with functions of axonym, or look with jax.debug.print",
    ),
    (
        "jnp.asarray(traced)",
        lambda x: jax.jit(jnp.asarray)(x),
        OperandError,
        "asarray: the array has no values yet\n"
        "  array has: batch=4, embed=6\n"
        "  hint: inside of jit there are none: compute with functions of axonym, or look with jax.debug.print",
    ),
    (
        "np.asarray(shapes)",
        lambda x: np.asarray(jax.eval_shape(lambda: x)),
        OperandError,
        "asarray: the array has no values yet\n"
        "  array has: batch=4, embed=6\n"
        "  hint: inside of jit there are none: compute with functions of axonym, or look with jax.debug.print",
    ),
    (
        "bool(shapes)",
        lambda x: bool(jax.eval_shape(lambda: x)),
        OperandError,
        "bool: the array has no values yet\n  array has: batch=4, embed=6",
    ),
    (
        "np.asarray(axn.NamedArray(None, 'a'))",
        lambda x: np.asarray(axn.NamedArray(None, "a")),
        OperandError,
        "asarray: a NamedArray holds an object of type NoneType, not an array\n  its names: a",
    ),
    (
        "x.has_axis(3)",
        lambda x: x.has_axis(3),
        OperandError,
        "has_axis: 3 is a position, but axes have names\n"
        "  array has: batch=4, embed=6\n"
        '  hint: write the name of an axis, such as "batch"',
    ),
    (
        "x.scalar()",
        lambda x: x.scalar(),
        AxisSizeError,
        "scalar: the array has dimensions\n"
        "  array has: batch=4, embed=6\n"
        "  hint: reduce them first, as x.mean().scalar() does",
    ),
    (
        "x.untag('batch', 'embed').sum().scalar()",
        lambda x: x.untag("batch", "embed").sum().scalar(),
        AxisSizeError,
        "scalar: the array has dimensions\n"
        "  array has: anonymous (4, 6)\n"
        "  hint: reductions need names: add them with x.tag(...), or use x.array",
    ),
    (
        "iter(x)",
        lambda x: iter(x),
        OperandError,
        "iter: cannot iterate over a NamedArray without naming an axis\n  array has: batch=4, embed=6\n"
        "  hint: write for part in x.unbind(axis); np.asarray(x) is an array of NumPy",
    ),
    *(
        (
            f"x.{name}",
            lambda x, name=name: getattr(x, name),
            AttributeError,
            f"{name}: a NamedArray has no such attribute\n  hint: {hint}",
        )
        for names, hint in LACKING.items()
        for name in names.split()
    ),
    (
        "axn.NamedArray(None, 'a') + 1",
        lambda x: axn.NamedArray(None, "a") + 1,
        OperandError,
        "add: a NamedArray holds an object of type NoneType, not an array\n  its names: a",
    ),
    (
        "axn.NamedArray(None, 'a').axes",
        lambda x: axn.NamedArray(None, "a").axes,
        OperandError,
        "axes: a NamedArray holds an object of type NoneType, not an array\n  its names: a",
    ),
    (
        "axn.NamedArray(None, 'a').sum()",
        lambda x: axn.NamedArray(None, "a").sum(),
        OperandError,
        "sum: a NamedArray holds an object of type NoneType, not an array\n  its names: a",
    ),
    (
        "axn.NamedArray('text', ()).shape",
        lambda x: axn.NamedArray("text", ()).shape,
        OperandError,
        "axes: a NamedArray holds an object of type str, not an array\n  its names: none",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(INPUT)
    assert str(caught.value) == text


@pytest.mark.parametrize("name", " ".join(LACKING).split())
def test_an_attribute_with_a_hint_is_not_there(name: str) -> None:
    assert not hasattr(INPUT, name)
    assert not hasattr(axn.NamedArray, name)
