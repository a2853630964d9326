"""Flax modules in named models and named modules in those of Flax, beside Flax on plain arrays."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.training.train_state import TrainState

import axonym as axn
from axonym import state_dict as sd

Batch, Pos, Embed, Mlp = axn.make_axes(batch=4, pos=3, embed=8, mlp=16)
X = axn.random.normal(jax.random.key(0), (Batch, Pos, Embed))
HEAD = axn.nn.Linear.init(Embed, Mlp, key=jax.random.key(1))


class Named(eqx.Module):
    inner: nnx.Linear
    head: axn.nn.Linear

    def __call__(self, x: axn.NamedArray) -> axn.NamedArray:
        return self.head(axn.nmap(self.inner, out_axis="embed")(x.untag("embed")))


class Plain(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner = nnx.Linear(8, 8, rngs=rngs)
        self.head = nnx.Linear(8, 16, rngs=rngs)
        self.head.kernel[...], self.head.bias[...] = HEAD.weight.array, HEAD.bias.array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.inner(x))


class WithNames(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner = nnx.Linear(8, 8, rngs=rngs)
        self.head = nnx.data(jax.tree.map(nnx.Param, HEAD))

    def __call__(self, x: jax.Array) -> jax.Array:
        return nnx.as_pure(self.head)(axn.named(self.inner(x), (Batch, Pos, Embed))).array


def named_loss(model: Any, x: axn.NamedArray) -> jax.Array:
    return (model(x) ** 2).mean().scalar()


def plain_loss(model: Any, x: jax.Array) -> jax.Array:
    return jnp.mean(model(x) ** 2)


def trained(model: Any) -> dict[str, Any]:
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: nnx.Optimizer, x: jax.Array) -> None:
        optimizer.update(model, nnx.grad(plain_loss)(model, x))

    for _ in range(2):
        step(model, optimizer, X.array)
    return {"kernel": model.inner.kernel[...], "head": nnx.as_pure(model.head)}


def test_a_module_of_nnx_in_a_named_model(auto_mesh: jax.sharding.Mesh, explicit_mesh: jax.sharding.Mesh) -> None:
    expected = nnx.grad(plain_loss)(Plain(nnx.Rngs(0)), X.array)
    for mesh in (None, auto_mesh, explicit_mesh):
        model = Named(nnx.Linear(8, 8, rngs=nnx.Rngs(0)), HEAD)
        if mesh is None:
            gradients = jax.jit(jax.grad(named_loss))(model, X)
        else:
            with axn.set_mesh(mesh):
                # The order of axes is for names alone.
                run = axn.named_jit(jax.grad(named_loss), {"batch": "data", "mlp": "model"})
                gradients = run(model, X.rearrange(("pos", "embed", "batch")))
        pairs = [
            (gradients.inner.kernel[...], expected["inner"]["kernel"][...]),
            (gradients.inner.bias[...], expected["inner"]["bias"][...]),
            (gradients.head.weight.array, expected["head"]["kernel"][...]),
        ]
        for x, y in pairs:
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def test_a_named_module_in_one_of_nnx_trains() -> None:
    plain, named = trained(Plain(nnx.Rngs(0))), trained(WithNames(nnx.Rngs(0)))
    np.testing.assert_allclose(named["kernel"], plain["kernel"], rtol=1e-4)
    assert named["head"].weight.names == ("embed", "mlp")
    np.testing.assert_allclose(named["head"].weight.array, plain["head"].kernel, rtol=1e-4)
    np.testing.assert_allclose(named["head"].bias.array, plain["head"].bias, rtol=1e-4)


def test_nnx_splits_merges_and_maps_named_modules() -> None:
    model = WithNames(nnx.Rngs(0))
    definition, state = nnx.split(model)
    np.testing.assert_array_equal(nnx.merge(definition, state)(X.array), model(X.array))
    several = nnx.vmap(lambda key: WithNames(nnx.Rngs(key)))(jax.random.split(jax.random.key(0), 3))
    assert nnx.as_pure(several.head).weight.tag("model").shape == {"model": 3, "embed": 8, "mlp": 16}
    abstract = nnx.as_pure(nnx.eval_shape(lambda: WithNames(nnx.Rngs(0))).head)
    assert abstract.weight.axes == (Embed, Mlp)


def test_optimisers_of_nnx_leave_data_as_it_is() -> None:
    class Frozen(WithNames):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.inner = nnx.Linear(8, 8, rngs=rngs)
            self.head = nnx.data(HEAD)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.head(axn.named(self.inner(x), (Batch, Pos, Embed))).array

    model = Frozen(nnx.Rngs(0))
    trained(model)
    assert axn.array_equal(model.head.weight, HEAD.weight)


def test_linen_both_ways() -> None:
    class Inside(eqx.Module):
        parameters: Any
        head: axn.nn.Linear
        inner: linen.Dense = eqx.field(static=True)

        def __call__(self, x: axn.NamedArray) -> axn.NamedArray:
            y = self.inner.apply(self.parameters, x.rearrange(("batch", "pos", "embed")).array)
            return self.head(axn.named(y, (Batch, Pos, Embed)))

    class Around(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            head = self.param("head", lambda key: HEAD)
            return head(axn.named(linen.Dense(8, name="inner")(x), (Batch, Pos, Embed))).array

    dense = linen.Dense(8)
    parameters = dense.init(jax.random.key(3), X.array)

    def plain(parameters: Any, weight: jax.Array) -> jax.Array:
        return jnp.mean((dense.apply(parameters, X.array) @ weight + HEAD.bias.array) ** 2)

    expected, expected_weight = jax.grad(plain, (0, 1))(parameters, HEAD.weight.array)
    inside = jax.grad(named_loss)(Inside(parameters, HEAD, dense), X)
    around = jax.grad(lambda variables: jnp.mean(Around().apply(variables, X.array) ** 2))(
        {"params": {"inner": parameters["params"], "head": HEAD}}
    )["params"]
    for kernel, head in (
        (inside.parameters["params"]["kernel"], inside.head),
        (around["inner"]["kernel"], around["head"]),
    ):
        np.testing.assert_allclose(kernel, expected["params"]["kernel"], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(head.weight.array, expected_weight, rtol=1e-4, atol=1e-6)

    state = TrainState.create(apply_fn=Around().apply, params={"head": HEAD}, tx=optax.sgd(0.5))
    state = state.apply_gradients(grads={"head": inside.head})
    np.testing.assert_allclose(
        state.params["head"].weight.array, HEAD.weight.array - 0.5 * expected_weight, rtol=1e-4, atol=1e-6
    )


def test_state_dicts_have_the_parameters_of_both() -> None:
    model = Named(nnx.Linear(8, 8, rngs=nnx.Rngs(0)), HEAD)
    state = sd.to_state_dict(model)
    assert set(state) == {"inner.kernel.value", "inner.bias.value", "head.weight", "head.bias"}
    other = Named(nnx.Linear(8, 8, rngs=nnx.Rngs(1)), HEAD)
    read = sd.from_state_dict(other, state)
    np.testing.assert_array_equal(read.inner.kernel[...], model.inner.kernel[...])


def test_variables_are_no_named_arrays() -> None:
    variable = nnx.Param(axn.ones(Embed))
    assert (variable * axn.ones(Embed)).names == ("embed",)
    for call in (axn.exp, lambda x: axn.sum(x, "embed"), lambda x: axn.dot(x, variable[...], axis="embed")):
        with pytest.raises(axn.errors.OperandError) as error:
            call(variable)
        assert str(error.value).endswith(
            ": expected a NamedArray, got Param\n  hint: take the NamedArray out of the Param first"
        )


def test_a_module_that_changes_is_called_without_names() -> None:
    dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    with pytest.raises(Exception, match="different trace level"):
        axn.nmap(dropout, out_axis="embed")(X.untag("embed"))
    first = axn.named(dropout(X.array), X.axes)
    second = axn.named(dropout(X.array), X.axes)
    assert not axn.array_equal(first, second)
