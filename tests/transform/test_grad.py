"""Gradients and Jacobians by name, against those of raw JAX on the arrays."""

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import AxisClashError, AxisNotFoundError, AxisSizeError, LostAxisError, OperandError
from tests.laws import assert_close, placed

Batch, In, Out = axn.make_axes(batch=2, inner=3, out=4)
RNG = np.random.default_rng(0)
X = axn.named(RNG.normal(size=(2, 3)).astype(np.float32), (Batch, In))
W = axn.named(RNG.normal(size=(3, 4)).astype(np.float32), (In, Out))
V = axn.named(np.float32([1, 2, 3]), In)
JACOBIANS = pytest.mark.parametrize("jacobian", ["jacfwd", "jacrev"])


def layer(x: Any, w: Any) -> Any:
    return axn.tanh(axn.dot(x, w, axis=In))


def raw_layer(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def check(result: Any, names: tuple[str, ...] | None, expected: Any) -> None:
    """Compare values, and that they are one array with these names; None stands for a plain array."""
    assert (result.names if isinstance(result, axn.NamedArray) else None) == names
    array = result if names is None else result.array
    assert isinstance(array, jax.Array)
    assert array.shape == expected.shape
    assert_close(np.asarray(array), np.asarray(expected))


@JACOBIANS
def test_the_axes_of_the_output_come_before_those_of_the_argument(jacobian: str) -> None:
    derivative = getattr(axn, jacobian)(layer, rename={"batch": "batch_in"})
    expected = jax.jit(getattr(jax, jacobian)(raw_layer))(X.array, W.array)
    check(derivative(X, W), ("batch", "out", "batch_in", "inner"), expected)
    check(jax.jit(derivative)(X, W), ("batch", "out", "batch_in", "inner"), expected)


@JACOBIANS
def test_names_on_one_side_need_no_renaming(jacobian: str) -> None:
    transform = getattr(axn, jacobian)
    of_w, of_x = jax.jit(transform(lambda w: axn.dot(V, w, axis=In).sum())), jax.jit(transform(lambda x: layer(x, W)))
    check(of_w(W), ("inner", "out"), np.tile(np.asarray(V.array)[:, None], (1, 4)))
    slope = 1 - np.tanh(np.asarray(V.array) @ np.asarray(W.array)) ** 2
    check(of_x(V), ("out", "inner"), (np.asarray(W.array) * slope).T)


@JACOBIANS
def test_several_arguments_and_trees_nest_as_in_jax(jacobian: str) -> None:
    def fn(p: Any, x: Any) -> Any:
        return {"y": axn.dot(x, p["w"], axis=In) + p["b"], "norm": jnp.sum(p["s"] ** 2) * x.sum().scalar()}

    def raw(p: Any, x: Any) -> Any:
        return {"y": x @ p["w"] + p["b"], "norm": jnp.sum(p["s"] ** 2) * x.sum()}

    p = {"w": W, "b": axn.named(np.float32([1, 2, 3, 4]), Out), "s": jnp.arange(2.0)}
    raw_p = {key: getattr(value, "array", value) for key, value in p.items()}
    result = jax.jit(getattr(axn, jacobian)(fn, (0, 1), rename={"out": "o"}))(p, V)
    expected = jax.jit(getattr(jax, jacobian)(raw, (0, 1)))(raw_p, V.array)
    (of_p, of_x), (raw_of_p, raw_of_x) = result["y"], expected["y"]
    check(of_p["w"], ("out", "inner", "o"), raw_of_p["w"])
    check(of_p["b"], ("out", "o"), raw_of_p["b"])
    check(of_p["s"], ("out",), np.asarray(raw_of_p["s"]).T)
    check(of_x, ("out", "inner"), raw_of_x)
    (of_p, of_x), (raw_of_p, raw_of_x) = result["norm"], expected["norm"]
    check(of_p["w"], ("inner", "o"), raw_of_p["w"])
    check(of_p["s"], None, raw_of_p["s"])
    check(of_x, ("inner",), raw_of_x)


@JACOBIANS
def test_what_a_filter_left_empty_stays(jacobian: str) -> None:
    params = {"w": W, "b": axn.NamedArray(None, ("out",))}
    found = getattr(axn, jacobian)(lambda p: {"y": axn.dot(V, p["w"], axis=In).sum(), "b": p["b"]})(params)
    check(found["y"]["w"], ("inner", "out"), np.tile(np.asarray(V.array)[:, None], (1, 4)))
    assert found["y"]["b"].array is found["b"].array is None


@JACOBIANS
def test_arrays_without_names_on_one_side(jacobian: str) -> None:
    transform = getattr(axn, jacobian)
    expected = jax.jit(getattr(jax, jacobian)(raw_layer))(X.array, W.array)
    to_names = jax.jit(transform(lambda x: layer(axn.NamedArray(x, (Batch, In)), W)))(X.array)
    check(to_names, ("batch", "out"), np.transpose(expected, (2, 3, 0, 1)))
    check(jax.jit(transform(lambda x: layer(x, W).array))(X), ("batch", "inner"), expected)
    check(jax.jit(transform(lambda x: raw_layer(x, W.array)))(X.array), None, expected)


@JACOBIANS
def test_anonymous_dimensions_lead(jacobian: str) -> None:
    result = jax.jit(getattr(axn, jacobian)(lambda x: axn.dot(x, W, axis=In)))(X.untag("batch"))
    expected = jax.jit(getattr(jax, jacobian)(lambda x: x @ W.array))(X.array)  # batch, out, batch, inner
    check(result, ("out", "inner"), np.transpose(expected, (0, 2, 1, 3)))


@JACOBIANS
def test_what_belongs_to_the_result_is_passed_through(jacobian: str) -> None:
    def fn(x: Any, mode: str, *, scale: float) -> Any:
        assert mode == "train"
        return (x * scale).sum(), {"seen": x * 2}

    result, aux = getattr(axn, jacobian)(fn, has_aux=True)(V, "train", scale=3.0)
    check(result, ("inner",), np.full(3, 3.0, np.float32))
    check(aux["seen"], ("inner",), np.asarray(V.array) * 2)


@JACOBIANS
@pytest.mark.parametrize("argnums", [np.int64(1), (np.int64(1),)], ids=str)
def test_positions_may_be_numbers_of_numpy(jacobian: str, argnums: Any) -> None:
    rename = {"out": "out_in"}
    result, expected = (getattr(axn, jacobian)(layer, n, rename=rename)(X["batch", 0], W) for n in (argnums, 1))
    result = result if isinstance(argnums, np.int64) else result[0]
    check(result, expected.names, expected.array)


@JACOBIANS
def test_complex_functions(jacobian: str) -> None:
    z = axn.named(np.complex64([1 + 2j, 3j, 1]), In)
    transform = getattr(axn, jacobian)
    result = transform(lambda z: z * z, holomorphic=True, rename={"inner": "i"})(z)
    check(result, ("inner", "i"), np.diag(2 * np.asarray(z.array)))
    with pytest.raises(TypeError, match="real"):
        transform(lambda z: z * z, rename={"inner": "i"})(z)


@JACOBIANS
def test_works_under_vmap(jacobian: str) -> None:
    derivative = getattr(axn, jacobian)(lambda x: axn.dot(x, W, axis=In) ** 2)
    expected = jax.jit(jax.vmap(getattr(jax, jacobian)(lambda x: (x @ W.array) ** 2)))(X.array)
    check(jax.jit(axn.vmap(derivative, "batch"))(X), ("batch", "out", "inner"), expected)


@JACOBIANS
@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_works_on_a_mesh(jacobian: str, kind: str, request: pytest.FixtureRequest) -> None:
    mesh, x = request.getfixturevalue(f"{kind}_mesh"), axn.arange(axn.make_axes(a=4, b=2), dtype=float)
    expected = jax.jit(getattr(jax, jacobian)(lambda x: (x**2).sum(1)))(x.array)
    with jax.set_mesh(mesh):
        on_mesh = placed(x, mesh, {"a": "data", "b": "model"})
        result = jax.jit(getattr(axn, jacobian)(lambda x: (x**2).sum("b"), rename={"a": "a_in"}))(on_mesh)
    check(result, ("a", "a_in", "b"), expected)


def test_integer_arguments_as_jax_allows_them() -> None:
    count = axn.arange(In)
    expected = jax.jacrev(lambda n: (n * 2.0).sum(), allow_int=True)(count.array)
    check(axn.jacrev(lambda n: (n * 2.0).sum(), allow_int=True)(count), ("inner",), expected)
    assert axn.grad(lambda n: (n * 2.0).sum(), allow_int=True)(count).dtype == jax.dtypes.float0
    for transform in (axn.jacfwd, axn.jacrev, axn.hessian, axn.grad):
        with pytest.raises(TypeError, match="int32"):
            transform(lambda n: (n * 2.0).sum())(count)


def test_the_hessian_has_the_axes_of_the_argument_twice() -> None:
    result = jax.jit(axn.hessian(lambda w: (layer(X, w) ** 2).sum(), rename={"inner": "i", "out": "o"}))(W)
    expected = jax.jit(jax.hessian(lambda w: (raw_layer(X.array, w) ** 2).sum()))(W.array)
    check(result, ("inner", "out", "i", "o"), expected)


def test_the_hessian_of_an_array_renames_twice() -> None:
    derivative = axn.hessian(lambda x: x**3, rename=({"inner": "first"}, {"inner": "second"}), has_aux=False)
    check(jax.jit(derivative)(V), ("inner", "first", "second"), jax.jit(jax.hessian(lambda x: x**3))(V.array))


def test_the_hessian_of_trees_has_a_block_for_each_pair() -> None:
    b = axn.named(np.float32([1, 2, 3, 4]), Out)
    fn = axn.hessian(
        lambda x, b: ((axn.dot(x, W, axis=In) * b).sum(), x), (0, 1), has_aux=True, rename={"inner": "i", "out": "o"}
    )
    result, aux = jax.jit(fn)(V, b)
    expected = jax.jit(jax.hessian(lambda x, b: ((x @ W.array) * b).sum(), (0, 1)))(V.array, b.array)
    for row, names, raw_row in zip(result, ("inner", "out"), expected, strict=True):
        for block, other, raw in zip(row, ("i", "o"), raw_row, strict=True):
            check(block, (names, other), raw)
    check(aux, ("inner",), V.array)


@pytest.mark.parametrize("end", [lambda x: x, lambda x: x.scalar()], ids=["named", "plain"])
def test_gradients_of_scalars(end: Any) -> None:
    def loss(x: Any, w: Any) -> Any:
        return end((layer(x, w) ** 2).sum())

    expected, (of_x, of_w) = jax.value_and_grad(lambda x, w: (raw_layer(x, w) ** 2).sum(), (0, 1))(X.array, W.array)
    check(axn.grad(loss)(X, W), ("batch", "inner"), of_x)
    value, (x, w) = jax.jit(axn.value_and_grad(loss, (0, 1)))(X, W)
    check(x, ("batch", "inner"), of_x)
    check(w, ("inner", "out"), of_w)
    check(value, () if isinstance(end(axn.ones(())), axn.NamedArray) else None, expected)


def test_gradients_pass_on_what_else_is_returned() -> None:
    def loss(x: Any) -> Any:
        return (x**2).sum(), {"doubled": x * 2}

    gradient, aux = axn.grad(loss, has_aux=True)(V)
    (value, same), again = axn.value_and_grad(loss, has_aux=True)(V)
    for result in (gradient, again, aux["doubled"], same["doubled"]):
        check(result, ("inner",), V.array * 2)
    assert value.item() == 14.0


def test_a_complex_gradient() -> None:
    z = axn.named(np.complex64([1 + 2j, 3j]), "z")
    check(axn.grad(lambda z: (z * z).sum(), holomorphic=True)(z), ("z",), 2 * z.array)


BAD: list[tuple[str, Any, type[Exception], str]] = [
    (
        "axn.jacfwd(square)(v)",
        lambda v: axn.jacfwd(lambda x: x**2)(v),
        AxisClashError,
        "jacfwd: the output and the argument both have axis 'inner'\n"
        "  the output has: inner\n"
        "  the argument has: inner\n"
        '  hint: give that of the argument another name: rename={"inner": "inner_in"}',
    ),
    (
        "axn.hessian(total)(v)",
        lambda v: axn.hessian(lambda x: (x**2).sum())(v),
        AxisClashError,
        "hessian: the output and the argument both have axis 'inner'\n"
        "  the output has: inner\n"
        "  the argument has: inner\n"
        '  hint: give that of the argument another name: rename={"inner": "inner_in"}',
    ),
    (
        "axn.jacrev(project, rename={'inner': 'out'})(v)",
        lambda v: axn.jacrev(lambda x: axn.dot(x, W, axis="inner"), rename={"inner": "out"})(v),
        AxisClashError,
        "jacrev: the output and the argument both have axis 'out'\n"
        "  the output has: out\n"
        "  the argument has: inner\n"
        '  hint: give that of the argument another name: rename={"inner": "inner_in"}',
    ),
    (
        "axn.jacrev(square, rename={'iner': 'i'})(v)",
        lambda v: axn.jacrev(lambda x: x**2, rename={"iner": "i"})(v),
        AxisNotFoundError,
        "jacrev: rename has axis 'iner', which no argument has\n"
        "  axes of the arguments: inner\n"
        "  hint: did you mean 'inner'?",
    ),
    (
        "axn.jacrev(total, rename={'batch': 'inner'})(x)",
        lambda v: axn.jacrev(lambda x: x.sum(), rename={"batch": "inner"})(X),
        AxisClashError,
        "jacrev: with rename, axis 'inner' would appear twice\n"
        "  the output has: no axes\n"
        "  the argument has: batch, inner",
    ),
    (
        "axn.jacfwd(square, 1)(v)",
        lambda v: axn.jacfwd(lambda x: x**2, 1)(v),
        OperandError,
        "jacfwd: argument 1 is to be differentiated, but 1 were given by position",
    ),
    (
        "axn.grad(square)(v)",
        lambda v: axn.grad(lambda x: x**2)(v),
        AxisSizeError,
        "grad: the function must return a scalar\n  it returned: inner=3\n  hint: reduce it: x.sum()",
    ),
    (
        "axn.value_and_grad(square)(v)",
        lambda v: axn.value_and_grad(lambda x: x**2)(v),
        AxisSizeError,
        "value_and_grad: the function must return a scalar\n  it returned: inner=3\n  hint: reduce it: x.sum()",
    ),
    *(
        (
            f"axn.{function}(total)({{'of': {leaf}}})",
            lambda v, function=function, leaf=leaf: getattr(axn, function)(lambda t, u: u.sum(), 1)(
                v, {"of": [v, leaf]}
            ),
            OperandError,
            f"{function}: argument 1['of'][1] has no derivatives: {has}\n"
            "  hint: eqx.filter_grad(fn) takes any model: it differentiates with respect to floating arrays only",
        )
        for function in ("grad", "value_and_grad", "jacfwd", "jacrev", "hessian")
        for leaf, has in (
            (axn.arange(In), "int32, inner=3"),
            (np.zeros(2, bool), "bool, (2,)"),
            (3, "int"),
            ("a", "str"),
        )
    ),
    (
        "jax.grad with integers",
        lambda v: axn.grad(lambda t: t["a"].sum(), allow_int=True)({"a": v, "b": jnp.arange(2), "c": len}),
        OperandError,
        "grad: argument 0['c'] has no derivatives: builtin_function_or_method\n"
        "  hint: eqx.filter_grad(fn) takes any model: it differentiates with respect to floating arrays only",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(V)
    assert str(caught.value) == text


@JACOBIANS
def test_an_array_that_lost_an_axis_is_refused(jacobian: str) -> None:
    with pytest.raises(LostAxisError, match=f"^{jacobian}: an array of shape"):
        jax.vmap(getattr(axn, jacobian)(lambda x: x.sum()))(X)


AUX = {
    "a tuple of 3": lambda x: ((x**2).sum(), "a", "b"),
    "a tuple of 1": lambda x: ((x**2).sum(),),
    "NamedArray": lambda x: (x**2).sum(),
}


@pytest.mark.parametrize("returned", AUX)
@pytest.mark.parametrize("function", ["grad", "value_and_grad", "jacfwd", "jacrev"])
def test_auxiliary_data_is_the_second_part_of_a_pair(function: str, returned: str) -> None:
    with pytest.raises(OperandError) as error:
        getattr(axn, function)(AUX[returned], has_aux=True)(V)
    problem = f"with has_aux, the function must return a pair of value and auxiliary data, not {returned}"
    assert str(error.value) == f"{function}: {problem}"


def test_a_pair_may_be_a_list() -> None:
    gradient, aux = axn.grad(lambda x: [(x**2).sum(), "aux"], has_aux=True)(V)
    check(gradient, ("inner",), 2 * V.array)
    assert aux == "aux"


class Leaky(eqx.Module):
    weight: axn.NamedArray
    slope: float = 0.1


def test_a_number_in_a_model_is_named_since_it_would_be_trained() -> None:
    model = Leaky(V)

    def loss(model: Leaky, number: float) -> jax.Array:
        return (axn.nn.leaky_relu(model.weight, model.slope) * number).sum().scalar()

    text = (
        "value_and_grad: argument 0.slope is the Python number 0.1, and gets a gradient as a parameter does\n"
        "  hint: a parameter is an array: jnp.array(0.1). To leave numbers alone, differentiate by eqx.filter_grad, "
        "or declare the field with eqx.field(static=True)"
    )
    with pytest.warns(UserWarning, match=re.escape(text)) as caught:
        axn.value_and_grad(loss)(model, 2.0)
    assert [one.filename for one in caught] == [__file__]
    # Neither an argument that is a number, nor what Equinox leaves alone.
    axn.grad(loss, 1)(model, 2.0)
    assert eqx.filter_grad(loss)(model, 2.0).slope is None
