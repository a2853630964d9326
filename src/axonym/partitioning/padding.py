"""Padded axes: parameters that are stored with more positions than an axis has, so that devices divide them evenly.

A `PaddedArray` takes the place of a parameter. It is not a named array, so an operation that does not know padding
raises and never counts it. Code that reads a `PaddedArray` cuts it, or cuts the result.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax

from ..array import NamedArray
from ..axis import Axis
from ..engine.core import facts, shape_of, sizes_of, wrap
from ..errors import ArgumentError, OperandError, ShardingError, message, suggestion
from ..layout.assignment import find_key
from ..ops.pad import pad

__all__ = ["PaddedArray", "Padding", "is_padded", "pad_axes", "unpad_axes"]

T = TypeVar("T")


class Padding(NamedTuple):
    """How an axis is stored.

    Attributes:
        name: the name of the axis.
        size: its size.
        stored: the number of positions that are stored, those beyond `size` at the end.
    """

    name: str
    size: int
    stored: int


class PaddedArray:
    """A parameter that is stored with unused positions at the end of some axes; `pad_axes` makes it.

    It is a node of a tree, whose child is the named array that is stored: functions of trees, such as `shard` and those
    of Optax, work on that. Operations on named arrays raise for it.

    Attributes:
        stored: the array with its padding, which is zero at first. No layer counts it.
        padding: the padded axes.

    Examples:
        >>> padded = axn.partitioning.pad_axes(axn.ones({"vocab": 5}), {"vocab": 4})
        >>> padded
        PaddedArray(vocab=5 of 8)
        >>> padded.stored.shape, padded.cut().shape
        ({'vocab': 8}, {'vocab': 5})
    """

    __slots__ = ("padding", "stored")
    # Errors of operations on arrays show it.
    how_to_read = "read it without padding: x.cut(), or axn.partitioning.unpad_axes(model)"
    stored: NamedArray
    padding: tuple[Padding, ...]

    def __init__(self, stored: NamedArray, padding: tuple[Padding, ...]) -> None:
        self.stored, self.padding = stored, padding

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes with their sizes, without padding."""
        return self.abstract().axes

    @property
    def dtype(self) -> Any:
        """The dtype."""
        return self.stored.dtype

    def abstract(self) -> NamedArray:
        """Return the shape and the dtype of the array without padding."""
        x, sizes = self.stored, {own.name: own.size for own in self.padding}
        shape = list(x.array.shape)
        for at, name in enumerate(reversed(x.names), 1):
            shape[-at] = sizes.get(name, shape[-at])
        return wrap(x, jax.ShapeDtypeStruct(shape, x.dtype), x.names)

    def cut(self, *kept: str) -> NamedArray:
        """Return the named array without padding, except along the axes `kept`.

        On Explicit mesh axes, an axis is gathered if they do not divide it.

        Raises:
            ShardingError: if it is the block of one device, in a `shard_map` that splits a padded axis.
        """
        return self.trim(self.read(), *kept)

    def read(self) -> NamedArray:
        """Return the array with its padding, unless a device has only a part of it; see `cut`."""
        for own in self.padding:
            if self.stored.axis_size(own.name) != own.stored:
                problem = f"a device has a part of the padded axis {own.name!r}"
                lines = f"part: {facts(self.stored)}", f"padded: {self!r}"
                hint = (
                    "gather it first, axn.all_gather(parameter, mesh_axis), or leave the axis whole"
                )
                raise ShardingError(message("PaddedArray", problem, *lines, hint=hint))
        return self.stored

    def trim(self, x: NamedArray, *kept: str) -> NamedArray:
        """Cut the padding off another array that has some of the padded axes."""
        steps = {
            own.name: slice(own.size)
            for own in self.padding
            if own.name in x.names and own.name not in kept
        }
        return x[steps] if steps else x

    def extend(self, x: NamedArray) -> NamedArray:
        """Pad another array with zeros along the padded axes that it has."""
        more = {own.name: (0, own.stored - own.size) for own in self.padding if own.name in x.names}
        return pad(x, more) if more else x

    def __repr__(self) -> str:
        padded = {own.name: f"{own.name}={own.size} of {own.stored}" for own in self.padding}
        # A tree of labels or of masks has another leaf there.
        names = getattr(self.stored, "names", (repr(self.stored),))
        return f"PaddedArray({', '.join(padded.get(name, name) for name in names)})"

    def __getattr__(self, name: str) -> Any:
        problem = f"a padded parameter has no {name!r}"
        raise AttributeError(message("PaddedArray", problem, hint=self.how_to_read))

    def __array__(self, *args: object, **options: object) -> Any:
        # NumPy would make an array of one object.
        problem = "a padded parameter is no array"
        raise OperandError(message("PaddedArray", problem, hint=self.how_to_read))


class _NoKey:
    """The key of the stored array: none, so that paths are the same as in a model without padding."""

    def __str__(self) -> str:
        return ""


_NO_KEY = _NoKey()  # JAX compares keys


def _unflatten(padding: tuple[Padding, ...], children: Any) -> PaddedArray:
    return PaddedArray(children[0], padding)


jax.tree_util.register_pytree_with_keys(
    PaddedArray,
    lambda x: (((_NO_KEY, x.stored),), x.padding),
    _unflatten,
    flatten_func=lambda x: ((x.stored,), x.padding),
)


def pad_axes(tree: T, multiples: Mapping[str, int]) -> T:
    """Store arrays of a model with axes rounded up to multiples, so that devices divide them evenly.

    The model computes the same function: layers never read the padding, and its gradients are zero. An array whose axes
    already are multiples stays as it is, and a padded array is padded anew.

    Args:
        tree: a model, concrete, traced or abstract.
        multiples: a number for each axis to pad, such as `{"vocab": 64}`, and for the names derived from it. The
            number of devices along the axis needs the least padding and the least traffic.

    Returns:
        The tree with a `PaddedArray` in place of each named array that is padded.

    Raises:
        ArgumentError: if a number is not positive, or no array has an axis of that name.

    Examples:
        >>> Vocab, Embed = axn.make_axes(vocab=50257, embed=4)
        >>> table = axn.nn.Embedding.init(Vocab, Embed, key=jax.random.key(0))
        >>> padded = axn.partitioning.pad_axes(table, {"vocab": 64})
        >>> padded.weight
        PaddedArray(vocab=50257 of 50304, embed)
        >>> padded.unembed(axn.ones(Embed)).shape
        {'vocab': 50257}
    """
    steps = {name: _check_multiple(name, step) for name, step in multiples.items()}
    known, used = set[str](), set[str]()

    def one(leaf: object) -> Any:
        x = leaf.cut() if isinstance(leaf, PaddedArray) else leaf
        # A filter leaves named arrays without an array.
        if not isinstance(x, NamedArray) or not hasattr(x.array, "shape"):
            return x
        known.update(x.names)
        sizes = sizes_of(x.names, shape_of("pad_axes", x.array, x.names))
        # A mapping splits derived names as their base, so they are padded as their base.
        keys = {name: key for name in x.names if (key := find_key(steps, name)) is not None}
        used.update(keys.values())
        padding = tuple(
            Padding(name, sizes[name], -(-sizes[name] // steps[key]) * steps[key])
            for name, key in keys.items()
            if sizes[name] % steps[key]
        )
        padded = PaddedArray(x, padding)
        return PaddedArray(_call(padded.extend, x), padding) if padding else x

    result: T = jax.tree.map(one, tree, is_leaf=_is_readable)
    for name in steps:
        if name not in used:
            there, near = (
                f"axes of the arrays: {', '.join(sorted(known)) or 'none'}",
                suggestion(name, known),
            )
            raise ArgumentError(
                message("pad_axes", f"no array has axis {name!r}", there, hint=near)
            )
    return result


def unpad_axes(tree: T) -> T:
    """Return a model without padded axes, such as for a layer that cannot read them; the inverse of `pad_axes`.

    Args:
        tree: a model, concrete, traced or abstract.

    Returns:
        The tree with a named array in place of each `PaddedArray`.

    Examples:
        >>> padded = axn.partitioning.pad_axes({"bias": axn.ones({"vocab": 5})}, {"vocab": 4})
        >>> axn.partitioning.unpad_axes(padded)["bias"].shape
        {'vocab': 5}
    """

    def one(leaf: object) -> Any:
        return _call(leaf.trim, leaf.read()) if isinstance(leaf, PaddedArray) else leaf

    result: T = jax.tree.map(one, tree, is_leaf=_is_readable)
    return result


def is_padded(leaf: object) -> bool:
    """Return whether this is a `PaddedArray`, such as for `is_leaf` of `jax.tree.map`.

    Examples:
        >>> padded = axn.partitioning.pad_axes({"bias": axn.ones({"vocab": 5})}, {"vocab": 4})
        >>> axn.partitioning.is_padded(padded["bias"])
        True
    """
    return isinstance(leaf, PaddedArray)


def _is_readable(leaf: object) -> bool:
    return isinstance(leaf, NamedArray | PaddedArray)


def _call(fn: Callable[[NamedArray], NamedArray], x: NamedArray) -> Any:
    """Call a function of one array, which may be abstract."""
    return jax.eval_shape(fn, x) if isinstance(x.array, jax.ShapeDtypeStruct) else fn(x)


def _check_multiple(name: str, step: object) -> int:
    try:
        number = operator.index(step)  # type: ignore[arg-type]  # the check itself
    except TypeError:
        number = 0
    if number < 1:
        problem = f"axis {name!r} cannot have a multiple of {step!r} positions"
        hint = f"pass a positive int, such as {{{name!r}: 64}}"
        raise ArgumentError(message("pad_axes", problem, hint=hint))
    return number
