"""Higher-order functions: `vmap`, and loops over a named axis."""

import functools
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import axonym
from axonym import Axis, AxisSelection, AxisSelector, is_named_array
from axonym.engine import Payload, Tree
from axonym.errors import AxisError

from ._adapt import Function, SizeConflictError, adapted, adopt
from ._checkpoint import ScanCheckpointPolicy, ScanCheckpointSpec, policy_of, tree_checkpoint_name
from .util import is_jax_or_hax_array_like

__all__ = [
    "ScanCheckpointPolicy",
    "ScanCheckpointSpec",
    "fold",
    "map",
    "reduce",
    "scan",
    "tree_checkpoint_name",
    "vmap",
]

BoolAxisSpec: TypeAlias = Any  # a bool, a function of a leaf, or a tree of them


class LoopError(SizeConflictError, TypeError):
    """Looped-over sizes differ, or a step changes the type of its carry, for which JAX raises TypeError."""


def is_named_or_shaped_array_like(leaf: Payload) -> bool:
    """Return whether a leaf is scanned by default: a named array, or a plain one with dimensions."""
    return is_named_array(leaf) or (is_jax_or_hax_array_like(leaf) and len(leaf.shape) > 0)


def scan(
    f: Function,
    axis: AxisSelector,
    *,
    remat: ScanCheckpointSpec = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_scanned: BoolAxisSpec = is_named_or_shaped_array_like,
) -> Function:
    """Loop over an axis with a carry and outputs; a carry returned with another order of axes is rearranged."""
    options: Any = {
        "remat": policy_of(remat),
        "reverse": reverse,
        "unroll": unroll,
        "is_scanned": is_scanned,
    }
    return looped(adapted(axonym.scan)(f, axis, **options), _parameters(f, behind_carry=True))


def fold(
    fn: Function,
    axis: AxisSelector,
    *,
    remat: ScanCheckpointSpec = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_scanned: BoolAxisSpec = is_named_or_shaped_array_like,
) -> Function:
    """Loop over an axis with only a carry; see `scan`."""
    options: Any = {
        "remat": policy_of(remat),
        "reverse": reverse,
        "unroll": unroll,
        "is_scanned": is_scanned,
    }
    return looped(adapted(axonym.fold)(fn, axis, **options), _parameters(fn, behind_carry=True))


reduce = fold  # its first name


def map(
    fn: Function,
    axis: Axis,
    *,
    remat: ScanCheckpointSpec = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_mapped: BoolAxisSpec = is_jax_or_hax_array_like,
) -> Function:
    """Apply a function at each position of an axis in sequence; it may take several arguments."""
    options: Any = {
        "remat": policy_of(remat),
        "reverse": reverse,
        "unroll": unroll,
        "is_mapped": is_mapped,
    }
    return looped(adapted(axonym.map)(fn, axis, **options), _parameters(fn))


def vmap(
    fn: Function,
    axis: AxisSelection,
    *,
    default: BoolAxisSpec = 0,
    args: Sequence[Tree] = (),
    kwargs: Mapping[str, Tree] | None = None,
) -> Function:
    """Map a function over axes; its signature need not be known unless `args` or `kwargs` are given."""
    return looped(
        adapted(axonym.vmap)(fn, axis, default=default, args=args, kwargs=kwargs), _parameters(fn)
    )


def _parameters(fn: Function, *, behind_carry: bool = False) -> list[str]:
    """Return the names of the positional parameters of a function."""
    try:
        given = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # written in C
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in given if parameter.kind in positional]
    if behind_carry:
        return names[1:]
    return names


def _told(text: str, names: Sequence[str]) -> str:
    """Describe plain arrays in an error as Haliax does, by the names of parameters: `y has leading dimension 1`."""

    def line(match: re.Match[str]) -> str:
        name, rest, size = match.groups()
        if name.isdigit() and int(name) < len(names):
            name = names[int(name)]
        return f"{name}{rest} has leading dimension {size}"

    return re.sub(r"argument (\w+)(\S*) has: shape \((\d+),.*, along dimension 0", line, text)


def looped(fn: Function, names: Sequence[str] = ()) -> Function:
    """Convert arguments, results and errors of a mapped function, with these positional parameters, to Haliax's."""
    adapting = adapted(fn)

    @functools.wraps(fn)
    def call(*args: object, **kwargs: object) -> Tree:
        taken = {name: adopt(arg) for name, arg in kwargs.items()}
        try:
            return adapting(*(adopt(arg) for arg in args), **taken)
        except AxisError as error:
            if type(error) not in (AxisError, SizeConflictError):
                raise
            raise LoopError(_told(str(error), names), error.hint) from error.__cause__

    return call
