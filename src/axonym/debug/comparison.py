"""Two programs side by side, layer by layer, and the first layer with different numbers."""

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from ..base.kinds import Tree
from ..engine.core import payload_of
from ..errors import ArgumentError, message, suggestion
from ..layout.assignment import path_text
from ..nn.stack.interleaved import Interleaved
from ..nn.stack.stacked import Stacked
from ..partitioning.shard import set_mesh
from ..report.table import Printed, Table
from ..testing import tolerances
from ..testing.differences import differences, find_largest
from ..testing.equations import stack_slices, take_slice
from ..testing.explain import find_factor
from ..testing.program import Arrays, Program, add_losses, is_float, is_key, is_loss
from ..testing.trace import Operation, Trace
from .devices import fetch

__all__ = ["Comparison", "Difference", "compare"]


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference between the results of one layer in two programs.

    Attributes:
        kind: "layer", "result" of the function, or "gradient" of a parameter.
        path: the path of the layer, the result or the parameter; for a layer, iterations of loops follow its first
            word.
        share: the largest difference beyond the tolerance, as a share of the largest number; 0 if there is none.
        factor: the factor by which all elements are off, or None if there is no common one.
        shapes: the shapes, if they differ so that nothing can be compared; otherwise empty.

    Examples:
        >>> x = axn.ones({"embed": 2})
        >>> axn.debug.compare(axn.exp, lambda x: 2 * axn.exp(x), x).rows[0]
        Difference(kind='result', path='', share=0.5, factor=2.0, shapes=())
    """

    kind: str
    path: str
    share: float
    factor: float | None = None
    shapes: tuple[tuple[int, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.share or self.shapes)

    @property
    def name(self) -> str:
        """The kind and the path, as text."""
        return f"{self.kind} {self.path}".rstrip()


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison(Printed):
    """Two programs side by side; prints as a table, and is true if they differ.

    Attributes:
        rows: layers in the order of the first program, then the results, then gradients from the last layer to the
            first one, as they are computed.
        only: the layers that only one of the programs has, by the number of this program.

    Examples:
        >>> x = axn.ones({"embed": 2})
        >>> bool(axn.debug.compare(axn.exp, lambda x: axn.exp(x / 2) ** 2, x))
        False
    """

    rows: tuple[Difference, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def first(self) -> Difference | None:
        """The first row that differs, or None."""
        return next(filter(None, self.rows), None)

    def __bool__(self) -> bool:
        return self.first is not None

    def parts(self) -> Iterator[str | Table]:
        """Yield the paragraphs and tables."""
        wrong = list(filter(None, self.rows))
        counted = f"{len(wrong)} of {len(self.rows)} differ"
        if self.first is None:
            yield f"compare: {counted}"
        else:
            yield f"compare: {counted}, first {self.first.name}"
            yield Table(("what", "difference", "factor"), tuple(map(_write, wrong)))
        for number, paths in zip(("first", "second"), self.only, strict=True):
            if paths:
                shown = ", ".join(paths[:5]) + (", ..." if len(paths) > 5 else "")
                yield f"only in the {number}: {shown}"


def compare(
    f: Callable[..., Any],
    g: Callable[..., Any] | Mapping[str, Any],
    *args: Tree,
    names: Mapping[str, str] | None = None,
    tolerance: float | None = None,
    meshes: tuple[Mesh | None, Mesh | None] = (None, None),
) -> Comparison:
    """Compare two programs layer by layer: forward, and also backward if both return a loss.

    Two calls of a layer match if the path without numbers and the number of earlier calls are the same. So stacked
    layers match layers in a list, and a model matches itself with `remat`, in another dtype or under another mapping.
    Each program runs once more, as a list of operations; a loop of more than 128 iterations is one operation.

    Args:
        f: any function of named arrays, a module or its method, also compiled.
        g: another function of the same arguments; or arrays by name that were recorded elsewhere, such as by hooks of
            torch. An array with another shape, but with the same elements in order, is reshaped.
        args: the arguments.
        names: for recorded arrays, the path of the layer by the name of the array, such as {"h.1.mlp": "blocks.1.mlp"},
            where the iteration of a loop over layers is a number behind the first word. An empty path is the result of
            the function. By default, the names are paths.
        tolerance: how far apart numbers may be, as a share of the largest one; by default, the value in
            `axn.testing.TOLERANCES` for two programs and the narrowest dtype in either.
        meshes: the devices of each program; by default, the current mesh.

    Returns:
        The layers, results and gradients, of which `first` is the first that differs.

    Raises:
        ArgumentError: if no layer has the path of a recorded array.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=4, mlp=8)
        >>> mlp = axn.nn.MLP.init(Embed, Embed, Mlp, 1, key=jax.random.key(0))
        >>> other = jax.tree.map(lambda x: x, mlp)
        >>> x = axn.random.normal(jax.random.key(1), Embed)
        >>> bool(axn.debug.compare(mlp, other, x))
        False
    """
    one = _Side(f, args, meshes[0])
    if isinstance(g, Mapping):
        limit = one.tolerance if tolerance is None else tolerance
        return _compare_recorded(one, g, names, limit)
    other = _Side(g, args, meshes[1])
    limit = max(one.tolerance, other.tolerance) if tolerance is None else tolerance
    rows = [
        _compare("layer", one.layers[key].path, one.values[key], other.values[key], limit)
        for key in one.layers
        if key in other.layers
    ]
    for kind, first, second in (
        ("result", one.results, other.results),
        ("gradient", one.gradients, other.gradients),
    ):
        among = find_largest(first.values()) if kind == "gradient" else 0.0
        rows += [
            _compare(kind, path, x, second[path], limit, among)
            for path, x in first.items()
            if path in second
        ]
    only = tuple(
        tuple(own.layers[key].path for key in own.layers if key not in another.layers)
        for own, another in ((one, other), (other, one))
    )
    return Comparison(tuple(rows), (only[0], only[1]))


class _Layer(NamedTuple):
    """A call of a layer.

    Attributes:
        parts: its path.
        turns: the iterations of the loops that it is in.
        result: the number of its result in the trace.
    """

    parts: tuple[str, ...]
    turns: tuple[int, ...]
    result: int

    @property
    def path(self) -> str:
        """The path as text, with iterations of loops behind its first word."""
        return ".".join([self.parts[0], *map(str, self.turns), *self.parts[1:]])


# The parts of the path other than numbers, and how often this path has run before.
_Key = tuple[tuple[str, ...], int]


class _Side:
    """One of two compared programs: the results of its layers, its final results, and its gradients."""

    def __init__(self, f: Callable[..., Any], args: tuple[Tree, ...], mesh: Mesh | None) -> None:
        program = Program("compare", f, args)
        if mesh is not None:
            # An array on one mesh cannot be used on another one.
            program.arrays = [x if is_key(x) else np.asarray(x) for x in program.arrays]
        with contextlib.nullcontext() if mesh is None else set_mesh(mesh):
            self.trace = Trace(program.run_unwrapped, program.arrays, program)
            self.layers = _list_layers(self.trace, _list_stacks((f, args)))
            kept = {layer.result for layer in self.layers.values()}

            def run(arrays: Arrays) -> tuple[dict[int, Any], list[Any]]:
                found = self.trace.run(arrays)
                return {i: found[i] for i in kept}, [found[i] for i in self.trace.outputs]

            values, results = jax.jit(run)(program.arrays)
            gradients = self._find_gradients(program, results)
        self.values = {key: fetch(values[layer.result]) for key, layer in self.layers.items()}
        pairs = zip(program.results, results, strict=True)
        self.results = {place.path: fetch(x) for place, x in pairs if not is_key(x)}
        self.gradients = {path: fetch(x) for path, x in gradients.items()}

    @property
    def tolerance(self) -> float:
        """The tolerance for numbers, by the narrowest dtype of the results of layers."""
        every = [*self.values.values(), *self.results.values()]
        return max(
            (tolerances.tolerance(x.dtype, is_same_program=False) for x in every), default=0.0
        )

    def _find_gradients(self, program: Program, results: list[Any]) -> dict[str, Any]:
        """Return gradients by path, starting with the array that the program reads last: gradients flow from there."""
        if not any(map(is_loss, results)):
            return {}
        floats = [i for i, x in enumerate(program.arrays) if is_float(x)]

        def loss(own: Arrays, arrays: Arrays) -> Any:
            filled = list(arrays)
            for i, x in zip(floats, own, strict=True):
                filled[i] = x
            return add_losses(program.run_unwrapped(filled))

        own = [program.arrays[i] for i in floats]
        found = jax.jit(jax.grad(loss))(own, program.arrays)
        readers = {
            i: number
            for number, operation in enumerate(self.trace.operations)
            for i in operation.operands
        }
        order = sorted(
            range(len(floats)), key=lambda k: -readers.get(self.trace.inputs[floats[k]], -1)
        )
        return {program.places[floats[k]].path: found[k] for k in order}


def _list_stacks(tree: Tree) -> set[tuple[str, ...]]:
    """Return the paths of stacks of layers, without numbers."""
    leaves = jax.tree.leaves_with_path(tree, is_leaf=_is_stack)
    return {_join_words(path_text(path).split(".")) for path, node in leaves if _is_stack(node)}


def _is_stack(node: object) -> bool:
    return isinstance(node, Stacked | Interleaved)


def _list_layers(trace: Trace, stacks: set[tuple[str, ...]]) -> dict[_Key, _Layer]:
    """Return the result of each call of a layer: the result of its last operation.

    Args:
        trace: the program.
        stacks: the paths of stacks. Operations of a stack around its loop, such as gathering weights, are not calls of
            a layer.
    """
    loops = take_slice, stack_slices
    operations = [each for each in trace.operations if each.run not in loops and each.results]
    # The iterations of the loops around each loop of a stack.
    around = {
        (words, each.turns[:-1])
        for each in operations
        for depth in range(1, len(each.layer) + 1)
        if each.turns and (words := _join_words(each.layer[:depth])) in stacks
    }
    found: dict[tuple[tuple[str, ...], int], _Layer] = {}
    for depth in range(1, max((len(each.layer) for each in operations), default=0) + 1):

        def call(operation: Operation, depth: int = depth) -> object:
            return operation.layer[:depth], operation.turns

        for _, (*_, last) in itertools.groupby(operations, call):
            path = last.layer[:depth]
            words = _join_words(path)
            if len(path) == depth and (words, last.turns) not in around:
                # A layer and the last layer of a list in it have the same result: keep the inner one.
                found[words, last.results[0]] = _Layer(path, last.turns, last.results[0])
    calls: Counter[tuple[str, ...]] = Counter()
    listed: dict[_Key, _Layer] = {}
    for (words, _), layer in sorted(found.items(), key=lambda item: item[1].result):
        listed[words, calls[words]] = layer
        calls[words] += 1
    return listed


def _list_words(path: Iterable[str]) -> list[str]:
    return [part for part in path if not part.isdecimal()]


def _join_words(path: Iterable[str]) -> tuple[str, ...]:
    """Return a path without numbers. A list of layers repeats its name: `blocks.blocks.0`."""
    return tuple(word for word, _ in itertools.groupby(_list_words(path)))


def _list_numbers(path: Iterable[str]) -> tuple[int, ...]:
    return tuple(int(part) for part in path if part.isdecimal())


def _compare(kind: str, path: str, x: Any, y: Any, limit: float, among: float = 0.0) -> Difference:
    if np.shape(x) != np.shape(y) and np.size(x) == np.size(y):
        y = np.reshape(y, np.shape(x))
    if np.shape(x) != np.shape(y):
        return Difference(kind, path, 0.0, None, (np.shape(x), np.shape(y)))
    change = differences(x, y, is_same_program=False, limit=limit, among=among)
    if not change.any():
        return Difference(kind, path, 0.0)
    return Difference(kind, path, float(change.max()), find_factor(x, y))


def _compare_recorded(
    one: _Side,
    recorded: Mapping[str, Any],
    names: Mapping[str, str] | None,
    limit: float,
) -> Comparison:
    rows: list[tuple[int, Difference]] = []
    for name, path in (names or dict.fromkeys(recorded, "")).items():
        own = path if names is not None else name
        if not own:
            (x, *_), place = list(one.results.values()), len(one.trace.operations)
        else:
            key = _find(own, one.layers)
            x, place = one.values[key], one.layers[key].result
        y = np.asarray(payload_of(recorded[name]))
        rows.append((place, _compare("layer" if own else "result", own, x, y, limit)))
    return Comparison(tuple(row for _, row in sorted(rows, key=lambda row: row[0])))


def _find(path: str, layers: Mapping[_Key, _Layer]) -> _Key:
    """Return the call of a layer for a path, where numbers are iterations of loops: `blocks.1.mlp`."""
    parts = path.split(".")
    words = _join_words(parts)
    same = [key for key in layers if key[0] == words]
    exact = [
        key for key in same if _list_numbers(layers[key].path.split(".")) == _list_numbers(parts)
    ]
    if len(exact) != 1:
        known = [layer.path for layer in layers.values()]
        near = [layers[key].path for key in same] or known
        hint = suggestion(path, known) or f"layers: {', '.join(near[:12])}"
        raise ArgumentError(message("compare", f"no layer {path!r}", hint=hint))
    return exact[0]


def _write(row: Difference) -> tuple[str, str, str]:
    if row.shapes:
        one, other = row.shapes
        return row.name, f"shape {one} and {other}", ""
    share = "NaN or infinity in one of both" if row.share == float("inf") else f"{row.share:.2g}"
    return row.name, share, "" if row.factor is None else f"{row.factor + 0.0:g}"
