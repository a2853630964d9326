"""Internal. Split arguments of transformations into the arrays to map over, and the rest.

JAX's transformations take arrays; ours take trees of named arrays, numbers, holes and functions. A `Skeleton` keeps
everything that JAX must not see, and puts the arrays back. `vmap`, `nmap`, the loops and stacks of layers call this.
"""

import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..array import NamedArray, is_named_array
from ..axis import Axis
from ..base.kinds import is_array
from ..engine.core import facts, rename_hole, shape_of, wrap
from ..errors import (
    ArgumentError,
    AxisClashError,
    AxisSizeError,
    OperandError,
    describe,
    message,
    suggestion,
)
from ..names import plans

_DATA = (bool, int, float, complex, str, bytes, np.generic)


def is_hole(leaf: object) -> bool:
    """Return whether a leaf is a named array whose array a filter or a mask has replaced, by None, `()`, a bool, ..."""
    if not isinstance(leaf, NamedArray) or hasattr(leaf.array, "shape"):
        return False
    scalar = isinstance(leaf.array, int | float | complex) and not leaf.names
    return not scalar and not any(map(is_array, jax.tree.leaves(leaf.array)))


def find_dimension(leaf: Any, axis: str) -> int | None:
    """Return the dimension of an axis in a leaf, which is the first one for a plain array; None if there is none."""
    if isinstance(leaf, NamedArray):
        return leaf.names.index(axis) - len(leaf.names) if axis in leaf.names else None
    return 0 if is_array(leaf) and leaf.ndim else None


def refilled(leaf: object, array: object) -> Any:
    """Replace a leaf by another array, with its names if it is named."""
    return wrap(leaf, array, leaf.names) if isinstance(leaf, NamedArray) else array


def drop_axis_of_hole(hole: NamedArray, axis: str) -> NamedArray:
    """Remove an axis from the names of a hole, as from arrays of the same tree."""
    return rename_hole(hole, plans.without(hole.names, (axis,)))


def repeat_prefix(function: str, prefix: object, tree: object) -> list[Any]:
    """Repeat the leaves of a tree prefix for all leaves of a tree; None and named arrays are leaves.

    Raises:
        OperandError: if it is not a prefix of the tree.
    """

    def repeat(value: object, below: object) -> Any:
        return itertools.repeat(value, len(jax.tree.leaves(below, is_leaf=is_named_array)))

    def is_whole(node: object) -> bool:
        return node is None or is_named_array(node)

    try:
        repeats = jax.tree.map(repeat, prefix, tree, is_leaf=is_whole)
    except (ValueError, TypeError) as flaw:
        problem = f"the value for the arguments must be a tree prefix of them, not {prefix!r}"
        raise OperandError(message(function, problem, str(flaw).splitlines()[0])) from None
    return list(itertools.chain(*jax.tree.leaves(repeats)))


class Slot:
    """The place of an array in a tree. It has a shape, as arrays do; a placeholder in a hole has no shape."""

    __slots__ = ()
    shape = ()


# They are compared by identity, since any other object may be a leaf of a user.
TAKEN: Any = Slot()
HELD: Any = Slot()


class Constant:
    """A leaf of any type that stays in its tree."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value: Any = value

    def __eq__(self, other: object) -> bool:
        """Return whether the two constants are the same to every program."""
        if not isinstance(other, Constant) or type(self.value) is not type(other.value):
            return False
        if self.value is other.value:
            return True
        # 0.0 is equal to -0.0, and NaN is not equal to itself
        return isinstance(self.value, _DATA) and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        # The value itself may have no hash.
        return hash(type(self.value))


@jax.tree_util.register_static
class Skeleton:
    """A tree without its arrays: the part of arguments, carries and results that JAX does not see.

    As a pytree node, this has no leaves. So a function inside a transformation can return arrays and a skeleton: its
    caller gets all information even if JAX has cached the call, and no inner array is kept.

    Attributes:
        tree: the structure, with named arrays as leaves, or as nodes after `take_constants`.
        leaves: for each leaf `TAKEN`, `HELD`, a named array with `TAKEN` as its array, a hole, or a `Constant`.
    """

    __slots__ = ("leaves", "tree")

    def __init__(self, tree: Any, leaves: Sequence[object]) -> None:
        self.tree = tree
        self.leaves: tuple[Any, ...] = tuple(leaves)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Skeleton) or self.tree != other.tree:
            return False
        return all(map(_is_same, self.leaves, other.leaves))

    def __hash__(self) -> int:
        return hash(self.tree)

    def fill(
        self,
        arrays: Iterable[Any],
        held: Iterable[Any] = (),
        name: Callable[[NamedArray, Any], Any] = lambda like, array: wrap(like, array, like.names),
        plain: Callable[[Any], Any] = lambda array: array,
    ) -> Any:
        """Rebuild the tree.

        Args:
            arrays: the arrays for `TAKEN`, in order.
            held: the arrays for `HELD`, in order.
            name: names an array that was named; holes are named too, with their content as the array.
            plain: gets each of the other arrays.
        """
        rest, others = iter(arrays), iter(held)
        leaves: list[Any] = []
        for leaf in self.leaves:
            if leaf is TAKEN:
                leaves.append(plain(next(rest)))
            elif leaf is HELD:
                leaves.append(next(others))
            elif isinstance(leaf, Constant):
                leaves.append(leaf.value)
            elif leaf.array is TAKEN:
                leaves.append(name(leaf, next(rest)))
            else:
                leaves.append(name(leaf, leaf.array))
        return jax.tree.unflatten(self.tree, leaves)

    def take_constants(self) -> tuple["Skeleton", list[jax.Array]]:
        """Also take out arrays that constants hold; the skeleton has `HELD` in their place."""
        # Named arrays are nodes here, so that arrays inside of any other node are found.
        leaves, tree = jax.tree.flatten(self.fill(itertools.repeat(TAKEN)))
        kept: list[object] = []
        held: list[jax.Array] = []
        for leaf in leaves:
            if leaf is TAKEN:
                kept.append(TAKEN)
            elif isinstance(leaf, jax.Array):
                kept.append(HELD)
                held.append(leaf)
            else:
                kept.append(Constant(leaf))
        return Skeleton(tree, kept), held

    def may_be_kept(self) -> bool:
        """Return whether a cache may keep this: no constant may hold arrays, since the cache would keep them alive."""
        constants = [leaf for leaf in self.leaves if leaf is not TAKEN and leaf is not HELD]
        return all(map(_is_lasting, constants))


def _is_lasting(leaf: object) -> bool:
    """Return whether a cache may keep a leaf: a marker, data, or a function or class that its module keeps anyway."""
    if not isinstance(leaf, Constant) or isinstance(leaf.value, _DATA):
        return True
    # A function that a module knows by its name lives as long as the module, whatever a cache keeps.
    module = sys.modules.get(getattr(leaf.value, "__module__", None) or "")
    name = getattr(leaf.value, "__qualname__", "")
    return leaf.value is not None and getattr(module, name, None) is leaf.value


def _is_same(one: object, other: object) -> bool:
    """Return whether two leaves of skeletons are equal; `==` of named arrays would compare elements."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, NamedArray) and isinstance(other, NamedArray):
        return one.names == other.names and bool(one.array == other.array)
    return bool(one == other)


Parts = tuple[list[Any], Skeleton]


def take_arrays(tree: object, *, numbers: bool = True) -> Parts:
    """Split a tree into its arrays and the rest; Python numbers are arrays, except without `numbers`."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_named_array)
    arrays: list[Any] = []
    kept: list[object] = []
    for leaf in leaves:
        if is_hole(leaf):
            kept.append(leaf)
            continue
        named = isinstance(leaf, NamedArray)
        array = leaf.array if named else leaf
        is_number = (numbers or named) and isinstance(array, int | float | complex)
        if not is_number and not is_array(array):
            kept.append(Constant(leaf))
            continue
        arrays.append(array)
        kept.append(refilled(leaf, TAKEN))
    return arrays, Skeleton(structure, kept)


class Arguments:
    """The arguments of a function, some of whose leaves are mapped over an axis.

    A hole that has the axis loses it, and has no size for it. An argument that is itself an array of random keys is
    passed as plain keys, which `jax.random` takes; keys inside a tree stay named, so that the tree keeps its structure.

    Attributes:
        axis: the name of the axis.
        size: its size.
        arrays: the arrays that are mapped.
        dims: the mapped dimension of each of these arrays.
        skeleton: the arguments without these arrays, and without the axis.
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
        self._leaves, tree = jax.tree.flatten(arguments, is_leaf=is_named_array)
        self._slots: list[int] = []
        # Leaves are compared by identity, since `==` of arrays compares elements.
        direct = {id(value) for value in (*arguments[0], *arguments[1].values())}
        kept: list[object] = []
        for i, leaf in enumerate(self._leaves):
            at = dimension(i, leaf)
            if at is None:
                kept.append(Constant(leaf))
                continue
            if is_hole(leaf):
                kept.append(Constant(drop_axis_of_hole(leaf, self.axis)))
                continue
            # A named leaf keeps its names without the axis; a plain one is only a place.
            slot, array = TAKEN, leaf
            names: tuple[str, ...] = ()
            if isinstance(leaf, NamedArray):
                (array,), names = leaf.node
                if id(leaf) not in direct or not _has_keys_alone(leaf):
                    slot = wrap(leaf, TAKEN, plans.without(names, (self.axis,)))
            shape = shape_of(function, array, names)
            if not -len(shape) <= at < len(shape):
                place = _describe_places(arguments)[i]
                problem = f"dimension {at} of {place} is to be mapped, but its shape is {shape}"
                raise OperandError(message(function, problem))
            kept.append(slot)
            self._slots.append(i)
            self.arrays.append(array)
            self.dims.append(at % len(shape))
        self.skeleton = Skeleton(tree, kept)
        self.size = self._one_size(function, axis[1], arguments)

    def _one_size(self, function: str, given: int | None, arguments: Any) -> int:
        """Return the size of the axis; all mapped arrays, and the given size if any, must agree."""
        sizes = [array.shape[dim] for array, dim in zip(self.arrays, self.dims, strict=True)]
        if given is None and not sizes:
            raise self._size_error(function)
        size = sizes[0] if given is None else given
        other = next((own for own in sizes if own != size), size)
        if other == size:
            return size

        facts: list[str] = []
        if given is not None:
            facts.append(f"asked for: {self.axis}={given}")
        spelled = _describe_places(arguments)
        has_plain = False
        for slot, array, dim in zip(self._slots, self.arrays, self.dims, strict=True):
            leaf = self._leaves[slot]
            if isinstance(leaf, NamedArray):
                what = describe(leaf.names, array.shape)
            else:
                has_plain = True
                what = f"shape {array.shape}, along dimension {dim}"
            facts.append(f"{spelled[slot]} has: {what}")
        problem = f"axis {self.axis!r} has two sizes: {size} and {other}"
        # A plain array is mapped over dimension 0 by default, which the user may not have meant.
        hint = _WHOLE.get(function.split(".")[0]) if has_plain else None
        raise AxisSizeError(message(function, problem, *facts, hint=hint))

    def _size_error(self, function: str) -> AxisSizeError:
        lines: list[str] = []
        known: set[str] = set()
        for x in self._leaves:
            if isinstance(x, NamedArray):
                kind = "an argument without an array" if is_hole(x) else "an argument"
                lines.append(f"{kind} has: {facts(x)}")
                known.update(x.names)
        hint = f'for a new axis, give its size: Axis("{self.axis}", size)'
        near = suggestion(self.axis, known - {self.axis})
        if near:
            hint = f"{near} Or, {hint}"
        problem = f"no argument has axis {self.axis!r}, so its size is unknown"
        return AxisSizeError(message(function, problem, *lines, hint=hint))


def _has_keys_alone(leaf: NamedArray) -> bool:
    """Return whether an array is a vector of random keys, so that each element is a plain key."""
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


def _describe_places(arguments: tuple[tuple[object, ...], dict[str, object]]) -> list[str]:
    """Name the place of each leaf of arguments: `argument 0`, `argument x.weight`."""
    spelled = []
    for path, _ in jax.tree.leaves_with_path(arguments, is_leaf=is_named_array):
        which: object = path[1]
        rest = jax.tree_util.keystr(path[2:])
        spelled.append(f"argument {getattr(which, 'idx', getattr(which, 'key', which))}{rest}")
    return spelled


def make_namer(
    function: str, axis: Axis, out_axis: int = 0
) -> Callable[[NamedArray, Any], NamedArray]:
    """Return a function that names an array whose first dimension is new.

    Args:
        function: what the user called.
        axis: the new axis.
        out_axis: the place of the axis among the names of the result; anonymous dimensions come before all names.

    Raises:
        AxisClashError: if the array has the axis already.
        ArgumentError: if it has no such place.
    """

    def name(like: NamedArray, array: Any) -> NamedArray:
        if axis.name in like.names:
            problem = f"a result already has axis {axis.name!r}, along which results are stacked"
            shape = None if is_hole(like) else array.shape[1:]
            line = f"the result of one step has: {describe(like.names, shape)}"
            hint = (
                f'pass arrays with axis "{axis.name}" as arguments, so that the function gets a part of them, '
                "or rename it"
            )
            raise AxisClashError(message(function, problem, line, hint=hint))
        # Anonymous dimensions come first, so that places count names only.
        at = _find_place(function, axis.name, out_axis, describe(like.names, None), len(like.names))
        names = (*like.names[:at], axis.name, *like.names[at:])
        if is_hole(like):
            return rename_hole(like, names, axis)
        anonymous = array.ndim - 1 - len(like.names)
        if anonymous + at:
            array = jnp.moveaxis(array, 0, anonymous + at)
        return wrap(like, array, names)

    return name


def make_mover(function: str, axis: str, out_axis: int) -> Callable[[Any], Any]:
    """Return a function that moves the new first dimension of a plain array to its place."""

    def move(array: Any) -> Any:
        at = _find_place(function, axis, out_axis, f"shape {array.shape[1:]}", array.ndim - 1)
        return jnp.moveaxis(array, 0, at) if at else array

    return move


def _find_place(function: str, axis: str, out_axis: int, has: str, count: int) -> int:
    """Return the number of axes of one step that come before the new axis."""
    hint = "0 is before all others, and -1 behind them"
    if not isinstance(out_axis, int):
        problem = f"out_axis is the place of axis {axis!r}, an int, not {out_axis!r}"
        raise ArgumentError(message(function, problem, hint=hint))
    at = out_axis + count + 1 if out_axis < 0 else out_axis
    if not 0 <= at <= count:
        problem = f"out_axis={out_axis} is no place for axis {axis!r} beside {count} others"
        line = f"the result of one step has: {has}"
        raise ArgumentError(message(function, problem, line, hint=hint))
    return at
