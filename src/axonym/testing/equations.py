"""Internal. A walk through the equations of a program, into calls and loops; subclasses define what an operation does.

`find_place` reads the layers from the names of operations. Layers of `axonym.nn` name their operations themselves;
while a program is traced here, so do the methods of all other modules of the user.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, DebugInfo, DropVar, Jaxpr, jaxpr_as_fun

from .. import nn
from ..base.kinds import Tree
from ..costs.shared.places import find_place
from ..costs.traced.equations import count_unstacked
from ..nn.layer import Layer, enter_scope
from .program import Arrays, Program

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


# Libraries whose lines mean nothing to users.
_OURS = str(Path(__file__).parents[1])
_OF_OTHERS = tuple(str(Path(str(module.__file__)).parent) for module in (jax, eqx))


class Site(NamedTuple):
    """Where a program is called.

    Attributes:
        prefix: the prefix of the names of its operations.
        line: the line of the call.
        turns: the iteration of each loop that it is in, the outermost first.
        devices: what a subclass needs to know about the enclosing `shard_map`.
    """

    prefix: str = ""
    line: str = ""
    turns: tuple[int, ...] = ()
    devices: Any = None

    def enter(self, equation: Any, name: str = "") -> "Site":
        """Return the site of the program that an equation runs."""
        own = str(equation.source_info.name_stack)
        prefix = "/".join(filter(None, (self.prefix, own, name)))
        return self._replace(prefix=prefix, line=_find_line(equation, self.line))


class Visitor:
    """A walk through a traced program; subclasses define what a value is, and what an operation does with values.

    Attributes:
        program: the program, as JAX traced it.
    """

    # A loop of more iterations is one operation.
    most_turns: float = float("inf")

    def __init__(self, run: Callable[..., Any], arrays: Arrays, program: Program) -> None:
        with _name_modules((program.f, program.args)):
            # A separate function, since JAX caches the traces of functions.
            self.program = jax.make_jaxpr(lambda arrays: run(arrays))(arrays)
        self._classes = _list_classes((program.f, program.args))

    def apply(
        self,
        run: Callable[..., Sequence[Any]],
        operands: Sequence[Any],
        count: int,
        equation: Any,
        site: Site,
    ) -> Sequence[Any]:
        """Return the values of the results of an operation.

        Args:
            run: computes the arrays of the results from the arrays of the operands.
            operands: values.
            count: the number of results.
            equation: its equation in JAX; for an operation that slices or stacks arrays of a loop, the equation of the
                loop.
            site: where it is.
        """
        raise NotImplementedError

    def keep(self, array: Any) -> Any:
        """Return the value of a constant; by default the array."""
        return array

    def find_layer(self, equation: Any, site: Site) -> tuple[str, ...]:
        """Return the path of the layer of an operation."""
        source = site.enter(equation, equation.primitive.name).prefix
        found = find_place(source, has_gradient=False).layer.split(".")
        # The outermost module, and layers that are made on the spot, are called by their classes.
        return tuple(part for part in found if part and part not in self._classes)

    def inline(self, program: Any, operands: Sequence[Any], site: Site) -> tuple[Any, ...]:
        """Walk through a program, and return the values of its results."""
        inner = getattr(program, "jaxpr", program)
        frame: dict[Any, Any] = dict(zip(inner.invars, operands, strict=True))
        constants = zip(inner.constvars, getattr(program, "consts", ()), strict=False)
        frame |= {variable: self.keep(value) for variable, value in constants}
        steps = self.list_steps(inner)
        last = {atom: i for i, each in enumerate(steps) for atom in list_variables(each.invars)}
        last |= dict.fromkeys(list_variables(inner.outvars), len(steps))

        def read(atom: Any) -> Any:
            return self.keep(atom.val) if hasattr(atom, "val") else frame[atom]

        for i, equation in enumerate(steps):
            given = [read(atom) for atom in equation.invars]
            results = self.visit(equation, given, site)
            frame |= zip(equation.outvars, results, strict=True)
            # Values that are no longer read may be large.
            for atom in list_variables(equation.invars):
                if last[atom] == i:
                    frame.pop(atom, None)
        return tuple(map(read, inner.outvars))

    def list_steps(self, program: Any) -> Sequence[Any]:
        """Return the equations of a program, which are visited one by one."""
        steps: Sequence[Any] = program.eqns
        return steps

    def visit(self, equation: Any, operands: list[Any], site: Site) -> Sequence[Any]:
        """Return the values of the results of an equation."""
        name, params = equation.primitive.name, equation.params
        inner = find_call(equation)
        if name == "scan" and params["length"] <= self.most_turns:
            return self._unroll(equation, operands, site)
        if inner is not None:
            return self.inline(inner, operands, site.enter(equation, name))
        return self.apply(self.make(equation), operands, len(equation.outvars), equation, site)

    def make(self, equation: Any) -> Callable[..., Sequence[Any]]:
        """Return an operation as a function."""
        return make_function(equation)

    def _unroll(self, equation: Any, operands: list[Any], site: Site) -> Sequence[Any]:
        """Walk through the iterations of a loop one after another."""
        body, length = equation.params["jaxpr"], equation.params["length"]
        # The parameters of a scan have other names in other releases of JAX.
        carries = count_unstacked(equation.outvars, body.jaxpr.outvars)
        constants = count_unstacked(equation.invars, body.jaxpr.invars) - carries
        carried = operands[constants : constants + carries]
        slices = operands[constants + carries :]
        order = range(length)[:: -1 if equation.params["reverse"] else 1]
        stacked: dict[int, Sequence[Any]] = {}

        def add(run: Callable[..., Sequence[Any]], given: Sequence[Any]) -> Any:
            return self.apply(run, given, 1, equation, site)[0]

        for i in order:
            own = [add(take_slice, [each, self.keep(np.int32(i))]) for each in slices]
            inside = site.enter(equation)._replace(turns=(*site.turns, i))
            found = self.inline(body, [*operands[:constants], *carried, *own], inside)
            carried, stacked[i] = list(found[:carries]), found[carries:]
        shapes = [variable.aval for variable in equation.outvars[carries:]]
        joined = [
            add(stack_slices, [stacked[i][k] for i in range(length)])
            if length
            else self.keep(jnp.zeros(shape.shape, shape.dtype))
            for k, shape in enumerate(shapes)
        ]
        return [*carried, *joined]


@jax.jit
def take_slice(x: Any, i: Any) -> Sequence[Any]:
    """Return the slice of an array that an iteration of a loop reads."""
    return (jax.lax.dynamic_index_in_dim(x, i, keepdims=False),)


@jax.jit
def stack_slices(*each: Any) -> Sequence[Any]:
    """Return the results of all iterations of a loop."""
    return (jnp.stack(each),)


def find_call(equation: Any) -> Any:
    """Return the program that an equation calls with its operands, or None."""
    params = equation.params
    inner = params.get("jaxpr", params.get("call_jaxpr", params.get("fun_jaxpr")))
    return inner if equation.primitive.name in _CALLS else None


def list_variables(atoms: Iterable[Any]) -> list[Any]:
    """Return the operands or results that are variables, not literals."""
    return [atom for atom in atoms if not hasattr(atom, "val")]


def make_function(equation: Any) -> Callable[..., Sequence[Any]]:
    """Return an operation as a function: a program of one equation, as JAX runs it."""
    variables = list_variables(equation.invars)
    used = [not isinstance(variable, DropVar) for variable in equation.outvars]
    results = [
        variable for variable, is_used in zip(equation.outvars, used, strict=True) if is_used
    ]
    # A variable may be an operand twice, but is only one argument of the program.
    given = list(dict.fromkeys(variables))
    call = jaxpr_as_fun(ClosedJaxpr(make_program([equation], given, results), ()))

    def run(*values: Any) -> Sequence[Any]:
        by_variable = {
            atom: value
            for atom, value in zip(equation.invars, values, strict=True)
            if not hasattr(atom, "val")
        }
        found = iter(call(*(by_variable[variable] for variable in given)))
        return [next(found) if is_used else None for is_used in used]

    return run


def make_program(equations: Sequence[Any], given: Sequence[Any], results: Sequence[Any]) -> Jaxpr:
    """Return a program of some equations.

    Args:
        equations: those of another program.
        given: the variables of the arguments.
        results: those of the results.
    """
    names = ("",) * len(given), ("",) * len(results)
    info = DebugInfo("operation", equations[0].primitive.name, *names)
    effects = {effect for equation in equations for effect in equation.effects}
    return Jaxpr((), list(given), list(results), list(equations), effects, info)


def _find_line(equation: Any, call: str) -> str:
    """Return the innermost line of the user's code, such as `model.py:12`.

    Args:
        equation: the operation.
        call: the line of the enclosing call. JAX caches traces of our functions with the line of their first call, so
            an operation in our code is reported at the line of this call.
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
    """Name the operations of all modules of a tree after their modules, within the block.

    Classes are changed and restored, since a copy of a module would be another class to the user's code.
    """
    changed: list[tuple[type, str, Any]] = []
    for cls in {cls for module in list_modules(tree) for cls in type(module).__mro__}:
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


def list_modules(tree: Any) -> list[eqx.Module]:
    """Return the modules of a tree, including static fields, bound methods, and closures of functions."""
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
    """Return the parts of a module, a container or a function that may hold modules."""
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
    """Return the class names of the modules of a tree, and of all layers of `axonym.nn`."""
    layers = {name for name in dir(nn) if isinstance(getattr(nn, name), type)}
    return layers | {type(module).__name__ for module in list_modules(tree)}
