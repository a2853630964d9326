"""Internal. Arrays that a function closes over; `shard_map` passes them as arguments.

On a mesh with Auto axes, a function inside of `jax.shard_map` may close over arrays, and each device has all of them.
On Explicit axes, JAX refuses them (https://github.com/jax-ml/jax/issues/29162). So this module finds them in the
variables of the function, and passes them to a copy of it as arguments.
"""

import dis
import functools
import inspect
from collections.abc import Mapping
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax

from ..layout import explicit


def find_typed_variables(fn: object) -> dict[str, Any]:
    """Return the outer variables of a function that hold arrays whose types have Explicit mesh axes."""
    if not isinstance(fn, FunctionType):
        return {}
    # Only variables in its own code: a copy of the function cannot replace variables of functions that it calls.
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    enclosed = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    used = (name for name in fn.__code__.co_names if name in fn.__globals__)
    variables = {**{name: fn.__globals__[name] for name in used}, **enclosed}
    return {name: value for name, value in variables.items() if arrays_in(value)}


def find_all_typed_variables(fn: object) -> dict[str, Any]:
    """Return all values that a function can reach and that hold arrays with Explicit mesh axes, for an error.

    They may be in its own variables, in those of functions and objects that it uses, in default values, in a
    `functools.partial`, or in the object of a bound method.
    """
    found: dict[str, Any] = {}
    seen = set[int]()
    left: list[tuple[str, Any]] = [("self", fn)]
    while left:
        name, value = left.pop()
        # Objects may refer to each other in circles, and modules would lead to the whole program.
        if id(value) in seen or isinstance(value, ModuleType | type):
            continue
        seen.add(id(value))
        if arrays_in(value):
            found[name] = value
        elif isinstance(value, FunctionType):
            left += _list_references(value)
        elif isinstance(value, MethodType):
            left += [(name, value.__func__), ("self", value.__self__)]
        elif isinstance(value, functools.partial):
            arguments = enumerate(value.args)
            left += [(name, value.func), *((f"args[{i}]", each) for i, each in arguments)]
            left += value.keywords.items()
        else:
            attributes = getattr(value, "__dict__", {})
            left += [(f"{name}.{attribute}", each) for attribute, each in attributes.items()]
    return dict(sorted(found.items()))


def _list_references(fn: FunctionType) -> list[tuple[str, Any]]:
    """List the outer variables and default values of a function, and the outer variables of functions inside it."""
    codes, names = [fn.__code__], set[str]()
    for code in codes:  # it grows
        steps = dis.get_instructions(code)
        names.update(step.argval for step in steps if step.opname == "LOAD_GLOBAL")
        # Functions inside are constants of the code, and close over the same variables.
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    found: list[tuple[str, Any]] = []
    for name in names & fn.__globals__.keys():
        value = fn.__globals__[name]
        # Functions of other files are mostly those of libraries.
        if getattr(value, "__module__", fn.__module__) == fn.__module__ or arrays_in(value):
            found.append((name, value))
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    found += [(name, cell.cell_contents) for name, cell in cells if _is_filled(cell)]
    found += [(each.name, each.default) for each in inspect.signature(fn).parameters.values()]
    return found


def arrays_in(value: object) -> list[jax.Array]:
    """List the arrays in a tree whose types have Explicit mesh axes."""
    try:
        leaves = jax.tree.leaves(value)
    except ValueError:  # a dict whose keys have no order, which is no tree for JAX
        return []
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    return [array for array in arrays if explicit.has_explicit_axes(array)]


def with_variables(fn: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of a function in which some of its outer variables have other values."""
    if not values:
        return fn
    code: CodeType = fn.__code__
    cells: dict[str, CellType] = dict(zip(code.co_freevars, fn.__closure__ or (), strict=True))
    for name in values.keys() & cells.keys():
        cells[name] = CellType(values[name])
    # Assignments to global variables must not be lost in a copy.
    writes = any(step.opname == "STORE_GLOBAL" for step in dis.get_instructions(code))
    outer = fn.__globals__ if writes else {**fn.__globals__, **values}
    copy = FunctionType(code, outer, fn.__name__, fn.__defaults__, tuple(cells.values()))
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a variable that is not assigned yet
        return False
