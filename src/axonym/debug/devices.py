"""Internal. Run the body of a `shard_map` operation by operation, on the stacked shards of all devices."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import P
from jax.experimental import multihost_utils

from ..testing.equations import make_function
from .dimensions import Dimensions, Part, Parts, follow, forget


class Split(NamedTuple):
    """The devices of a `shard_map`, and the axes that they divide.

    Attributes:
        mesh: the mesh.
        axes: the mesh axes of the `shard_map`; the first dimension of a stacked array enumerates their devices.
        steps: for each mesh axis, the axis that it divides, and by how many positions the next device advances.
    """

    mesh: Any
    axes: tuple[str, ...]
    steps: Mapping[str, tuple[str, int]]

    @staticmethod
    def of(params: Mapping[str, Any], operands: Sequence[Dimensions]) -> "Split":
        """Return the split that the operands of a `shard_map` define."""
        mesh, manual = params["mesh"], params["newly_manual_axes"]
        steps: dict[str, tuple[str, int]] = {}
        for dimensions, spec in zip(operands, params["in_specs"], strict=True):
            for parts, entry in zip(dimensions, spec, strict=False):
                step = parts[0].size * parts[0].step
                for axis in _list_axes(entry):
                    step //= mesh.shape[axis]
                    if len(parts) == 1 and parts[0].name:
                        steps.setdefault(axis, (parts[0].name, step))
        return Split(mesh, tuple(axis for axis in mesh.axis_names if axis in manual), steps)

    def run(
        self, run: Callable[..., Sequence[Any]], stacked: Sequence[bool]
    ) -> Callable[..., Sequence[Any]]:
        """Turn a function for one device into a function for all devices.

        Args:
            run: the function.
            stacked: for each operand, whether it has a first dimension of devices; otherwise, it is the same on all
                devices.
        """

        def local(*arrays: Any) -> list[Any]:
            own = (x[0] if one else x for x, one in zip(arrays, stacked, strict=True))
            return [None if y is None else jnp.asarray(y)[None] for y in run(*own)]

        specs = tuple(P(self.axes) if one else P() for one in stacked)
        return self._map(local, specs, P(self.axes))

    def stack(self, x: Any, spec: Any) -> Any:
        """Return an array with the shards of all devices stacked along a new first dimension."""
        return self._map(lambda x: x[None], (spec,), P(self.axes))(x)

    def join(self, x: Any, spec: Any) -> Any:
        """Return the array that consists of the shards of all devices."""
        return self._map(lambda x: x[0], (P(self.axes),), spec)(x)

    def cut(self, dimensions: Dimensions, spec: Any, *, is_back: bool = False) -> Dimensions:
        """Return the dimensions of one device's shard; or, in the other direction, those of the complete array."""
        entries = [*spec, *[None] * (len(dimensions) - len(spec))]
        pairs = zip(dimensions, entries, strict=True)
        return tuple(self._cut(parts, _list_axes(entry), is_back=is_back) for parts, entry in pairs)

    def follow(
        self, equation: Any, operands: Sequence[Dimensions], shapes: Sequence[tuple[int, ...]]
    ) -> list[Dimensions]:
        """Return the dimensions of the results of an operation on each device.

        Values that devices send each other, or sum, no longer belong to the positions of one device.
        """
        found = follow(equation, operands, shapes)
        params, name = equation.params, equation.primitive.name
        axes = _list_axes(params.get("axis_name", params.get("axes")))
        if name in {"pcast", "pvary"} or not {*axes} & {*self.axes}:
            return found
        moved = {self.steps[axis][0] for axis in axes if axis in self.steps}
        return [forget(dimensions, moved) for dimensions in found]

    def list_devices(self, dimensions: Dimensions) -> Parts:
        """Return the axes along the first dimension of a stacked array."""
        present = {part.name for parts in dimensions for part in parts}
        found: list[Part] = []
        for axis in self.axes:
            name, step = self.steps.get(axis, ("", 1))
            is_here = name in present and name
            found.append(
                Part(name if is_here else f"mesh axis {axis}", self.mesh.shape[axis], step)
            )
        return tuple(found)

    def _cut(self, parts: Parts, axes: tuple[str, ...], *, is_back: bool) -> Parts:
        count = math.prod(self.mesh.shape[axis] for axis in axes)
        size = math.prod(part.size for part in parts)
        size = size * count if is_back else size // count
        first, *others = parts
        if count == 1:
            return parts
        return (Part("", size),) if others else (first._replace(size=size),)

    def _map(self, function: Callable[..., Any], given: Any, made: Any) -> Callable[..., Any]:
        mapped = jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=given,
            out_specs=made,
            axis_names={*self.axes},
            check_vma=False,
        )
        return jax.jit(mapped)


def make_untyped(equation: Any) -> Callable[..., Sequence[Any]]:
    """Return an operation as a function that also takes arrays without varying types, as in `Split.run`."""
    name, params = equation.primitive.name, equation.params
    if name == "pvary":
        return lambda *arrays: arrays
    if name == "psum_invariant":
        return lambda *arrays: [jax.lax.psum(x, params["axes"]) for x in arrays]
    if name == "all_gather_invariant":
        axis, tiled = params["all_gather_dimension"], params["tiled"]
        return lambda x: [jax.lax.all_gather(x, params["axis_name"], axis=axis, tiled=tiled)]
    return make_function(equation)


def _list_axes(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, tuple | list) else (entry,)


def fetch(x: Any) -> np.ndarray[Any, Any]:
    """Return the values of an array, on every process."""
    if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
        return np.asarray(x)
    return np.asarray(multihost_utils.process_allgather(x, tiled=True))
