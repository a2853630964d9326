"""Sizes of activations, gradients and updates: a table by layer and by named axes, also as metrics of a jitted step."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..array import NamedArray, is_named_array
from ..axis import AxisSelector, axis_name
from ..base.kinds import Tree, has_type
from ..engine.core import payload_of
from ..engine.operands import own_names
from ..errors import ArgumentError, message
from ..layout.assignment import path_text
from ..report.table import Printed, Table
from .heat import Heat

__all__ = ["Row", "Statistics", "statistics"]

Several = AxisSelector | Sequence[AxisSelector]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Row:
    """The sizes of one array; each keeps the requested axes, and the axes of the loops around it.

    Attributes:
        rms: the root of the mean square.
        largest: the largest absolute value.
        zeros: the share of zeros.
        saturated: the share of results of tanh, sigmoid and erf in the layer within 1 % of a limit; None if there are
            none, and for arrays of a tree.
        ratio: the norm divided by the norm of another array, such as an update by its weight, or None.
        count: how often the layer ran, if a branch or a loop decides this; otherwise None. If devices differ, it is the
            largest count.

    Examples:
        >>> row = axn.debug.statistics({"x": axn.named([0.0, 2.0], "embed")}).rows["x"]
        >>> row.largest.item(), row.zeros.item()
        (2.0, 0.5)
    """

    rms: NamedArray
    largest: NamedArray
    zeros: NamedArray
    saturated: NamedArray | None = None
    ratio: NamedArray | None = None
    count: NamedArray | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class Statistics(Printed):
    """Sizes of arrays by path; prints as a table. It is a tree of arrays, so a jitted step can return it.

    Attributes:
        rows: by the path of the layer, or of the array in its tree.
        unwatched: the layers that `watch` could not watch, each with its location.

    Examples:
        >>> axn.debug.statistics({"x": axn.named([0.0, 2.0], "embed")})
        what  rms   largest  zeros
        x     1.41  2        0.5
    """

    rows: Mapping[str, Row]
    unwatched: tuple[str, ...] = dataclasses.field(default=(), metadata={"static": True})

    def metrics(self) -> dict[str, Any]:
        """Return all numbers by name, such as "blocks.mlp/rms layers=1", for a logger.

        Examples:
            >>> axn.debug.statistics({"x": axn.named([0.0, 2.0], "embed")}).metrics()["x/zeros"].item()
            0.5
        """
        return {
            f"{path}/{field}{where and ' '}{where}": value.array[at]
            for path, row in self.rows.items()
            for field, value in _list_fields(row)
            for at, where in _list_places(value.names, value.array.shape)
        }

    def picture(self, number: str = "rms", along: AxisSelector | None = None) -> Heat:
        """Return a picture with a line for each layer, and a cell for each position along an axis.

        To see a run, stack the results of its steps along a new axis.

        Args:
            number: the number to draw, such as "largest".
            along: the axis from left to right; by default the first one that a row has. Positions of other axes have
                lines of their own.

        Raises:
            ArgumentError: if no row has the number, or the axis.

        Examples:
            >>> steps = [axn.debug.statistics({"x": axn.named([0.0, i], "embed")}) for i in (1.0, 2.0)]
            >>> run = jax.tree.map(lambda *x: axn.stack("step", x), *steps, is_leaf=axn.is_named_array)
            >>> run.picture("largest").lines
            {'x': (1.0, 2.0)}
        """
        every = {path: dict(_list_fields(row)).get(number) for path, row in self.rows.items()}
        drawn = {path: x for path, x in every.items() if x is not None}
        if not drawn:
            known = {name for row in self.rows.values() for name, _ in _list_fields(row)}
            hint = f"numbers: {', '.join(sorted(known))}"
            raise ArgumentError(message("picture", f"no row has a number {number!r}", hint=hint))
        axes = list(dict.fromkeys(name for x in drawn.values() for name in x.names))
        axis = axis_name(along) if along is not None else next(iter(axes), "")
        if axis and axis not in axes:
            hint = f"axes: {', '.join(axes) or 'none'}"
            raise ArgumentError(message("picture", f"no row has axis {axis!r}", hint=hint))
        lines: dict[str, tuple[float, ...]] = {}
        for path, x in drawn.items():
            rest = tuple(name for name in x.names if name != axis)
            array = np.moveaxis(
                np.asarray(x.array), [x.names.index(name) for name in rest], range(len(rest))
            )
            for at, where in _list_places(rest, array.shape):
                numbers = np.atleast_1d(array[at])
                lines[f"{path or 'model'} {where}".rstrip()] = tuple(numbers.tolist())
        return Heat(number, axis, lines)

    def parts(self) -> Iterator[str | Table]:
        """Yield the table."""
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(self.rows)):
            yield f"statistics of {len(self.rows)} arrays, inside of a transformation"
            return
        titles = [field.name for field in dataclasses.fields(Row)]
        every = self.rows.values()
        used = [title for title in titles if any(getattr(row, title) is not None for row in every)]
        lines: list[tuple[str, ...]] = []
        for path, row in self.rows.items():
            for at, where in _list_places(row.rms.names, row.rms.array.shape):
                found = (getattr(row, title) for title in used)
                # Some have fewer axes.
                by_name = dict(zip(row.rms.names, at, strict=True))
                own = (
                    "" if x is None else x.array[tuple(by_name[name] for name in x.names)]
                    for x in found
                )
                cells = (x if isinstance(x, str) else f"{x.item():.3g}" for x in own)
                lines.append((f"{path or 'model'} {where}".rstrip(), *cells))
        yield Table(("what", *used), tuple(lines))
        if self.unwatched:
            yield f"not watched: {'; '.join(self.unwatched)}"


def statistics(tree: Tree, by: Several = (), *, of: Tree = None) -> Statistics:
    """Measure all floating arrays of a tree, such as gradients, updates or parameters.

    The numbers may be traced, so call it in a jitted step and return its result. It reads each array once.

    Args:
        tree: named arrays, and others.
        by: axes along which numbers stay separate, if an array has them.
        of: a tree of the same structure; rows then have the norm of each array divided by the norm of its partner.

    Examples:
        >>> weights = {"w": axn.ones({"layers": 2, "embed": 3})}
        >>> updates = {"w": axn.named([0.1, 0.2], "layers") * weights["w"]}
        >>> print(axn.debug.statistics(updates, by="layers", of=weights))
        what        rms  largest  zeros  ratio
        w layers=0  0.1  0.1      0      0.1
        w layers=1  0.2  0.2      0      0.2
    """
    axes = _list_axes(by)
    partners = {} if of is None else dict(_list_arrays(of))
    return Statistics(
        {path: _measure(x, axes, partners.get(path)) for path, x in _list_arrays(tree)}
    )


def _list_axes(by: Several) -> frozenset[str]:
    return frozenset(map(axis_name, [by] if isinstance(by, AxisSelector) else by))


def _list_arrays(tree: Tree) -> Iterator[tuple[str, NamedArray]]:
    for path, leaf in jax.tree.leaves_with_path(tree, is_leaf=is_named_array):
        array = payload_of(leaf)
        if has_type(array) and jnp.issubdtype(array.dtype, jnp.inexact):
            yield path_text(path), NamedArray(jnp.asarray(array), own_names(leaf))


def _measure(x: NamedArray, by: frozenset[str], of: NamedArray | None = None) -> Row:
    """Return the sizes of an array; dimensions without names are reduced."""
    array, names = x.array, ("",) * (x.array.ndim - len(x.names)) + tuple(x.names)
    gone = tuple(d for d, name in enumerate(names) if name not in by)
    kept = tuple(name for name in names if name in by)
    wide = jnp.abs(array).astype(jnp.float32)
    square = jnp.mean(jnp.square(wide), gone)
    ratio = None
    if of is not None:
        other = jnp.abs(of.array).astype(jnp.float32)
        ratio = NamedArray(jnp.sqrt(square / jnp.mean(jnp.square(other), gone)), kept)
    return Row(
        NamedArray(jnp.sqrt(square), kept),
        NamedArray(jnp.max(wide, gone, initial=0.0), kept),
        NamedArray(jnp.mean(array == 0, gone, dtype=jnp.float32), kept),
        None,
        ratio,
    )


def _list_fields(row: Row) -> Iterator[tuple[str, NamedArray]]:
    for field in dataclasses.fields(row):
        value: NamedArray | None = getattr(row, field.name)
        if value is not None:
            yield field.name, value


def _list_places(
    names: Sequence[str], shape: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the coordinates of all positions along the named first dimensions, with their text."""
    for at in np.ndindex(tuple(shape[: len(names)])):
        yield at, ", ".join(f"{name}={i}" for name, i in zip(names, at, strict=True))
