"""Transformed functions under a type checker: they have the parameters and the result of the function."""

from collections.abc import Callable
from typing import Any, assert_type

import equinox as eqx
import jax

import axonym as axn
from axonym import NamedArray

Pos = axn.Axis("pos", 4)


class Layer(eqx.Module):
    weight: NamedArray
    step: axn.NamedJit[[NamedArray], jax.Array]

    def __call__(self, x: NamedArray, *, scale: float = 1.0) -> NamedArray:
        return x * self.weight * scale

    @axn.named_jit(axis_resources={"batch": "data"})
    def compiled(self, x: NamedArray, *, scale: float = 1.0) -> NamedArray:
        return self.compiled(x, scale=scale)

    @axn.shard_map(mapping={"batch": "data"})
    def mapped(self, x: NamedArray) -> NamedArray:
        return axn.psum(x, "batch")

    @staticmethod
    @axn.named_jit
    def summed(x: NamedArray) -> jax.Array:
        return x.sum().scalar()

    @classmethod
    @axn.named_jit
    def of(cls, weight: NamedArray) -> "Layer":
        return cls(weight, Layer.summed)


def step(carry: NamedArray, x: NamedArray) -> tuple[NamedArray, jax.Array]:
    return carry + x, x.array


def add(carry: NamedArray, x: NamedArray, *, times: int = 1) -> NamedArray:
    return carry + x * times


def methods(layer: Layer, x: NamedArray) -> None:
    assert_type(layer.compiled(x, scale=2.0), NamedArray)
    assert_type(Layer.compiled(layer, x), NamedArray)
    assert_type(layer.mapped(x), NamedArray)
    assert_type(layer.step(x), jax.Array)
    assert_type(Layer.summed(x), jax.Array)
    assert_type(layer.summed(x), jax.Array)
    assert_type(Layer.of(x), Layer)
    assert_type(layer.of(x), Layer)


def transformed(layer: Layer, x: NamedArray) -> None:
    assert_type(axn.vmap(layer, "batch")(x, scale=2.0), NamedArray)
    assert_type(axn.map(layer, Pos)(x, scale=2.0), NamedArray)
    assert_type(axn.scan(step, Pos)(x, x), tuple[NamedArray, jax.Array])
    assert_type(axn.fold(add, "pos")(x, x, times=3), NamedArray)
    assert_type(axn.associative_scan(axn.add, "pos")(x), NamedArray)
    assert_type(axn.value_and_grad(add)(x, x, times=3), tuple[NamedArray, Any])
    axn.grad(lambda weight: (weight * x).sum())(x)
    scaled: list[Callable[[NamedArray], NamedArray]] = [layer, layer.compiled, axn.map(layer, Pos)]
    assert_type(scaled[0](x), NamedArray)


def refused(layer: Layer, x: NamedArray) -> None:
    layer.compiled(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    layer.mapped(x, x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    axn.scan(add, Pos)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    axn.fold(add, Pos)(x, x, time=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    axn.grad(add)(x, y=x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
