"""Annotations of named arrays by their axes: `NamedArray["batch ... embed"]`."""

import dataclasses
import typing
from collections.abc import Sequence, Set
from types import EllipsisType
from typing import Annotated, Any, TypeAlias

import jax.numpy as jnp

from axonym.errors import OperandError, message

from ._adapt import KindError

__all__ = ["NamedArrayAxes", "NamedArrayAxesSpec", "NamedArrayMeta", "annotated", "parsed"]

_SHORT = {"bfloat": "bf", "float": "f", "uint": "u", "int": "i"}


@dataclasses.dataclass(frozen=True)
class NamedArrayAxes:
    """A description of the axes of an array and, optionally, its dtype.

    Attributes:
        before: the names, up to `...` if there is one.
        after: the names after `...`.
        ordered: whether the order of the names counts.
        subset: whether there may be further axes, in place of `...`.
        dtype: a dtype or a kind of dtypes, or None for any.
    """

    before: tuple[str, ...]
    after: tuple[str, ...] = ()
    ordered: bool = True
    subset: bool = False
    dtype: Any | None = None

    def __repr__(self) -> str:
        names = [*self.before, *(["..."] if self.subset else []), *self.after]
        axes = " ".join(names) if self.ordered else f"{{{', '.join(names)}}}"
        return f"NamedArray[{' '.join(part for part in (_title(self.dtype), axes) if part)}]"

    def fits(self, names: tuple[str, ...], dtype: Any) -> bool:
        """Return whether an array with these names and this dtype matches."""
        if self.dtype is not None and not _holds(self.dtype, dtype):
            return False
        if not self.ordered:
            wanted = {*self.before, *self.after}
            return wanted <= set(names) and (self.subset or len(wanted) == len(names))
        first, last = len(self.before), len(names) - len(self.after)
        if first > last or (first < last and not self.subset):
            return False
        return names[:first] == self.before and names[last:] == self.after


NamedArrayAxesSpec: TypeAlias = (
    NamedArrayAxes | str | Sequence[str | EllipsisType] | Set[str | EllipsisType]
)


def _title(dtype: Any) -> str:
    if dtype is None:
        return ""
    if hasattr(dtype, "name") and not isinstance(dtype, jnp.dtype):
        return str(dtype.name)
    try:
        name: str = jnp.dtype(dtype).name
    except TypeError:
        return str(getattr(dtype, "__name__", dtype))
    kind = name.rstrip("0123456789")
    return _SHORT.get(kind, kind) + name[len(kind) :]


def _holds(wanted: Any, dtype: Any) -> bool:
    """Return whether a dtype is the required one, or of the required kind."""
    if hasattr(wanted, "holds"):
        return bool(wanted.holds(dtype))
    return dtype is not None and bool(jnp.issubdtype(dtype, getattr(wanted, "category", wanted)))


def parsed(spec: Any, dtype: Any = None) -> NamedArrayAxes:
    """Parse an annotation, or the contents of its brackets.

    Args:
        spec: a string of names and at most one `...`, a sequence of both, an unordered set of both, or an annotation.
        dtype: the dtype of the description.

    Raises:
        OperandError: for another type, or for more than one `...`.
    """
    if isinstance(spec, NamedArrayAxes):
        return spec if dtype is None else dataclasses.replace(spec, dtype=dtype)
    if typing.get_origin(spec) is Annotated:
        found = [each for each in spec.__metadata__ if isinstance(each, NamedArrayAxes)]
        if found:
            return parsed(found[0], dtype)
    if not isinstance(spec, str | Sequence | Set):
        problem = f"axes must be a string, a sequence or a set, not {type(spec).__name__}"
        raise OperandError(
            message("NamedArray[...]", problem, hint='write NamedArray["batch ... embed"]')
        )
    ordered = not isinstance(spec, Set)
    words: Any = spec
    if isinstance(spec, str):
        words = spec.split()
    entries: list[Any] = list(words)
    for at, entry in enumerate(entries):
        if entry == "...":
            entries[at] = ...
    if not ordered:
        entries.sort(key=str)
    names = [entry for entry in entries if isinstance(entry, str)]
    if len(entries) - len(names) > 1 or any(
        not isinstance(entry, str | EllipsisType) for entry in entries
    ):
        raise OperandError(message("NamedArray[...]", "axes must be names, with at most one ..."))
    if ... not in entries:
        return NamedArrayAxes(tuple(names), (), ordered, False, dtype)
    at = entries.index(...) if ordered else len(names)
    return NamedArrayAxes(tuple(names[:at]), tuple(names[at:]), ordered, True, dtype)


def annotated(cls: type, spec: Any, dtype: Any = None) -> Any:
    """Make an annotation: `cls`, with a description of the axes as its metadata."""
    try:
        return Annotated[cls, parsed(spec, dtype)]
    except OperandError as error:
        raise KindError(*error.args) from None


class NamedArrayMeta(type):
    """The type of `NamedArray`, for which `NamedArray["batch embed"]` is an annotation."""

    def __getitem__(cls, item: Any) -> Any:
        return annotated(cls, item)
