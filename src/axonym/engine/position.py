"""Internal. Reading by an index by name, and its conversion to positions.

`steps` parses an index; this module applies Python's ints and slices first, as a box, and then the rest as one
positional index, in which index arrays are matched by name. `scatter` writes to the same positions.
"""

import builtins
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.export import is_symbolic_dim

from ..base.dtypes import widen_positions
from ..base.kinds import Payload
from ..errors import ArgumentError, AxisSizeError, OperandError, describe, message
from ..faults import uneven_scatters
from ..faults.gathered_rows import look_up
from ..faults.merged_slices import fit_start, may_merge, separate_gradient
from ..layout import explicit
from ..names import plans
from ..names.plans import Names
from . import checks, kernels
from .core import Core, shape_of, sizes_of
from .reading import read_locally
from .renaming import share_by_renaming
from .steps import (
    Gather,
    Int,
    Step,
    Strided,
    Traced,
    Window,
    axes_of_steps,
    gathers_in,
    normalize_indices,
    removes_axis,
)

Label: TypeAlias = str | int
"""A dimension: the name of its axis, or its number if it is anonymous."""


class Reach(NamedTuple):
    """How to treat indices out of range, and promises about the indices.

    Attributes:
        mode: a mode of `x.at[...]` in JAX, or "wrap", which wraps around. The default, None, reads the nearest
            element, or 0 in a window, and drops writes.
        fill: the value that "fill" reads, as an option `fill_value`.
        sorted: the indices ascend.
        unique: no element is selected twice.
        wraps: negative numbers in index arrays count from the end; otherwise they are out of range.
    """

    mode: str | None = None
    fill: kernels.Options = ()
    sorted: bool = False
    unique: bool = False
    wraps: bool = True


class Position(NamedTuple):
    """A positional index.

    Attributes:
        dims: an entry for each dimension of the array.
        labels: the dimensions of the selected part.
        union: the names of the index arrays.
        sizes: the sizes of the names.
        exact: whether there is at most one index array, so that promises about it hold for the whole index.
    """

    dims: tuple[Any, ...]
    labels: tuple[Label, ...]
    union: Names
    sizes: dict[str, int]
    exact: bool

    @property
    def places(self) -> int:
        """The number of positions along the axes that it indexes by arrays."""
        return math.prod(plans.values_at(self.sizes, self.union))

    @property
    def array_dims(self) -> list[int]:
        """The dimensions that it does not slice."""
        return uneven_scatters.find_indexed(self.dims)


class Vector(NamedTuple):
    """An index array: the axis that it indexes, its positions, and its own axes."""

    name: str
    positions: Payload
    axes: Names


def make_reach(
    function: str,
    modes: Sequence[str],
    mode: str | None,
    fill_value: object = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> Reach:
    """Check the options for indices out of range, and the promises about indices."""
    if mode is not None and mode not in modes:
        problem = f"the mode must be one of {', '.join(modes)}, not {mode!r}"
        raise ArgumentError(message(function, problem))
    if isinstance(fill_value, Core | jax.Array | np.ndarray):
        hint = "choose afterwards: axn.where(...)"
        raise OperandError(message(function, "fill_value must be a Python scalar", hint=hint))
    # The value is a part of the kernel, and so of its key.
    fill = kernels.static(function, {"fill_value": fill_value})
    return Reach(mode, fill, bool(indices_are_sorted), bool(unique_indices))


def name_selection(names: Names, steps: Sequence[Step]) -> Names:
    """Return the names of the result of an index.

    The axes of index arrays replace the indexed axes if these are adjacent, and otherwise come first.
    """
    names = plans.without(names, tuple(step.name for step in steps if removes_axis(step)))
    gathers = gathers_in(steps)
    if not gathers:
        return names
    indexed = axes_of_steps(gathers)
    kept = plans.without(names, indexed)
    # The order of axes is that of the longest index array, which the others are aligned with.
    longest_first = sorted((step.axes for step in gathers), key=len, reverse=True)
    new = plans.without(plans.unite(longest_first), kept)
    # NumPy has this rule: adjacent index arrays put their axes in place, and others put them first.
    at = list(map(names.index, indexed))
    if not _are_adjacent(at):
        return (*new, *kept)
    before = plans.without(names[: min(at)], indexed)
    return (*before, *new, *kept[len(before) :])


def _are_adjacent(at: Sequence[int]) -> bool:
    return max(at) - min(at) + 1 == len(at)


def run_with_ints(kernel: kernels.Kernel, array: Payload, *arguments: object) -> Any:
    """Call a kernel; while tracing, Python ints are passed unchanged, so that they stay static."""
    if isinstance(array, Tracer) and any(isinstance(argument, int) for argument in arguments):
        return kernel.body(array, *arguments)
    return kernels.run(kernel.call, array, *arguments)


@share_by_renaming("names", "steps")
def reading(names: Names, steps: tuple[Step, ...], function: str, reach: Reach) -> kernels.Kernel:
    """Make the kernel that reads at an index: ints and slices first, then all index arrays together."""
    plans.require(names, axes_of_steps(steps))
    # Only a gather knows modes for positions out of range, so with a mode all that may be out of range is gathered.
    gathered: tuple[type[Step], ...] = (Gather, Traced, Window) if reach.mode else (Gather,)
    rest = tuple(step for step in steps if isinstance(step, gathered))
    target = name_selection(names, steps)

    def body(array: jax.Array, *arguments: object) -> jax.Array:
        shape_of(function, array, names)
        current = names
        left: list[Payload] = []
        pairs = list(zip(steps, arguments, strict=True))
        if explicit.has_explicit_axes(array):
            # Steps that send nothing come first: then there is less to send for the rest.
            last = {*_find_split_names(array, names), *axes_of_steps(rest)}
            pairs.sort(key=lambda pair: pair[0].name in last)
        for step, argument in pairs:
            at = array.ndim - len(current) + current.index(step.name)
            if not array.shape[at] and isinstance(step, (Traced, *gathered)):
                _check_readable(function, array, current, step, argument)
            if isinstance(step, Gather) or step in rest:
                left.append(argument)
                continue
            array = step.read(array, at, argument)
            if removes_axis(step):
                current = plans.without(current, (step.name,))
        if not rest:
            return array

        def read(array: jax.Array, *arguments: Payload) -> jax.Array:
            return _gather(function, array, current, rest, arguments, target, reach)

        only = rest[0]
        # Tables of rows, as of embeddings, are the usual case.
        if len(rest) == 1 and isinstance(only, Gather):
            return look_up(read, array, left[0], current, only.name, only.axes, target)
        return read(array, *left)

    return kernels.Kernel(target, body)


def _find_split_names(array: jax.Array, names: Names) -> set[str]:
    entries = explicit.get_layout(array)[array.ndim - len(names) :]
    return {name for name, entry in zip(names, entries, strict=True) if entry}


def _check_readable(
    function: str, array: jax.Array, names: Names, step: Step, argument: Any
) -> None:
    """Raise an error for reading along an empty axis, which does not even have a nearest element."""
    count = step.length if isinstance(step, Window) else argument.size
    if count:
        problem = f"axis {step.name!r} has no elements to read"
        held = f"array has: {describe(names, array.shape)}"
        raise AxisSizeError(message(function, problem, held))


def positional(
    function: str,
    array: jax.Array,
    names: Names,
    steps: Sequence[Step],
    arguments: Sequence[Payload],
    mode: str | None,
    batch: Names = (),
) -> Position:
    """Convert steps to a positional index, whose labels give the order of dimensions in numpy.

    An axis that an index array shares with the rest of the array is matched position by position, unless it is in
    `batch`, which the caller handles.
    """
    # Windows and slices turn into positions only where an index array shares their axis.
    index = _Index(function, array, names, mode)
    for step, argument in zip(steps, arguments, strict=True):
        index.add(step, argument)
    return index.position(batch)


class _Index:
    """A positional index that is being built, step by step.

    Attributes:
        dims: an entry for each dimension of the array.
        sizes: the axes that are not indexed, and those of windows and slices, with the sizes of what is selected.
        vectors: the index arrays, in the order of the steps.
        strided: the positions of a slice in its axis.
    """

    def __init__(self, function: str, array: jax.Array, names: Names, mode: str | None) -> None:
        self.function, self.names, self.mode = function, names, mode
        self.anonymous = array.ndim - len(names)
        self.sizes = sizes_of(names, array.shape)
        self.dims: list[Payload] = [builtins.slice(None)] * array.ndim
        self.vectors: list[Vector] = []
        self.strided: dict[str, Callable[[], jax.Array]] = {}

    def add(self, step: Step, argument: object) -> None:
        """Index one axis."""
        name = step.name
        size = self.sizes[name]
        if isinstance(step, Window):
            # A window is an index array along its own axis, which stays in the result.
            positions = _window_positions(argument, step.length, size, self.mode)
            self.vectors.append(Vector(name, positions, (name,)))
            self.sizes[name] = step.length
        elif isinstance(step, Strided):
            self._add_slice(step, size)
        elif isinstance(step, Int):
            self._set_dim(name, argument)
            del self.sizes[name]
        else:
            axes: Names = step.axes if isinstance(step, Gather) else ()
            positions = normalize_indices(self.function, name, argument, axes, size, self.mode)
            self._set_dim(name, positions)
            del self.sizes[name]
            if isinstance(step, Gather):
                self.vectors.append(Vector(name, positions, axes))

    def _set_dim(self, name: str, dim: object) -> None:
        self.dims[self.anonymous + self.names.index(name)] = dim

    def _add_slice(self, step: Strided, size: int) -> None:
        self._set_dim(step.name, step.slice)
        if is_symbolic_dim(size):  # only JAX can say how many positions that will be
            every = partial(jnp.arange, size)
            self.strided[step.name] = lambda: every()[step.slice]
            (self.sizes[step.name],) = jax.eval_shape(self.strided[step.name]).shape
            return
        positions = range(*step.slice.indices(size))
        self.sizes[step.name] = len(positions)
        self.strided[step.name] = lambda: (
            positions.start + positions.step * jnp.arange(len(positions))
        )

    def position(self, batch: Names) -> Position:
        """Return the index, in which all index arrays are matched by name."""
        # A window keeps its axis under its own name, and has its size: there is nothing to compare.
        gathers = [vector for vector in self.vectors if vector.name not in self.sizes]
        operands = [tuple(self.sizes), *(vector.axes for vector in gathers)]
        shapes = [tuple(self.sizes.values()), *(vector.positions.shape for vector in gathers)]
        sizes = checks.one_size(self.function, operands, shapes)
        self._match(plans.unite(operands[1:]), batch)

        # All index arrays are known now, and so is the order of their axes.
        union = plans.unite(vector.axes for vector in self.vectors)
        for name, positions, axes in self.vectors:
            self._set_dim(name, kernels.line_up(positions, axes, _cut_before(union, axes)))
        labels = _order_labels(self.dims, (*range(self.anonymous), *self.names), union)
        return Position(tuple(self.dims), labels, union, sizes, len(self.vectors) <= 1)

    def _match(self, given: Names, batch: Names) -> None:
        """Index the axes that index arrays share with the rest of the array, position by position."""
        done = {vector.name for vector in self.vectors}
        for name in plans.without(tuple(self.sizes), batch):
            if name in done or name not in given:
                continue
            positions = self.strided.get(name, partial(jnp.arange, self.sizes[name]))()
            self.vectors.append(Vector(name, positions, (name,)))


def _order_labels(
    dims: Sequence[Payload], labels: Sequence[Label], union: Names
) -> tuple[Label, ...]:
    """Return numpy's order for an index: new dimensions replace indexed ones if adjacent, and otherwise come first."""
    at, first = uneven_scatters.find_indexed(dims), uneven_scatters.find_first_read(dims)
    kept = [(i, x) for i, x in enumerate(labels) if i not in at and x not in union]
    before, after = [x for i, x in kept if i < first], [x for i, x in kept if i >= first]
    return (*before, *union, *after)


def _cut_before(union: Names, axes: Names) -> Names:
    """Return the names of `union` from the first of `axes` on: positional indexing adds leading dimensions itself."""
    return union[min(map(union.index, axes), default=len(union)) :]


def _window_positions(start: object, length: int, size: int, mode: str | None) -> jax.Array:
    """Return the positions of a window; a negative position does not count from the end."""
    positions: jax.Array = jnp.arange(length) + widen_positions(start)
    if mode == "clip":
        return jnp.clip(positions, 0, max(size - 1, 0))
    if mode == "promise_in_bounds":
        return positions
    # A negative position is reflected behind the end, where JAX does not take it for one that counts from the end.
    return jnp.where(positions < 0, size - 1 - positions, positions)


def _gather(
    function: str,
    array: jax.Array,
    names: Names,
    steps: Sequence[Step],
    arguments: Sequence[Payload],
    target: Names,
    reach: Reach,
) -> jax.Array:
    """Read elements at index arrays."""
    only = steps[0]
    if len(steps) == 1 and isinstance(only, Gather):
        shared = plans.intersect(only.axes, plans.without(names, (only.name,)))
        # Mapping over shared axes tells the compiler that they are batch dimensions.
        if shared:
            return _gather_matched(function, array, names, only, arguments[0], target, reach)
    position = positional(function, array, names, steps, arguments, reach.mode)

    def read(array: jax.Array, *positions: Payload) -> jax.Array:
        dims = list(position.dims)
        for at, given in zip(position.array_dims, positions, strict=True):
            dims[at] = given
        is_sorted = reach.sorted and position.exact
        return _take_elements(array, tuple(dims), reach, position.places, is_sorted)

    operands = [array, *plans.values_at(position.dims, position.array_dims)]
    pairs = zip(steps, arguments, strict=True)
    indices = [(step.axes, argument) for step, argument in pairs if isinstance(step, Gather)]
    indexed = axes_of_steps(steps)
    result = read_locally(read, operands, names, indexed, indices, position.labels, position.sizes)
    return _arrange(result, position.labels, array.ndim - len(names), target)


def _arrange(
    array: jax.Array, labels: tuple[Label, ...], anonymous: int, target: Names
) -> jax.Array:
    """Permute dimensions to those of a result: anonymous ones first, then names in order."""
    return kernels.line_up(array, labels, (*range(anonymous), *target))


def _take_elements(
    array: jax.Array, at: tuple[object, ...], reach: Reach, count: int, is_sorted: bool = False
) -> jax.Array:
    """Read elements at `count` positions."""
    mode = reach.mode
    if mode in (None, "clip", "wrap"):
        at = move_into_range(array, at, count, reach.wraps)
        mode = "clip"
    shape = uneven_scatters.broadcast_shape(at)
    more = uneven_scatters.count_missing(array, shape) if array.size else ()
    # The gradient is a scatter, for which each device needs as many positions as the others.
    even = uneven_scatters.even_reads(at, more) if any(more) else at
    selected = separate_gradient(array, count).at[even]
    found: jax.Array = selected.get(
        mode=mode,
        **kernels.keywords_of(reach.fill),
        # Positions that were added are in no order, and not unique.
        indices_are_sorted=is_sorted and not any(more),
        unique_indices=reach.unique and not any(more),
        wrap_negative_indices=reach.wraps,
    )
    return uneven_scatters.restore_read(found, at, more) if any(more) else found


def move_into_range(
    array: jax.Array, at: tuple[object, ...], count: int, wraps: bool
) -> tuple[Any, ...]:
    """Move the positions of an index into range if the compiler may fail to do so."""
    return clamp_indices(array, at, wraps) if may_merge(array, count) else at


def clamp_indices(array: jax.Array, at: tuple[object, ...], wraps: bool) -> tuple[Any, ...]:
    """Move the positions of an index into range."""
    return tuple(
        part if isinstance(part, builtins.slice | int) else fit_start(part, size, wraps=wraps)
        for part, size in zip(at, array.shape, strict=False)
    )


def _gather_matched(
    function: str,
    array: jax.Array,
    names: Names,
    step: Gather,
    indices: Payload,
    target: Names,
    reach: Reach,
) -> jax.Array:
    """Read at one index array by mapping over the axes that it shares with the rest of the array.

    The compiler then knows that these are batch dimensions; explicit positions along them would hide this.
    """
    name, axes = step.name, step.axes
    anonymous = array.ndim - len(names)
    sizes = sizes_of(names, array.shape)
    positions = normalize_indices(function, name, indices, axes, sizes.pop(name), reach.mode)
    operands = [tuple(sizes), axes]
    known = checks.one_size(function, operands, [tuple(sizes.values()), positions.shape])
    shared = plans.intersect(axes, tuple(sizes))
    labels: tuple[Label, ...] = (*range(anonymous), *names)
    # The labels that one call of the mapped function sees.
    single = _drop(labels, shared)
    at = single.index(name)

    def read(array: jax.Array, positions: jax.Array) -> jax.Array:
        dims = (*[builtins.slice(None)] * at, positions)
        return _take_elements(array, dims, reach, indices.size)

    mapped: Any = read
    # The innermost map comes first: each outer one has removed its axis from both operands.
    for depth in reversed(range(len(shared))):
        outer, axis = shared[:depth], shared[depth]
        dims = (_drop(labels, outer).index(axis), _drop(axes, outer).index(axis))
        mapped = jax.vmap(mapped, in_axes=dims)
    have = (*shared, *single[:at], *_drop(axes, shared), *single[at + 1 :])
    result = read_locally(
        mapped, [array, positions], names, {name}, [(axes, positions)], have, known
    )
    return _arrange(result, have, anonymous, target)


def _drop(labels: Sequence[Label], removed: Names) -> tuple[Label, ...]:
    return tuple(label for label in labels if label not in removed)
