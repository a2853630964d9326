"""Check a mapping for a mesh of any size, without devices: its layouts, and all problems.

`axn.check` traces a function with abstract arrays while an `Audit` collects the layout of each array inside; errors in
layouts do not stop it.
"""

import dataclasses
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from ..array import NamedArray, is_named_array
from ..base.kinds import Payload, Tree
from ..current.features import using
from ..engine.core import payload_of
from ..errors import ShardingError, describe, message, suggestion
from ..layout import assignment, constraints, context, modes, partition
from ..layout.assignment import AxisMapping, Mappings, MeshLike, ResourceMapping
from ..layout.context import MAPPING
from ..layout.layout import Layout
from ..layout.records import AUDIT, LEDGER, Audit, Ledger
from ..names.plans import Names
from ..partitioning.trees import (
    choose_mapping,
    collect_names,
    collect_paths,
    find_layout_names,
    find_several,
    no_mapping,
)
from ..transform.leaves import refilled
from .picture import Picture
from .show import ArrayLayout, Layouts, array_table, arrays_of, planned
from .table import Printed, Table, byte_text, list_items
from .target import (
    Call,
    abstract_array,
    abstract_mesh,
    get_memory_kind,
    is_array,
    join_path,
    place_of,
    unwrapped,
)

__all__ = ["Problem", "Report", "check"]

Kind: TypeAlias = Literal[
    "unknown axis",
    "unknown mesh axis",
    "unknown path",
    "conflict",
    "uneven",
    "replicated",
    "layout",
    "stopped",
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

    Examples:
        >>> report = axn.check(axn.zeros({"batch": 6}), {"batch": "data"}, {"data": 4}, quiet=True)
        >>> [(problem.kind, problem.severity, problem.hint) for problem in report.problems]
        [('uneven', 'error', 'nearest that divide: 4 or 8')]
    """

    kind: Kind
    severity: Literal["error", "warning"]
    text: str
    where: tuple[str, ...] = ()
    hint: str | None = None

    def __str__(self) -> str:
        text = self.text
        if self.where:
            text += f" (at {list_items(self.where, WIDTH)})"
        if self.hint:
            text += f"; {self.hint}"
        return text


@dataclasses.dataclass(frozen=True, repr=False)
class Report(Printed):
    """The result of `check`, which prints as tables, also in notebooks.

    Attributes:
        title: what was checked.
        model: the layouts of the arrays of a tree, or of the called module.
        arguments: those of the arguments; their paths begin with the name of the parameter.
        results: those of the results; their paths begin with `result`.
        inside: the distinct layouts inside the function; in a `shard_map`, those of the local blocks on the mesh axes
            that are not Manual.
        problems: errors first, then warnings.
        totals: for the model, each argument and the result: bytes of all arrays, and bytes per device.

    Examples:
        >>> report = axn.check(axn.zeros({"batch": 8}), {"batch": "data"}, {"data": 4}, quiet=True)
        >>> report.errors, report.model[0].layout, report.totals
        ((), ('batch→data',), {'model': (32, 8)})
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
        """Problems that make the layout impossible."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The other problems."""
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    def picture(self) -> Picture:
        """Return a picture of the arrays of model, arguments and results, as `Layouts.picture` does."""
        return Layouts((*self.model, *self.arguments, *self.results)).picture()

    def parts(self) -> Iterator[str | Table]:
        """Yield the paragraphs and tables."""
        yield _paragraph(self.title, "  ")
        for title, arrays in (
            ("model", self.model),
            ("arguments", self.arguments),
            ("results", self.results),
        ):
            if arrays:
                yield array_table(arrays, (title, "layout"))
        if self.inside:
            rows = tuple((array.cells[1], array.layout) for array in self.inside)
            yield Table(("laid out inside", "layout"), rows)
        sums = [
            f"{what} {byte_text(own)} of {byte_text(size)}"
            for what, (size, own) in self.totals.items()
        ]
        yield _paragraph(f"bytes per device: {', '.join(sums) or 'none'}", "  ")

        lines = [f"{_count(self.errors, 'error')}, {_count(self.warnings, 'warning')}"]
        lines += [_paragraph(f"  {each.severity}: {each}", "    ") for each in self.problems]
        yield "\n".join(lines)


def _count(problems: tuple[Problem, ...], what: str) -> str:
    return f"{len(problems)} {what}{'s' if len(problems) != 1 else ''}"


def _paragraph(text: str, indent: str) -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


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
        found = (
            dataclasses.replace(problem, where=tuple(where))
            for problem, where in self._found.items()
        )
        return tuple(sorted(found, key=lambda problem: problem.severity))  # "error" < "warning"


def check(
    fn_or_model: Tree,
    mapping: ResourceMapping | Mappings | None,
    mesh: MeshLike | Mapping[str, int],
    *args: Tree,
    strict: bool = False,
    replicated_above: int = 2**20,
    quiet: bool = False,
    **kwargs: Tree,
) -> Report:
    """Check a mapping for a tree or a function on a mesh of any size, without devices or computation.

    The mapping shards the arrays of a tree, such as a module without arguments. A function, or a module with arguments,
    is traced with abstract arrays: the mapping shards arguments, the module and results, and is the current one inside.
    An impossible layout counts as replicated, so that all problems are found at once.

    Args:
        fn_or_model: a tree, or a function. The mappings of a `named_jit` function are replaced by the ones given here.
            A function without arguments, such as an initialiser, is called.
        mapping: axis names to mesh axes; `Mappings` for separate layouts of parameters and computation; None for the
            current mapping. A key that no array has is an error if there are named arguments; otherwise it is a
            warning, since most activations are unknown. Patterns of `Mappings` are matched with the paths of
            `named_jit`: paths of arguments begin with the position or the keyword, and paths of results have no prefix.
        mesh: a mesh, an `AbstractMesh`, or sizes such as `{"data": 64, "model": 8}`, whose axes are then Auto. On
            Explicit axes, the function is traced with layouts in its types.
        args: arguments: trees of arrays or of `jax.ShapeDtypeStruct`s, named or not; all else is static.
        strict: raise if there are errors, instead of only reporting them.
        replicated_above: warn of replicated arrays of more bytes than this.
        quiet: do not print the report.
        kwargs: keyword arguments.

    Returns:
        The report, with its content in attributes.

    Raises:
        ShardingError: if there is no mapping; with `strict`, if there are errors, with all of them in one message.

    Examples:
        >>> Vocab, Embed = axn.make_axes(vocab=50257, embed=768)
        >>> table = {"table": axn.NamedArray(jax.ShapeDtypeStruct((50257, 768), jnp.float32), (Vocab, Embed))}
        >>> report = axn.partitioning.check(table, {"vocab": "model"}, {"data": 64, "model": 8}, quiet=True)
        >>> print(report.errors[0])
        vocab=50257 cannot be split evenly in 8 over mesh axis model (at table); nearest that divide: 50256 or 50264
    """
    abstract = abstract_mesh(mesh)
    given: Mappings | AxisMapping
    if isinstance(mapping, Mappings):
        given = mappings = mapping
    else:
        resolved = context.resolve_mapping(mapping)
        if resolved is None:
            raise no_mapping("check")
        given, mappings = resolved, Mappings(resolved)

    # A `named_jit` would enter its own mappings.
    call = unwrapped(fn_or_model, args, kwargs)
    run = _Run(mappings, abstract, replicated_above)
    if call.is_traced:
        run.function(call)
    else:
        run.count(call.target)
        run.model = run.lay_out("", "", call.target, find_several(call.target))
    run.check_keys()

    on = partition.describe_mesh(abstract)
    report = run.report(f"{call.name} on the mesh {on}, mapping {given}")
    if strict and report.errors:
        problem = f"{call.name} cannot be laid out, {_count(report.errors, 'error')}"
        facts = (*map(str, report.errors), f"mapping: {given}", f"mesh: {on}")
        raise ShardingError(message("check", problem, *facts))
    if not quiet:
        print(report)
    return report


class _Run:
    """The state of one check."""

    def __init__(self, mappings: Mappings, mesh: AbstractMesh, replicated_above: int) -> None:
        self._given = mappings
        self._mesh = mesh
        self._replicated_above = replicated_above
        self._found = _Findings()
        self._audit = Audit()
        self._ledger = Ledger()
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
        known = self._mesh.axis_names
        entries: dict[str, assignment.MeshAxes] = {}
        for name in mapping:
            several = mapping.alternatives(name)
            for axis in partition.without(itertools.chain.from_iterable(several), known):
                text = f"axis {name!r} is mapped to {axis!r}, which is not an axis of the mesh"
                hint = suggestion(axis, known)
                self._found.add(Problem("unknown mesh axis", "error", text, hint=hint))
            kept = dict.fromkeys(partition.only(entry, known) for entry in several)
            entries[name] = assignment.FirstFitting(tuple(kept))
        normal = assignment.normalized(entries)
        return dataclasses.replace(mapping, entries=normal.entries, fallbacks=normal.fallbacks)

    def count(self, *trees: object) -> None:
        """Record names and paths of arrays, to compare them with the keys and patterns of the mapping."""
        self._names |= collect_names(trees)
        self._paths.update(*map(collect_paths, trees))

    def lay_out(
        self, shown: str, seen: str, tree: object, several: Set[str]
    ) -> tuple[ArrayLayout, ...]:
        """Lay out the arrays of a tree, or of a part of one, and report what is wrong.

        Args:
            shown: the path of the tree in the report.
            seen: its path as patterns see it.
            tree: the tree.
            several: the `find_several` of all trees that are sharded together.
        """
        rows: list[ArrayLayout] = []
        for own, names, payload in arrays_of(tree, "check"):
            path = join_path(seen, own)
            mapping = choose_mapping(self._mappings, names, payload.shape, path, several)
            row = self._lay_out(join_path(shown, own), names, abstract_array(payload), mapping)
            rows.append(dataclasses.replace(row, memory=get_memory_kind(payload)))
        return tuple(rows)

    def _lay_out(
        self, path: str, names: Names, array: jax.ShapeDtypeStruct, mapping: AxisMapping
    ) -> ArrayLayout:
        faults = _faults(names, tuple(array.shape), mapping, self._mesh)
        for fault in faults:  # the path is apart, so that equal problems of many arrays are one
            self._found.add(fault, path or "array")
        if faults:
            replicated = planned(path, (), array, mapping, self._mesh, "check")
            return dataclasses.replace(replicated, names=names, spec=None, note="impossible")

        row = planned(path, names, array, mapping, self._mesh, "check")
        # Biases and norms are replicated in most models; a warning for each would hide that of an embedding.
        is_large = (row.nbytes or 0) > self._replicated_above
        if is_large and row.nbytes == row.nbytes_per_device and self._mesh.size > 1:
            limit = byte_text(self._replicated_above)
            text = f"each of {self._mesh.size} devices holds all of an array above {limit}"
            self._found.add(Problem("replicated", "warning", text), path or "array")
        return row

    def function(self, call: Call) -> None:
        """Trace a function, and find the layouts of its arguments, its results and the arrays inside."""
        parts = call.target, call.args, call.kwargs
        several = find_several(parts)
        self.count(*parts)

        given = call.by_parameter()
        if call.is_method:
            seen, owner = given.pop(next(iter(given)))
        else:
            seen, owner = call.owner()
        self.model = self.lay_out("", seen, owner, several)
        for shown, (place, value) in given.items():
            self.arguments += self.lay_out(shown, place, value, several)

        result, stop = None, None
        try:
            with (
                # Clears the current mesh, whatever its size: JAX refuses to replace one by another of other sizes.
                jax.sharding.use_abstract_mesh(AbstractMesh((), ())),
                jax.sharding.use_abstract_mesh(self._mesh),
                using({MAPPING: self._mappings.compute, AUDIT: self._audit, LEDGER: self._ledger}),
            ):
                result = self._trace(call, several)
        except Exception as error:
            stop = error

        if stop is not None:
            self._report_inside()
            self._found.add(self._explain_stop(stop))
            return
        self.count(result)
        self.results = self.lay_out("result", "", result, find_several(result))
        self._report_inside()

    def _explain_stop(self, error: Exception) -> Problem:
        """Report where tracing ended because of a layout, or raise the error of the function."""
        place, text = f"tracing stopped in {place_of(error)}", str(error)
        is_ours = isinstance(error, ShardingError)
        # JAX does not export the classes of its sharding errors, and those about sizes and meshes are plain
        # ValueErrors. All arguments are on the mesh of the check.
        is_plain = type(error) is ValueError
        is_elsewhere = isinstance(error, ShardingError) and error.hint == constraints.MOVE_HINT
        if is_elsewhere or (is_plain and "should match the aval mesh" in text):
            problem = f"{place}: an array that is not an argument is on another mesh"
            return Problem("stopped", "error", problem, hint="pass it as an argument")

        is_theirs = type(error).__name__.startswith("Sharding")
        is_theirs = is_theirs or (is_plain and "sharding" in text.lower())
        has_cause = any(problem.severity == "error" for problem in self._found)
        if not is_ours and not (is_theirs and has_cause):
            raise error
        return Problem("stopped", "error", f"{place}: {text.splitlines()[0]}")

    def _trace(self, call: Call, several: Set[str]) -> Tree:
        """Trace the function with abstract arrays, and return its abstract result."""
        parts = call.target, call.args, call.kwargs
        leaves, tree = jax.tree_util.tree_flatten_with_path(parts, is_leaf=is_named_array)
        forms = [self._abstract(keys, value, several) for keys, value in leaves]

        def run(arrays: list[jax.Array]) -> Tree:
            traced = iter(arrays)
            values = [
                value if form is None else refilled(value, next(traced))
                for (_, value), form in zip(leaves, forms, strict=True)
            ]
            fn, args, kwargs = jax.tree.unflatten(tree, values)
            return eqx.filter(fn(*args, **kwargs), is_array)

        return jax.eval_shape(run, [form for form in forms if form is not None])

    def _abstract(
        self, keys: tuple[Any, ...], value: Payload, several: Set[str]
    ) -> jax.ShapeDtypeStruct | None:
        """Return the abstract form of an array, with its layout if its type has one; None for other leaves."""
        payload = payload_of(value)
        names: Names = ()
        if not is_array(payload):
            return None
        array = abstract_array(payload)
        if not modes.has_explicit(self._mesh):
            return array

        # On Explicit axes the type of an argument says how it is sharded, and operations inside depend on it.
        if isinstance(value, NamedArray):
            names = find_layout_names("check", keys, value)
        shape = tuple(array.shape)
        mapping = choose_mapping(
            self._mappings, names, shape, assignment.path_text(keys[1:]), several
        )
        spec = PartitionSpec()
        if not _faults(names, shape, mapping, self._mesh):
            spec = partition.find_layout(names, shape, mapping, self._mesh).spec
        explicit = modes.find_explicit_axes(self._mesh)
        own = [partition.only(entry, explicit) for entry in Layout.from_spec(spec)]
        sharding = NamedSharding(self._mesh, Layout(own).spec)
        return jax.ShapeDtypeStruct(
            shape, array.dtype, sharding=sharding, weak_type=array.weak_type
        )

    def _report_inside(self) -> None:
        """Report the impossible layouts inside."""
        known = set(self._found)
        for refused in self._audit.refused:
            faults = [Problem("layout", "error", refused.error.problem, hint=refused.error.hint)]
            # Not if another mapping was made current inside, or some mesh axes are Manual there.
            if refused.mapping == self._mappings.compute and refused.mesh == self._mesh:
                faults = _faults(refused.names, refused.shape, refused.mapping, self._mesh)
            for fault in faults:
                if fault not in known:  # otherwise, the paths of arrays are more specific
                    self._found.add(fault, describe(refused.names, refused.shape))

    def check_keys(self) -> None:
        """Report keys of the mappings that no array has, and patterns that no path matches."""
        given = self._given
        is_traced = any(row.names for row in self.arguments)
        is_complete = is_traced or given.parameters != given.compute
        inside = {name for names, _, _ in self._audit.arrays for name in names}

        # Without arguments, most activations are not seen, and a key of theirs is no mistake.
        self._check_keys_of(given.parameters, inside, "error" if is_complete else "warning")
        for _, extra in given.overrides:
            self._check_keys_of(extra, inside, "error")
        if is_traced:
            for mapping in (given.compute, *self._ledger.entered):
                self._check_keys_of(mapping, inside, "error")
        for pattern, _ in given.overrides:
            if not _matches_any(pattern, self._paths):
                self._found.add(self._explain_pattern(pattern))

    def _check_keys_of(
        self, mapping: AxisMapping, inside: Set[str], severity: Literal["error", "warning"]
    ) -> None:
        current = (self._given.compute, *self._ledger.entered)
        is_current = any(mapping.entries == own.entries for own in current)
        known = assignment.add_bases(self._names)
        if is_current:  # arrays inside are sharded by the current mapping only
            known |= assignment.add_bases(inside)
        for key in mapping:
            if key in known:
                continue
            text = f"the mapping has axis {key!r}, which no array here has"
            hint = suggestion(key, known)
            if key in assignment.add_bases(inside):
                text = f"the mapping has axis {key!r}, "
                text += "which only arrays inside of the function have"
                hint = "those are laid out by `compute` of the Mappings, so write it there"
            self._found.add(Problem("unknown axis", severity, text, hint=hint))

    def _explain_pattern(self, pattern: str) -> Problem:
        paths = sorted(self._paths - {""})  # an array that is the whole tree has no path
        shown = list_items(paths, WIDTH) or "none"
        text = f"no array has a path that matches {pattern!r}; paths: {shown}"
        # A misspelt pattern is closer to a component than to a whole path.
        hint = suggestion(pattern, {part for path in paths for part in path.split(".")})
        rows = (*self.model, *self.arguments, *self.results)
        if _matches_any(pattern, (row.path for row in rows)):
            hint = "write positions or keywords for arguments, and results without a prefix"
        return Problem("unknown path", "error", text, hint=hint)

    def report(self, title: str) -> Report:
        """Make the report."""
        groups: dict[str, list[ArrayLayout]] = {"model": [*self.model]} if self.model else {}
        for row in (*self.arguments, *self.results):
            groups.setdefault(row.path.partition(".")[0], []).append(row)
        totals = {
            what: (
                sum(row.nbytes or 0 for row in rows),
                sum(row.held for row in rows),
            )
            for what, rows in groups.items()
        }
        # Equal arrays, such as those of all layers, are one row.
        inside = tuple(
            ArrayLayout("", names, shape, None, spec, planned=True)
            for names, shape, spec in dict.fromkeys(self._audit.arrays)
        )
        problems = self._found.all()
        return Report(title, self.model, self.arguments, self.results, inside, problems, totals)


def _matches_any(pattern: str, paths: Iterable[str]) -> bool:
    return any(assignment.matches(pattern, path) for path in paths)


def _faults(
    names: Names, shape: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike
) -> list[Problem]:
    """List all problems of a mapping, whose mesh axes exist, with one array."""
    faults: list[Problem] = []
    sizes = dict(zip(names, shape[len(shape) - len(names) :], strict=True))
    table = dict(mapping.entries)
    for name in table.keys() & sizes.keys():
        table[name] = mapping.choose(name, sizes[name], mesh)
    used: dict[str, str] = {}
    # `find_layout` would raise at the first problem, and there may be several.
    for name in names:
        for axis in table.get(name, ()):
            if axis in used:
                text = f"mesh axis {axis!r} would shard both {used[axis]!r} and {name!r} "
                text += "of one array"
                hint = "map one of the two elsewhere, or rename it there"
                faults.append(Problem("conflict", "error", text, hint=hint))
            used.setdefault(axis, name)
        if name in table:  # go on with the remaining mesh axes, to find sizes that do not divide
            table[name] = tuple(axis for axis in dict.fromkeys(table[name]) if used[axis] == name)

    entries = partition.assign_mesh_axes(
        names, shape, dataclasses.replace(mapping, entries=tuple(table.items())), mesh, "check"
    )
    for name, size in sizes.items():
        axes = entries.get(name, ())
        shards = partition.count_shards(mesh, axes)
        if size % shards:
            over = ", ".join(axes)
            text = f"{name}={size} cannot be split evenly in {shards} over mesh axis {over}"
            below = size // shards * shards
            near = " or ".join(str(near) for near in (below, below + shards) if near)
            faults.append(Problem("uneven", "error", text, hint=f"nearest that divide: {near}"))
    return faults
