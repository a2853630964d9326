"""Internal. Match arguments with the parameters of a function, for donation and for names in programs and errors.

`named_jit`, `fsdp`, `shard_map` and the reports call this. It looks at signatures and trees; it compiles nothing.
"""

import bisect
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer

from ..array import NamedArray, is_named_array
from ..errors import ArgumentError, OperandError, message, suggestion
from ..layout import constraints
from ..layout.assignment import MeshLike

_DECIDED = (
    dict.fromkeys(
        ("static_argnums", "static_argnames"),
        "arguments that are not arrays are static automatically",
    )
    | dict.fromkeys(("donate_argnums", "donate_argnames"), "use donate_args and donate_kwargs")
    | {"in_shardings": "use in_axis_resources", "out_shardings": "use out_axis_resources"}
)
_OWN = (
    "in_axis_resources",
    "out_axis_resources",
    "donate_args",
    "donate_kwargs",
    "strict",
    "rings",
)


def check_options(
    function: str, options: Mapping[str, object], further: Sequence[str] = ()
) -> None:
    """Check the options of a function that compiles: its own, and those of `jax.jit`.

    Args:
        function: what the user called.
        options: what was given.
        further: options of this function that `named_jit` does not have.

    Raises:
        OperandError: for an option of `jax.jit` that is set automatically, and for an unknown option.
    """
    if not options:
        return
    # JAX itself says what it takes, since its releases differ.
    parameters = inspect.signature(jax.jit).parameters.values()
    passed = [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
    known = [name for name in (*further, *_OWN, *passed) if name not in _DECIDED]
    for option in options:
        if option in _DECIDED:
            problem = f"{option} of jax.jit is set automatically"
            raise OperandError(message(function, problem, hint=_DECIDED[option]))
        if option not in known:
            problem, facts = f"there is no option {option!r}", f"options: {', '.join(known)}"
            raise OperandError(message(function, problem, facts, hint=suggestion(option, known)))


def check_bools(**donated: object) -> None:
    """Raise if a flag is no bool: `jax.jit` has numbers or names of arguments there."""
    for option, given in donated.items():
        for leaf in jax.tree.leaves(given):
            if not isinstance(leaf, bool):
                problem = f"{option} must have a bool for each argument, not {leaf!r}"
                by_name = option == "donate_kwargs"
                hint = 'write {"state": True}' if by_name else "write (True,) for the first one"
                raise OperandError(message("named_jit", problem, hint=hint))


def check_keywords(fn: Callable[..., Any], donate_kwargs: object) -> None:
    """Raise for names that no call can pass by keyword; names that a call leaves out are no error."""
    if not isinstance(donate_kwargs, Mapping):
        return
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # written in C
        return
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = [parameter.name for parameter in parameters if parameter.kind in by_name]
    unknown = [key for key in donate_kwargs if key not in known]
    kinds = {parameter.kind for parameter in parameters}
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        problem = f"donate_kwargs has {unknown[0]!r}, which is not a keyword of the function"
        facts, hint = f"keywords: {', '.join(known) or 'none'}", suggestion(unknown[0], known)
        raise ArgumentError(message("named_jit", problem, facts, hint=hint))


def is_traced(kind: type) -> bool:
    """Return whether values of a type are traced, not static."""
    return issubclass(
        kind, jax.Array | Tracer | np.ndarray | np.generic | jax.ShapeDtypeStruct | jax.Ref
    )


def is_deleted(leaf: object) -> bool:
    """Return whether the memory of an array has been freed or given away."""
    if isinstance(leaf, Tracer):
        return False
    ask = getattr(leaf, "is_deleted", None)
    # Some arrays, such as those of NumPy, cannot be deleted.
    return ask is not None and bool(ask())


def _list_positional(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    """List the parameters that are filled by position."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # written in C
        return []
    by_keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    return [parameter for parameter in parameters if parameter.kind not in by_keyword]


def labels(
    fn: Callable[..., Any], args: Any, kwargs: Any, is_leaf: Any = None
) -> list[tuple[str, Any]]:
    """Name the leaves of arguments after the parameters, such as `model.layers[0].weight.array`."""
    given = [*zip(_name_positional(fn, len(args)), args, strict=True), *sorted(kwargs.items())]
    return [
        (name + jax.tree_util.keystr(path), leaf)
        for name, part in given
        for path, leaf in jax.tree.leaves_with_path(part, is_leaf=is_leaf)
    ]


def _name_positional(fn: Callable[..., Any], count: int) -> list[str]:
    """Name the arguments that are given by position; those in `*args` get numbers."""
    names: list[str] = []
    for parameter in _list_positional(fn):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(count - len(names))]
        else:
            names.append(parameter.name)
    names += [f"args[{i}]" for i in range(len(names), count)]
    return names[:count]


def by_parameter(fn: Callable[..., Any], path: str) -> str:
    """Replace the position at the start of a path by the name of the parameter."""
    # A tuple of arguments has no names of its own: its paths begin with a position.
    first, dot, rest = path.partition(".")
    place, known = int(first), f"args[{first}]"
    named = _list_positional(fn)
    if named and named[-1].kind is inspect.Parameter.VAR_POSITIONAL:
        named.pop()
    if place < len(named):
        known = named[place].name
    return f"{known}{dot}{rest}"


def check_mesh(
    function: str, fn: Callable[..., Any], mesh: MeshLike | None, args: object, kwargs: object
) -> None:
    """Check, while a function is traced, that its arguments are on a mesh.

    Raises:
        ShardingError: if one is on another mesh.
    """
    if mesh is None:
        return
    for path, leaf in labels(fn, args, kwargs, is_named_array):
        array, names = (leaf.array, leaf.names) if isinstance(leaf, NamedArray) else (leaf, ())
        if isinstance(array, Tracer) and constraints.is_elsewhere(array, mesh):
            raise constraints.elsewhere(function, f"argument {path}", array, names, mesh)


def find_definition(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of the user's file: a module is defined where its `__call__` is."""
    if isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if not hasattr(fn, "__code__"):
        fn = inspect.unwrap(type(fn).__call__)
    return fn


def as_module(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the module whose `__call__` a function is, and other functions as they are.

    Equinox makes bound methods of a module trees, except for `__call__`, whose arrays would stay hidden.
    """
    owner: Any = getattr(fn, "__self__", None)
    kind: Any = type(owner)
    is_call = issubclass(kind, eqx.Module) and getattr(fn, "__func__", None) is kind.__call__
    return owner if is_call else fn


def list_closure(fn: Callable[..., Any]) -> list[Any]:
    """Return the values of the variables that a function closes over."""
    cells = getattr(inspect.unwrap(fn), "__closure__", None) or ()
    values = []
    for cell in cells:
        with suppress(ValueError):  # a variable that has no value yet
            values.append(cell.cell_contents)
    return values


def join_first(texts: Sequence[str], most: int) -> str:
    """Join the first texts, and add dots if there are more."""
    return ", ".join([*texts[:most], *(["..."] if len(texts) > most else [])])


def donation_error(
    function: str, fn: Callable[..., Any], args: object, kwargs: object
) -> ArgumentError:
    """Build the error for arguments whose memory is gone; some releases of JAX crash there instead of raising."""
    gone = [name for name, leaf in labels(fn, args, kwargs, is_named_array) if is_deleted(leaf)]
    first, *others = gone or ["fn"]
    problem = f"argument {first} was donated to an earlier call, which reused its memory"
    rest = [f"so were: {join_first(others, 3)}"] if others else []
    hint = "go on with what that call returned, or keep its arguments: donate_args=False"
    return ArgumentError(message(function, problem, *rest, hint=hint))


def check_given_once(
    function: str,
    fn: Callable[..., Any],
    args: object,
    kwargs: object,
    is_donated: Sequence[bool],
) -> None:
    """Check that no array on several devices of a CPU is given twice and donated: there, jax 0.10 ends the process.

    On other devices, JAX raises an error if the memory is really given away, which only the compiled program tells.

    Raises:
        ArgumentError: if one is.
    """
    # Arrays are compared by identity, since equal ones have memory of their own.
    seen: dict[int, tuple[str, bool]] = {}
    for (name, leaf), gift in zip(labels(fn, args, kwargs), is_donated, strict=True):
        before, given = seen.setdefault(id(leaf), (name, gift))
        if before != name and (given or gift) and _is_on_several_cpus(leaf):
            pair = " and ".join(each.removesuffix(".array") for each in (before, name))
            problem = f"arguments {pair} are one array, whose memory is donated"
            hint = "give a copy for one of them: jax.tree.map(jnp.copy, x)"
            raise ArgumentError(message(function, problem, hint=hint))


def _is_on_several_cpus(leaf: object) -> bool:
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
        return False
    devices: list[Any] = list(leaf.sharding.device_set)
    return len(devices) > 1 and devices[0].platform == "cpu"


# A state is a tuple or a dict of a few trees; to check each of many weights would slow down each call.
_FEW = 8


def first_arrays(trees: Iterable[Any], dynamic: Sequence[int]) -> list[int]:
    """Return the first array of each tree; for a tuple, list or dict with few entries, of each entry.

    Args:
        trees: structures; the count of leaves goes on from each structure to the next.
        dynamic: which leaves are arrays.
    """
    firsts: list[int] = []
    start = 0
    for tree in trees:
        parts, entries = [tree], tree.children()
        data = tree.node_data()
        if data is not None and data[0] in (tuple, list, dict) and len(entries) <= _FEW:
            parts = entries
        for part in parts:
            stop = start + part.num_leaves
            at = bisect.bisect_left(dynamic, start)
            firsts += [place for place in dynamic[at : at + 1] if place < stop]
            start = stop
    return firsts


def describe_arguments(fn: Callable[..., Any], args: object, kwargs: object) -> dict[str, str]:
    """Describe what other calls must pass for each leaf of the arguments."""

    def one(leaf: object) -> str:
        if not isinstance(leaf, NamedArray):
            return "an array" if is_traced(type(leaf)) else repr(leaf)
        axes = f"with the axes {', '.join(leaf.names)}" if leaf.names else "without axes"
        return f"an array {axes}"

    return {name: one(leaf) for name, leaf in labels(fn, args, kwargs, is_named_array)}


def identifiers(paths: Iterable[str]) -> list[str]:
    """Turn the paths of leaves into distinct identifiers, such as `model_layers_0_weight`."""
    names: dict[str, None] = {}
    for path in paths:
        name = base = "_".join(re.findall(r"\w+", path.removesuffix(".array")))
        # `x.a_b` and `x.a.b` become the same identifier
        counter = itertools.count(1)
        while name in names:
            name = f"{base}_{next(counter)}"
        names[name] = None
    return list(names)


def signature_of(names: Iterable[str]) -> inspect.Signature:
    """Return a signature with these parameters, so that JAX uses their names in programs and errors."""
    kind = inspect.Parameter.POSITIONAL_ONLY  # any name, keywords of Python among them
    return inspect.Signature([inspect.Parameter(name, kind) for name in names])


def donations(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    donate_args: Any,
    donate_kwargs: Any,
) -> list[bool]:
    """Return for each leaf of the arguments whether it is donated.

    A parameter that is donated by position is also donated when a call passes it by name, and vice versa.
    """
    if donate_args is None and donate_kwargs is None:
        return [False] * len(jax.tree.leaves((args, kwargs)))

    listed: tuple[Any, ...] = ()
    if donate_args is not None and not isinstance(donate_args, bool):
        listed = tuple(donate_args)
    keyed: dict[str | None, Any] = {}
    if donate_kwargs is not None and not isinstance(donate_kwargs, bool):
        keyed = dict(donate_kwargs)
    names = _names_by_place(fn)
    # Both settings are joined by name, since a call may pass a parameter either way.
    by_name = {**dict(zip(names, listed, strict=False)), **keyed}

    leaves: list[bool] = []
    places = _name_positional(fn, len(args))
    for place, argument in enumerate(args):
        gift: Any = False
        if isinstance(donate_args, bool):
            gift = donate_args
        # A bool holds for all; otherwise the position decides, and then the name.
        elif place < len(listed):
            gift = listed[place]
        elif place < len(names):
            gift = keyed.get(names[place], False)
        leaves += _repeat_flags(gift, argument, "donate_args", places[place])
    for name, argument in sorted(kwargs.items()):
        is_one = isinstance(donate_kwargs, bool)
        gift = donate_kwargs if is_one else by_name.get(name, False)
        leaves += _repeat_flags(gift, argument, "donate_kwargs", name)
    return leaves


def _names_by_place(fn: Callable[..., Any]) -> list[str | None]:
    """List the parameters that are filled by position; None for those that cannot be passed by name."""
    both = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [each.name if each.kind is both else None for each in _list_positional(fn)]


def _repeat_flags(prefix: object, tree: object, option: str, name: str) -> list[bool]:
    """Repeat the bools of a tree prefix for all leaves of the tree."""
    try:
        spread = jax.tree.map(
            lambda flag, below: [bool(flag)] * len(jax.tree.leaves(below)), prefix, tree
        )
    except ValueError as flaw:
        problem = f"{option} does not match the structure of argument {name}"
        hint = "give a bool for each part of it, in the same tuples and dicts, or one for all"
        raise OperandError(message("named_jit", problem, hint=hint)) from flaw
    return jax.tree.leaves(spread)
