"""Sizes of activations, gradients and updates: a table by layer and by named axes, also as metrics of a jitted step."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.core import Tracer

from ..array import NamedArray, is_named_array
from ..axis import AxisSelector, axis_name
from ..base.kinds import Tree, has_type
from ..costs.traced.equations import count_unstacked
from ..engine.core import payload_of
from ..engine.operands import own_names
from ..layout.assignment import path_text
from ..nn.layer import enter_scope
from ..nn.stack.interleaved import Interleaved
from ..nn.stack.stacked import Stacked
from ..report.table import Printed, Table
from ..testing.equations import Site, Visitor, find_call, list_modules, make_function
from ..testing.program import Arrays, Program

__all__ = ["Row", "Statistics", "statistics", "watch"]

P = ParamSpec("P")
R = TypeVar("R")
Several = AxisSelector | Sequence[AxisSelector]

_TAG = "axonym.debug.watch "
# Functions with limits, and the limits.
_LIMITS = {"tanh": (-1.0, 1.0), "erf": (-1.0, 1.0), "logistic": (0.0, 1.0)}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Row:
    """The sizes of one array, each with the axes that were asked for, and with those of loops around it.

    Attributes:
        rms: the root of the mean square.
        largest: the largest absolute value.
        zeros: the share of zeros.
        saturated: the share of results of tanh, sigmoid and erf in the layer within 1 % of a limit; None if there are
            none, and for arrays of a tree.
        ratio: the norm over the norm of another array, such as an update over its weight, or None.

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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class Statistics(Printed):
    """Sizes of arrays by path; prints as a table. It is a tree of arrays, so a jitted step can return it.

    Attributes:
        rows: by the path of the layer, or of the array in its tree.

    Examples:
        >>> axn.debug.statistics({"x": axn.named([0.0, 2.0], "embed")})
        what  rms   largest  zeros
        x     1.41  2        0.5
    """

    rows: Mapping[str, Row]

    def metrics(self) -> dict[str, Any]:
        """Return each number by a name, such as "blocks.mlp/rms layers=1", for a logger.

        Examples:
            >>> axn.debug.statistics({"x": axn.named([0.0, 2.0], "embed")}).metrics()["x/zeros"].item()
            0.5
        """
        return {
            f"{path}/{field}{where and ' '}{where}": value.array[at]
            for path, row in self.rows.items()
            for field, value in _list_fields(row)
            for at, where in _list_places(value)
        }

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
            for at, where in _list_places(row.rms):
                found = (getattr(row, title) for title in used)
                cells = ("" if x is None else f"{float(x.array[at]):.3g}" for x in found)
                lines.append((f"{path or 'model'} {where}".rstrip(), *cells))
        yield Table(("what", *used), tuple(lines))


def statistics(tree: Tree, by: Several = (), *, of: Tree = None) -> Statistics:
    """Measure all floating arrays of a tree, such as gradients, updates or parameters.

    The numbers are traced, so call it in a jitted step and return what it returns. It reads each array once.

    Args:
        tree: named arrays, and others.
        by: axes along which numbers stay apart, where an array has them.
        of: a tree of the same structure; rows then have the norm of each array over the norm of its partner.

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


def watch(f: Callable[P, R], by: Several = ()) -> Callable[P, tuple[R, Statistics]]:
    """Make of a function one that also returns the sizes of what each layer returns.

    Layers are modules that are called. A layer in a stack has a row with the axis of its layers. The function stays a
    function of arrays: compile it, and call it where you want the numbers. Each number is one reduction over the result
    of a layer. The function itself is not changed, and costs what it did.

    Watch a whole step, not the loss that it differentiates: custom gradients do not pass through. Layers inside of
    `shard_map`, `while` and `cond` are not seen, nor are backward passes: measure gradients by `statistics`.

    Args:
        f: any function of named arrays, such as a model or a step.
        by: axes along which numbers stay apart, where a result has them.

    Returns:
        A function of the same arguments that returns the result and the statistics.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=4, mlp=8)
        >>> mlp = axn.nn.MLP.init(Embed, Embed, Mlp, 1, key=jax.random.key(0))
        >>> y, seen = jax.jit(axn.debug.watch(lambda mlp, x: mlp(x)))(mlp, axn.ones(Embed))
        >>> list(seen.rows)
        ['layers.0', 'layers.1', 'model']
    """
    axes = _list_axes(by)

    @functools.wraps(f)
    def run(*args: P.args, **kwargs: P.kwargs) -> tuple[R, Statistics]:
        called = functools.partial(f, **kwargs) if kwargs else f
        program = Program("watch", called, args)
        made: dict[str, Any] = {}

        def flat(arrays: Arrays) -> Arrays:
            result = program.call_unwrapped(arrays)
            leaves, made["structure"] = jax.tree.flatten(result)
            made["is_array"] = [has_type(leaf) for leaf in leaves]
            made["static"] = [leaf for leaf in leaves if not has_type(leaf)]
            return [leaf for leaf in leaves if has_type(leaf)]

        with _tag_results((program.f, program.args)):
            watched = _Watch(flat, program, axes)
        arrays = iter(watched.inline(watched.program, program.arrays, Site()))
        static = iter(made["static"])
        leaves = [next(arrays) if is_array else next(static) for is_array in made["is_array"]]
        return jax.tree.unflatten(made["structure"], leaves), Statistics(watched.rows)

    return run


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


def _list_places(x: NamedArray) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the coordinates of all elements, and their text."""
    for at in np.ndindex(x.array.shape):
        yield at, ", ".join(f"{name}={i}" for name, i in zip(x.names, at, strict=True))


@contextlib.contextmanager
def _tag_results(tree: Tree) -> Generator[None]:
    """Let modules name what they return in the programs that are traced within the block."""
    changed: list[tuple[type, Any]] = []
    for cls in {cls for module in list_modules(tree) for cls in type(module).__mro__}:
        if issubclass(cls, eqx.Module) and "__call__" in vars(cls):
            changed.append((cls, vars(cls)["__call__"]))
            setattr(cls, "__call__", enter_scope(_tag(getattr(cls, "__call__"))))  # noqa: B004, B009, B010  # of a type
    try:
        yield
    finally:
        for cls, method in changed:
            setattr(cls, "__call__", method)  # noqa: B010


def _tag(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(layer: Any, /, *args: Any, **options: Any) -> Any:
        result = method(layer, *args, **options)
        leaves, structure = jax.tree.flatten(result, is_leaf=is_named_array)
        for i, leaf in enumerate(leaves):
            array = payload_of(leaf)
            if has_type(array) and jnp.issubdtype(array.dtype, jnp.inexact):
                tagged = checkpoint_name(array, _TAG + " ".join(own_names(leaf)))
                leaves[i] = NamedArray(tagged, leaf.names) if is_named_array(leaf) else tagged
                break
        return jax.tree.unflatten(structure, leaves)

    return call


class _Watch(Visitor):
    """A program that also measures what is tagged; values are arrays.

    Attributes:
        rows: the sizes, by the path of the layer.
    """

    def __init__(self, run: Callable[..., Any], program: Program, by: frozenset[str]) -> None:
        super().__init__(run, program.arrays, program)
        self._by = by
        self.rows: dict[str, Row] = {}
        self._limits: dict[tuple[str, ...], list[tuple[Any, int]]] = {}
        stacks = jax.tree.leaves((program.f, program.args), is_leaf=_is_stack)
        self._stacks = {one.Block.size: one.Block.name for one in stacks if _is_stack(one)}

    def apply(
        self,
        run: Callable[..., Sequence[Any]],
        operands: Sequence[Any],
        count: int,
        equation: Any,
        site: Site,
    ) -> Sequence[Any]:
        """Run an operation, and measure what it tags."""
        results = run(*operands)
        name, place = equation.primitive.name, site.enter(equation).prefix
        # Gradients, and what they compute again, are no activations.
        if "transpose(" in place or "rematted_computation" in place:
            return results
        if name in _LIMITS:
            low, high = _LIMITS[name]
            margin = 0.01 * (high - low)
            near = (results[0] < low + margin) | (results[0] > high - margin)
            layer = self.find_layer(equation, site)
            self._limits.setdefault(layer, []).append((jnp.sum(near), near.size))
        tag = equation.params.get("name")
        if name == "name" and isinstance(tag, str) and tag.startswith(_TAG):
            self._add(self.find_layer(equation, site), results[0], tag.removeprefix(_TAG).split())
        return results

    def visit(self, equation: Any, operands: list[Any], site: Site) -> Sequence[Any]:
        """Run what has no layers as it is, with its own gradients and checkpoints."""
        inner = find_call(equation) or equation.params.get("jaxpr")
        if inner is not None and _has_tags(inner):
            if equation.primitive.name == "scan":
                return self._loop(equation, operands, site)
            return super().visit(equation, operands, site)
        count = len(equation.outvars)
        return self.apply(make_function(equation), operands, count, equation, site)

    def _loop(self, equation: Any, operands: list[Any], site: Site) -> Sequence[Any]:
        """Run a loop that also returns the sizes of each iteration."""
        params = equation.params
        body, length = params["jaxpr"], params["length"]
        carries = count_unstacked(equation.outvars, body.jaxpr.outvars)
        constants = count_unstacked(equation.invars, body.jaxpr.invars) - carries
        outer, limits = self.rows, self._limits

        def step(carry: list[Any], slices: list[Any]) -> tuple[list[Any], Any]:
            self.rows, self._limits = {}, {}
            own = [*operands[:constants], *carry, *slices]
            found = self.inline(body, own, site.enter(equation, "scan"))
            return list(found[:carries]), (list(found[carries:]), self.rows)

        carried, sliced = operands[constants:][:carries], operands[constants + carries :]
        options = {"length": length, "reverse": params["reverse"], "unroll": params["unroll"]}
        last, (stacked, rows) = jax.lax.scan(step, carried, sliced, **options)
        self.rows, self._limits = outer, limits
        name = self._stacks.get(length, "iteration")
        for path, row in rows.items():
            self.rows[path] = jax.tree.map(
                lambda x: NamedArray(x.array, (name, *x.names)), row, is_leaf=is_named_array
            )
        return [*last, *stacked]

    def _add(self, layer: tuple[str, ...], array: Any, names: list[str]) -> None:
        row = _measure(NamedArray(array, tuple(names)), self._by)
        found = [
            own
            for path, several in self._limits.items()
            for own in several
            if path[: len(layer)] == layer
        ]
        if found:
            share = sum(near for near, _ in found) / sum(size for _, size in found)
            row = dataclasses.replace(row, saturated=NamedArray(jnp.asarray(share), ()))
        # A layer that is called again has a row for each call.
        path = ".".join(layer) or "model"
        again = sum(key.partition(" call ")[0] == path for key in self.rows)
        self.rows[f"{path} call {again}" if again else path] = row


def _is_stack(node: object) -> bool:
    return isinstance(node, Stacked | Interleaved)


def _has_tags(program: Any) -> bool:
    for equation in getattr(program, "jaxpr", program).eqns:
        tag = equation.params.get("name")
        inner = find_call(equation) or equation.params.get("jaxpr")
        if equation.primitive.name == "name" and str(tag).startswith(_TAG):
            return True
        if inner is not None and _has_tags(inner):
            return True
    return False
