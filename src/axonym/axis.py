"""`Axis`, the forms in which axes are given, and set operations on axes.

Three kinds of arguments appear everywhere:

* a *selector* names one axis: an `Axis`, whose size is checked, or its name;
* a *selection* names several: one selector, a sequence of selectors, or a mapping from names to sizes or None;
* a *spec* declares axes with their sizes: an `Axis`, a sequence of them, or a mapping from names to sizes.

Set operations return a dict for a mapping, and a tuple for all other forms.
"""

import dataclasses
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar, overload

from jax.export import is_symbolic_dim

from .base.calls import explain_call, refuse_arithmetic
from .base.phrases import missing_axis, refuse_entry
from .errors import AxisClashError, AxisNotFoundError, AxisSizeError, OperandError, message

__all__ = [
    "Axis",
    "AxisSelection",
    "AxisSelector",
    "AxisSpec",
    "axis_name",
    "axis_size",
    "concat_axes",
    "eliminate_axes",
    "intersect_axes",
    "make_axes",
    "replace_axis",
    "resolve_axis",
    "selector",
    "selects_axis",
    "union_axes",
    "unsize_axes",
    "without_axes",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """Declare a named axis and its size.

    By convention, variables that hold an `Axis` are capitalised.

    Attributes:
        name: the name, any text that is not empty. A dot separates a base from a role, see `derive`.
        size: the number of positions, or a symbolic dimension of `jax.export`.

    Raises:
        OperandError: if `name` is empty or no string, or `size` neither an integer nor a dimension of `jax.export`.
        AxisSizeError: if `size` is negative.

    Examples:
        >>> Batch = axn.Axis("batch", 32)
        >>> Batch.resize(8)
        Axis(name='batch', size=8)
    """

    name: str
    size: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            problem = f"the name must be a non-empty str, not {self.name!r}"
            raise OperandError(message("Axis", problem))
        try:
            # True is an int to Python, and as a size always a mistake.
            size = None if isinstance(self.size, bool) else operator.index(self.size)
        except TypeError:
            if is_symbolic_dim(self.size):  # it has no number, and stays as it is
                return
            size = None
        if size is None:
            problem = f"the size of {self.name!r} must be an int, not {self.size!r}"
            raise OperandError(message("Axis", problem))
        if size < 0:
            problem = f"the size of {self.name!r} must not be negative, got {size}"
            raise AxisSizeError(message("Axis", problem))
        object.__setattr__(self, "size", size)

    def __str__(self) -> str:
        return f"{self.name}({self.size})"

    def alias(self, new_name: str) -> "Axis":
        """Return an axis of the same size under another name.

        Args:
            new_name: the name.

        Examples:
            >>> axn.Axis("position", 16).alias("key")
            Axis(name='key', size=16)
        """
        return Axis(new_name, self.size)

    def derive(self, role: str) -> "Axis":
        """Return an axis of the same size for another role, such as `embed.out` for `embed`.

        If a mapping has no entry for the derived name, the axis is sharded like its base, over the mesh axes that no
        other axis of the same array uses.

        Args:
            role: what the axis is for, such as "out" or "key".

        Examples:
            >>> axn.Axis("position", 16).derive("key")
            Axis(name='position.key', size=16)

        Raises:
            OperandError: if the role is empty or no string.
        """
        if not isinstance(role, str) or not role:
            problem = f"the role of {self.name!r} must be a non-empty str, not {role!r}"
            raise OperandError(message("Axis.derive", problem))
        return Axis(f"{self.name}.{role}", self.size)

    def resize(self, size: int) -> "Axis":
        """Return an axis of the same name with another size.

        Args:
            size: the number of positions.

        Examples:
            >>> axn.Axis("batch", 32).resize(8)
            Axis(name='batch', size=8)
        """
        return Axis(self.name, size)


refuse_arithmetic(Axis)


AxisSelector: TypeAlias = Axis | str
AxisSelection: TypeAlias = AxisSelector | Sequence[AxisSelector] | Mapping[str, int | None]
# Mapping is invariant in its keys: a dict[str, int] is a Mapping[AxisKey, int], but no Mapping[AxisSelector, int].
AxisKey = TypeVar("AxisKey", bound=AxisSelector)
AxisSpec: TypeAlias = Axis | Sequence[Axis] | Mapping[str, int]
Pairs: TypeAlias = tuple[tuple[str, int | None], ...]


def selection(axes: AxisSelection, function: str = "axes", *, need_sizes: bool = False) -> Pairs:
    """Normalise a selection to pairs of a name and a size, or None without a size.

    Args:
        axes: the selection.
        function: what the user called.
        need_sizes: whether the caller makes axes, so that errors ask for sizes.

    Raises:
        OperandError: if an entry is neither an `Axis` nor a name.
        AxisClashError: if a name is given twice.
    """
    # A name is by far the most frequent form, and a string is a sequence, too.
    if isinstance(axes, str):
        return ((axes, None),)
    if isinstance(axes, Axis):
        return ((axes.name, axes.size),)
    if isinstance(axes, Mapping):  # its keys cannot repeat
        given = tuple(axes.items())
        for name, _ in given:
            if not isinstance(name, str):
                problem = f"{name!r} is not the name of an axis"
                raise OperandError(message(function, problem, hint="keys are names"))
        return given
    # An array is one wrong entry: iterating it would fetch values from devices.
    several = isinstance(axes, Iterable) and not hasattr(axes, "dtype")
    entries: tuple[object, ...] = tuple(axes) if several else (axes,)
    pairs: list[tuple[str, int | None]] = []
    for entry in entries:
        if isinstance(entry, Axis):
            pairs.append((entry.name, entry.size))
        elif isinstance(entry, str):
            pairs.append((entry, None))
        else:
            raise refuse_entry(entry, function, need_sizes)
    given = tuple(pairs)
    names = names_in(given)
    # Here, and not in each operation: a name that is given twice is a mistake for all of them.
    if len(set(names)) != len(names):
        twice = min(name for name in names if names.count(name) > 1)
        problem = f"axis {twice!r} is given twice"
        raise AxisClashError(message(function, problem, f"axes: {', '.join(names)}"))
    return given


def selector(axis: AxisSelector, function: str = "axis") -> tuple[str, int | None]:
    """Return the name that selects one axis, and the size that it must have, or None.

    Args:
        axis: an `Axis` or a name.
        function: the name of the calling function, for errors.

    Raises:
        OperandError: if it is neither an `Axis` nor a name, or if it is several.

    Examples:
        >>> from axonym.axis import selector
        >>> selector("batch"), selector(axn.Axis("batch", 32))
        (('batch', None), ('batch', 32))
    """
    return _take_one(selection(axis, function), function)


def _take_one(given: Pairs, function: str) -> tuple[str, int | None]:
    if len(given) != 1:
        names = ", ".join(names_in(given)) or "none"
        raise OperandError(message(function, f"expected one axis, got {len(given)}: {names}"))
    return given[0]


def selectors(pairs: Pairs) -> tuple[AxisSelector, ...]:
    """Convert the pairs of a selection back to selectors."""
    return tuple(name if size is None else Axis(name, size) for name, size in pairs)


def names_in(pairs: Pairs) -> tuple[str, ...]:
    """Return the names in the pairs of a selection."""
    return tuple(name for name, _ in pairs)


def spec(axes: AxisSpec, function: str = "axes") -> tuple[Axis, ...]:
    """Normalise a spec to a tuple of axes.

    Args:
        axes: the spec.
        function: what the user called, for errors.

    Raises:
        OperandError: if an entry has no size.
        AxisClashError: if a name is given twice.
    """
    # A loop, since the error names the axis that has no size.
    result: list[Axis] = []
    for name, size in selection(axes, function, need_sizes=True):
        if size is None:
            hint = f'write Axis("{name}", size)'
            raise OperandError(message(function, f"axis {name!r} needs a size here", hint=hint))
        result.append(Axis(name, size))
    return tuple(result)


def names_and_sizes(axes: Sequence[Axis]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the names of axes, and their sizes."""
    return tuple(axis.name for axis in axes), tuple(axis.size for axis in axes)


def sized(axis: Axis, function: str = "axis") -> Axis:
    """Check an axis that declares the size of a result.

    Raises:
        OperandError: if it is not one axis, or has no size.
    """
    _take_one(selection(axis, function, need_sizes=True), function)
    return spec(axis, function)[0]


def not_in_a_tuple(function: str, *axes: Axis) -> OperandError:
    """Build the error for axes that were passed as separate arguments."""
    problem = "several axes go in a tuple, as one argument"
    return OperandError(message(function, problem, f"axes: {shown(*axes)}"))


def shown(*axes: Axis) -> str:
    """Format axes for an error: `batch=32, embed=64`."""
    return ", ".join(f"{axis.name}={axis.size}" for axis in axes)


@explain_call
def make_axes(**sizes: int) -> tuple[Axis, ...]:
    """Make several axes at once.

    Args:
        sizes: the size of each axis, by name.

    Returns:
        The axes, in the order of the arguments.

    Examples:
        >>> Batch, Embed = axn.make_axes(batch=32, embed=64)
        >>> Embed
        Axis(name='embed', size=64)
    """
    return tuple(Axis(name, size) for name, size in sizes.items())


@overload
def axis_name(axes: AxisSelector) -> str: ...  # type: ignore[overload-overlap]  # a str is a Sequence too
@overload
def axis_name(axes: Sequence[AxisSelector] | Mapping[str, int | None]) -> tuple[str, ...]: ...
def axis_name(axes: AxisSelection) -> str | tuple[str, ...]:
    """Return the name of one selector, or the names of several.

    Args:
        axes: the axes.

    Returns:
        A string for one selector, a tuple of strings for other forms, also for a sequence of one.

    Raises:
        OperandError: if an entry is neither an `Axis` nor a name.

    Examples:
        >>> axn.axis_name(axn.Axis("batch", 32)), axn.axis_name(axn.make_axes(batch=32, embed=64))
        ('batch', ('batch', 'embed'))
    """
    if isinstance(axes, str):
        return axes
    if isinstance(axes, Axis):
        return axes.name
    return names_in(selection(axes, "axis_name"))


def axis_size(axes: AxisSpec) -> int:
    """Return the size of an axis, or the product of the sizes of several; 1 if there are none.

    Args:
        axes: the axes, with their sizes.

    Raises:
        OperandError: if one has no size.

    Examples:
        >>> axn.axis_size(axn.make_axes(batch=32, embed=64))
        2048
    """
    return math.prod(axis.size for axis in spec(axes, "axis_size"))


def _merge_sizes(function: str, name: str, first: int | None, second: int | None) -> int | None:
    """Merge two sizes given for one name; None fits any."""
    if first is not None and second is not None and first != second:
        raise AxisSizeError(message(function, f"axis {name!r} has two sizes: {first} and {second}"))
    return second if first is None else first


def _convert_to_form(form: AxisSelection, pairs: Pairs) -> AxisSelection:
    """Convert pairs to the form of the original selection: a dict stays a dict."""
    return dict(pairs) if isinstance(form, Mapping) else selectors(pairs)


def _missing_axis(function: str, name: str, known: Sequence[str]) -> AxisNotFoundError:
    return missing_axis(function, name, known, f"axes: {', '.join(known) or 'none'}")


@overload
def concat_axes(first: Axis | Sequence[Axis], second: AxisSpec) -> tuple[Axis, ...]: ...
@overload
def concat_axes(first: Mapping[str, int], second: AxisSpec) -> dict[str, int]: ...
@overload
def concat_axes(first: AxisSelection, second: AxisSelection) -> AxisSelection: ...
def concat_axes(first: AxisSelection, second: AxisSelection) -> AxisSelection:
    """Append the axes of `second` to those of `first`.

    Raises:
        AxisClashError: if a name is in both.

    Examples:
        >>> axn.concat_axes({"batch": 32}, axn.Axis("embed", 64))
        {'batch': 32, 'embed': 64}
    """
    left, right = selection(first, "concat_axes"), selection(second, "concat_axes")
    for name, _ in right:
        if name in dict(left):
            raise AxisClashError(message("concat_axes", f"axis {name!r} is in both arguments"))
    return _convert_to_form(first, (*left, *right))


@overload
def union_axes(first: Axis | Sequence[Axis], second: Axis | Sequence[Axis]) -> tuple[Axis, ...]: ...
@overload
def union_axes(first: AxisSpec, second: AxisSpec) -> AxisSpec: ...
@overload
def union_axes(first: AxisSelection, second: AxisSelection) -> AxisSelection: ...
def union_axes(first: AxisSelection, second: AxisSelection) -> AxisSelection:
    """Append the axes of `second` that `first` lacks to those of `first`.

    Raises:
        AxisSizeError: if a name has two sizes.

    Examples:
        >>> Batch, Embed = axn.make_axes(batch=32, embed=64)
        >>> axn.union_axes((Batch, Embed), Embed) == (Batch, Embed)
        True
    """
    # A dict keeps the order of the first argument when sizes of the second are added.
    merged = dict(selection(first, "union_axes"))
    for name, size in selection(second, "union_axes"):
        merged[name] = _merge_sizes("union_axes", name, merged.get(name), size)
    return _convert_to_form(second if isinstance(second, Mapping) else first, tuple(merged.items()))


@overload
def intersect_axes(first: Axis | Sequence[Axis], second: AxisSelection) -> tuple[Axis, ...]: ...
@overload
def intersect_axes(first: Mapping[str, int], second: AxisSelection) -> dict[str, int]: ...
@overload
def intersect_axes(first: AxisSelection, second: AxisSelection) -> AxisSelection: ...
def intersect_axes(first: AxisSelection, second: AxisSelection) -> AxisSelection:
    """Return the axes of `first` that are in `second`, in the order of `first`.

    Args:
        first: the axes to choose from.
        second: the axes to keep, also such as `first` lacks.

    Raises:
        AxisSizeError: if a name has two sizes.

    Examples:
        >>> axn.intersect_axes({"batch": 32, "embed": 64}, ("embed", "mlp"))
        {'embed': 64}
    """
    others = dict(selection(second, "intersect_axes"))
    pairs = selection(first, "intersect_axes")
    common = tuple(
        (name, _merge_sizes("intersect_axes", name, size, others[name]))
        for name, size in pairs
        if name in others
    )
    return _convert_to_form(first, common)


@overload
def without_axes(axes: Axis | Sequence[Axis], remove: AxisSelection) -> tuple[Axis, ...]: ...
@overload
def without_axes(axes: Mapping[str, int], remove: AxisSelection) -> dict[str, int]: ...
@overload
def without_axes(axes: AxisSelection, remove: AxisSelection) -> AxisSelection: ...
def without_axes(axes: AxisSelection, remove: AxisSelection) -> AxisSelection:
    """Remove axes by name; `eliminate_axes` raises for names that are not there, this function ignores them.

    Args:
        axes: the axes.
        remove: those to remove.

    Raises:
        AxisSizeError: if a name has two sizes.

    Examples:
        >>> axn.without_axes({"batch": 32, "embed": 64}, "batch")
        {'embed': 64}
    """
    gone = dict(selection(remove, "without_axes"))
    pairs = selection(axes, "without_axes")
    # An `Axis` of another size is another axis: to remove this one would hide a mistake.
    for name, size in pairs:
        _merge_sizes("without_axes", name, size, gone.get(name))
    return _convert_to_form(axes, tuple((name, size) for name, size in pairs if name not in gone))


@overload
def eliminate_axes(axes: Axis | Sequence[Axis], remove: AxisSelection) -> tuple[Axis, ...]: ...
@overload
def eliminate_axes(axes: Mapping[str, int], remove: AxisSelection) -> dict[str, int]: ...
@overload
def eliminate_axes(axes: AxisSelection, remove: AxisSelection) -> AxisSelection: ...
def eliminate_axes(axes: AxisSelection, remove: AxisSelection) -> AxisSelection:
    """Remove axes by name, all of which must be there.

    Args:
        axes: the axes.
        remove: those to remove.

    Raises:
        AxisNotFoundError: if one of `remove` is missing.
        AxisSizeError: if a name has two sizes.

    Examples:
        >>> axn.eliminate_axes({"batch": 32, "embed": 64}, "batch")
        {'embed': 64}
    """
    known = names_in(selection(axes, "eliminate_axes"))
    for name, _ in selection(remove, "eliminate_axes"):
        if name not in known:
            raise _missing_axis("eliminate_axes", name, known)
    return without_axes(axes, remove)


@overload
def replace_axis(
    axes: Axis | Sequence[Axis], old: AxisSelector, new: AxisSpec
) -> tuple[Axis, ...]: ...
@overload
def replace_axis(axes: Mapping[str, int], old: AxisSelector, new: AxisSpec) -> dict[str, int]: ...
@overload
def replace_axis(axes: AxisSelection, old: AxisSelector, new: AxisSelection) -> AxisSelection: ...
def replace_axis(axes: AxisSelection, old: AxisSelector, new: AxisSelection) -> AxisSelection:
    """Replace one axis by one or more.

    Args:
        axes: the axes.
        old: the axis to replace.
        new: those that take its place.

    Raises:
        AxisNotFoundError: if `old` is missing.
        AxisClashError: if a new name is already in use.

    Examples:
        >>> axn.replace_axis({"batch": 32, "embed": 64}, "embed", {"heads": 4, "head_dim": 16})
        {'batch': 32, 'heads': 4, 'head_dim': 16}
    """
    pairs = selection(axes, "replace_axis")
    known = names_in(pairs)
    name, size = selector(old, "replace_axis")
    if name not in known:
        raise _missing_axis("replace_axis", name, known)
    at = known.index(name)
    _merge_sizes("replace_axis", name, pairs[at][1], size)
    replaced = (*pairs[:at], *selection(new, "replace_axis"), *pairs[at + 1 :])
    selection(names_in(replaced), "replace_axis")  # raises if a name is there twice
    return _convert_to_form(axes, replaced)


@overload
def resolve_axis(axes: AxisSpec, chosen: AxisSelector) -> Axis: ...  # type: ignore[overload-overlap]  # as above
@overload
def resolve_axis(
    axes: AxisSpec, chosen: Sequence[AxisSelector] | Mapping[str, int | None]
) -> tuple[Axis, ...]: ...
def resolve_axis(axes: AxisSpec, chosen: AxisSelection) -> Axis | tuple[Axis, ...]:
    """Look up axes by name.

    Args:
        axes: the axes to choose from, with their sizes.
        chosen: names, or axes whose sizes must match.

    Returns:
        An `Axis` for one selector, a tuple of axes for other forms.

    Raises:
        AxisNotFoundError: if a name is missing.
        AxisSizeError: if a chosen `Axis` has another size.

    Examples:
        >>> axn.resolve_axis({"batch": 32, "embed": 64}, "embed")
        Axis(name='embed', size=64)
    """
    known = {axis.name: axis for axis in spec(axes, "resolve_axis")}
    found: list[Axis] = []
    for name, size in selection(chosen, "resolve_axis"):
        if name not in known:
            raise _missing_axis("resolve_axis", name, tuple(known))
        _merge_sizes("resolve_axis", name, known[name].size, size)
        found.append(known[name])
    return found[0] if isinstance(chosen, Axis | str) else tuple(found)


def selects_axis(selector: AxisSelection, selected: AxisSelection) -> bool:
    """Return whether each axis of `selected` is in `selector`, with the same size where both have one.

    Args:
        selector: the axes to look among.
        selected: the axes to look for.

    Examples:
        >>> axn.selects_axis(("batch", "embed"), axn.Axis("embed", 64))
        True
    """
    known = dict(selection(selector, "selects_axis"))
    return all(
        name in known and (size is None or known[name] in (None, size))
        for name, size in selection(selected, "selects_axis")
    )


def unsize_axes(
    axes: AxisSelection, chosen: AxisSelection | None = None
) -> tuple[AxisSelector, ...]:
    """Remove the sizes of all axes, or of the chosen ones.

    Args:
        axes: the axes.
        chosen: the axes that lose their sizes; by default all axes.

    Returns:
        A tuple with the names of the chosen axes, and all others as they were.

    Raises:
        AxisNotFoundError: if one of `chosen` is missing.

    Examples:
        >>> axn.unsize_axes(axn.make_axes(batch=32, embed=64), "batch")
        ('batch', Axis(name='embed', size=64))
    """
    pairs = selection(axes, "unsize_axes")
    known = names_in(pairs)
    names = known if chosen is None else names_in(selection(chosen, "unsize_axes"))
    for name in names:
        if name not in known:
            raise _missing_axis("unsize_axes", name, known)
    return selectors(tuple((name, None if name in names else size) for name, size in pairs))
