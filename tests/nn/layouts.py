"""What all tests of layers share: random arrays, errors, and one run of a layer on a mesh against one without."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import axonym as axn

PARAMETERS = {"embed": "data", "mlp": "model", "heads": "model"}
COMPUTE = {"batch": "data", "mlp": "model", "heads": "model"}


def draw(*axes: axn.Axis, seed: int = 0) -> axn.NamedArray:
    array = np.random.default_rng(seed).normal(size=[axis.size for axis in axes]).astype(np.float32)
    # `jnp.asarray` would compile a program for each shape and mesh.
    place = None if jax.sharding.get_abstract_mesh().empty else jax.P()
    return axn.named(jax.device_put(array, place), axes)


def made(init: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Make a model whose parameters, biases too, have values of their own; nothing is compiled for that."""
    model = eqx.filter_eval_shape(init, *args, key=jax.random.key(0), **options)
    leaves = jax.tree.leaves(model, is_leaf=axn.is_named_array)
    arrays = [draw(*leaf.axes, seed=5 + i).array for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(jax.tree.structure(model), arrays)


def halved(tree: Any) -> Any:
    """Halve all numbers: where they are large, the rounding of sums hides what is compared."""
    return jax.tree.map(lambda array: jax.device_put(np.asarray(array) / 2), tree)


@eqx.filter_jit
def compiled(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function or a layer in one program, where eagerly each of its operations would be one."""
    return call(*args, **options)


def same(x: axn.NamedArray, names: tuple[str, ...], array: Any, *, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    assert isinstance(x, axn.NamedArray)
    assert x.names == names
    assert x.array.shape == np.shape(array)
    np.testing.assert_allclose(np.asarray(x.array, np.float64), np.asarray(array, np.float64), rtol=rtol, atol=atol)


def same_trees(tree: Any, other: Any, *, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


def fails(error: type[Exception], message: str, call: Callable[[], Any]) -> None:
    """Demand an error of this very type, with this message from the first letter to the last."""
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert str(caught.value) == message


def lies(x: axn.NamedArray, mesh: jax.sharding.Mesh, mapping: axn.ResourceMapping) -> bool:
    """Tell whether an array is laid out by a mapping."""
    wanted = jax.sharding.NamedSharding(mesh, axn.pspec_for(x, mapping, mesh, strict=False))
    return x.sharding.is_equivalent_to(wanted, x.ndim)


def apply(model: Any, *inputs: Any) -> axn.NamedArray:
    """Call a layer; one function for all tests, so that what is compiled for it serves them all."""
    return model(*inputs)


@functools.cache
def value_and_gradients(call: Callable[..., axn.NamedArray]) -> Callable[..., Any]:
    """Compile `differentiated`, once for each function: hundreds of small programs become one."""
    return eqx.filter_jit(differentiated(call))


def differentiated(call: Callable[..., axn.NamedArray]) -> Callable[..., Any]:
    """Differentiate by the model and the floating inputs, through all elements of the result."""

    def run(model: Any, *inputs: Any) -> Any:
        def loss(both: Any) -> Any:
            out = call(both[0], *both[1])
            return axn.sin(out.astype("float32")).sum().scalar(), out

        (_, out), gradients = eqx.filter_value_and_grad(loss, has_aux=True)((model, inputs))
        return out, gradients

    return run


def check_on(mesh: jax.sharding.Mesh, call: Callable[..., axn.NamedArray], model: Any, *inputs: Any) -> None:
    """Run with parameters laid out one way and the computation another, and compare with one device."""
    run = differentiated(call)
    out, gradients = value_and_gradients(call)(model, *inputs)
    with axn.set_mesh(mesh):
        spread = axn.shard(model, PARAMETERS, strict=False)
        given = axn.shard(inputs, COMPUTE, strict=False)
        result, others = axn.named_jit(run, COMPUTE, out_axis_resources=PARAMETERS, strict=False)(spread, *given)
        laid_out = axn.named_jit(call, COMPUTE, strict=False)(spread, *given)
    assert lies(laid_out, mesh, COMPUTE)
    same(laid_out, out.names, out.array)
    same(result, out.names, out.array)
    same_trees(others, gradients, atol=5e-5)
