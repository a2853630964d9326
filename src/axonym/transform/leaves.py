"""Split arguments of transformations into the arrays to map over, and the rest."""

import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..array import NamedArray, is_named_array
from ..axis import Axis
from ..core import facts, renamed_hole, shape_of, wrap
from ..errors import (
    ArgumentError,
    AxisClashError,
    AxisSizeError,
    OperandError,
    describe,
    message,
    suggestion,
)
from ..kinds import is_array
from ..names import plans

_DATA = (bool, int, float, complex, str, bytes, np.generic)
_PLAIN = object()
MAPPED, WHOLE = object(), object()
_ABSENT: Any = jax.ShapeDtypeStruct(
    (), bool
)  # has a shape, like an array and unlike the content of a hole


def is_hole(leaf: object) -> bool:
    """Return whether a leaf is a named array whose array a filter or a mask has replaced, by None, `()`, a bool, ..."""
    if not isinstance(leaf, NamedArray) or hasattr(leaf.array, "shape"):
        return False
    scalar = isinstance(leaf.array, int | float | complex) and not leaf.names
    return not scalar and not any(map(is_array, jax.tree.leaves(leaf.array)))


def dimension_of(leaf: Any, axis: str) -> int | None:
    """Return the dimension of a leaf for an axis, the first one for a plain array; None if it has none."""
    if isinstance(leaf, NamedArray):
        if axis not in leaf.names:
            return None
        return leaf.names.index(axis) - len(leaf.names)
    if is_array(leaf) and leaf.ndim:
        return 0
    return None


def refilled(leaf: object, array: object) -> Any:
    """Replace a leaf by another array, with its names if it is named."""
    if isinstance(leaf, NamedArray):
        return wrap(leaf, array, leaf.names)
    return array


def hole_without(hole: NamedArray, axis: str) -> NamedArray:
    """Remove an axis from a hole, as from the arrays of the same tree."""
    return renamed_hole(hole, plans.without(hole.names, (axis,)))


def spread(function: str, prefix: object, tree: object) -> list[Any]:
    """Spread the leaves of a tree prefix, None among them, over all leaves of a tree, named arrays kept whole.

    Raises:
        OperandError: if it is not a prefix of the tree.
    """

    def repeated(value: object, below: object) -> Any:
        return itertools.repeat(value, len(jax.tree.leaves(below, is_leaf=is_named_array)))

    def is_whole(node: object) -> bool:
        return node is None or is_named_array(node)

    try:
        repeats = jax.tree.map(repeated, prefix, tree, is_leaf=is_whole)
    except (ValueError, TypeError) as flaw:
        problem = f"the value for the arguments must be a tree prefix of them, not {prefix!r}"
        raise OperandError(message(function, problem, str(flaw).splitlines()[0])) from None
    return list(itertools.chain(*jax.tree.leaves(repeats)))


@jax.tree_util.register_static
class Arguments:
    """The leaves of arguments, some of which are mapped over an axis.

    A hole that has the axis loses it, and has no size for it. Of random keys that are an argument by themselves, each
    is passed as a plain key, which `jax.random` takes; those inside of a tree stay named, so that the tree keeps its
    structure. As a pytree node, this has no leaves, so that one mapped
    function serves all calls, with their arrays as separate arguments.

    Attributes:
        axis: the name of the axis.
        size: its size.
        arrays: the arrays that are mapped.
        dims: for each of them the dimension that is mapped.
    """

    def __init__(
        self,
        function: str,
        axis: tuple[str, int | None],
        arguments: tuple[tuple[object, ...], dict[str, object]],
        dimension: Callable[[int, Any], int | None],
    ) -> None:
        """Split arguments; `dimension` returns the mapped dimension of the leaf at a position, or None."""
        self.axis = axis[0]
        self.arrays: list[Any] = []
        self.dims: list[int] = []
        self._leaves, self._tree = jax.tree.flatten(arguments, is_leaf=is_named_array)
        self._names: list[tuple[str, ...] | None] = []
        self._slots: list[int] = []
        self._bare = set[int]()
        direct = {id(value) for value in (*arguments[0], *arguments[1].values())}
        holes: list[int] = []
        for i, leaf in enumerate(self._leaves):
            at, array, names = dimension(i, leaf), leaf, None
            if at is None:
                continue
            if is_hole(leaf):
                holes.append(i)
                continue
            if isinstance(leaf, NamedArray):
                (array,), names = leaf.node
                if id(leaf) in direct and _has_keys_alone(leaf):
                    self._bare.add(i)
            shape = shape_of(function, array, names or ())
            if not -len(shape) <= at < len(shape):
                problem = f"dimension {at} of {_spellings(arguments)[i]} is to be mapped, but its shape is {shape}"
                raise OperandError(message(function, problem))
            self._slots.append(i)
            self._names.append(names)
            self.arrays.append(array)
            self.dims.append(at % len(shape))
        self.size = self._one_size(function, axis[1], arguments)
        for i in holes:
            self._leaves[i] = hole_without(self._leaves[i], self.axis)

    def rebuild(self, arrays: Sequence[object]) -> Any:
        """Rebuild the arguments with other arrays, which lack the mapped dimension."""
        leaves = list(self._leaves)
        for slot, names, array in zip(self._slots, self._names, arrays, strict=True):
            if names is None or slot in self._bare:
                leaves[slot] = array
            else:
                leaves[slot] = wrap(leaves[slot], array, plans.without(names, (self.axis,)))
        return jax.tree.unflatten(self._tree, leaves)

    def _one_size(self, function: str, given: int | None, arguments: Any) -> int:
        """Return the size of the axis, which must be that of all mapped arrays and the given one."""
        sizes = [array.shape[dim] for array, dim in zip(self.arrays, self.dims, strict=True)]
        if given is None and not sizes:
            raise self._unknown_size(function)
        size = given
        if size is None:
            size = sizes[0]
        other = next((own for own in sizes if own != size), size)
        if other == size:
            return size

        facts: list[str] = []
        if given is not None:
            facts.append(f"asked for: {self.axis}={given}")
        spelled = _spellings(arguments)
        has_plain = False
        mapped = zip(self._slots, self._names, self.arrays, self.dims, strict=True)
        for slot, names, array, dim in mapped:
            if names is None:
                has_plain = True
                what = f"shape {array.shape}, along dimension {dim}"
            else:
                what = describe(names, array.shape)
            facts.append(f"{spelled[slot]} has: {what}")
        problem = f"axis {self.axis!r} has two sizes: {size} and {other}"
        hint = None
        if has_plain:
            hint = _WHOLE.get(function.split(".")[0])
        raise AxisSizeError(message(function, problem, *facts, hint=hint))

    def _unknown_size(self, function: str) -> AxisSizeError:
        lines: list[str] = []
        known: set[str] = set()
        for x in self._leaves:
            if isinstance(x, NamedArray):
                kind = "an argument"
                if is_hole(x):
                    kind = "an argument without an array"
                lines.append(f"{kind} has: {facts(x)}")
                known.update(x.names)
        hint = f'for a new axis, give its size: Axis("{self.axis}", size)'
        near = suggestion(self.axis, known - {self.axis})
        if near:
            hint = f"{near} Or, {hint}"
        problem = f"no argument has axis {self.axis!r}, so its size is unknown"
        return AxisSizeError(message(function, problem, *lines, hint=hint))


def _has_keys_alone(leaf: NamedArray) -> bool:
    """Return whether an array has random keys and one axis, so that one of them has none."""
    return len(leaf.names) == leaf.array.ndim == 1 and jnp.issubdtype(
        leaf.array.dtype, jax.dtypes.prng_key
    )


_WHOLE = {
    "vmap": "to pass a plain array whole, give None for it: args=(None, ...), or default=None for all",
    "map": "to pass a plain array whole, say so with is_mapped, or close over it",
    **dict.fromkeys(
        ("scan", "fold"), "to pass a plain array whole, say so with is_scanned, or close over it"
    ),
    **dict.fromkeys(
        ("Stacked", "BlockSeq", "Interleaved"),
        "to pass a plain array whole, name its axes, or close over it",
    ),
}


def _spellings(arguments: tuple[tuple[object, ...], dict[str, object]]) -> list[str]:
    """Describe where each leaf of arguments is: `argument 0`, `argument x.weight`."""
    spelled = []
    for path, _ in jax.tree.leaves_with_path(arguments, is_leaf=is_named_array):
        which: object = path[1]
        rest = jax.tree_util.keystr(path[2:])
        spelled.append(f"argument {getattr(which, 'idx', getattr(which, 'key', which))}{rest}")
    return spelled


class Outputs:
    """The leaves of a result: its arrays, and how to rebuild it.

    It is a pytree node whose children are the arrays. So a function that returns it passes all information through the
    transformation itself, which may cache it, and no inner array is kept.

    Attributes:
        arrays: the arrays.
    """

    __slots__ = ("_rest", "arrays")
    arrays: Sequence[Any]

    def __init__(self, tree: object, *, numbers: bool = True) -> None:
        """Split a result; leaves that are not arrays stay as they are, and so do Python numbers without `numbers`."""
        leaves, structure = jax.tree.flatten(tree, is_leaf=is_named_array)
        kept: list[object] = []
        self.arrays = []
        for leaf in leaves:
            if is_hole(leaf):
                kept.append(leaf)
                continue
            named, array = isinstance(leaf, NamedArray), leaf
            if named:
                array = leaf.array
            is_number = (numbers or named) and isinstance(array, int | float | complex)
            if not is_number and not is_array(array):
                kept.append(_Kept(leaf))
                continue
            self.arrays.append(array)
            if named:
                kept.append(wrap(leaf, _ABSENT, leaf.names))
            else:
                kept.append(_PLAIN)
        self._rest = _Rest(structure, kept)

    def rebuild(
        self,
        arrays: Sequence[Any],
        name: Callable[[NamedArray, Any], Any] = lambda like, array: wrap(like, array, like.names),
        plain: Callable[[Any], Any] = lambda array: array,
    ) -> Any:
        """Rebuild the result with other arrays; `name` names those that were named, `plain` gets the others.

        Holes are named too, with their content as the array.
        """
        rest = iter(arrays)
        leaves: list[Any] = []
        for leaf in self._rest.leaves:
            if isinstance(leaf, _Kept):
                leaves.append(leaf.value)
            elif leaf is _PLAIN:
                leaves.append(plain(next(rest)))
            elif leaf.array is _ABSENT:
                leaves.append(name(leaf, next(rest)))
            else:
                leaves.append(name(leaf, leaf.array))
        return jax.tree.unflatten(self._rest.tree, leaves)

    def taken_apart(self) -> tuple[tuple[Any, ...], "_Rest"]:
        """Return the children and the static part of the node."""
        return tuple(self.arrays), self._rest

    @staticmethod
    def put_together(rest: "_Rest", arrays: Sequence[object]) -> "Outputs":
        """Make the node from its parts."""
        made = object.__new__(Outputs)
        made._rest, made.arrays = rest, arrays
        return made


class _Rest:
    """A result without its arrays.

    Attributes:
        tree: its structure, with named arrays as leaves.
        leaves: for each leaf, a named array without its array, a hole, `_PLAIN`, or another value as `_Kept`.
    """

    __slots__ = ("leaves", "tree")

    def __init__(self, tree: object, leaves: list[Any]) -> None:
        self.tree, self.leaves = tree, leaves

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Rest) and self.tree == other.tree and self._told() == other._told()
        )

    def __hash__(self) -> int:
        return hash(self.tree)

    def _told(self) -> list[Any]:
        told: list[object] = []
        for leaf in self.leaves:
            if isinstance(leaf, NamedArray):
                told.append((type(leaf), leaf.names, leaf.array))
            else:
                told.append(leaf)
        return told


class _Kept(NamedTuple):
    """A leaf of a result that is not an array."""

    value: Any


jax.tree_util.register_pytree_node(Outputs, Outputs.taken_apart, Outputs.put_together)


class Frame(NamedTuple):
    """A tree without its arrays: what calls with the same program have in common.

    As the key of a cache, it is equal to another one if a program cannot see a difference. Leaves that are not arrays
    but may hold some are not hashable, so that no cache keeps them alive.

    Attributes:
        tree: the structure, names among it.
        leaves: for each leaf `MAPPED`, `WHOLE` or a `_Constant`.
    """

    tree: Any
    leaves: tuple[Any, ...]

    @staticmethod
    def of(tree: object) -> tuple["Frame", list[jax.Array]]:
        """Remove the arrays from a tree, in which `MAPPED` marks those already removed."""
        leaves, structure = jax.tree.flatten(tree)
        whole: list[jax.Array] = []
        kinds: list[object] = []
        for leaf in leaves:
            if leaf is MAPPED:
                kinds.append(MAPPED)
            elif isinstance(leaf, jax.Array):
                kinds.append(WHOLE)
                whole.append(leaf)
            else:
                kinds.append(_Constant(leaf))
        return Frame(structure, tuple(kinds)), whole

    def rebuild(self, mapped: Iterable[object], whole: Iterable[object]) -> Any:
        """Rebuild the tree with other arrays."""
        rest, others = iter(mapped), iter(whole)
        leaves: list[object] = []
        for kind in self.leaves:
            if kind is MAPPED:
                leaves.append(next(rest))
            elif kind is WHOLE:
                leaves.append(next(others))
            else:
                leaves.append(kind.value)
        return jax.tree.unflatten(self.tree, leaves)


class _Constant:
    """A leaf that is not an array, as a part of a key."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Constant) or type(self.value) is not type(other.value):
            return False
        if self.value is other.value:
            return True
        return isinstance(self.value, _DATA) and repr(self.value) == repr(
            other.value
        )  # for 0.0 == -0.0

    def __hash__(self) -> int:
        if not isinstance(self.value, _DATA) and not _is_importable(self.value):
            raise TypeError(f"{type(self.value).__name__} may hold arrays")
        return hash(self.value)


def _is_importable(value: object) -> bool:
    """Return whether a value is a function or a class that its module keeps alive."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    return value is not None and getattr(module, getattr(value, "__qualname__", ""), None) is value


def axis_placed(
    function: str, axis: Axis, out_axis: int = 0
) -> Callable[[NamedArray, Any], NamedArray]:
    """Return how to name an array whose first dimension is new.

    Args:
        function: what the user called.
        axis: the new axis.
        out_axis: its place among the names of the result, which come after anonymous dimensions.

    Raises:
        AxisClashError: if the array has the axis already.
        ArgumentError: if it has no such place.
    """

    def name(like: NamedArray, array: Any) -> NamedArray:
        if axis.name in like.names:
            problem = f"a result already has axis {axis.name!r}, along which results are stacked"
            shape = None
            if not is_hole(like):
                shape = array.shape[1:]
            line = f"the result of one step has: {describe(like.names, shape)}"
            hint = (
                f'pass arrays with axis "{axis.name}" as arguments, so that the function gets a part of them, '
                "or rename it"
            )
            raise AxisClashError(message(function, problem, line, hint=hint))
        at = _place(function, axis.name, out_axis, describe(like.names, None), len(like.names))
        names = (*like.names[:at], axis.name, *like.names[at:])
        if is_hole(like):
            return renamed_hole(like, names, axis)
        anonymous = array.ndim - 1 - len(like.names)
        if anonymous + at:
            array = jnp.moveaxis(array, 0, anonymous + at)
        return wrap(like, array, names)

    return name


def dimension_placed(function: str, axis: str, out_axis: int) -> Callable[[Any], Any]:
    """Return how to move the first dimension of a plain array, which is new, to its place."""

    def move(array: Any) -> Any:
        at = _place(function, axis, out_axis, f"shape {array.shape[1:]}", array.ndim - 1)
        if not at:
            return array
        return jnp.moveaxis(array, 0, at)

    return move


def _place(function: str, axis: str, out_axis: int, has: str, count: int) -> int:
    """Return how many of the axes of one step come before the new one."""
    hint = "0 is before all others, and -1 behind them"
    if not isinstance(out_axis, int):
        problem = f"out_axis is the place of axis {axis!r}, an int, not {out_axis!r}"
        raise ArgumentError(message(function, problem, hint=hint))
    at = out_axis
    if at < 0:
        at += count + 1
    if not 0 <= at <= count:
        problem = f"out_axis={out_axis} is no place for axis {axis!r} beside {count} others"
        line = f"the result of one step has: {has}"
        raise ArgumentError(message(function, problem, line, hint=hint))
    return at
