"""Internal. Experts inside of a map over other mesh axes.

JAX cannot differentiate a `shard_map` inside of another one, nor, under a `vmap` over Explicit mesh axes, what looks
rows up by indices. So the forward pass is a `shard_map` of its own, and the backward pass another one, which computes
the forward pass again.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from ...array import NamedArray, is_named_array
from ...current.features import using
from ...faults import narrow_sums
from ...layout import tracing
from ...layout.assignment import AxisMapping, Entry
from ...layout.context import MAPPING, TAKEN, current_mapping, get_taken_axes
from ...layout.scope import SCOPE, Scope, current_scope
from ...partitioning.shard_map import shard_map
from .device import Activations, Experts, apply_on_device
from .layout import TokenLayout

Inputs = tuple[NamedArray, NamedArray, NamedArray]


@dataclasses.dataclass(frozen=True)
class _Call:
    """The static part of a call.

    Attributes:
        layout: the layout.
        activations: the functions of the hidden axis.
        mapping: the current mapping.
        scope: the surrounding `shard_map`.
        taken: Explicit mesh axes that a surrounding `vmap` maps over.
    """

    layout: TokenLayout
    activations: Activations
    mapping: AxisMapping | None
    scope: Scope | None
    taken: Entry

    def map_devices(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Run a function once per device, under this mapping, since JAX differentiates after its block has ended."""
        with using({MAPPING: self.mapping, SCOPE: self.scope, TAKEN: self.taken}):
            entries = dict(self.layout.entries)
            return shard_map(fn, entries, check=not self.taken, strict=False)(*args)


def apply_in_two_maps(
    layout: TokenLayout,
    activations: Activations,
    inputs: Inputs,
    experts: Experts,
) -> tuple[NamedArray, NamedArray | None]:
    """Do what `apply_on_device` does on all devices."""
    call = _Call(layout, activations, current_mapping(), current_scope(), get_taken_axes())
    result: tuple[NamedArray, NamedArray | None] = _apply_mapped(call, inputs, experts)
    return result


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _apply_mapped(call: _Call, inputs: Inputs, experts: Experts) -> Any:
    return call.map_devices(
        functools.partial(apply_on_device, call.layout, call.activations), inputs, experts
    )


def _forward(call: _Call, inputs: Inputs, experts: Experts) -> Any:
    return _apply_mapped(call, inputs, experts), (inputs, experts)


def _backward(call: _Call, saved: tuple[Inputs, Experts], cotangents: Any) -> Any:
    (x, gates, chosen), experts = saved
    given = x, gates, experts

    def own(leaf: NamedArray) -> set[str]:
        found = set(tracing.varying_over(leaf.array))
        entries = dict(call.layout.entries)
        return found.union(*(entries.get(name, ()) for name in leaf.names))

    leaves = jax.tree.leaves(given, is_leaf=is_named_array)
    mesh_axes = set[str](call.layout.experts).union(call.layout.hidden, *map(own, leaves))
    # A device has its own share of the gradient of what is replicated, and shares add up.
    to_sum = [tuple(sorted(mesh_axes - own(leaf))) for leaf in leaves]

    def local(given: Any, chosen: NamedArray, cotangent: NamedArray) -> Any:
        given, chosen, cotangent = _mark_varying(mesh_axes, (given, chosen, cotangent))

        def result(x: NamedArray, gates: NamedArray, experts: Experts) -> NamedArray:
            inputs = x, gates, chosen
            return apply_on_device(call.layout, call.activations, inputs, experts, adds_up=False)[0]

        _, pull = jax.vjp(result, *given)
        gradients, tree = jax.tree.flatten(pull(cotangent))
        sums: list[jax.Array] = []
        for gradient, axes in zip(gradients, to_sum, strict=True):
            add_up = functools.partial(lax.psum, axis_name=axes)
            sums.append(narrow_sums.reduce_in_float32(add_up, gradient) if axes else gradient)
        return jax.tree.unflatten(tree, sums)

    by_x, by_gates, by_experts = call.map_devices(local, given, chosen, cotangents[0])
    return (by_x, by_gates, None), by_experts


def _mark_varying(mesh_axes: set[str], tree: Any) -> Any:
    """Make types vary over mesh axes, unless JAX does not check them."""
    if not any(tracing.varying_over(array) for array in jax.tree.leaves(tree)):
        return tree
    return jax.tree.map(lambda array: tracing.varying(array, mesh_axes), tree)


_apply_mapped.defvjp(_forward, _backward)
