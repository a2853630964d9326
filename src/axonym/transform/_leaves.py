"""How transformations take arguments apart: into the arrays they map over, and all the rest."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..array import NamedArray, is_named_array
from ..core import shape_of, wrap
from ..errors import AxisSizeError, OperandError, describe, message

__all__ = ["Arguments", "Outputs", "is_array"]

_SKIP = object()


def is_array(leaf: object) -> bool:
    """Tell whether a leaf is an array of JAX or numpy."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


class Arguments:
    """The leaves of arguments, some of which are mapped over an axis.

    Attributes:
        arrays: the arrays that are mapped.
        dims: for each of them the dimension that is mapped.
        size: the size of the axis.
    """

    def __init__(
        self,
        function: str,
        axis: tuple[str, int | None],
        arguments: Any,
        dimension: Callable[[int, Any], int | None],
    ) -> None:
        """Take arguments apart; `dimension` gives the mapped dimension of a leaf that is no NamedArray, or None."""
        name, size = axis
        paths, self._tree = jax.tree_util.tree_flatten_with_path(arguments, is_leaf=is_named_array)
        self._leaves: list[Any] = []
        self._names: list[tuple[str, ...] | None] = []
        self._slots: list[int] = []
        self.arrays: list[Any] = []
        self.dims: list[int] = []
        found: list[str] = []
        for i, (path, leaf) in enumerate(paths):
            self._leaves.append(leaf)
            at, names = dimension(i, leaf), None
            if at is None:
                continue
            array = leaf
            if isinstance(leaf, NamedArray):
                (array,), names = leaf.node
            shape = shape_of(function, array, names or ())
            if not -len(shape) <= at < len(shape):
                problem = f"dimension {at} of {jax.tree_util.keystr(path)} is to be mapped, its shape is {shape}"
                raise OperandError(message(function, problem))
            found.append(f"{_spell(path)} has {shape[at]}: {describe(names or (), shape)}")
            if size is None:
                size = shape[at]
            if shape[at] != size:
                problem = f"axis {name!r} has two sizes: {size} and {shape[at]}"
                raise AxisSizeError(message(function, problem, *found))
            self._slots.append(i)
            self._names.append(names)
            self.arrays.append(array)
            self.dims.append(at % len(shape))
        if size is None:
            problem = f"no argument has axis {name!r}, so that its size is unknown"
            named = [x for x in self._leaves if isinstance(x, NamedArray)]
            lines = [f"argument has: {describe(x.names, getattr(x.array, 'shape', None))}" for x in named]
            raise AxisSizeError(message(function, problem, *lines, hint=f'give the size: Axis("{name}", size)'))
        self.size = size
        self.axis = name

    def rebuild(self, arrays: Sequence[Any]) -> Any:
        """Put the arguments together again, with other arrays that lack the mapped dimension."""
        leaves = list(self._leaves)
        for slot, names, array in zip(self._slots, self._names, arrays, strict=True):
            leaf = leaves[slot]
            leaves[slot] = array if names is None else wrap(leaf, array, tuple(n for n in names if n != self.axis))
        return jax.tree_util.tree_unflatten(self._tree, leaves)


def _spell(path: Any) -> str:
    spelled = jax.tree_util.keystr(path)
    return f"argument {spelled}"


class Outputs:
    """The leaves of what a function returned: its arrays, and how to put all together again."""

    def __init__(self, tree: Any) -> None:
        """Take a result apart; what is no array stays as it is."""
        leaves, self._tree = jax.tree_util.tree_flatten(tree, is_leaf=is_named_array)
        self._leaves: list[Any] = []
        self.arrays: list[Any] = []
        for leaf in leaves:
            array = leaf.array if isinstance(leaf, NamedArray) else leaf
            if is_array(array) or isinstance(array, int | float | complex):
                self._leaves.append(leaf if isinstance(leaf, NamedArray) else _SKIP)
                self.arrays.append(array)
            else:
                self._leaves.append((leaf,))

    def rebuild(self, arrays: Sequence[Any], axis: str | None = None) -> Any:
        """Put the result together with other arrays, whose first dimension is `axis` where one is given."""
        rest = iter(arrays)
        leaves: list[Any] = []
        for leaf in self._leaves:
            if isinstance(leaf, tuple):
                leaves.append(leaf[0])
            elif leaf is _SKIP:
                leaves.append(next(rest))
            else:
                leaves.append(_named(leaf, next(rest), axis))
        return jax.tree_util.tree_unflatten(self._tree, leaves)


def _named(like: NamedArray, array: Any, axis: str | None) -> NamedArray:
    """Name an array like another, with a new first axis behind any anonymous dimensions."""
    if axis is None:
        return wrap(like, array, like.names)
    anonymous = array.ndim - 1 - len(like.names)
    if anonymous > 0:
        array = jnp.moveaxis(array, 0, anonymous)
    return wrap(like, array, (axis, *like.names))
