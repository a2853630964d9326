"""Check a mapping for a mesh of any size, without devices: its layouts, and all problems."""

import dataclasses
import functools
import inspect
import textwrap
import traceback
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from .. import layout
from ..array import NamedArray, is_named_array
from ..errors import OperandError, ShardingError, describe, message, suggestion
from ..layout import AxisMapping, Mappings, MeshLike, ResourceMapping
from ..plans import Names
from ..transform._leaves import refilled
from ._table import Printed, Table, byte_text, listed
from .jit import NamedJit
from .shard import mapping_for, names_held, names_of, no_mapping, paths_of, several_of
from .showing import ArrayLayout, array_table, arrays_of, planned

__all__ = ["Problem", "Report", "check"]

Kind: TypeAlias = Literal[
    "unknown axis", "unknown mesh axis", "unknown path", "conflict", "uneven", "replicated", "layout", "stopped"
]
WIDTH = 120


@dataclasses.dataclass(frozen=True)
class Problem:
    """An error or a warning about a layout.

    Attributes:
        kind: `unknown axis` (a key that no array has), `unknown mesh axis`, `unknown path` (a pattern of `Mappings`
            that no path matches), `conflict` (a mesh axis would split two axes of one array), `uneven` (a size that
            does not divide), `replicated` (a large array that every device holds whole), `layout` (any other layout
            inside the function), `stopped` (where an error of layout ended tracing).
        severity: `error` or `warning`.
        text: the description.
        where: paths of the arrays; for an array inside the function, its axes.
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
    """The result of `check`, which prints as tables, also in notebooks.

    Attributes:
        title: what was checked.
        model: the layouts of the arrays of a tree, or of the module that is called.
        arguments: those of the arguments; their paths begin with the name of the parameter.
        results: those of the results; their paths begin with `result`.
        inside: the distinct layouts inside the function; in a `shard_map`, those of the local blocks on the mesh axes
            that are not Manual.
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
    """Distinct problems, each with all its places."""

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
    """Check a mapping for a tree or a function on a mesh of any size, without devices or computation.

    The arrays of a tree, such as a module without arguments, are laid out. A function, or a module with arguments, is
    traced with abstract arrays: arguments, the module and results are laid out by the mapping, which is also the
    current one inside. What cannot be laid out counts as replicated, so that all problems are found at once.

    Args:
        fn_or_model: a tree, or a function. The mappings of a `named_jit` function are replaced by the ones given here.
            A function without arguments, such as an initialiser, is called.
        mapping: axis names to mesh axes; `Mappings` for separate layouts of parameters and computation; None for the
            current mapping. A key that no array has is an error if named arguments were given, otherwise a warning,
            since most activations are not seen then. Patterns of `Mappings` see the paths of `named_jit`: those of
            arguments begin with the position or the keyword, those of results have no prefix.
        mesh: a mesh, an `AbstractMesh`, or sizes such as `{"data": 64, "model": 8}`, whose axes are then Auto. On
            Explicit axes, the function is traced with layouts in its types.
        args: arguments: trees of arrays or of `jax.ShapeDtypeStruct`s, named or not; all else is static.
        strict: raise if there are errors, instead of only reporting them.
        replicated_above: warn of arrays of more bytes than this that every device holds whole.
        quiet: do not print the report.
        kwargs: keyword arguments.

    Returns:
        The report, with its content in attributes.

    Raises:
        ShardingError: if there is no mapping; with `strict`, if there are errors, with all of them in one message.

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
        raise no_mapping("check")
    mappings = given if isinstance(given, Mappings) else Mappings(given)
    run = _Run(mappings, abstract, replicated_above)
    target, args, kwargs, is_method = _unwrapped(fn_or_model, args, kwargs)
    if args or kwargs or _is_function(target):
        run.function(target, args, kwargs, is_method)
    else:
        run.count(target)
        run.model = run.lay_out("", "", target, several_of(target))
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
        problem = f"a mesh must be a Mesh, an AbstractMesh or a dict of sizes, not {mesh!r}"
        raise OperandError(message("check", problem, hint='write {"data": 64, "model": 8}'))
    return AbstractMesh(tuple(map(int, mesh.values())), tuple(mesh), axis_types=(AxisType.Auto,) * len(mesh))


def _unwrapped(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any, bool]:
    """Unwrap a named_jit, whose mappings are not those to check, and return whether it is called as a method.

    The owner of a method is then the first argument.
    """
    is_method = False
    if isinstance(fn, functools.partial) and isinstance(fn.func, NamedJit):
        is_method = len(fn.args) == 1 and not fn.keywords
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    return vars(fn)["__wrapped__"] if isinstance(fn, NamedJit) else fn, args, kwargs, is_method


def _owner(fn: Any) -> tuple[str, Any]:
    """Return the owner of a method, otherwise the function, with its path in the function."""
    is_bound = isinstance(fn, jax.tree_util.Partial) and len(fn.args) == 1 and not fn.keywords
    owner = fn.args[0] if is_bound else getattr(fn, "__self__", fn)
    parts = jax.tree.leaves_with_path(fn, is_leaf=lambda part: part is owner)
    return next((layout.path_text(keys) for keys, part in parts if part is owner), ""), owner


def _is_function(target: Any) -> bool:
    """Return whether this is a function and not a tree; a module is a tree, though it can be called."""
    bound = isinstance(target, functools.partial | eqx.Partial) or hasattr(target, "__func__")
    return callable(target) and (bound or hasattr(target, "__wrapped__") or jax.tree_util.all_leaves([target]))


class _Run:
    """The state of one check."""

    def __init__(self, mappings: Mappings, mesh: AbstractMesh, replicated_above: int) -> None:
        self._given = mappings
        self._mesh = mesh
        self._replicated_above = replicated_above
        self._found = _Findings()
        self._audit = layout.Audit()
        self._ledger = layout.Ledger()
        self._names: set[str] = set()
        self._paths: set[str] = set()
        self.model: tuple[ArrayLayout, ...] = ()
        self.arguments: tuple[ArrayLayout, ...] = ()
        self.results: tuple[ArrayLayout, ...] = ()
        self._mappings = Mappings(
            self._on_mesh(mappings.parameters),
            self._on_mesh(mappings.compute),
            {pattern: self._on_mesh(extra) for pattern, extra in mappings.overrides},
        )

    def _on_mesh(self, mapping: AxisMapping) -> AxisMapping:
        """Remove mesh axes that do not exist, and report them."""
        for name, entry in mapping.entries:
            for axis in entry:
                if axis not in self._mesh.axis_names:
                    text = f"axis {name!r} is mapped to {axis!r}, which is not an axis of the mesh"
                    hint = suggestion(axis, self._mesh.axis_names)
                    self._found.add(Problem("unknown mesh axis", "error", text, hint=hint))
        known = set(self._mesh.axis_names)
        return AxisMapping(tuple((name, tuple(a for a in entry if a in known)) for name, entry in mapping.entries))

    def count(self, *trees: Any) -> None:
        """Record the arrays that the mapping is for: keys are compared with their names, patterns with their paths."""
        self._names |= names_of(trees)
        self._paths.update(*map(paths_of, trees))

    def lay_out(self, shown: str, seen: str, tree: Any, several: Set[str]) -> tuple[ArrayLayout, ...]:
        """Lay out the arrays of a tree, or of a part of one, and report what is wrong.

        Args:
            shown: the path of the tree in the report.
            seen: its path as patterns see it.
            tree: the tree.
            several: the `several_of` of all trees that are laid out together.
        """
        rows = []
        for own, names, payload in arrays_of(tree, "check"):
            mapping = mapping_for(self._mappings, names, payload.shape, _joined(seen, own), several)
            rows.append(self._lay_out(_joined(shown, own), names, _abstract_array(payload), mapping))
        return tuple(rows)

    def _lay_out(self, path: str, names: Names, array: Any, mapping: AxisMapping) -> ArrayLayout:
        faults = _faults(names, tuple(array.shape), mapping, self._mesh)
        for fault in faults:
            self._found.add(fault, path or "array")
        if faults:
            whole = planned(path, (), array, mapping, self._mesh, "check")
            return dataclasses.replace(whole, names=names, spec=None, note="impossible")
        row = planned(path, names, array, mapping, self._mesh, "check")
        if row.nbytes == row.nbytes_per_device and (row.nbytes or 0) > self._replicated_above and self._mesh.size > 1:
            text = f"each of {self._mesh.size} devices holds all of an array above {byte_text(self._replicated_above)}"
            self._found.add(Problem("replicated", "warning", text), path or "array")
        return row

    def function(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_method: bool) -> None:
        """Trace a function, and lay out its arguments, its results and the arrays inside."""
        several = several_of((fn, args, kwargs))
        self.count(fn, args, kwargs)
        given = _by_parameter(fn, args, kwargs)
        seen, owner = given.pop(next(iter(given))) if is_method else _owner(fn)
        self.model = self.lay_out("", seen, owner, several)
        self.arguments = tuple(
            row for shown, (seen, value) in given.items() for row in self.lay_out(shown, seen, value, several)
        )
        result, stop = None, None
        try:
            with (
                jax.sharding.use_abstract_mesh(AbstractMesh((), ())),  # clears the current mesh, whatever its size
                jax.sharding.use_abstract_mesh(self._mesh),
                layout.context(mapping=self._mappings.compute, audit=self._audit, ledger=self._ledger),
            ):
                result = self._trace(fn, args, kwargs, several)
        except Exception as error:
            stop = error
        if stop is None:
            self.count(result)
            self.results = self.lay_out("result", "", result, several_of(result))
            self._report_inside()
            return
        self._report_inside()
        self._found.add(self._stopped(stop))

    def _stopped(self, error: Exception) -> Problem:
        """Report where tracing ended because of a layout, or raise the error of the function."""
        place, text = f"tracing stopped in {_place_of(error)}", str(error)
        # JAX does not export the classes of its sharding errors, and those about sizes and meshes are plain
        # ValueErrors. All arguments are on the mesh of the check.
        theirs, ours = "should match the aval mesh" in text, "is on another mesh than" in text
        if (type(error) is ValueError and theirs) or (isinstance(error, ShardingError) and ours):
            problem = f"{place}: an array that is not an argument is on another mesh"
            return Problem("stopped", "error", problem, hint="pass it as an argument")
        theirs = type(error).__name__.startswith("Sharding")
        theirs = theirs or (type(error) is ValueError and "sharding" in text.lower())
        follows = theirs and any(problem.severity == "error" for problem in self._found)
        if not isinstance(error, ShardingError) and not follows:
            raise error
        return Problem("stopped", "error", f"{place}: {text.splitlines()[0]}")

    def _trace(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], several: Set[str]) -> Any:
        """Trace the function with abstract arrays, and return its abstract result."""
        leaves, tree = jax.tree_util.tree_flatten_with_path((fn, args, kwargs), is_leaf=is_named_array)
        values = [leaf for _, leaf in leaves]
        abstract = [self._abstract(keys, value, several) for keys, value in leaves]

        def run(arrays: list[Any]) -> Any:
            traced = iter(arrays)
            filled = [
                value if form is None else refilled(value, next(traced))
                for value, form in zip(values, abstract, strict=True)
            ]
            fn, args, kwargs = jax.tree.unflatten(tree, filled)
            return eqx.filter(fn(*args, **kwargs), _is_array)

        return jax.eval_shape(run, [form for form in abstract if form is not None])

    def _abstract(self, keys: Any, value: Any, several: Set[str]) -> Any:
        """Return the abstract form of an array, with its layout where that is part of its type; None for all else."""
        payload = value.array if isinstance(value, NamedArray) else value
        if not _is_array(payload):
            return None
        array = _abstract_array(payload)
        if AxisType.Explicit not in self._mesh.axis_types:
            return array
        names, shape = names_held("check", keys, value) if isinstance(value, NamedArray) else (), tuple(array.shape)
        mapping = mapping_for(self._mappings, names, shape, layout.path_text(keys[1:]), several)
        fits = not _faults(names, shape, mapping, self._mesh)
        spec = layout.partition_spec(names, shape, mapping, self._mesh) if fits else PartitionSpec()
        types = layout.mesh_types(self._mesh)
        own = layout.spec_from(
            [tuple(a for a in entry if types[a] is AxisType.Explicit) for entry in layout.entries_in(spec)]
        )
        sharding = NamedSharding(self._mesh, own)
        return jax.ShapeDtypeStruct(shape, array.dtype, sharding=sharding, weak_type=array.weak_type)

    def _report_inside(self) -> None:
        """Report the impossible layouts inside."""
        known = set(self._found)
        explained: dict[str, tuple[str, list[Problem]]] = {}
        mapping = self._mappings.compute
        for names, shape, _ in dict.fromkeys(self._audit.arrays):
            try:
                layout.partition_spec(names, shape, mapping, self._mesh)
            except ShardingError as error:
                explained[str(error)] = describe(names, shape), _faults(names, shape, mapping, self._mesh)
        for problem in map(str, self._audit.problems):
            # unexplained if another mapping was made current inside, or some mesh axes are Manual there
            first, what, *_, last = (line.strip() for line in problem.split("\n"))
            text, hint = first.partition(": ")[2], last.removeprefix("hint: ") if last.startswith("hint: ") else None
            unknown = what.removeprefix("array has: "), [Problem("layout", "error", text, hint=hint)]
            where, faults = explained.get(problem, unknown)
            for fault in faults:
                if fault not in known:  # otherwise, the paths of arrays are more specific
                    self._found.add(fault, where)

    def check_keys(self) -> None:
        """Report keys of the mappings that no array has, and patterns that no path matches."""
        traced = any(row.names for row in self.arguments)
        inside = {name for names, _, _ in self._audit.arrays for name in names}
        given, complete = self._given, traced or self._given.parameters != self._given.compute
        tables = [(given.parameters, complete), *((extra, True) for _, extra in given.overrides)]
        if traced:
            tables += [(mapping, True) for mapping in (given.compute, *self._ledger.entered)]
        current = {mapping.entries for mapping in (given.compute, *self._ledger.entered)}
        for mapping, is_error in tables:
            known = layout.with_bases(self._names | inside if mapping.entries in current else self._names)
            for key in mapping:
                if key not in known:
                    text, hint = f"the mapping has axis {key!r}, which no array here has", suggestion(key, known)
                    if key in layout.with_bases(inside):
                        text = f"the mapping has axis {key!r}, which only arrays inside of the function have"
                        hint = "those are laid out by `compute` of the Mappings, so write it there"
                    self._found.add(Problem("unknown axis", "error" if is_error else "warning", text, hint=hint))
        for pattern, _ in given.overrides:
            if not any(layout.matches(pattern, path) for path in self._paths):
                self._found.add(self._unmatched(pattern))

    def _unmatched(self, pattern: str) -> Problem:
        paths = sorted(self._paths - {""})  # an array that is a whole tree has no path
        text = f"no array has a path that matches {pattern!r}; paths: {listed(paths, WIDTH) or 'none'}"
        hint = suggestion(pattern, {part for path in paths for part in path.split(".")})
        if any(layout.matches(pattern, row.path) for row in (*self.model, *self.arguments, *self.results)):
            hint = "write positions or keywords for arguments, and results without a prefix"
        return Problem("unknown path", "error", text, hint=hint)

    def report(self, title: str) -> Report:
        """Make the report."""
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
    """List all problems of a mapping, whose mesh axes exist, with one array."""
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
        if name in table:  # go on with the remaining mesh axes, to find sizes that do not divide
            table[name] = tuple(axis for axis in dict.fromkeys(table[name]) if used[axis] == name)
    entries = layout.entries_for(names, shape, AxisMapping(tuple(table.items())), mesh, "check")
    for name, size in zip(names, shape[len(shape) - len(names) :], strict=True):
        axes = entries.get(name, ())
        ways = layout.ways_on(mesh, axes)
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


def _joined(*paths: str) -> str:
    return ".".join(filter(None, paths))


def _by_parameter(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return arguments and their paths by parameter name; a wrong call fails when it is traced."""
    given = {**{str(i): value for i, value in enumerate(args)}, **kwargs}
    try:
        places = inspect.signature(fn).bind(*map(str, range(len(args))), **{key: key for key in kwargs}).arguments
    except (TypeError, ValueError):
        return {path: (path, value) for path, value in given.items()}
    return {
        _joined(name, layout.path_text(keys)): (path, given[path])
        for name, below in places.items()
        for keys, path in jax.tree.leaves_with_path(below)
    }


def _place_of(error: BaseException) -> str:
    """Return the innermost line of the user's code in the traceback of an error."""
    ours = {"axonym", "jax", "jaxlib", "equinox", "contextlib", "functools"}
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ours:
            return f"{frame.f_code.co_name}, {Path(frame.f_code.co_filename).name} line {line}"
    return "JAX"
