"""Storage: what JAX's own transformations do to a named array, and where a lost axis comes to light."""

import copy
import json
import pickle
import subprocess
import sys
from typing import Any

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jmp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

import axonym as axn
from axonym import nn
from axonym.errors import LostAxisError, OperandError
from tests.laws import assert_close

A, B = axn.make_axes(a=4, b=3)


def x() -> axn.NamedArray:
    return axn.arange((A, B), dtype=jnp.float32)


def test_sizes_are_data_and_names_are_static() -> None:
    one, other = axn.ones((A, B)), axn.ones((axn.Axis("a", 7), axn.Axis("b", 1)))
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert jax.tree.structure(one) != jax.tree.structure(one.rename({"a": "c"}))
    assert jax.tree.structure(one) != jax.tree.structure(one.rearrange(("b", "a")))
    assert len({jax.tree.structure(one), jax.tree.structure(other)}) == 1


@pytest.mark.parametrize("leaf", [None, 3, "text", object(), jnp.ones(5), (1, 2)], ids=lambda leaf: type(leaf).__name__)
def test_unflatten_takes_anything(leaf: Any) -> None:
    rebuilt = jax.tree.unflatten(jax.tree.structure(x()), [leaf])
    assert rebuilt.array is leaf
    assert rebuilt.names == ("a", "b")
    assert repr(rebuilt).startswith("NamedArray(")


def test_the_path_of_the_leaf_is_its_attribute() -> None:
    ((path, leaf),) = jax.tree_util.tree_leaves_with_path(x())
    assert (jax.tree_util.keystr(path), leaf.shape) == (".array", (4, 3))
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path({"w": x()})] == ["['w'].array"]


@pytest.mark.parametrize("name", ["array", "names", "other"])
def test_attributes_cannot_be_set(name: str) -> None:
    named = x()
    with pytest.raises(AttributeError):
        setattr(named, name, 1)
    with pytest.raises(AttributeError):
        delattr(named, name)


def test_copies_and_pickles() -> None:
    for made in (copy.copy(x()), copy.deepcopy(x()), pickle.loads(pickle.dumps(x()))):
        assert made.names == ("a", "b")
        assert axn.array_equal(made, x())


def same(result: axn.NamedArray, expected: Any = None) -> None:
    assert isinstance(result, axn.NamedArray)
    assert result.names == ("a", "b")
    assert_close(result.array, x().array if expected is None else expected)


def test_jit_grad_and_eval_shape() -> None:
    same(jax.jit(lambda x: x)(x()))
    same(jax.grad(lambda x: (x * x).sum().scalar())(x()), 2 * x().array)
    value, gradient = jax.value_and_grad(lambda x: x.sum().array)(x())
    assert value == 66
    same(gradient, jnp.ones((4, 3)))
    abstract = jax.eval_shape(lambda x: x.sum("a"), x())
    assert (abstract.names, abstract.shape, abstract.dtype) == (("b",), {"b": 3}, jnp.float32)
    assert abstract.axes == (B,)
    primal, tangent = jax.jvp(lambda x: x * 2, (x(),), (x(),))
    same(primal, 2 * x().array)
    same(tangent, 2 * x().array)
    same(jax.linearize(lambda x: x * 2, x())[1](x()), 2 * x().array)
    same(jax.checkpoint(lambda x: x * 1)(x()))


def test_raw_hessians_hold_arrays_in_arrays_and_say_so_at_their_use() -> None:
    nested = jax.jit(jax.hessian(lambda x: (x**3).sum().scalar()))(x()["a", 0])
    assert_close(nested.array.array, np.diag(6 * np.asarray(x().array)[0]))
    text = (
        ": a NamedArray holds another NamedArray, as raw jax.jacfwd, jax.jacrev and jax.hessian return it\n"
        "  its names: b\n"
        "  the inner one has: anonymous (3,), b=3\n"
        "  hint: axn.jacfwd, axn.jacrev and axn.hessian return one array with the names of both"
    )
    uses: dict[str, Any] = {
        "add": lambda: nested + 1,
        "axes": lambda: nested.axes,
        "index": lambda: nested["b", 0],
        "sum": lambda: nested.sum("b"),
        "tag": lambda: nested.tag("c"),
    }
    for function, use in uses.items():
        with pytest.raises(OperandError) as error:
            use()
        assert str(error.value) == function + text
    with pytest.raises(OperandError) as error:
        axn.named(nested, "b")
    assert str(error.value) == (
        "named: the array has names already\n"
        "  array has: b\n"
        "  hint: rename its axes with x.rename, name its anonymous dimensions with x.tag, or pass x.array"
    )


def test_carries_of_loops() -> None:
    def step(carry: axn.NamedArray, _: None) -> Any:
        return carry + 1, carry.sum("b")

    carry, sums = jax.lax.scan(step, x(), None, length=3)
    same(carry, x().array + 3)
    assert sums.untag().array.shape == (3, 4)
    assert (sums.names, sums.tag("time").shape) == (("a",), {"time": 3, "a": 4})
    same(jax.lax.fori_loop(0, 3, lambda _, x: x + 1, x()), x().array + 3)
    same(jax.lax.while_loop(lambda x: (x.sum() < 100).array, lambda x: x + 1, x()), x().array + 3)
    same(jax.lax.cond(True, lambda x: x, lambda x: x + 1, x()))
    same(jax.lax.switch(1, [lambda x: x + 1, lambda x: x], x()))


def test_raw_vmap_and_scan_over_anonymous_axes() -> None:
    rows = x().untag("a")
    assert jax.vmap(lambda row: row.sum("b"))(rows).tag("a").shape == {"a": 4}
    same(jax.vmap(lambda row: row)(rows).tag("a"))
    total, seen = jax.lax.scan(lambda carry, row: (carry + row, row), axn.zeros(B), rows)
    assert_close(total.array, x().array.sum(0))
    same(seen.tag("a"))
    same(jax.lax.map(lambda row: row, rows).tag("a"))
    assert jax.vmap(jax.vmap(lambda cell: cell + 1))(x().untag("a", "b")).names == ()


def test_shard_map_sees_local_sizes(auto_mesh: jax.sharding.Mesh) -> None:
    seen = []

    def block(x: axn.NamedArray) -> axn.NamedArray:
        seen.append(x.shape)
        return x * 2

    mapped = jax.shard_map(block, mesh=auto_mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"))
    same(jax.jit(mapped)(x()), 2 * x().array)
    assert seen[0] == {"a": 1, "b": 3}


def test_libraries_of_trees() -> None:
    same(jax.tree.map(lambda leaf: leaf + 0, x()))
    same(jax.tree.map(lambda one, other: one + other, x(), x()), 2 * x().array)
    half = jmp.get_policy("compute=bfloat16,params=float32,output=float32").cast_to_compute(x())
    assert (half.dtype, half.names) == (jnp.bfloat16, ("a", "b"))
    dynamic, static = eqx.partition({"w": x(), "n": 3}, eqx.is_inexact_array)
    assert static["w"].array is None
    same(eqx.combine(dynamic, static)["w"])
    same(eqx.filter_jit(lambda tree: tree["w"])({"w": x(), "n": 3}))
    same(eqx.filter_grad(lambda tree: tree["w"].sum().scalar())({"w": x(), "n": 3})["w"], jnp.ones((4, 3)))
    optimiser = optax.adam(0.1)
    updates, _ = optimiser.update(jax.tree.map(jnp.ones_like, x()), optimiser.init(x()), x())
    assert optax.apply_updates(x(), updates).names == ("a", "b")
    assert float(optax.tree.norm(axn.ones((A, B)))) == pytest.approx(12**0.5)


# One of each kind of operation; the laws of each table hold it for all of them.
USES: list[Any] = [
    lambda x: x + 1,
    lambda x: -x,
    lambda x: x + axn.ones(B),
    lambda x: axn.ones((A, B)) * x,
    lambda x: x.sum("b"),
    lambda x: x.argmax("a"),
    lambda x: axn.softmax(x, "b"),
    lambda x: x.cumsum("b"),
    lambda x: axn.dot(x, axn.ones(B), axis="b"),
    lambda x: axn.dot(axn.ones(B), x, axis="b"),
    lambda x: x["b", 0],
    lambda x: x["b", axn.named([0], "i")],
    lambda x: x.take("b", axn.named([0], "i")),
    lambda x: x.slice("b", length=1),
    lambda x: axn.tril(x, "a", "b"),
    lambda x: axn.where(x, x, x),
    lambda x: x.rename({"a": "q"}),
    lambda x: x.rearrange(("b", "a")),
    lambda x: x.rearrange("a b -> b a"),
    lambda x: x.untag("b"),
    lambda x: x.tag(),
    lambda x: x.flatten("f"),
    lambda x: x.unflatten_axis("b", {"p": 1, "q": 3}),
    lambda x: x.unbind("b"),
    lambda x: x.split("b", (axn.Axis("p", 1), axn.Axis("q", 2))),
    lambda x: x.broadcast_axis(axn.Axis("z", 2)),
    lambda x: axn.stack("z", [x, x]),
    lambda x: axn.concatenate("b", [x, x]),
    lambda x: x.axes,
    lambda x: x.shape,
    lambda x: x.resolve_axis("a"),
    lambda x: x.scalar(),
    lambda x: axn.zeros_like(x),
    lambda x: axn.one_hot(x, axn.Axis("z", 2)),
    lambda x: axn.random.bernoulli(jax.random.key(0), (A, B), x),
    lambda x: axn.random.categorical(jax.random.key(0), x, "b"),
    lambda x: axn.vmap(lambda y: y, "b")(x),
]


@pytest.mark.parametrize("use", USES)
def test_a_lost_axis_is_an_error_at_the_first_use(use: Any) -> None:
    with pytest.raises(LostAxisError, match="cannot have the 2 axes a, b"):
        jax.vmap(lambda x: use(x) and None)(x())
    with pytest.raises(LostAxisError, match="cannot have the 2 axes a, b"):
        jax.lax.scan(lambda carry, x: (carry, use(x) and None), 0, x())


def test_the_error_of_a_lost_axis_says_what_was_meant() -> None:
    with pytest.raises(LostAxisError) as caught:
        jax.vmap(lambda row: row.sum("b"))(x())
    assert str(caught.value) == (
        "sum: an array of shape (3,) cannot have the 2 axes a, b\n"
        "  raw jax.vmap, lax.scan and indexing remove the leading dimension, but not its name\n"
        '  hint: use axn.vmap(f, "a") or axn.scan(f, "a"), or make the axis anonymous first: x.untag("a")'
    )
    lost = jax.tree.map(lambda leaf: leaf[0], x())
    assert repr(lost) == "NamedArray(float32[names a, b on an array of shape (3,)])\n[0. 1. 2.]"


def test_what_is_no_array_is_an_error_at_the_first_use() -> None:
    empty = jax.tree.map(lambda leaf: None, x())
    for use in (lambda x: x + 1, lambda x: x.sum(), lambda x: x.axes, lambda x: x.rename({"a": "q"})):
        with pytest.raises(
            OperandError, match="a NamedArray holds an object of type NoneType, not an array\n  its names: a, b"
        ):
            use(empty)


def test_numpy_payloads_work() -> None:
    host = axn.NamedArray(np.ones((4, 3), np.float32), ("a", "b"))
    assert isinstance((host + 1).array, jax.Array)
    same(jax.jit(lambda x: x)(host), jnp.ones((4, 3)))


# What a process needs that knows nothing of the model.
READER = """
import json, pathlib, sys
import jax, jax.export
from axonym import named
import numpy as np

program = jax.export.deserialize(pathlib.Path(sys.argv[1]).read_bytes())
weights = dict(np.load(sys.argv[2]))
leaves = [named(weights["w"], ("a", "b")), named(weights["b"], "b")]
for batch in (2, 5):
    x = named(np.arange(4.0 * batch, dtype=np.float32).reshape(batch, 4), ("batch", "a"))
    gradient, = jax.grad(lambda leaves, x: program.call(leaves, x).sum().scalar(), argnums=(0,))(leaves, x)
    print(json.dumps([program.call(leaves, x).tolist(), gradient[0].names, gradient[0].tolist()]))
assert "axonym.nn" not in sys.modules
"""


def test_a_saved_program_is_read_where_its_model_is_unknown(tmp_path: Any) -> None:
    """By `jax.export`, for any batch and with its gradient; the arrays of a model are a list of named arrays."""
    layer = nn.Linear.init(A, B, key=jax.random.key(0), use_bias=True)
    leaves, structure = jax.tree.flatten(layer, is_leaf=axn.is_named_array)
    (size,) = jax.export.symbolic_shape("batch")
    abstract = axn.NamedArray(jax.ShapeDtypeStruct((size, 4), jnp.float32), ("batch", A))
    run = jax.jit(lambda leaves, x: axn.tanh(jax.tree.unflatten(structure, leaves)(x)))
    file, weights = tmp_path / "program", tmp_path / "weights.npz"
    file.write_bytes(jax.export.export(run)(leaves, abstract).serialize(vjp_order=1))
    by_names = {leaf.names: leaf for leaf in leaves}
    np.savez(weights, w=by_names["a", "b"], b=by_names["b",])

    command = [sys.executable, "-c", READER, str(file), str(weights)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    w, b = np.asarray(by_names["a", "b"]), np.asarray(by_names["b",])
    for batch, line in zip((2, 5), printed, strict=True):
        x = np.arange(4.0 * batch, dtype=np.float32).reshape(batch, 4)
        y = np.tanh(x @ w + b)
        values, names, gradient = json.loads(line)
        np.testing.assert_allclose(values, y, rtol=1e-4, atol=1e-5)
        assert names == ["a", "b"]
        np.testing.assert_allclose(gradient, x.T @ (1 - y**2), rtol=1e-3, atol=1e-4)


def test_a_module_as_an_argument_of_a_saved_program_is_refused_by_jax() -> None:
    layer = nn.Linear.init(A, B, key=jax.random.key(0))
    exported = jax.export.export(jax.jit(lambda layer, x: layer(x)))(layer, axn.ones(A))
    with pytest.raises(ValueError, match=r"unregistered type .*Linear.*register_pytree_node_serialization"):
        exported.serialize()


def test_names_are_a_tuple_to_all_but_the_errors_of_jax():
    own, (D, E) = x(), axn.make_axes(d=2, e=3)
    results = [own, -own, own + own, own.rearrange(("b", "a")), own.rename({"a": "c"}), own.broadcast_axis(D)]
    results += [axn.vmap(lambda row: row, "a")(own), jax.jit(axn.softmax, static_argnums=1)(own, "a")]
    for result in [*results, pickle.loads(pickle.dumps(own)), copy.deepcopy(own)]:
        plain = tuple(result.names)
        assert (repr(result.names), hash(result.names)) == (repr(plain), hash(plain))
        with pytest.raises(ValueError, match="metadata") as caught:
            jax.tree.map(lambda own, other: own, result, axn.ones((D, E)))
        assert f"{plain} (as axn.rearrange(x, {plain}) stores it)" in str(caught.value)
