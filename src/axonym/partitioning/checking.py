"""Check a mapping for a mesh of any size, without devices: what it gives, and all that does not fit."""

import dataclasses
import functools
import inspect
import math
import textwrap
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from .. import layout
from ..array import NamedArray, is_named_array
from ..core import wrap
from ..errors import OperandError, ShardingError, describe, message, suggestion
from ..layout import AxisMapping, Mappings, MeshLike, ResourceMapping
from ._table import Printed, Table, byte_text, listed
from .jit import NamedJit
from .showing import ArrayLayout, array_table, arrays_of, planned

__all__ = ["Problem", "Report", "check"]

Kind: TypeAlias = Literal[
    "unknown axis", "unknown mesh axis", "unknown path", "conflict", "uneven", "replicated", "layout", "stopped"
]
Names: TypeAlias = tuple[str, ...]
WIDTH = 120


@dataclasses.dataclass(frozen=True)
class Problem:
    """What does not fit, or is worth a look.

    Attributes:
        kind: `unknown axis` (a key that no array has), `unknown mesh axis`, `unknown path` (a pattern of `Mappings`
            that no path matches), `conflict` (a mesh axis would split two axes of one array), `uneven` (a size that
            does not divide), `replicated` (a large array that every device holds whole), `layout` (any other layout
            inside of the function), `stopped` (where tracing ended because of an error of layout).
        severity: `error` or `warning`.
        text: what it is.
        where: paths of the arrays; for one inside of the function, its axes.
        hint: what would work.
    """

    kind: Kind
    severity: Literal["error", "warning"]
    text: str
    where: tuple[str, ...] = ()
    hint: str | None = None

    def __str__(self) -> str:
        places = f" (at {listed(self.where, WIDTH)})" if self.where else ""
        return f"{self.text}{places}{f'; {self.hint}' if self.hint else ''}"


@dataclasses.dataclass(frozen=True, repr=False)
class Report(Printed):
    """What `check` found: print it, or let a notebook show it.

    Attributes:
        title: what was checked.
        model: the layouts of the arrays of a tree, or of the module that is called.
        arguments: those of the arguments; their paths begin with the name of the parameter.
        results: those of what the function returns; their paths begin with `result`.
        inside: distinct layouts that were met inside of the function; in a `shard_map`, those of the local blocks on
            the mesh axes that are not Manual.
        problems: errors first, then warnings.
        totals: for the model, each argument and the result: bytes of all arrays, and bytes per device.
    """

    title: str
    model: tuple[ArrayLayout, ...]
    arguments: tuple[ArrayLayout, ...]
    results: tuple[ArrayLayout, ...]
    inside: tuple[ArrayLayout, ...]
    problems: tuple[Problem, ...]
    totals: Mapping[str, tuple[int, int]]

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that make the layout impossible."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The other problems."""
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    def parts(self) -> Iterator[str | Table]:
        """Yield the paragraphs and tables."""
        yield _paragraph(self.title, "  ")
        for title, arrays in (("model", self.model), ("arguments", self.arguments), ("results", self.results)):
            if arrays:
                yield array_table(arrays, (title, "layout"))
        if self.inside:
            rows = tuple((array.cells[1], array.layout) for array in self.inside)
            yield Table(("laid out inside", "layout"), rows)
        held = (f"{what} {byte_text(own)} of {byte_text(size)}" for what, (size, own) in self.totals.items())
        yield _paragraph(f"bytes per device: {', '.join(held) or 'none'}", "  ")
        yield "\n".join(
            [
                f"{_count(self.errors, 'error')}, {_count(self.warnings, 'warning')}",
                *(_paragraph(f"  {problem.severity}: {problem}", "    ") for problem in self.problems),
            ]
        )


def _count(problems: tuple[Problem, ...], what: str) -> str:
    return f"{len(problems)} {what}{'' if len(problems) == 1 else 's'}"


def _paragraph(text: str, indent: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


class _Findings:
    """Problems, each once, with all places where it was met."""

    def __init__(self) -> None:
        self._found: dict[Problem, list[str]] = {}

    def add(self, problem: Problem, *where: str) -> None:
        places = self._found.setdefault(problem, [])
        places += [place for place in where if place not in places]

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._found)

    def all(self) -> tuple[Problem, ...]:
        found = [dataclasses.replace(problem, where=tuple(where)) for problem, where in self._found.items()]
        return tuple(sorted(found, key=lambda problem: problem.severity))


def check(
    fn_or_model: Any,
    mapping: ResourceMapping | Mappings | None,
    mesh: MeshLike | Mapping[str, int],
    *args: Any,
    strict: bool = False,
    replicated_above: int = 2**20,
    quiet: bool = False,
    **kwargs: Any,
) -> Report:
    """Check a mapping for a tree or a function on a mesh of any size: no device is needed, nothing is computed.

    A tree, such as a module without arguments, has its arrays laid out. A function, or a module with arguments, is
    traced with abstract arrays: arguments, the module and results are laid out by the mapping, which is also the
    current one inside. What cannot be laid out counts as replicated, so that all problems are found at once.

    Args:
        fn_or_model: a tree, or a function; of a `named_jit` function the mappings given here are used in place of its
            own. A function without arguments, such as an initialiser, is called.
        mapping: axis names to mesh axes; `Mappings` for parameters apart from the computation; None for the current
            one. A key that no array has is an error if named arguments were given, and else a warning, since most
            activations are not seen then.
        mesh: a mesh, an `AbstractMesh`, or sizes such as `{"data": 64, "model": 8}`, whose axes are then Auto. On
            Explicit axes of a mesh the function is traced with layouts in its types.
        args: arguments: trees of arrays or of `jax.ShapeDtypeStruct`s, named or not; all else is static.
        strict: raise for errors, instead of only reporting them.
        replicated_above: warn of arrays above this number of bytes of which each device holds all.
        quiet: do not print the report.
        kwargs: keyword arguments.

    Returns:
        The report, which has its content as data too.

    Raises:
        ShardingError: if there is no mapping; with `strict`, if there are errors, all in one text.

    Example:
        >>> Vocab, Embed = axn.make_axes(vocab=50257, embed=768)
        >>> table = {"table": axn.NamedArray(jax.ShapeDtypeStruct((50257, 768), jnp.float32), (Vocab, Embed))}
        >>> report = axn.partitioning.check(table, {"vocab": "model"}, {"data": 64, "model": 8}, quiet=True)
        >>> print(report.errors[0])
        vocab=50257 cannot be split evenly in 8 over mesh axis model (at table); nearest that divide: 50256 or 50264
    """
    abstract = _abstract_mesh(mesh)
    given = mapping if isinstance(mapping, Mappings) else layout.resolve_mapping(mapping)
    if given is None:
        raise ShardingError(message("check", "there is no axis mapping", hint="pass one, or use axn.axis_mapping"))
    mappings = given if isinstance(given, Mappings) else Mappings(given)
    run = _Run(mappings, abstract, replicated_above)
    target = _unwrapped(fn_or_model)
    if args or kwargs or _is_function(target):
        run.function(target, args, kwargs)
    else:
        run.model = run.lay_out("", target)
    run.check_keys()
    named = getattr(target, "func", target)  # of a method
    name = getattr(named, "__name__", type(named).__name__)
    report = run.report(f"{name} on the mesh {layout.describe_mesh(abstract)}, mapping {given}")
    if strict and report.errors:
        lines = (*map(str, report.errors), f"mapping: {given}", f"mesh: {layout.describe_mesh(abstract)}")
        raise ShardingError(message("check", f"{name} cannot be laid out, {_count(report.errors, 'error')}", *lines))
    if not quiet:
        print(report)
    return report


def _abstract_mesh(mesh: Any) -> AbstractMesh:
    if isinstance(mesh, Mesh):
        mesh = mesh.abstract_mesh
    if isinstance(mesh, AbstractMesh):
        return mesh
    if not isinstance(mesh, Mapping) or not all(
        isinstance(size, int | np.integer) and size > 0 for size in mesh.values()
    ):
        problem = f"a mesh is a Mesh, an AbstractMesh or a dict of sizes, not {mesh!r}"
        raise OperandError(message("check", problem, hint='write {"data": 64, "model": 8}'))
    return AbstractMesh(tuple(map(int, mesh.values())), tuple(mesh), axis_types=(AxisType.Auto,) * len(mesh))


def _unwrapped(fn: Any) -> Any:
    """Take what is inside of a named_jit, whose mappings are not those to check."""
    if isinstance(fn, NamedJit):
        return fn.__wrapped__  # type: ignore[attr-defined]  # set by functools.update_wrapper
    if isinstance(fn, functools.partial) and isinstance(fn.func, NamedJit):  # a method
        return jax.tree_util.Partial(_unwrapped(fn.func), *fn.args, **fn.keywords)
    return fn


def _owner(fn: Any) -> Any:
    """Return what a method belongs to, and else the function."""
    if isinstance(fn, jax.tree_util.Partial) and len(fn.args) == 1 and not fn.keywords:
        return fn.args[0]
    return getattr(fn, "__self__", fn)


def _is_function(target: Any) -> bool:
    """Tell a function from a tree; a module is a tree, though it can be called."""
    bound = isinstance(target, functools.partial | eqx.Partial) or hasattr(target, "__func__")
    return callable(target) and (bound or hasattr(target, "__wrapped__") or jax.tree_util.all_leaves([target]))


class _Run:
    """What is found out in the course of one check."""

    def __init__(self, mappings: Mappings, mesh: AbstractMesh, replicated_above: int) -> None:
        self._given = mappings
        self._mesh = mesh
        self._replicated_above = replicated_above
        self._found = _Findings()
        self._audit = layout.Audit()
        self._entered: list[AxisMapping] = []
        self.model: tuple[ArrayLayout, ...] = ()
        self.arguments: tuple[ArrayLayout, ...] = ()
        self.results: tuple[ArrayLayout, ...] = ()
        self._mappings = Mappings(
            self._on_mesh(mappings.parameters),
            self._on_mesh(mappings.compute),
            {pattern: self._on_mesh(extra) for pattern, extra in mappings.overrides},
        )

    def _on_mesh(self, mapping: AxisMapping) -> AxisMapping:
        """Leave out mesh axes that do not exist, and report them."""
        for name, entry in mapping.entries:
            for axis in entry:
                if axis not in self._mesh.axis_names:
                    text = f"axis {name!r} is mapped to {axis!r}, which is no axis of the mesh"
                    hint = suggestion(axis, self._mesh.axis_names)
                    self._found.add(Problem("unknown mesh axis", "error", text, hint=hint))
        known = set(self._mesh.axis_names)
        return AxisMapping(tuple((name, tuple(a for a in entry if a in known)) for name, entry in mapping.entries))

    def lay_out(self, prefix: str, tree: Any) -> tuple[ArrayLayout, ...]:
        """Lay out the arrays of a tree, and report what is wrong."""
        rows = []
        for own, names, payload in arrays_of(tree, "check"):
            path = ".".join(filter(None, (prefix, own)))
            rows.append(self._lay_out(path, names, _abstract_array(payload)))
        return tuple(rows)

    def _lay_out(self, path: str, names: Names, array: Any) -> ArrayLayout:
        mapping = self._mappings.of(names, path)
        faults = _faults(names, tuple(array.shape), mapping, self._mesh)
        for fault in faults:
            self._found.add(fault, path or "array")
        if faults:
            whole = planned(path, (), array, self._mappings, self._mesh, "check")
            return dataclasses.replace(whole, names=names, spec=None, note="impossible")
        row = planned(path, names, array, self._mappings, self._mesh, "check")
        if row.nbytes == row.nbytes_per_device and (row.nbytes or 0) > self._replicated_above and self._mesh.size > 1:
            text = f"each of {self._mesh.size} devices holds all of an array above {byte_text(self._replicated_above)}"
            self._found.add(Problem("replicated", "warning", text), path or "array")
        return row

    def function(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Trace a function, and lay out what goes in and comes out, as well as what is met inside."""
        self.model = self.lay_out("", _owner(fn))
        given = _by_parameter(fn, args, kwargs).items()
        self.arguments = tuple(row for name, value in given for row in self.lay_out(name, value))
        inside = dataclasses.replace(self._mappings.compute, audit=self._audit)
        result, stop = None, None
        try:
            with (
                jax.sharding.use_abstract_mesh(AbstractMesh((), ())),  # a mesh that is current goes, whatever its size
                jax.sharding.use_abstract_mesh(self._mesh),
                layout.axis_mapping_in(inside, self._entered),
            ):
                result = self._trace(fn, args, kwargs)
        except Exception as error:
            stop = error
        if stop is None:
            self.results = self.lay_out("result", result)
            self._report_inside()
            return
        self._report_inside()
        # JAX does not export the classes of its errors about sharding, and those about sizes are plain ValueErrors.
        theirs = type(stop).__name__.startswith("Sharding")
        theirs = theirs or (type(stop) is ValueError and "sharding" in str(stop).lower())
        follows = theirs and any(problem.severity == "error" for problem in self._found)
        if not isinstance(stop, ShardingError) and not follows:
            raise stop
        text = f"tracing stopped in {_place_of(stop)}: {str(stop).splitlines()[0]}"
        self._found.add(Problem("stopped", "error", text))

    def _trace(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trace the function with abstract arrays, and return those of its result."""
        leaves, tree = jax.tree_util.tree_flatten_with_path((fn, args, kwargs), is_leaf=is_named_array)
        keys, values = [key for key, _ in leaves], [leaf for _, leaf in leaves]
        paths = [layout.path_text(key) for key in keys]
        abstract = [self._abstract(path, value) for path, value in zip(paths, values, strict=True)]

        def run(arrays: list[Any]) -> Any:
            traced = iter(arrays)
            filled = [
                value if form is None else _filled(value, next(traced))
                for value, form in zip(values, abstract, strict=True)
            ]
            fn, args, kwargs = jax.tree.unflatten(tree, filled)
            return eqx.filter(fn(*args, **kwargs), _is_array)

        return jax.eval_shape(run, [form for form in abstract if form is not None])

    def _abstract(self, path: str, value: Any) -> Any:
        """Return the abstract form of an array, in its layout where that is part of its type; None for all else."""
        names, payload = (value.names, value.array) if isinstance(value, NamedArray) else ((), value)
        if not _is_array(payload):
            return None
        array = _abstract_array(payload)
        if AxisType.Explicit not in self._mesh.axis_types:
            return array
        mapping, shape = self._mappings.of(names, path), tuple(array.shape)
        fits = not _faults(names, shape, mapping, self._mesh)
        spec = layout.partition_spec(names, shape, mapping, self._mesh) if fits else PartitionSpec()
        types = layout.mesh_types(self._mesh)
        own = layout.spec_from(
            [tuple(a for a in entry if types[a] is AxisType.Explicit) for entry in layout.entries_in(spec)]
        )
        sharding = NamedSharding(self._mesh, own)
        return jax.ShapeDtypeStruct(shape, array.dtype, sharding=sharding, weak_type=array.weak_type)

    def _report_inside(self) -> None:
        """Report the layouts inside that cannot be."""
        known = set(self._found)
        explained: dict[str, tuple[str, list[Problem]]] = {}
        mapping = self._mappings.compute
        for names, shape, _ in dict.fromkeys(self._audit.arrays):
            try:
                layout.partition_spec(names, shape, mapping, self._mesh)
            except ShardingError as error:
                explained[str(error)] = describe(names, shape), _faults(names, shape, mapping, self._mesh)
        for problem in map(str, self._audit.problems):
            # without an explanation, another mapping was made current inside, or some mesh axes are Manual there
            first, what, *_, last = (line.strip() for line in problem.split("\n"))
            text, hint = first.partition(": ")[2], last.removeprefix("hint: ") if last.startswith("hint: ") else None
            unknown = what.removeprefix("array has: "), [Problem("layout", "error", text, hint=hint)]
            where, faults = explained.get(problem, unknown)
            for fault in faults:
                if fault not in known:  # else the paths of arrays say where
                    self._found.add(fault, where)

    def check_keys(self) -> None:
        """Report keys of the mappings that no array has, and patterns that no path matches."""
        traced = any(row.names for row in self.arguments)
        rows = (*self.model, *self.arguments, *self.results)
        names = {name for row in rows for name in row.names} | {n for own, _, _ in self._audit.arrays for n in own}
        known = layout.with_bases(names)
        given, complete = self._given, traced or self._given.parameters != self._given.compute
        tables = [(given.parameters, complete), *((extra, True) for _, extra in given.overrides)]
        if traced:
            tables += [(mapping, True) for mapping in (given.compute, *self._entered)]
        for mapping, is_error in tables:
            for key in mapping:
                if key not in known:
                    text = f"the mapping has axis {key!r}, which no array here has"
                    hint = suggestion(key, known)
                    self._found.add(Problem("unknown axis", "error" if is_error else "warning", text, hint=hint))
        for pattern, _ in given.overrides:
            if not any(layout.matches(pattern, row.path) for row in rows):
                parts = {part for row in rows for part in row.path.split(".")}
                text = f"no array has a path that matches {pattern!r}"
                self._found.add(Problem("unknown path", "error", text, hint=suggestion(pattern, parts)))

    def report(self, title: str) -> Report:
        """Put the report together."""
        groups = {"model": [*self.model]} if self.model else {}
        for row in (*self.arguments, *self.results):
            groups.setdefault(row.path.partition(".")[0], []).append(row)
        totals = {
            what: (sum(row.nbytes or 0 for row in rows), sum(row.nbytes_per_device or 0 for row in rows))
            for what, rows in groups.items()
        }
        distinct = dict.fromkeys(self._audit.arrays)
        inside = tuple(ArrayLayout("", names, shape, None, spec, planned=True) for names, shape, spec in distinct)
        return Report(title, self.model, self.arguments, self.results, inside, self._found.all(), totals)


def _faults(names: Names, shape: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike) -> list[Problem]:
    """List all that keeps a mapping, whose mesh axes exist, from laying out one array."""
    faults = []
    table = dict(mapping.entries)
    used: dict[str, str] = {}
    for name in names:
        for axis in table.get(name, ()):
            if axis in used:
                text = f"mesh axis {axis!r} would shard both {used[axis]!r} and {name!r} of one array"
                faults.append(
                    Problem("conflict", "error", text, hint="map one of the two elsewhere, or rename it there")
                )
            used.setdefault(axis, name)
        if name in table:  # go on with what is left, to find the sizes that do not divide
            table[name] = tuple(axis for axis in dict.fromkeys(table[name]) if used[axis] == name)
    entries = layout.entries_for(names, shape, AxisMapping(tuple(table.items())), mesh, "check")
    for name, size in zip(names, shape[len(shape) - len(names) :], strict=True):
        axes = entries.get(name, ())
        ways = math.prod(mesh.shape[axis] for axis in axes)
        if size % ways:
            text = f"{name}={size} cannot be split evenly in {ways} over mesh axis {', '.join(axes)}"
            below = size // ways * ways
            near = " or ".join(str(near) for near in (below, below + ways) if near)
            faults.append(Problem("uneven", "error", text, hint=f"nearest that divide: {near}"))
    return faults


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


def _abstract_array(array: Any) -> jax.ShapeDtypeStruct:
    kind = jax.typeof(array) if isinstance(array, np.ndarray | np.generic) else array  # float64 may be float32 to JAX
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=getattr(kind, "weak_type", False))


def _filled(value: Any, array: Any) -> Any:
    return wrap(value, array, value.names) if isinstance(value, NamedArray) else array


def _by_parameter(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Name arguments after the parameters, where the function tells them; a wrong call fails when it is traced."""
    try:
        return dict(inspect.signature(fn).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {**{str(i): value for i, value in enumerate(args)}, **kwargs}


def _place_of(error: BaseException) -> str:
    """Name the innermost line of the user's code that an error passed."""
    ours = {"axonym", "jax", "jaxlib", "equinox", "contextlib", "functools"}
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ours:
            return f"{frame.f_code.co_name}, {Path(frame.f_code.co_filename).name} line {line}"
    return "JAX"
