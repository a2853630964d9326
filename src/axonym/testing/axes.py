"""Claims about an axis: it carries nothing between examples, from later positions, or from padding.

Each check changes the content of some positions of the axis, and tests what else changes in the results. A claim costs
a few runs of one compiled program: for examples, twice the logarithm of their number; for positions, one run each, and
at most 32. One further program checks gradients with random cotangents; no Jacobian is computed. If a claim does not
hold, the program runs again, operation by operation, to find the layer.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..axis import AxisSelector, axis_name
from ..base.kinds import Tree
from .blame import find_place, is_same, is_within
from .differences import differences
from .explain import fail, find_clear, first_place, write_place
from .failure import ClaimError
from .program import (
    Arrays,
    Fresh,
    Place,
    Program,
    Pullback,
    along,
    is_float,
    is_key,
    is_old_key,
)
from .proving import is_proven_alone
from .steps import check_cache
from .trace import Trace

__all__ = ["assert_causal", "assert_independent"]

Mask = np.ndarray[Any, Any]
Probes = Iterable[tuple[Mask, Mask]]
# Up to this many positions are checked one by one; of more, a sample is checked.
_MOST_CUTS = 32
# The number of positions that are tried one by one to name a single one.
_MOST_SINGLE = 64
# With so many keys, positions that may share random numbers are looked at, and by chance they may do so this often.
_MOST_KEYS = 24
_CHANCE = 1e-4


def assert_independent(f: Callable[..., Any], axis: AxisSelector, *args: Tree) -> None:
    """Check that no position of an axis, such as an example of a batch, affects another one: in values and gradients.

    Results without the axis, such as a mean over the batch, are not checked. If an argument is a random key that
    changes the results, examples must not share the numbers drawn with it either.

    Args:
        f: any function of named arrays, a module or its method; some result has the axis.
        axis: the axis.
        args: its arguments. In arguments with the axis, floats, integers (within their range) and booleans are changed.

    Raises:
        ClaimError: with the smallest pair of positions, the size of the effect, and the layer.

    Examples:
        >>> Batch, Embed = axn.make_axes(batch=4, embed=8)
        >>> norm = axn.nn.LayerNorm.init(Embed)
        >>> axn.testing.assert_independent(norm, Batch, axn.random.normal(jax.random.key(0), (Batch, Embed)))
    """
    name = axis_name(axis)
    program = Program("assert_independent", f, args)
    if is_proven_alone("independent", program, name):
        return
    claim = _Claim("independent", "independent", program, name, name)
    claim.check_values(claim.split())
    claim.check_gradients(claim.split())
    claim.check_draws()


def assert_causal(
    f: Callable[..., Any],
    axis: AxisSelector,
    *args: Tree,
    out: AxisSelector | None = None,
    step: Callable[..., Any] | None = None,
    cache: Tree = None,
) -> None:
    """Check that no position depends on later ones: in values and gradients, and token by token through a cache.

    Args:
        f: any function of named arrays, a module or its method; some result has the axis.
        axis: the axis of positions.
        args: its arguments. In arguments with the axis, floats, integers (within their range) and booleans are changed.
        out: the axis of positions in results, if it has another name there.
        step: takes a cache and the arguments at one position, and returns the next cache and the result there. If it is
            given, its results must be the same as for the complete sequence.
        cache: the cache that `step` starts with.

    Raises:
        ClaimError: with the latest position that affects the position before it, the size of the effect, and the layer.

    Examples:
        >>> Pos, Embed = axn.make_axes(pos=6, embed=8)
        >>> x = axn.random.normal(jax.random.key(0), (Pos, Embed))
        >>> axn.testing.assert_causal(lambda x: axn.cumsum(x, Pos), Pos, x)
    """
    name = axis_name(axis)
    after = name if out is None else axis_name(out)
    program = Program("assert_causal", f, args)
    if is_proven_alone("causal", program, name, after):
        return
    claim = _Claim("causal", "causal", program, name, after)
    claim.check_values(claim.cut())
    claim.check_gradients(claim.cut(4))
    if step is not None:
        check_cache(claim.program, name, after, step, cache)


class _Claim:
    """A claim about two sets of positions: a change at `sources` must not change anything at `targets`."""

    def __init__(self, claim: str, causes: str, program: Program, axis: str, out: str) -> None:
        self.claim, self.causes, self.program, self.axis, self.out = (
            claim,
            causes,
            program,
            axis,
            out,
        )
        self.carriers = [i for i in program.carriers(axis) if not is_key(program.arrays[i])]
        self.size = program.size_of(axis, self.carriers)
        self.fresh = Fresh.of(program, self.carriers)
        self.base = program(program.arrays)
        self.outs = program.results_with(out)

    def split(self) -> Probes:
        """Yield splits of the positions, each in both directions, such that some split separates any two positions."""
        numbers = np.arange(self.size)
        for bit in range((self.size - 1).bit_length()):
            side = (numbers >> bit) % 2 == 1
            yield side, ~side
            yield ~side, side

    def cut(self, most: int = _MOST_CUTS) -> Probes:
        """Yield the later and the earlier positions at each cut, or at some cuts if there are many."""
        numbers = np.arange(self.size)
        count = min(self.size - 1, most)
        for at in np.unique(np.linspace(1, self.size - 1, count).round().astype(int)):
            yield numbers >= at, numbers < at

    def change(self, sources: Mask) -> Arrays:
        """Return the inputs with other content at some positions."""
        return self.fresh.within(self.program, {i: self._mask(i, sources) for i in self.carriers})

    def _mask(self, i: int, chosen: Mask) -> Mask:
        array = self.program.arrays[i]
        return along(array.shape, self.program.places[i].find_dimension(self.axis, array), chosen)

    def find_changes(self, results: Arrays, targets: Mask) -> tuple[int, Mask] | None:
        """Return the first result that changed at some positions, and by how much; None if none did."""
        for i in self.outs:
            place = self.program.results[i]
            change = differences(self.base[i], results[i], is_same_program=True)
            change = np.where(
                along(change.shape, place.find_dimension(self.out, change), targets), change, 0.0
            )
            if change.any():
                return i, change
        return None

    def check_values(self, probes: Probes) -> None:
        """Raise if a change at one set of positions changes results at the other."""
        for sources, targets in probes:
            if self.find_changes(self.program(self.change(sources)), targets) is not None:
                raise self._narrow(sources, targets)

    def _narrow(self, sources: Mask, targets: Mask) -> ClaimError:
        """Find the smallest pair of positions that breaks the claim, and build the error."""
        found = self.find_changes(self.program(self.change(sources)), targets)
        assert found is not None
        # A single position may have almost no effect, such as one of two that fill a capacity.
        least = find_clear(found[1])
        for at in np.flatnonzero(sources)[:_MOST_SINGLE]:
            only = np.arange(self.size) == at
            affected = ~only if self.claim == "independent" else np.arange(self.size) < at
            alone = self.find_changes(self.program(self.change(only)), affected)
            if alone is not None and alone[1].max() >= least:
                found, sources, targets = alone, only, affected
                break
        i, change = found
        target = first_place(self.program.results[i], change)
        source = {self.axis: int(np.flatnonzero(sources)[0])}
        place = self._locate(sources, targets)
        later = ", which is later" if self.claim == "causal" else ""
        problem = f"{write_place(target)} depends on {write_place(source)}{later}"
        path = self.program.results[i].path
        facts = (f"result: {path}",) if path else ()
        return fail(
            self.claim,
            problem,
            *facts,
            axis=self.axis,
            causes=self.causes,
            source=source,
            target=target,
            effect=float(change.max()),
            place=place,
        )

    def _locate(self, sources: Mask, targets: Mask) -> tuple[str, str, str] | None:
        """Find the first layer whose results change at positions where they should not."""
        program = self.program
        trace = Trace(program.run_unwrapped, program.arrays, program)
        # In a causal claim, later positions may change, too; in a batch, nothing else may.
        own = ~targets

        def is_explained(x: Any, y: Any) -> bool:
            if np.shape(x) != np.shape(y):
                return False
            return is_within(differences(x, y, is_same_program=True) > 0, self.size, own)

        self.base = program.run_unwrapped(program.arrays)
        return find_place(
            trace,
            program.arrays,
            self.change(sources),
            is_explained,
            lambda results: self.find_changes(results, targets) is not None,
        )

    def check_gradients(self, probes: Probes) -> None:
        """Raise if the gradient of results at some positions depends on the content of others."""
        pull = Pullback(self.program, self.outs)
        if not pull.inputs:
            return
        for sources, targets in probes:
            cotangents = [
                np.where(
                    along(x.shape, self.program.results[i].find_dimension(self.out, x), targets),
                    pull.draw(x),
                    0,
                ).astype(x.dtype)
                for i, x in ((i, self.base[i]) for i in pull.outs)
            ]
            before = pull(self.program.arrays, cotangents)
            after = pull(self.change(sources), cotangents)
            for i, one, other in zip(pull.inputs, before, after, strict=True):
                place = self.program.places[i]
                change = differences(one, other, is_same_program=False)
                if self.axis in place.names and not place.is_held:
                    dimension = place.find_dimension(self.axis, one)
                    at = along(np.shape(one), dimension, sources)
                    zero = np.zeros_like(np.asarray(one))
                    leak = differences(
                        zero, np.where(at, np.asarray(one), zero), is_same_program=False
                    )
                    change = np.where(at, leak, change)
                if change.any():
                    raise self._explain_gradient(place, sources, targets, float(change.max()))

    def _explain_gradient(
        self, place: Place, sources: Mask, targets: Mask, effect: float
    ) -> ClaimError:
        source = {self.axis: int(np.flatnonzero(sources)[0])}
        target = {self.out: int(np.flatnonzero(targets)[-1])}
        path = place.path or "the function"
        problem = (
            f"{write_place(source)} affects the gradient of {write_place(target)} with respect to {path}, "
            "and no value"
        )
        return fail(
            self.claim,
            problem,
            axis=self.axis,
            causes=self.causes,
            source=source,
            target=target,
            effect=effect,
            parameter=path,
            place=(path.rpartition(".")[0], "", ""),
        )

    def check_draws(self) -> None:
        """Raise if some examples share random numbers: then equal examples have equal results."""
        program = self.program
        keyed = [
            i
            for i, (place, array) in enumerate(zip(program.places, program.arrays, strict=True))
            if not place.is_held
            and self.axis not in place.names
            and (is_key(array) or (is_old_key(array) and not place.names))
        ]
        if not keyed:
            return
        alike = list(program.arrays)
        for i in self.carriers:
            array = np.asarray(alike[i])
            dimension = program.places[i].find_dimension(self.axis, array)
            alike[i] = jnp.asarray(np.broadcast_to(array.take([0], dimension), array.shape))
        # Some values repeat by chance, such as tokens, so that only positions count which repeat each other whatever
        # the key, more often than one key repeats another.
        runs = [program(alike)]
        pairs = [(i, *pair) for i in self.outs for pair in self._list_equal(i, runs[0][i])]
        for number in range(1, _MOST_KEYS):
            if not pairs:
                return
            arrays = list(alike)
            for i in keyed:
                arrays[i] = _fold(alike[i], number)
            found = program(arrays)
            equal = {i: set(self._list_equal(i, found[i])) for i in {pair[0] for pair in pairs}}
            pairs = [pair for pair in pairs if pair[1:] in equal[pair[0]]]
            runs.append(found)
            if number == 1:
                pairs = [pair for pair in pairs if not is_same(runs[0][pair[0]], found[pair[0]])]
        for i, first, second in pairs:
            own = [self._take(i, found[i], first) for found in runs]
            repeats = [is_same(*pair) for pair in itertools.combinations(own, 2)]
            if np.mean(repeats) ** len(runs) * len(pairs) < _CHANCE:
                change = differences(runs[0][i], runs[1][i], is_same_program=True)
                keys = [_fold(alike[i], 1) if i in keyed else x for i, x in enumerate(alike)]
                raise self._explain_draws(i, first, second, alike, keys, float(change.max()))

    def _take(self, i: int, array: Any, at: int) -> Any:
        """Return a result at one position."""
        return np.asarray(array).take([at], self.program.results[i].find_dimension(self.out, array))

    def _list_equal(self, i: int, array: Any) -> Iterator[tuple[int, int]]:
        """Yield pairs of positions where a result is equal."""
        dimension = self.program.results[i].find_dimension(self.out, array)
        others = tuple(d for d in range(np.ndim(array)) if d != dimension)
        size = np.shape(array)[dimension]
        for first in range(min(size - 1, _MOST_SINGLE)):
            own = np.broadcast_to(self._take(i, array, first), np.shape(array))
            change = differences(own, np.asarray(array), is_same_program=True)
            equal = np.flatnonzero(~change.any(axis=others))
            yield from ((first, int(second)) for second in equal if second > first)

    def _explain_draws(
        self, i: int, first: int, second: int, one: Arrays, other: Arrays, effect: float
    ) -> ClaimError:
        place, (source, target) = (
            self.program.results[i],
            ({self.axis: at} for at in (first, second)),
        )
        trace = Trace(self.program.run_unwrapped, one, self.program)
        draws = [
            each
            for each in trace.operations
            if each.name.startswith(("random_bits", "random_wrap", "threefry"))
        ]
        if not draws:
            # They are inside of an operation, such as a `shard_map`: name the first one whose numbers depend on the
            # key.
            before, after = trace.run(one), trace.run(other)
            draws = [
                each
                for each in trace.operations
                if any(
                    is_float(before[k]) and not is_same(before[k], after[k]) for k in each.results
                )
            ]
        problem = f"{write_place(source)} and {write_place(target)} draw equal random numbers"
        return fail(
            self.claim,
            problem,
            *((f"result: {place.path}",) if place.path else ()),
            axis=self.axis,
            causes="draws",
            source=source,
            target=target,
            effect=effect,
            place=draws[0].place if draws else None,
        )


def _fold(key: Any, number: int) -> Any:
    """Return other keys."""
    fold = functools.partial(jax.random.fold_in, data=number)
    for _ in np.shape(key) if is_key(key) else ():
        fold = jax.vmap(fold)
    return fold(key)
