"""Internal. A program as a list of operations with their layers, which can be run with other numbers in the middle.

JAX's trace is flattened: calls, checkpoints and loops of known length become the operations in them, so that each has
one place and one value. Branches, loops of unknown length and `shard_map` stay one operation.

`find_place` reads the layers from the names of operations. Layers of `axonym.nn` name their operations by themselves;
while a program is traced here, methods of all other modules of the user do so too.
"""

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Generator, Iterable, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, DebugInfo, DropVar, Jaxpr, jaxpr_as_fun

from .. import nn
from ..base.kinds import Tree
from ..costs.shared.places import find_place
from ..costs.traced.equations import count_unstacked
from ..nn.layer import Layer, enter_scope
from .program import Arrays, Program

# A loop of more turns stays one operation: its trace would be too long.
_MOST_TURNS = 128
_CALLS = {
    "pjit",
    "jit",
    "closed_call",
    "core_call",
    "remat",
    "remat2",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
}


# Whose lines say nothing to users.
_OURS = str(Path(__file__).parents[1])
_OF_OTHERS = tuple(str(Path(str(module.__file__)).parent) for module in (jax, eqx))


class Operation(NamedTuple):
    """One operation of a flat program.

    Attributes:
        run: computes the results from the operands.
        operands: the numbers of values that it reads.
        results: the numbers of values that it makes.
        layer: the path of its layer.
        name: the name of the primitive.
        line: the line of the user's program, such as `model.py:12`; empty if unknown.
        turns: in which turns of loops it runs, the outermost first.
    """

    run: Callable[..., Sequence[Any]]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    layer: tuple[str, ...]
    name: str
    line: str
    turns: tuple[int, ...]

    @property
    def place(self) -> tuple[str, str, str]:
        """The layer, with turns of loops, the operation, and the line."""
        turn = "".join(f" (turn {turn} of its loop)" for turn in self.turns)
        return ".".join(self.layer), f"{self.name}{turn}", self.line


class _Site(NamedTuple):
    """Where a program is called.

    Attributes:
        prefix: the name that its operations begin with.
        line: the line of the call.
        turns: see `Operation`.
    """

    prefix: str
    line: str
    turns: tuple[int, ...]

    def enter(self, equation: Any, name: str = "") -> "_Site":
        """Return the site of the program in an equation."""
        own = str(equation.source_info.name_stack)
        prefix = "/".join(filter(None, (self.prefix, own, name)))
        return _Site(prefix, _find_line(equation, self.line), self.turns)


class Trace:
    """The flat list of the operations of a program.

    Attributes:
        operations: in their order.
        inputs: the numbers of the values of the inputs.
        outputs: those of the results.
    """

    def __init__(self, run: Callable[..., Any], arrays: Arrays, program: Program) -> None:
        with _name_modules((program.f, program.args)):
            # A function of its own, since JAX remembers the traces of functions.
            closed = jax.make_jaxpr(lambda arrays: run(arrays))(arrays)
        self._count = itertools.count()
        self._constants: dict[int, Any] = {}
        self._classes = _list_classes((program.f, program.args))
        self.operations: list[Operation] = []
        self.inputs = tuple(next(self._count) for _ in closed.jaxpr.invars)
        self.outputs = self._inline(closed, self.inputs, _Site("", "", ()))

    def run(self, arrays: Arrays) -> dict[int, Any]:
        """Run all operations, and return all values."""
        values = {**self._constants, **dict(zip(self.inputs, jax.tree.leaves(arrays), strict=True))}
        return self.resume(values, self.operations)

    def resume(
        self, values: dict[int, Any], operations: Iterable[Operation], keep: Set[int] = frozenset()
    ) -> dict[int, Any]:
        """Run some operations on given values; values in `keep` stay as they are."""
        found = dict(values)
        for operation in operations:
            results = operation.run(*(found[i] for i in operation.operands))
            pairs = zip(operation.results, results, strict=True)
            found |= {i: result for i, result in pairs if i not in keep}
        return found

    def _add(
        self,
        run: Callable[..., Sequence[Any]],
        operands: Sequence[int],
        count: int,
        equation: Any,
        site: _Site,
    ) -> tuple[int, ...]:
        results = tuple(next(self._count) for _ in range(count))
        name = equation.primitive.name
        source, line, turns = site.enter(equation, name)
        found = find_place(source, has_gradient=False).layer.split(".")
        # The outermost module, and layers that are made on the spot, are called by their classes.
        layer = tuple(part for part in found if part and part not in self._classes)
        self.operations.append(Operation(run, tuple(operands), results, layer, name, line, turns))
        return results

    def _inline(self, program: Any, operands: Sequence[int], site: _Site) -> tuple[int, ...]:
        """Add the operations of a program, and return the values of its results."""
        inner = getattr(program, "jaxpr", program)
        frame: dict[Any, int] = dict(zip(inner.invars, operands, strict=True))
        constants = zip(inner.constvars, getattr(program, "consts", ()), strict=False)
        frame |= {variable: self._constant(value) for variable, value in constants}

        def read(atom: Any) -> int:
            return self._constant(atom.val) if hasattr(atom, "val") else frame[atom]

        for equation in inner.eqns:
            given = [read(atom) for atom in equation.invars]
            results = self._visit(equation, given, site)
            frame |= zip(equation.outvars, results, strict=True)
        return tuple(map(read, inner.outvars))

    def _constant(self, value: Any) -> int:
        number = next(self._count)
        self._constants[number] = value
        return number

    def _visit(self, equation: Any, operands: list[int], site: _Site) -> Sequence[int]:
        name, params = equation.primitive.name, equation.params
        inner = params.get("jaxpr", params.get("call_jaxpr", params.get("fun_jaxpr")))
        if name == "scan" and params["length"] <= _MOST_TURNS:
            return self._unroll(equation, operands, site)
        if name in _CALLS and inner is not None:
            return self._inline(inner, operands, site.enter(equation, name))
        return self._add(_make_function(equation), operands, len(equation.outvars), equation, site)

    def _unroll(self, equation: Any, operands: list[int], site: _Site) -> Sequence[int]:
        """Add the turns of a loop one after another."""
        body, length = equation.params["jaxpr"], equation.params["length"]
        # The parameters of a scan have other names in other releases of JAX.
        carries = count_unstacked(equation.outvars, body.jaxpr.outvars)
        constants = count_unstacked(equation.invars, body.jaxpr.invars) - carries
        carried = operands[constants : constants + carries]
        slices = operands[constants + carries :]
        order = range(length)[:: -1 if equation.params["reverse"] else 1]
        stacked: dict[int, Sequence[int]] = {}

        def add(
            run: Callable[..., Sequence[Any]], given: Sequence[int], count: int
        ) -> Sequence[int]:
            return self._add(run, given, count, equation, site)

        for i in order:
            own = [add(lambda x, i=i: (x[i],), [each], 1)[0] for each in slices]
            inside = site.enter(equation)._replace(turns=(*site.turns, i))
            found = self._inline(body, [*operands[:constants], *carried, *own], inside)
            carried, stacked[i] = list(found[:carries]), found[carries:]
        shapes = [variable.aval for variable in equation.outvars[carries:]]
        joined = [
            add(lambda *each: (jnp.stack(each),), [stacked[i][k] for i in range(length)], 1)[0]
            if length
            else self._constant(jnp.zeros(shape.shape, shape.dtype))
            for k, shape in enumerate(shapes)
        ]
        return [*carried, *joined]


def _make_function(equation: Any) -> Callable[..., Sequence[Any]]:
    """Return an operation as a function: a program of one equation, as JAX runs it."""
    variables = [atom for atom in equation.invars if not hasattr(atom, "val")]
    used = [not isinstance(variable, DropVar) for variable in equation.outvars]
    results = [
        variable for variable, is_used in zip(equation.outvars, used, strict=True) if is_used
    ]
    # A variable may be an operand twice, and a program has it as one argument.
    given = list(dict.fromkeys(variables))
    names = ("",) * len(given), ("",) * len(results)
    info = DebugInfo("operation", equation.primitive.name, *names)
    program = Jaxpr((), given, results, [equation], equation.effects, info)
    call = jaxpr_as_fun(ClosedJaxpr(program, ()))

    def run(*values: Any) -> Sequence[Any]:
        by_variable = {
            atom: value
            for atom, value in zip(equation.invars, values, strict=True)
            if not hasattr(atom, "val")
        }
        found = iter(call(*(by_variable[variable] for variable in given)))
        return [next(found) if is_used else None for is_used in used]

    return run


def _find_line(equation: Any, call: str) -> str:
    """Return the innermost line of the user, such as `model.py:12`.

    Args:
        equation: the operation.
        call: the line of the call that it is in. JAX remembers the traces of our functions, and with them the line
            where they were called first, so an operation of ours is at its call.
    """
    traceback = equation.source_info.traceback
    files = traceback.frames if traceback is not None else ()
    ours = [frame.file_name.startswith(_OURS) for frame in files]
    theirs = [frame.file_name.startswith((_OURS, *_OF_OTHERS, "<")) for frame in files]
    first = next((i for i, is_theirs in enumerate(theirs) if not is_theirs), None)
    if first is None or (call and any(ours[:first])):
        return call
    return f"{Path(files[first].file_name).name}:{files[first].line_num}"


@contextlib.contextmanager
def _name_modules(tree: Tree) -> Generator[None]:
    """Let the operations of all modules of a tree carry their names, within the block.

    Classes are changed and restored, since a copy of a module would be another class to the user's code.
    """
    changed: list[tuple[type, str, Any]] = []
    for cls in {cls for module in _list_modules(tree) for cls in type(module).__mro__}:
        if (
            not issubclass(cls, eqx.Module)
            or issubclass(cls, Layer)
            or cls.__module__.startswith("equinox")
        ):
            continue
        for name, value in list(vars(cls).items()):
            # As Python reads it: Equinox wraps methods in objects of its own.
            method = getattr(cls, name, None)
            is_public = name == "__call__" or not name.startswith("_")
            is_method = not isinstance(value, staticmethod | classmethod | property)
            if is_public and is_method and inspect.isfunction(method):
                changed.append((cls, name, value))
                setattr(cls, name, enter_scope(method))
    try:
        yield
    finally:
        for cls, name, value in changed:
            setattr(cls, name, value)


def _list_modules(tree: Any) -> list[eqx.Module]:
    """Return the modules of a tree, also those in static fields, of bound methods, and in closures of functions."""
    found: list[eqx.Module] = []
    waiting, seen = [tree], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            waiting += _list_children(node)
            if isinstance(node, eqx.Module):
                found.append(node)
    return found


def _list_children(node: Any) -> Iterable[Any]:
    """Return what may hold modules in a module, a container or a function."""
    if isinstance(node, eqx.Module):
        return vars(node).values()
    if isinstance(node, dict):
        return node.values()
    if isinstance(node, list | tuple):
        return node
    if isinstance(node, functools.partial):
        return node.func, node.args, node.keywords
    if inspect.isfunction(node):
        held = inspect.getclosurevars(node)
        return *held.nonlocals.values(), *held.globals.values()
    return [getattr(node, name, None) for name in ("__self__", "__wrapped__")]


def _list_classes(tree: Any) -> set[str]:
    """Return the names of the classes of modules: those of a tree, and those of layers."""
    layers = {name for name in dir(nn) if isinstance(getattr(nn, name), type)}
    return layers | {type(module).__name__ for module in _list_modules(tree)}
