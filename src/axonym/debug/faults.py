"""The layer, the operation and the coordinates of the first NaN or infinity."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..base.kinds import Tree
from ..errors import ArgumentError, message
from ..testing.equations import (
    Site,
    Visitor,
    stack_slices,
    take_slice,
)
from ..testing.program import Arrays, Place, Program, add_losses, is_float, is_loss
from .devices import Split, fetch, make_untyped
from .dimensions import Dimensions, Part, find_positions, follow, merge, start, take, unknown
from .segments import (
    FINE,
    INFINITE,
    LARGE,
    NAN,
    Segment,
    find_wrong,
    group,
    is_inexact,
    look,
    run_with_looks,
)

__all__ = ["Fault", "locate"]


@dataclasses.dataclass(frozen=True)
class Fault:
    """The first array of a program with a wrong number; prints as text.

    Attributes:
        kind: "NaN", "infinity", or "above 1000" for a bound of 1000.
        at: the positions along each axis that have a wrong number.
        sizes: the number of positions that the array has along each axis; 0 for a part of an axis.
        path: the path of the array if it is an argument or a parameter; otherwise empty.
        layer: the path of the layer; empty outside of layers.
        operation: the operation, such as "log"; empty for an argument.
        line: the line of your program, such as "model.py:12"; empty if unknown.
        turns: the iteration of each loop that it is in, the outermost first. A stack of layers is a loop.
        phase: "forward" or "backward"; in the backward pass, the array is a gradient of something. If all results are
            finite but a gradient is not, the phase of a fault in the forward pass is "derivative": the array is
            computed for the gradient, such as the slope of a root at zero, or harms only the gradient.
        operands: for each operand with floats, its dtype and its range.

    Examples:
        >>> x = axn.named([[1.0, 2.0], [0.0, 3.0]], ("batch", "embed"))
        >>> fault = axn.debug.locate(lambda x: axn.log(x).sum(), x)
        >>> fault.operation, fault.kind, fault.at
        ('log', 'infinity', {'batch': (1,), 'embed': (0,)})
    """

    kind: str
    at: Mapping[str, tuple[int, ...]]
    sizes: Mapping[str, int]
    path: str = ""
    layer: str = ""
    operation: str = ""
    line: str = ""
    turns: tuple[int, ...] = ()
    phase: str = "forward"
    operands: tuple[str, ...] = ()

    def __str__(self) -> str:
        places = ", ".join(_write(name, at, self.sizes[name]) for name, at in self.at.items())
        problem = f"{self.kind} at {places}" if places else self.kind
        if self.path:
            return message("locate", f"{self.path}: {problem}")
        turns = "".join(f" (turn {turn} of its loop)" for turn in self.turns)
        layer = f"layer {self.layer}" if self.layer else "outside of layers"
        parts = layer, f"operation {self.operation}{turns}", self.line
        lines = [f"first appears: {', '.join(filter(None, parts))}"]
        if self.phase == "backward":
            lines.append("in the backward pass: it is a gradient")
        if self.phase == "derivative":
            lines.append("all results are finite: it harms only the gradient")
        if self.operands:
            lines.append(f"operands: {'; '.join(self.operands)}")
        return message("locate", problem, *lines)


def locate(f: Callable[..., Any], *args: Tree, bound: float | None = None) -> Fault | None:
    """Find the first layer and operation whose result is NaN, infinite or above a bound, with coordinates by name.

    The function runs once more, operation by operation, also inside of `jit`, loops, branches, pipelines and
    `shard_map`, and each result is checked. This takes seconds for a small model, and minutes for a large one: call it
    after a step whose loss is not finite, with the same arguments and under the same mesh.

    Without a bound, a number counts only if it makes some result of the function NaN or infinite: an infinity that a
    mask hides does no harm. If all results are finite and some have no axes, such as losses, the gradients of their sum
    with respect to all floating arrays are checked, too, unless the function computes gradients itself.

    Args:
        f: any function of named arrays: a model, a method such as `model.loss`, a step, also compiled.
        args: its arguments. Arguments that are not finite are found first, with their paths.
        bound: also find numbers whose absolute value is above it, even if they harm no result.

    Returns:
        The first fault; None if there is none.

    Raises:
        ArgumentError: if arguments are abstract, such as inside of `jax.jit`.

    Examples:
        >>> Batch, Embed = axn.make_axes(batch=2, embed=3)
        >>> x = axn.ones((Batch, Embed)).at["batch", 1].set(0)
        >>> print(axn.debug.locate(lambda x: (x / x.sum(Embed)).mean(), x))
        locate: NaN at batch=1, all of embed
          first appears: outside of layers, operation div
          operands: float32 from 0 to 1; float32 from 0 to 3
    """
    program = Program("locate", f, args)
    if any(isinstance(x, Tracer | jax.ShapeDtypeStruct) for x in program.arrays):
        problem = "arguments are abstract, so that there are no numbers to look at"
        hint = "call it outside of jax.jit, with arrays"
        raise ArgumentError(message("locate", problem, hint=hint))
    run = _Run(program.run_unwrapped, program, bound)
    fault = run.find_first()
    has_loss = any(is_loss(seen.array) for seen in run.outputs)
    if fault is not None or run.has_gradient or not has_loss:
        return fault
    floats = [i for i, x in enumerate(program.arrays) if is_float(x)]

    def gradients(arrays: Arrays) -> Arrays:
        def loss(own: Arrays) -> Any:
            filled = list(arrays)
            for i, x in zip(floats, own, strict=True):
                filled[i] = x
            return add_losses(program.run_unwrapped(filled))

        found: Arrays = jax.grad(loss)([arrays[i] for i in floats])
        return found

    try:
        fault = _Run(gradients, program, bound).find_first()
    except Exception as error:
        problem = "all results are finite, and this error is of the gradient"
        hint = "for results only: locate(lambda *args: f(*jax.lax.stop_gradient(args)), ...)"
        error.add_note(message("locate", problem, hint=hint))
        raise
    if fault is not None and fault.operation and fault.phase == "forward":
        return dataclasses.replace(fault, phase="derivative")
    return fault


class _Value(NamedTuple):
    """An array of a program, with the result of its check.

    Attributes:
        array: the array; inside of a `shard_map`, with a first dimension of devices if it is stacked.
        dimensions: its dimensions, without the first one of a stacked array.
        number: its number among the arrays with wrong numbers, or None.
        is_meant: whether it has infinities that come from a constant, such as a mask.
        is_stacked: whether each device has a value of its own.
    """

    array: Any
    dimensions: Dimensions
    number: int | None = None
    is_meant: bool = False
    is_stacked: bool = False


class _Run(Visitor):
    """A run of a program, operation by operation, which checks each result.

    Attributes:
        outputs: the results.
        has_gradient: whether the program computes a gradient.
    """

    def __init__(self, run: Callable[..., Any], program: Program, bound: float | None) -> None:
        super().__init__(run, program.arrays, program)
        self._limit = float("inf") if bound is None else bound
        self._numbers = itertools.count()
        # For each array with wrong numbers, the wrong arrays it was computed from; without any, it is a fault.
        self._sources: dict[int, list[int]] = {}
        self._faults: dict[int, Fault] = {}
        self._functions: dict[tuple[int, tuple[bool, ...]], Callable[..., Sequence[Any]]] = {}
        self._steps: dict[int, list[Any]] = {}
        self._is_close = False
        self._constants: dict[int, tuple[Any, _Value]] = {}
        self._sizes = {
            (name, size)
            for place, x in zip(program.places, program.arrays, strict=True)
            for name, size in zip(place.names, x.shape[x.ndim - len(place.names) :], strict=True)
        }
        self.has_gradient = False
        pairs = zip(program.places, program.arrays, strict=True)
        inputs = [self._take_input(place, array) for place, array in pairs]
        self.outputs: tuple[_Value, ...] = self.inline(self.program, inputs, Site())

    def find_first(self) -> Fault | None:
        """Return the first fault that makes a result wrong; with a bound, the first of all faults."""
        waiting = [value.number for value in self.outputs if value.number is not None]
        reached: set[int] = set(self._faults if self._limit < float("inf") else ())
        while waiting:
            number = waiting.pop()
            if number not in reached:
                reached.add(number)
                waiting += self._sources[number]
        first = min(reached & self._faults.keys(), default=None)
        return None if first is None else self._faults[first]

    def keep(self, array: Any) -> _Value:
        """Check a constant, whose infinities are intended."""
        if id(array) not in self._constants:
            value = _Value(array, unknown(np.shape(array)))
            seen = self._look(array)
            value = value._replace(is_meant=seen == INFINITE)
            if seen == NAN:
                value = self._add_fault(value, seen, None, path="a constant of the function")
            # With the array itself, so that no other one takes its place in memory.
            self._constants[id(array)] = array, value
        return self._constants[id(array)][1]

    def make(self, equation: Any) -> Callable[..., Sequence[Any]]:
        """Return an operation as a function, also on devices."""
        return make_untyped(equation)

    def apply(
        self,
        run: Callable[..., Sequence[Any]],
        operands: Sequence[_Value],
        count: int,
        equation: Any,
        site: Site,
    ) -> list[_Value]:
        """Run an operation, and check its results."""
        split: Split | None = site.devices
        stacked = tuple(value.is_stacked for value in operands)
        is_loop = run in (take_slice, stack_slices)
        key = id(run if is_loop else equation), stacked
        if key not in self._functions:
            self._functions[key] = run if split is None else split.run(run, stacked)
        results = self._functions[key](*(value.array for value in operands))
        is_stacked = split is not None
        shapes = [() if x is None else tuple(jnp.shape(x)[is_stacked:]) for x in results]
        known = [value.dimensions for value in operands]
        if run is take_slice:
            found = [take(known[0], 0, int(operands[1].array))]
        elif run is stack_slices:
            found = [((Part("", len(operands)),), *merge(known, shapes[0][1:]))]
        else:
            found = (split.follow if split else follow)(equation, known, shapes)
        return [
            self._judge(_Value(x, own, is_stacked=is_stacked), operands, equation, site)
            for x, own in zip(results, found, strict=True)
        ]

    def list_steps(self, program: Any) -> Sequence[Any]:
        """Return the equations of a program; consecutive operations are one step, except in a close search."""
        if self._is_close:
            return super().list_steps(program)
        if id(program) not in self._steps:
            self._steps[id(program)] = list(group(program))
        return self._steps[id(program)]

    def visit(self, equation: Any, operands: list[_Value], site: Site) -> Sequence[_Value]:
        """Follow branches, loops and devices, too, since the values that they depend on are known."""
        if isinstance(equation, Segment):
            return self._run_segment(equation, operands, site)
        name, params = equation.primitive.name, equation.params
        self.has_gradient |= "transpose(" in site.enter(equation).prefix
        if name == "cond" and not operands[0].is_stacked:
            branch = params["branches"][int(operands[0].array)]
            return self.inline(branch, operands[1:], site.enter(equation, name))
        if name == "while" and site.devices is None:
            return self._repeat(params, operands, site.enter(equation, name))
        if name == "shard_map" and site.devices is None:
            return self._enter_devices(params, operands, site.enter(equation, name))
        return super().visit(equation, operands, site)

    def _run_segment(
        self, segment: "Segment", operands: list[_Value], site: Site
    ) -> Sequence[_Value]:
        """Run consecutive operations as one program; if it makes wrong numbers from right ones, run them one by one."""
        split: Split | None = site.devices
        stacked = tuple(value.is_stacked for value in operands)
        key = id(segment), stacked
        if key not in self._functions:
            run = functools.partial(run_with_looks, segment, self._limit)
            self._functions[key] = jax.jit(run) if split is None else split.run(run, stacked)
        *results, looks = self._functions[key](*(value.array for value in operands))
        worst, *own = np.max(np.atleast_2d(fetch(looks)), axis=0)
        sources = [value.number for value in operands if value.number is not None]
        if worst != FINE and not sources:
            self._is_close = True
            found = self.inline(segment.program, operands, site)
            self._is_close = False
            return found
        known = tuple(value.dimensions for value in operands)
        dimensions = segment.follow(known, split)
        values = [
            _Value(x, each, is_stacked=split is not None)
            for x, each in zip(results, dimensions, strict=True)
        ]
        return [
            value if look == FINE else self._number(value, sources)
            for value, look in zip(values, own, strict=True)
        ]

    def _repeat(
        self, params: Mapping[str, Any], operands: list[_Value], site: Site
    ) -> Sequence[_Value]:
        first, second = params["cond_nconsts"], params["body_nconsts"]
        asked, given = operands[:first], operands[first : first + second]
        carried: Sequence[_Value] = operands[first + second :]
        for turn in itertools.count():
            inside = site._replace(turns=(*site.turns, turn))
            (goes_on,) = self.inline(params["cond_jaxpr"], [*asked, *carried], inside)
            if not bool(goes_on.array):
                break
            carried = self.inline(params["body_jaxpr"], [*given, *carried], inside)
        return carried

    def _enter_devices(
        self, params: Mapping[str, Any], operands: list[_Value], site: Site
    ) -> Sequence[_Value]:
        split = Split.of(params, [value.dimensions for value in operands])
        inside = [
            value._replace(
                array=split.stack(value.array, spec),
                dimensions=split.cut(value.dimensions, spec),
                is_stacked=True,
            )
            for value, spec in zip(operands, params["in_specs"], strict=True)
        ]
        results = self.inline(params["jaxpr"], inside, site._replace(devices=split))
        return [
            value._replace(
                array=split.join(value.array, spec),
                dimensions=split.cut(value.dimensions, spec, is_back=True),
                is_stacked=False,
            )
            if value.is_stacked
            else value
            for value, spec in zip(results, params["out_specs"], strict=True)
        ]

    def _look(self, x: Any) -> int:
        if x is None or not is_inexact(x):
            return FINE
        return int(fetch(look(x, self._limit)))

    def _take_input(self, place: Place, array: Any) -> _Value:
        value = _Value(array, start(place.names, tuple(array.shape)))
        seen = self._look(array)
        if seen == FINE:
            return value
        kind = "parameter" if place.is_held else "argument"
        return self._add_fault(value, seen, None, path=f"{kind} {place.path}")

    def _judge(
        self, value: _Value, operands: Sequence[_Value], equation: Any, site: Site
    ) -> _Value:
        seen = self._look(value.array)
        if seen == FINE:
            return value
        if seen == INFINITE and any(one.is_meant for one in operands):
            return value._replace(is_meant=True)
        sources = [one.number for one in operands if one.number is not None]
        if sources:
            return self._number(value, sources)
        inside = site.enter(equation)
        return self._add_fault(
            value,
            seen,
            site.devices,
            layer=".".join(self.find_layer(equation, site)),
            operation=equation.primitive.name,
            line=inside.line,
            turns=site.turns,
            phase="backward" if "transpose(" in inside.prefix else "forward",
            operands=tuple(filter(None, (_write_range(one.array) for one in operands))),
        )

    def _number(self, value: _Value, sources: list[int]) -> _Value:
        return value._replace(number=self._enter(sources))

    def _enter(self, sources: list[int]) -> int:
        number = next(self._numbers)
        self._sources[number] = sources
        return number

    def _add_fault(self, value: _Value, seen: int, split: Split | None, **where: Any) -> _Value:
        dimensions = value.dimensions
        if split is not None:
            dimensions = (split.list_devices(dimensions), *dimensions)
        found = find_positions(dimensions, find_wrong(value.array, seen, self._limit), fetch)
        at = {
            name: positions
            for name, (positions, count) in found.items()
            # A problem on all devices is not specific to some of them.
            if not (name.startswith("mesh axis ") and len(positions) == count)
        }
        # All positions of a part of an axis, such as a window, are not the complete axis.
        known = {name for name, _ in self._sizes}
        sizes = {
            name: count if name not in known or (name, count) in self._sizes else 0
            for name, (_, count) in found.items()
            if name in at
        }
        kind = {LARGE: f"above {self._limit:g}", INFINITE: "infinity", NAN: "NaN"}[seen]
        number = self._enter([])
        self._faults[number] = Fault(kind, at, sizes, **where)
        return value._replace(number=number)


@jax.jit
def _find_range(x: Any) -> Any:
    """Return the least and the largest number of an array, from one program."""
    sizes = jnp.abs(x) if jnp.iscomplexobj(x) else x
    return jnp.stack([jnp.min(sizes), jnp.max(sizes)])


def _write_range(x: Any) -> str | None:
    """Write the dtype of an operand and the range of its numbers."""
    if not is_inexact(x) or not jnp.size(x):
        return None
    low, high = map(float, fetch(_find_range(x)))
    span = f"{low:.3g}" if low == high else f"from {low:.3g} to {high:.3g}"
    return f"{jnp.result_type(x)} {span}"


def _write(name: str, positions: Sequence[int], size: int) -> str:
    """Write positions of an axis: `pos=7 to 15`, `batch=3, 5`, `all of embed`."""
    if len(positions) == size:
        return f"all of {name}"
    if len(positions) > 2 and positions[-1] - positions[0] == len(positions) - 1:
        return f"{name}={positions[0]} to {positions[-1]}"
    more = ", ..." if len(positions) > 4 else ""
    return f"{name}={', '.join(map(str, positions[:4]))}{more}"
