"""Internal. When an error is raised, find the layer of the model and the array of the operation that raised it.

A layer does not know its place in a model, and passing it down would cost something in every call. But while an error
is raised, all callers are still on the stack: the innermost module on it is the layer, and each module around it, such
as the model that called it, adds a part of the path.

Names of operations are found in a quicker way, in `nn/layer.py`, which gives the cost of this way there.
"""

import inspect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_MOST = 20_000  # parts of one model that are looked at


def layer_at_work() -> str | None:
    """Return the path of the innermost layer that is being called, such as `blocks.3.mlp.up`.

    A transformation rebuilds modules around tracers: a module that is not found itself is found by its type, if only
    one part has that type. A module that is only a variable, and not running, must also have the same shapes.

    Returns:
        The path below the outermost module that holds the layer; None if there is no such module.
    """
    path: list[str] = []
    current: object = None
    frame = inspect.currentframe()
    while frame is not None:
        variables = frame.f_locals
        called = variables.get("self")
        # The module whose method runs comes first: it has the layer under the name that users know.
        for holder in filter(_is_module, (called, *variables.values())):
            found = None
            if current is not None and holder is not current:
                found = _find_path(holder, current, is_running=holder is called)
            if found is not None:
                path, current = [*found, *path], holder
            elif holder is called and not path:
                current = holder
        frame = frame.f_back
    return ".".join(path) or None


def is_called_by_optax() -> bool:
    """Return whether Optax calls a module, mistaking it for a function that makes masks or labels of a model."""
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_back
        if caller is not None and caller.f_globals.get("__name__", "").startswith("optax."):
            variables = frame.f_locals
            # As in methods of users, and in the call of a layer. The length of one is another mistake.
            called = _is_module(variables.get("self")) or _is_module(variables.get("layer"))
            return called and frame.f_code.co_name != "__len__"
        frame = caller
    return False


def array_at_work() -> Any:
    """Return the named array that the innermost function of the package works on; None if there is no such function.

    A function that checks an argument often has no array at hand, but its caller has.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("axonym."):
        for variable in frame.f_locals.values():
            for value in variable if isinstance(variable, list | tuple) else (variable,):
                is_named = hasattr(type(value), "names") and hasattr(type(value), "array")
                if is_named and hasattr(value, "names"):  # one that is being made has none yet
                    return value
        frame = frame.f_back
    return None


def find_calling_module() -> str:
    """Return the name of the module that called this package, such as `equinox.nn._linear`."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("axonym."):
        frame = frame.f_back
    return "" if frame is None else frame.f_globals.get("__name__", "")


def call_at_work() -> tuple[Any, list[object]] | None:
    """Return the function of the package that the user called, and its arguments; None if it is no public function."""
    frame, call = inspect.currentframe(), None
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith("axonym.") or module.startswith("axonym.compat."):
            break
        # `base/calls.py` only passes calls on.
        call = call if module == "axonym.base.calls" else frame
        frame = frame.f_back
    if call is None:
        return None
    code = call.f_code
    function = call.f_globals.get(code.co_name)
    if not inspect.isfunction(function):
        return None
    count = code.co_argcount + code.co_kwonlyargcount
    return function, [call.f_locals.get(name) for name in code.co_varnames[:count]]


def _is_module(value: object) -> bool:
    """Return whether a value is a module that a user knows of; Equinox also makes each bound method a module."""
    import equinox as eqx  # names are reasoned about without JAX

    return isinstance(value, eqx.Module) and not type(value).__module__.startswith(
        "equinox._module"
    )


def _find_path(holder: object, part: object, *, is_running: bool) -> list[str] | None:
    """Return the path of a part of a module: the part itself, or else the only one that it may be rebuilt from."""
    # Two parts that could be meant are none: a wrong path would mislead more than no path.
    alike: list[list[str]] = []
    for path, value in _walk(holder):
        if value is part:
            return path
        if type(value) is type(part) and (is_running or _is_rebuilt(part, value)):
            alike.append(path)
    return alike[0] if len(alike) == 1 else None


def _is_rebuilt(part: object, old: object) -> bool:
    """Return whether a transformation may have put tracers in the place of the arrays of `old`."""
    from jax import tree
    from jax.core import Tracer

    new = tree.leaves(part)
    is_traced = any(isinstance(leaf, Tracer) for leaf in new)
    return is_traced and _list_shapes(new) == _list_shapes(tree.leaves(old))


def _list_shapes(leaves: Iterable[object]) -> list[object]:
    return [getattr(leaf, "shape", None) for leaf in leaves]


def _walk(root: object) -> Iterator[tuple[list[str], object]]:
    """Yield the parts of a module with their paths, the nearest first."""
    # Not by `jax.tree`, which lists leaves, but no parts.
    waiting: deque[tuple[list[str], object]] = deque([([], root)])
    for _ in range(_MOST):
        if not waiting:
            return
        path, value = waiting.popleft()
        for name, below in _list_parts(value):
            yield [*path, name], below
            waiting.append(([*path, name], below))


def _list_parts(value: object) -> Iterable[tuple[str, object]]:
    if _is_module(value):
        fields: dict[str, object] = vars(value)
        return fields.items()
    if isinstance(value, Mapping):
        return [(str(key), below) for key, below in value.items()]
    if isinstance(value, list | tuple):
        return [(str(i), below) for i, below in enumerate(value)]
    return ()


def users_line() -> tuple[str, int]:
    """Return the innermost line of the user's code that is running, and how many frames are above it."""
    ours = {"axonym", "jax", "jaxlib", "equinox", "contextlib", "functools"}
    # Libraries through which a call of the user's passes, and through which his functions are called.
    frame, depth = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ours:
        frame, depth = frame.f_back, depth + 1
    if frame is None:
        return "JAX", 1
    return f"{frame.f_code.co_name}, {frame.f_code.co_filename}, line {frame.f_lineno}", depth
