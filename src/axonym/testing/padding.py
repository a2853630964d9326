"""The claim that the content of masked positions, such as padding, changes nothing else."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ..array import NamedArray, is_named_array
from ..axis import AxisSelector, axis_name
from ..base.kinds import Tree
from ..errors import ArgumentError, describe, message
from .blame import find_place, is_within
from .differences import differences
from .explain import fail, find_clear, first_place, write_place
from .failure import ClaimError
from .program import Arrays, Fresh, Place, Program, Pullback, check_where, is_float, is_key
from .trace import Trace

__all__ = ["assert_ignores"]

Mask = np.ndarray[Any, Any]
# The number of positions that are tried one by one to name a single one.
_MOST_SINGLE = 64


def assert_ignores(
    f: Callable[..., Any],
    axis: AxisSelector,
    *args: Tree,
    where: NamedArray,
    is_absent: bool = False,
) -> None:
    """Check that the content of masked positions changes no results elsewhere, and no gradient of a parameter.

    Args:
        f: any function of named arrays, a module or its method. If it reads the mask, pass the mask among the
            arguments.
        axis: the axis of positions.
        args: its arguments. Floats and integers of arguments with the axis are changed where `where` is false.
        where: booleans, with the axis: which positions count.
        is_absent: whether a sequence without the masked positions must give the same result, too. The masked positions
            have to be the same in all sequences.

    Raises:
        ClaimError: with a masked position, what it changes, by how much, and the layer.

    Examples:
        >>> Batch, Pos = axn.make_axes(batch=2, pos=4)
        >>> x = axn.random.normal(jax.random.key(0), (Batch, Pos))
        >>> real = axn.arange(Pos).broadcast_axis(Batch) < axn.named([4, 3], Batch)
        >>> axn.testing.assert_ignores(lambda x: x.mean(Pos, where=real), Pos, x, where=real)
    """
    padding = _Padding(f, axis_name(axis), args, where)
    padding.check_values()
    padding.check_gradients()
    if is_absent:
        padding.check_absent()


class _Padding:
    """A program, and a mask of the positions of an axis that are padding."""

    def __init__(
        self, f: Callable[..., Any], axis: str, args: Sequence[Tree], where: NamedArray
    ) -> None:
        self.axis, self.where = axis, check_where("assert_ignores", where, axis)
        self.program = Program("assert_ignores", f, args)
        # The mask itself, and other booleans, say which elements count; they are no content.
        self.carriers = [
            i
            for i in self.program.carriers(axis)
            if not is_key(self.program.arrays[i]) and self.program.arrays[i].dtype != bool
        ]
        if not self.carriers:
            problem = f"no argument with axis {axis!r} has content to change: all are booleans"
            raise ArgumentError(message("assert_ignores", problem))
        self.size = self.program.size_of(axis, self.carriers)
        self.masked = ~np.asarray(where.array)
        if not self.masked.any():
            problem = "where masks no position, so that there is nothing to ignore"
            raise ArgumentError(message("assert_ignores", problem))
        self.fresh = Fresh.of(self.program, self.carriers)
        self.base = self.program(self.program.arrays)

    def _fit(self, mask: Mask, place: Place, ndim: int) -> Mask:
        """Reduce a mask to the axes of an array: along the other axes, all positions must be chosen."""
        extra = tuple(d for d, name in enumerate(self.where.names) if name not in place.names)
        names = [name for name in self.where.names if name in place.names]
        kept = mask.all(axis=extra)
        order = [names.index(name) for name in place.names if name in names]
        sizes = iter(np.transpose(kept, order).shape)
        shape = [next(sizes) if name in names else 1 for name in place.names]
        return np.transpose(kept, order).reshape((1,) * (ndim - len(place.names)) + tuple(shape))

    def change(self, masked: Mask) -> Arrays:
        """Return the inputs with other content at some masked positions."""
        chosen = {
            i: self._fit(masked, self.program.places[i], np.ndim(self.program.arrays[i]))
            for i in self.carriers
        }
        return self.fresh.within(self.program, chosen)

    def keep(self, place: Place, ndim: int) -> Mask:
        """Return the mask of the positions where a result must not change."""
        if self.axis not in place.names:
            return np.ones((1,) * ndim, bool)
        return ~self._fit(self.masked, place, ndim)

    def find_changes(self, results: Arrays) -> tuple[Place, Mask] | None:
        """Return the first result that changed elsewhere."""
        for place, one, other in zip(self.program.results, self.base, results, strict=True):
            change = differences(one, other, is_same_program=True)
            change = np.where(self.keep(place, change.ndim), change, 0.0)
            if change.any():
                return place, change
        return None

    def check_values(self) -> None:
        """Raise if results change elsewhere."""
        masked = self.masked
        found = self.find_changes(self.program(self.change(masked)))
        if found is None:
            return
        least = find_clear(found[1])
        for at in np.argwhere(self.masked)[:_MOST_SINGLE]:
            only = np.zeros_like(self.masked)
            only[tuple(at)] = True
            alone = self.find_changes(self.program(self.change(only)))
            if alone is not None and alone[1].max() >= least:
                masked, found = only, alone
                break
        place, change = found
        source = self.name_first(masked)
        target = first_place(place, change)
        where = write_place(target) or place.path or "the result"
        raise self.explain(
            f"{write_place(source)} is masked, and affects {where}", source, place, change, masked
        )

    def name_first(self, masked: Mask) -> dict[str, int]:
        """Return the coordinates, by name, of the first masked position."""
        return {
            name: int(i) for name, i in zip(self.where.names, np.argwhere(masked)[0], strict=True)
        }

    def explain(
        self, problem: str, source: dict[str, int], place: Place, change: Mask, masked: Mask
    ) -> ClaimError:
        """Build the error."""
        program = self.program
        trace = Trace(program.run_unwrapped, program.arrays, program)
        others = tuple(d for d, name in enumerate(self.where.names) if name != self.axis)
        chosen = np.asarray(masked.any(axis=others))

        def is_explained(x: Any, y: Any) -> bool:
            return np.shape(x) == np.shape(y) and is_within(
                differences(x, y, is_same_program=True) > 0, self.size, chosen
            )

        self.base = program.run_unwrapped(program.arrays)
        found = find_place(
            trace,
            program.arrays,
            self.change(masked),
            is_explained,
            lambda results: self.find_changes(results) is not None,
        )
        return fail(
            "ignores",
            problem,
            *((f"result: {place.path}",) if place.path else ()),
            axis=self.axis,
            causes="ignores",
            source=source,
            target=first_place(place, change),
            effect=float(change.max()),
            place=found,
        )

    def check_gradients(self) -> None:
        """Raise if gradients of the unmasked results change for arrays that did not change themselves."""
        pull = Pullback(self.program, range(len(self.base)))
        cotangents = [
            (pull.draw(x) * self.keep(self.program.results[i], np.ndim(x))).astype(x.dtype)
            for i, x in ((i, self.base[i]) for i in pull.outs)
        ]
        before = pull(self.program.arrays, cotangents)
        after = pull(self.change(self.masked), cotangents)
        for i, one, other in zip(pull.inputs, before, after, strict=True):
            change = differences(one, other, is_same_program=False)
            if i not in self.carriers and change.any():
                path = self.program.places[i].path or "the function"
                source = self.name_first(self.masked)
                raise fail(
                    "ignores",
                    f"{write_place(source)} is masked, and affects the gradient of {path}",
                    axis=self.axis,
                    causes="ignores",
                    source=source,
                    effect=float(change.max()),
                    parameter=path,
                    place=(path.rpartition(".")[0], "", ""),
                )

    def check_absent(self) -> None:
        """Raise if a sequence without the masked positions gives another result."""
        others = tuple(d for d, name in enumerate(self.where.names) if name != self.axis)
        kept = ~self.masked.any(axis=others)
        if (kept != ~self.masked.all(axis=others)).any():
            problem = "is_absent needs the same masked positions everywhere"
            facts = f"where has: {describe(self.where.names, self.masked.shape)}"
            hint = "check sequences of one length at a time"
            raise ArgumentError(message("assert_ignores", problem, facts, hint=hint))
        at = np.flatnonzero(kept)
        without = jax.tree.map(
            lambda x: x.take(self.axis, at) if is_named_array(x) and self.axis in x.names else x,
            self.program.args,
            is_leaf=is_named_array,
        )
        shorter = Program("assert_ignores", self.program.f, without)
        found = shorter(shorter.arrays)
        for place, one, other in zip(self.program.results, self.base, found, strict=True):
            array = np.asarray(one)
            if self.axis in place.names:
                array = array.take(at, place.find_dimension(self.axis, array))
            change = differences(array, other, is_same_program=False)
            if change.any():
                raise self._explain_absent(shorter, at, place, change)

    def _explain_absent(self, shorter: Program, at: Mask, place: Place, change: Mask) -> ClaimError:
        def is_explained(x: Any, y: Any) -> bool:
            # Position numbers are not mistakes by themselves; values computed from them may be.
            if not is_float(x):
                return True
            candidates = [
                x,
                *(np.asarray(x).take(at, d) for d, n in enumerate(np.shape(x)) if n == self.size),
            ]
            return any(
                np.shape(one) == np.shape(y)
                and not differences(one, y, is_same_program=False).any()
                for one in candidates
            )

        traces = [Trace(each.run_unwrapped, each.arrays, each) for each in (self.program, shorter)]
        found = find_place(
            traces[0], self.program.arrays, shorter.arrays, is_explained, another=traces[1]
        )
        target = first_place(place, change)
        if self.axis in target:
            target = {**target, self.axis: int(at[target[self.axis]])}
        source = self.name_first(self.masked)
        return fail(
            "ignores",
            f"without masked positions such as {write_place(source)}, {write_place(target)} is another",
            axis=self.axis,
            causes="ignores",
            source=source,
            target=target,
            effect=float(change.max()),
            place=found,
        )
