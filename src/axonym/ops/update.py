"""Updates by name: `x.at[...].set(...)` and similar, and pieces written at a traced start.

Arrays are immutable; each function returns a new one. Within `jax.jit` the compiler updates in place if nothing else
needs the old array; for an argument of `jit`, this needs `donate_argnums`.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from ..axis import AxisKey, AxisSelector, Pairs, names_in, selection
from ..base.calls import explain_calls
from ..base.kinds import type_text
from ..engine import auto, checks, kernels
from ..engine.core import Core, Operand, facts, shape_of, wrap
from ..engine.operands import own_names, payload
from ..engine.position import Reach, make_reach, reading, run_with_ints
from ..engine.renaming import share_by_renaming
from ..engine.scatter import check_dtype, put_on_mesh, write
from ..engine.steps import Item, check_along, check_range, check_start, selectors_of, steps_of
from ..errors import (
    AxisClashError,
    AxisSizeError,
    BroadcastError,
    OperandError,
    describe,
    message,
    suggestion,
)
from ..faults.merged_slices import fit_start, keep_gradient_apart, separate, separate_gradient
from ..layout import explicit
from ..names import plans
from ..names.plans import Names

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["At", "Part", "ScatterMode", "put_along_axis", "updated_slice"]

ScatterMode: TypeAlias = Literal["promise_in_bounds", "clip", "drop", "fill"]
_MODES = ("promise_in_bounds", "clip", "drop", "fill")


class _WriteOptions(TypedDict, total=False):
    """The options that all updates of a `Part` share; its methods take them as keywords."""

    indices_are_sorted: bool
    unique_indices: bool
    mode: ScatterMode | None


class At:
    """The type of `x.at`: an index selects the part of `x` to read or update.

    Args:
        x: the array.

    Examples:
        >>> axn.named([1, 2, 3], "pos").at["pos", 0].set(9).tolist()
        [9, 2, 3]
    """

    __slots__ = ("_x",)

    def __init__(self, x: "NamedArray") -> None:
        self._x = x

    def __getitem__(self, item: Item) -> "Part":
        return Part(self._x, selectors_of("at", self._x, item))

    if not TYPE_CHECKING:  # a type checker should report it

        def __setitem__(self, item: object, value: object) -> None:
            hint = 'x.at["batch", 0].set(1.0) returns a new array'
            raise OperandError(message("at", "arrays of JAX do not change", hint=hint))


class Part:
    """A part of an array, selected by `x.at[...]`, to read or update.

    It takes the same selectors as `x[...]`, and selects the same elements. The methods return an array with the axes,
    order and dtype of `x`. An update is matched by name with the part, `x[...]`, which must have all axes of the
    update. If the index has an element several times, `add`, `subtract`, `multiply`, `divide`, `power`, `min` and `max`
    apply all of its updates, and `set` any one of them.

    All methods share three options:

    * `mode`: how to treat index arrays, traced ints and dslices out of range. None and "drop" ignore such updates,
      "clip" takes the nearest element, and "promise_in_bounds" promises that there are no such updates. With None and
      "promise_in_bounds", a list or an array of NumPy that is out of range is an error;
    * `indices_are_sorted` and `unique_indices`: promises that can make updates faster; false by default.

    Args:
        x: the array.
        selectors: a mapping from axes to ints, slices, dslices, arrays or lists of integers.

    Raises:
        AxisNotFoundError: if an axis is missing.
        AxisSizeError: if a Python int is out of range, or a name has two sizes.
        BroadcastError: in a method, if the update has an axis that the part lacks.
        OperandError: if a selector or an update is of another kind, or has a dtype that `x` cannot hold.

    Examples:
        >>> x = axn.zeros(axn.Axis("pos", 5))
        >>> x.at["pos", axn.named([0, 3, 3], "i")].add(1.0).tolist()
        [1.0, 0.0, 0.0, 2.0, 0.0]
    """

    __slots__ = ("_arguments", "_steps", "_x")

    def __init__(self, x: "NamedArray", selectors: Mapping[AxisKey, object]) -> None:
        self._x = x
        self._steps, self._arguments = steps_of("at", x, selectors)

    def get(
        self,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: ScatterMode | None = None,
        fill_value: complex | np.generic | None = None,
    ) -> "NamedArray":
        """Read the part: `x[...]` with a choice of the values for indices out of range.

        Args:
            indices_are_sorted: a promise.
            unique_indices: a promise.
            mode: None is as in `x[...]`; "fill" and "drop" read `fill_value`; "clip" reads the nearest element.
            fill_value: a Python scalar, which implies "fill"; without it "fill" reads NaN, the lowest signed integer
                or the highest unsigned one.

        Returns:
            The axes of `x[...]`.

        Examples:
            >>> x = axn.named([1, 2], "i")
            >>> x.at["i", axn.named([1, 5], "j")].get(fill_value=0).tolist()
            [2, 0]
        """
        # A value to fill with would have no use otherwise.
        if mode is None and fill_value is not None:
            mode = "fill"
        reach = make_reach("at", _MODES, mode, fill_value, indices_are_sorted, unique_indices)
        self._check_range(mode)
        return self._read(reach)

    def _read(self, reach: Reach) -> "NamedArray":
        (array,), names = self._x.node
        kernel = checks.run_plan("at", (self._x,), reading, names, self._steps, "at", reach)
        return wrap(self._x, run_with_ints(kernel, array, *self._arguments), kernel.names)

    def set(self, update: Operand, **options: "Unpack[_WriteOptions]") -> "NamedArray":
        """Replace the part by an update.

        Args:
            update: a scalar, or axes among those of the part.
            options: `mode`, `indices_are_sorted` and `unique_indices`, as in `Part`.

        Returns:
            A new array with the axes and dtype of `x`.

        Examples:
            >>> axn.named([1, 2], "i").at["i", 0].set(9).tolist()
            [9, 2]
        """
        return self._write("set", update, **options)

    def add(self, update: Operand, **options: "Unpack[_WriteOptions]") -> "NamedArray":
        """Add an update to the part.

        Args:
            update: a scalar, or axes among those of the part.
            options: `mode`, `indices_are_sorted` and `unique_indices`, as in `Part`.

        Returns:
            A new array with the axes and dtype of `x`.

        Examples:
            >>> axn.named([1, 2], "i").at["i", 0].add(5).tolist()
            [6, 2]
        """
        return self._write("add", update, **options)

    def subtract(self, update: Operand, **options: "Unpack[_WriteOptions]") -> "NamedArray":
        """Subtract an update from the part.

        Args:
            update: a scalar, or axes among those of the part.
            options: `mode`, `indices_are_sorted` and `unique_indices`, as in `Part`.

        Returns:
            A new array with the axes and dtype of `x`.

        Examples:
            >>> axn.named([1, 2], "i").at["i", 0].subtract(5).tolist()
            [-4, 2]
        """
        return self._write("subtract", update, **options)

    def multiply(self, update: Operand, **options: "Unpack[_WriteOptions]") -> "NamedArray":
        """Multiply the part by an update.

        Args:
            update: a scalar, or axes among those of the part.
            options: `mode`, `indices_are_sorted` and `unique_indices`, as in `Part`.

        Returns:
            A new array with the axes and dtype of `x`.

        Examples:
            >>> axn.named([1, 2], "i").at["i", 0].multiply(5).tolist()
            [5, 2]
        """
        return self._write("multiply", update, **options)

    mul = multiply

    def divide(self, update: Operand, **options: "Unpack[_WriteOptions]") -> "NamedArray":
        """Divide the part by an update; `x` must be inexact.

        Args:
            update: a scalar, or axes among those of the part.
            options: `mode`, `indices_are_sorted` and `unique_indices`, as in `Part`.

        Returns:
            A new array with the axes and dtype of `x`.

        Examples:
            >>> axn.named([1.0, 2.0], "i").at["i", 0].divide(2).tolist()
            [0.5, 2.0]
        """
        return self._write("divide", update, **options)

    def power(self, update: Operand, **options: "Unpack[_WriteOptions]") -> "NamedArray":
        """Raise the part to the power of an update.

        Args:
            update: a scalar, or axes among those of the part.
            options: `mode`, `indices_are_sorted` and `unique_indices`, as in `Part`.

        Returns:
            A new array with the axes and dtype of `x`.

        Examples:
            >>> axn.named([1, 2], "i").at["i", 1].power(3).tolist()
            [1, 8]
        """
        return self._write("power", update, **options)

    def min(self, update: Operand, **options: "Unpack[_WriteOptions]") -> "NamedArray":
        """Take the smaller of the part and an update.

        Args:
            update: a scalar, or axes among those of the part.
            options: `mode`, `indices_are_sorted` and `unique_indices`, as in `Part`.

        Returns:
            A new array with the axes and dtype of `x`.

        Examples:
            >>> axn.named([1, 2], "i").at["i", 0].min(0).tolist()
            [0, 2]
        """
        return self._write("min", update, **options)

    def max(self, update: Operand, **options: "Unpack[_WriteOptions]") -> "NamedArray":
        """Take the larger of the part and an update.

        Args:
            update: a scalar, or axes among those of the part.
            options: `mode`, `indices_are_sorted` and `unique_indices`, as in `Part`.

        Returns:
            A new array with the axes and dtype of `x`.

        Examples:
            >>> axn.named([1, 2], "i").at["i", 0].max(5).tolist()
            [5, 2]
        """
        return self._write("max", update, **options)

    def apply(
        self, func: "Callable[[NamedArray], NamedArray]", **options: "Unpack[_WriteOptions]"
    ) -> "NamedArray":
        """Replace the part by a function of it; an element that the index has several times is changed only once.

        Args:
            func: an elementwise function of a NamedArray with the axes of the part.
            options: `mode`, `indices_are_sorted` and `unique_indices`, as in `Part`.

        Returns:
            A new array with the axes and dtype of `x`.

        Examples:
            >>> axn.named([1.0, 4.0], "i").at["i", 1].apply(axn.sqrt).tolist()
            [1.0, 2.0]
        """
        mode = options.get("mode")
        self._check_range(mode)
        # Only "clip" writes elements out of range, and so must read them from the same place.
        part = func(self._read(Reach("clip") if mode == "clip" else Reach()))
        return self._write("set", part, **options)

    def _write(
        self,
        operation: str,
        update: Operand,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: ScatterMode | None = None,
    ) -> "NamedArray":
        reach = make_reach("at", _MODES, mode, None, indices_are_sorted, unique_indices)
        self._check_range(mode)
        return write("at", self._x, self._steps, self._arguments, operation, update, reach)

    def _check_range(self, mode: str | None) -> None:
        """Check the index, unless the mode says how to treat indices out of range."""
        if mode in (None, "promise_in_bounds"):
            check_range("at", self._x, self._steps, self._arguments)


def put_along_axis(
    x: "NamedArray",
    indices: "NamedArray",
    values: Operand,
    axis: AxisSelector,
    *,
    mode: ScatterMode | None = None,
) -> "NamedArray":
    """Set values along an axis at indices that have this axis too, of any size: the counterpart of `take_along_axis`.

    Args:
        x: axes {axis, ...}.
        indices: axes {axis, ...}; it broadcasts along other axes of `x`.
        values: a scalar, or axes among those of `take_along_axis(x, indices, axis)`.
        axis: the axis.
        mode: as in `x.at[...]`.

    Returns:
        The axes and dtype of `x`.

    Raises:
        AxisNotFoundError: if `axis` is missing from either, or `indices` has an axis that `x` lacks.

    Examples:
        >>> x = axn.named([[3, 1, 2], [4, 6, 5]], ("row", "column"))
        >>> largest = x.argmax("column").broadcast_axis(axn.Axis("column", 1))
        >>> axn.put_along_axis(x, largest, 0, "column").tolist()
        [[0, 1, 2], [4, 0, 5]]
    """
    check_along("put_along_axis", x, indices, axis)
    steps, arguments = steps_of("put_along_axis", x, {axis: indices})
    reach = make_reach("put_along_axis", _MODES, mode)
    if mode in (None, "promise_in_bounds"):
        check_range("put_along_axis", x, steps, arguments)
    return write("put_along_axis", x, steps, arguments, "set", values, reach)


def updated_slice(
    x: "NamedArray", start: "Mapping[AxisKey, int | Operand]", update: Operand
) -> "NamedArray":
    """Write a piece at starts; a traced start is moved so that the piece fits, as in `slice`.

    Args:
        x: axes {those of `start`, ...}.
        start: a mapping from axes to the start of the piece along them: an int, one integer, or a NamedArray whose axes
            `x` has too, with one start for each of its positions.
        update: a scalar, or axes among those of `x`. Along the axes of `start`, its size is that of the piece, 1 if
            it lacks the axis; along all others, that of `x`.

    Returns:
        The axes and dtype of `x`.

    Raises:
        AxisNotFoundError: if `x` lacks an axis of `start` or of one of its arrays.
        AxisSizeError: if the piece is larger than `x`, or does not fit at a Python int.
        BroadcastError: if `update` has an axis that `x` lacks.

    Examples:
        >>> cache = axn.zeros((axn.Axis("batch", 2), axn.Axis("pos", 4)))
        >>> axn.updated_slice(cache, {"pos": axn.named([0, 3], "batch")}, 1.0).tolist()
        [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    """
    function = "updated_slice"
    if not isinstance(x, Core):
        raise checks.no_names(function, x)
    if not isinstance(start, Mapping):
        problem = f"start must be a dict from axes to integers, not {type_text(start)}"
        hint = 'write {"pos": 0}'
        raise OperandError(message(function, problem, f"array has: {facts(x)}", hint=hint))
    (array,), names = x.node
    given = selection(tuple(start), function)
    starts = [payload(function, begin) for begin in start.values()]
    value, updated = payload(function, update), own_names(update)

    operands = (x, *start.values(), update)
    own = tuple(map(own_names, start.values()))
    kernel = checks.run_plan(function, operands, _make_update, names, given, own, updated)
    # Starts that are Python ints are checked here: in the kernel all of them are traced.
    lengths = dict(zip(reversed(updated), reversed(jnp.shape(value)), strict=False))
    for (name, _), begin in zip(given, starts, strict=True):
        check_start(function, x, name, begin, lengths.get(name, 1))
    return wrap(x, run_with_ints(kernel, array, value, *starts), names)


@share_by_renaming("names", "given", "own", "updated")
def _make_update(
    names: Names, given: Pairs, own: tuple[Names, ...], updated: Names
) -> kernels.Kernel:
    function, moved = "updated_slice", names_in(given)
    of_starts = tuple(itertools.chain.from_iterable(own))
    plans.require(names, moved)
    plans.require(names, of_starts)
    for name in plans.intersect(of_starts, moved):
        raise AxisClashError(f"a start has axis {name!r}, along which the piece is moved")
    for name in plans.without(updated, names):
        hint = suggestion(name, plans.without(names, updated))
        raise BroadcastError(f"the update has axis {name!r}, which the array lacks", hint)
    # Each position of the axes of the starts has a piece of its own.
    batch = plans.intersect(names, of_starts)

    def body(array: jax.Array, update: ArrayLike, *starts: ArrayLike) -> jax.Array:
        shape = shape_of(function, array, names)
        checks.check_given(function, given, names, shape)
        checks.check_sizes(function, (names, *own), (array, *starts))
        check_dtype(function, "set", array, update)
        # The piece lines up with the array, where each axis that it lacks has size 1.
        piece: Labels = _label_update(update, updated, len(shape) - len(names))
        for name, one, value in zip(moved, own, starts, strict=True):
            is_integer = jnp.issubdtype(jnp.result_type(value), jnp.integer)
            if jnp.ndim(value) > len(one) or not is_integer:
                wanted = "one integer, or a NamedArray of integers"
                raise OperandError(message(function, f"the start along {name!r} must be {wanted}"))
        lengths = _measure_piece(names, shape, moved, updated, jnp.shape(update))
        labels: Labels = plans.labels(names, len(shape))

        def write_piece(array: jax.Array, update: ArrayLike, *starts: jax.Array) -> jax.Array:
            update = kernels.line_up(jnp.asarray(update, array.dtype), piece, labels)
            update = keep_gradient_apart(jnp.broadcast_to(update, lengths))
            if not batch:
                return _place(array, update, starts, labels, moved, own, batch)
            # Mapped over starts, JAX makes a scatter of it, which the compiler may merge with others.
            count = math.prod(array.shape[labels.index(name)] for name in batch)
            written = _place(separate(array, count), update, starts, labels, moved, own, batch)
            return separate_gradient(written, count)

        array = put_on_mesh(array)
        arrays: list[Any] = [array, update, *starts]
        written: jax.Array = auto.local(write_piece, arrays, list(explicit.get_layout(array)))
        return written

    return kernels.Kernel(names, body)


Labels: TypeAlias = tuple[Any, ...]
"""A name or a negative number for each dimension."""


def _label_update(update: ArrayLike, names: Names, most: int) -> Labels:
    """Label the dimensions of an update, some of which may be anonymous."""
    shape = checks.find_shape("updated_slice", update, names)
    if len(shape) - len(names) > most:
        problem = "the update has more anonymous dimensions than the array"
        held = f"update has: {describe(names, shape)}"
        raise OperandError(message("updated_slice", problem, held, hint=checks.NAME_IT))
    return plans.labels(names, len(shape))


def _measure_piece(
    names: Names, shape: tuple[int, ...], moved: Names, updated: Names, update: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the size of the piece in each dimension of the array."""
    anonymous = len(shape) - len(names)
    sizes = dict(zip(updated, update[len(update) - len(updated) :], strict=True))
    lengths = list(shape)
    for at, name in enumerate(names, start=anonymous):
        size, is_moved = shape[at], name in moved
        # An axis that the update lacks is written as a whole, or at one position if it has a start.
        length = lengths[at] = sizes.get(name, 1 if is_moved else size)
        if length == size or (is_moved and length < size):
            continue
        problem = f"a piece with {name}={length} does not fit into {name}={size}"
        lines = f"array has: {describe(names, shape)}", f"update has: {describe(updated, update)}"
        hint = f"give its start: {{{name!r}: 0}}" if length < size else None
        raise AxisSizeError(message("updated_slice", problem, *lines, hint=hint))
    return tuple(lengths)


def _place(
    array: jax.Array,
    update: jax.Array,
    starts: Sequence[ArrayLike],
    labels: Labels,
    moved: Names,
    own: Sequence[Names],
    batch: Names,
) -> jax.Array:
    """For each position along the axes of the starts, write a piece at its start."""
    if not batch:
        return _place_one(array, update, dict(zip(moved, starts, strict=True)), labels)
    # Map over one axis of the starts at a time, for arrays that have it; the innermost call writes one piece.
    name, at = batch[0], labels.index(batch[0])
    inner = plans.without(labels, (name,))
    left = [plans.without(one, (name,)) for one in own]

    def each(array: jax.Array, update: jax.Array, starts: Sequence[ArrayLike]) -> jax.Array:
        return _place(array, update, starts, inner, moved, left, batch[1:])

    dims = [one.index(name) if name in one else None for one in own]
    over_batch = jax.vmap(each, in_axes=(at, at, dims), out_axes=at)
    mapped: jax.Array = over_batch(array, update, list(starts))
    return mapped


def _place_one(
    array: jax.Array, update: jax.Array, starts: Mapping[str, ArrayLike], labels: Labels
) -> jax.Array:
    """Write a piece at one start, given along some axes."""
    # JAX wants one dtype for all; a Python int has none, and fits any.
    dtypes = {getattr(start, "dtype", None) for start in starts.values()}
    common = np.int64 if np.dtype(np.int64) in dtypes else np.int32
    begins: list[ArrayLike] = [0] * array.ndim
    for name, start in starts.items():
        at = labels.index(name)
        begins[at] = fit_start(jnp.asarray(start, common), array.shape[at], update.shape[at])
    return lax.dynamic_update_slice(array, update, begins, allow_negative_indices=False)


explain_calls(globals(), __all__)
