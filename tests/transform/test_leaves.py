"""How transformations take arguments and results apart, and put them together again."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as axn
from axonym.base.kinds import is_array
from axonym.engine.core import register
from axonym.errors import AxisClashError, AxisSizeError, OperandError
from axonym.transform.leaves import Arguments, is_hole, make_namer, repeat_prefix, take_arrays
from tests.nn.layouts import draw, fails, same, same_trees

pytestmark = pytest.mark.sampled

A, B = axn.make_axes(a=2, b=3)


def take_apart(arguments, axis=("a", None)):
    def dimension(_, leaf):
        if isinstance(leaf, axn.NamedArray):
            return leaf.names.index("a") - len(leaf.names) if "a" in leaf.names else None
        return 0 if is_array(leaf) and leaf.ndim else None

    return Arguments("vmap", axis, arguments, dimension)


def test_what_counts_as_an_array():
    assert all(map(is_array, [jnp.ones(2), np.ones(2), np.float32(1), jax.random.key(0)]))
    assert not any(map(is_array, [1.0, True, None, "a", [1], axn.ones(A)]))
    jax.jit(lambda x: [is_array(x)] == [True] or pytest.fail("a tracer is an array"))(1.0)


def test_arguments_round_trip_without_the_axis():
    tree = (axn.ones((B, A)), {"raw": jnp.ones((2, 5)), "whole": axn.ones(B), "text": "x"}, None)
    arguments = take_apart((tree, {"k": 1.5}))
    assert (arguments.axis, arguments.size, arguments.dims) == ("a", 2, [1, 0])
    args, kwargs = arguments.skeleton.fill(
        [array.take(0, axis=dim) for array, dim in zip(arguments.arrays, arguments.dims, strict=True)]
    )
    assert args[0].names == ("b",)
    assert args[1]["raw"].shape == (5,)
    assert args[1]["whole"] is tree[1]["whole"]
    assert (args[1]["text"], args[2], kwargs) == ("x", None, {"k": 1.5})


def test_a_given_size_serves_where_nothing_is_mapped():
    assert take_apart((("x",), {}), ("a", 7)).size == 7


def test_outputs_round_trip():
    tree = {"n": axn.ones(A), "raw": np.ones(3), "number": 2, "act": jnp.sin, "none": None}
    arrays, skeleton = take_arrays(tree)
    assert [np.shape(array) for array in arrays] == [(2,), (), (3,)]
    again = skeleton.fill([array * 2 for array in arrays])
    assert again["n"].names == ("a",)
    assert again["number"] == 4
    assert again["act"] is jnp.sin
    assert again["none"] is None


def test_outputs_may_leave_numbers_alone():
    arrays, skeleton = take_arrays((2, True, axn.NamedArray(1.0, ()), np.float32(1)), numbers=False)
    assert len(arrays) == 2
    assert skeleton.fill(arrays)[:2] == (2, True)


def test_outputs_get_a_first_axis_behind_anonymous_dimensions():
    x = axn.named(np.ones((5, 3)), ("c", "b")).untag("c")
    _, skeleton = take_arrays(x)
    y = skeleton.fill([jnp.ones((2, 5, 3))], name=make_namer("vmap", A))
    assert (y.names, y.array.shape) == (("a", "b"), (5, 2, 3))
    with pytest.raises(AxisClashError):
        skeleton.fill([jnp.ones((2, 5, 3))], name=make_namer("vmap", B))


def test_prefixes_are_spread_over_leaves():
    tree = ((axn.ones(A), {"x": 1, "y": (2, None)}), {"k": [3, 4]})
    assert repeat_prefix("vmap", 0, tree) == [0, 0, 0, 0, 0]
    assert repeat_prefix("vmap", ((None, {"x": 1, "y": 2}), {"k": [3, None]}), tree) == [None, 1, 2, 3, None]
    assert repeat_prefix("vmap", ((0, None), {"k": len}), tree) == [0, None, None, len, len]
    with pytest.raises(OperandError, match="must be a tree prefix"):
        repeat_prefix("vmap", ((0,), {}), tree)


# filtered trees
HOLES = [None, (), optax.MaskedNode(), "frozen", True]


@pytest.mark.parametrize("payload", HOLES)
def test_holes_lose_and_gain_the_axis_as_arrays_do(payload):
    hole, whole = axn.NamedArray(payload, ("b", "a")), axn.NamedArray(payload, ("b",))
    assert is_hole(hole)
    arguments = take_apart(((hole, whole), {"x": axn.ones(A)}))
    assert (arguments.size, len(arguments.arrays)) == (2, 1)
    (inner, other), _ = arguments.skeleton.fill([1.0])
    assert other is whole
    for found in (inner, take_arrays(inner)[1].fill([])):
        assert (found.array, found.names) == (payload, ("b",))
    outer = take_arrays(inner)[1].fill([], name=make_namer("vmap", A))
    assert (outer.array, outer.names) == (payload, ("a", "b"))
    with pytest.raises(AxisClashError, match="the result of one step has: b\n"):
        take_arrays(inner)[1].fill([], name=make_namer("vmap", B))


def test_a_subclass_may_remember_more_of_a_hole_than_its_names():
    @register
    class Counting(axn.NamedArray):
        __slots__ = ("sizes",)

        def __renamed_hole__(self, names, new):
            renamed = super().__renamed_hole__(names, new)
            known = self.sizes | ({} if new is None else {new.name: new.size})
            renamed.sizes = {name: known[name] for name in names}
            return renamed

    hole = Counting(None, ("b", "a"))
    hole.sizes = {"b": 3, "a": 2}
    (inner,), _ = take_apart(((hole,), {"x": axn.ones(A)})).skeleton.fill([1.0])
    assert (type(inner), inner.names, inner.sizes) == (Counting, ("b",), {"b": 3})
    outer = take_arrays(inner)[1].fill([], name=make_namer("vmap", A))
    assert (type(outer), outer.names, outer.sizes) == (Counting, ("a", "b"), {"a": 2, "b": 3})


def test_what_is_no_hole():
    arrays = (axn.ones(A), axn.NamedArray(2.0, ()), axn.NamedArray(jax.ShapeDtypeStruct((2,), "f4"), "a"))
    assert not any(map(is_hole, (*arrays, None, (), jnp.ones(2), axn.NamedArray((jnp.ones(2),), ("a",)))))
    fails(
        AxisSizeError,
        "vmap: no argument has axis 'a', so its size is unknown\n"
        "  an argument without an array has: a\n  an argument has: b=3\n"
        '  hint: for a new axis, give its size: Axis("a", size)',
        lambda: axn.vmap(lambda *x: x, "a")(axn.NamedArray(None, ("a",)), axn.ones(B)),
    )


TREE = {
    "weight": draw(B, A),
    "shift": draw(B, seed=1),
    "steps": axn.arange(A),
    "raw": jnp.arange(2.0),
    "act": jnp.tanh,
    "mask": axn.ones((A, B)) > 0,
}
TRAINED, FROZEN = eqx.partition(TREE, eqx.is_inexact_array)


def one(tree):
    hidden = tree["weight"] * tree["steps"] + tree["shift"] + tree["raw"]
    return tree["mask"] * axn.named(tree["act"](hidden.array), hidden.names)


def combined(trained, frozen):
    return one(eqx.combine(trained, frozen)), trained


MAPS = {
    "vmap": lambda f, *trees: axn.vmap(f, "a")(*trees),
    "map": lambda f, *trees: axn.map(f, "a")(*trees),
    "scan": lambda f, *trees: axn.scan(lambda hole, *trees: (hole, f(*trees)), "a")(FROZEN["shift"], *trees)[1],
}


@pytest.mark.parametrize("mapped", MAPS)
def test_a_filtered_tree_is_mapped_as_raw_jax_maps_a_dict(mapped):
    def run(trained):
        out, again = MAPS[mapped](combined, trained, FROZEN)
        return axn.sin(out).sum().scalar(), (out, again)

    def raw(floats):
        axes = ({"weight": 1, "shift": None, "raw": 0}, 0, 0)
        f = lambda t, n, mask: mask * jnp.tanh(t["weight"] * n + t["shift"] + t["raw"])  # noqa: E731
        out = jax.vmap(f, axes)(floats, TREE["steps"].array, TREE["mask"].array)
        return jnp.sin(out).sum(), out

    floats = {name: getattr(TREE[name], "array", TREE[name]) for name in ("weight", "shift", "raw")}
    expected, out = jax.grad(raw, has_aux=True)(floats)
    for compiled in (lambda f: f, jax.jit):
        gradients, (found, again) = compiled(jax.grad(run, has_aux=True))(TRAINED)
        same(found, ("a", "b"), out)
        assert jax.tree.structure(gradients) == jax.tree.structure(TRAINED)
        same_trees(jax.tree.leaves(gradients), jax.tree.leaves(expected))
        same(again["weight"], ("a", "b"), TREE["weight"].array.T)
        same(again["shift"], ("a", "b"), np.tile(TREE["shift"].array, (2, 1)))
        assert [(again[name].array, again[name].names) for name in ("steps", "mask")] == [
            (None, ("a",)),
            (None, ("a", "b")),
        ]


def test_a_hole_in_the_carry_stays_what_it_is():
    hole = axn.NamedArray(True, ("a", "b"))
    last, _ = axn.scan(lambda carry, x: (carry, None), "a")(hole, axn.ones(A))
    assert (last.array, last.names) == (True, ("a", "b"))
    for other in (axn.NamedArray(False, ("a", "b")), axn.ones((A, B))):
        with pytest.raises(OperandError, match="a step changes what an entry of the carry is"):
            axn.fold(lambda carry, x, other=other: other, "a")(hole, axn.ones(A))


# what goes out of a trace
X = axn.ones((A, B))
LEAKING = {
    "vmap": lambda: axn.vmap(lambda x: (x * 2, 1, "text"), "a")(X),
    "vmap in vmap": lambda: axn.vmap(lambda x, y: axn.vmap(lambda x: x * y, "b")(x), "a")(X, axn.ones(())),
    "scan": lambda: axn.scan(lambda c, x: (c, x * 2), "a")(0.0, X),
    "map": lambda: axn.map(lambda x: x * 2, "a")(X),
    "map in jit": lambda: jax.jit(axn.map(lambda x: x * 2, "a", remat="nested"))(X),
    "nmap": lambda: axn.nmap(jnp.sort)(X.untag("b")),
    "Stacked.init": lambda: axn.nn.Stacked.init(A, axn.nn.Linear)(B, B.alias("out"), key=jax.random.key(0)),
    "Recurrent": lambda: axn.nn.Recurrent(axn.nn.GRUCell.init(B, A.alias("hidden"), key=jax.random.key(0)), "a")(X),
}


@pytest.mark.parametrize("name", LEAKING)
def test_no_tracer_outlives_its_trace(name):
    with jax.checking_leaks():
        LEAKING[name]()


def test_the_outputs_of_a_trace_are_the_same_where_nothing_but_arrays_differs():
    tree = lambda name, number: (axn.ones(name), axn.NamedArray(None, ("c",)), "text", {"raw": jnp.ones(number)})  # noqa: E731
    structure = lambda *args: jax.tree.structure(take_arrays(tree(*args)))  # noqa: E731
    assert structure(A, 2) == structure(A.resize(3), 4)
    assert hash(structure(A, 2)) == hash(structure(A.resize(3), 4))
    assert structure(A, 2) != structure(B, 2)
    with jax.disable_jit():
        _, (ys, text) = axn.scan(lambda c, x: (c, (x + 1, "text")), "a")(0.0, X)
    same(ys, ("a", "b"), np.full((2, 3), 2))
    assert text == "text"
