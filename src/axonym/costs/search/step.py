"""Internal. A step whose cost is computed many times, with other mappings, arguments and microbatches.

`axn.plan` makes one. It must not know the search.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from ... import AxisSelector, Mappings, axis_name, pipelined
from ...engine import Ledger, MeshLike, Tree, make_mesh, type_text
from ...errors import AxonymError, OperandError, message
from ...report import ArrayLayout, abstract_mesh
from ..compiled.devices import find_target
from ..compiled.running import measure_run
from ..cost import cost
from ..report.cost import Cost
from ..shared.arguments import lay_out_arguments, list_rows
from ..shared.targets import Target
from ..traced.reader import trace_cost
from ..traced.template import Template
from .choice import Give
from .layers import EachLayer


@dataclasses.dataclass(frozen=True)
class Step:
    """A function with its fixed arguments, and the arguments that a search chooses.

    Attributes:
        fn: the function. Without arguments, it builds the step from the chosen values.
        args: its arguments.
        kwargs: its keyword arguments.
        target: the device for which times and memory are estimated.
        choices: the values to choose from, for each further keyword argument.
        piped: the axis of layers that may become stages, and the axis that is cut into microbatches.
        decisive: the axes whose entries in the mapping decide which program is traced, as far as traces show.

    Raises:
        OperandError: for choices without values, or for an argument that is also a choice.
    """

    fn: Tree
    args: tuple[Tree, ...]
    kwargs: Mapping[str, Tree]
    target: Target | str
    choices: Mapping[str, Sequence[Tree]]
    piped: tuple[str, str] | None = None
    decisive: set[str] = dataclasses.field(default_factory=set)
    _built: dict[tuple[int, ...], tuple[Tree, ...]] = dataclasses.field(default_factory=dict)
    _sizes: dict[tuple[int, ...], dict[str, int]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, values in self.choices.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                problem = f"choices[{name!r}] must be a list of values, not {values!r}"
                hint = f"write choices={{{name!r}: [...]}}"
                raise OperandError(message("plan", problem, hint=hint))
            if name in self.kwargs:
                problem = f"{name!r} is an argument, and in choices, too"
                raise OperandError(message("plan", problem, hint="leave one of the two out"))

    def choose(self, given: Sequence[int]) -> dict[str, Tree]:
        """Return the chosen keyword arguments, by the numbers of their values."""
        return {
            name: values[number]
            for number, (name, values) in zip(given, self.choices.items(), strict=True)
        }

    def find_stacks(self) -> dict[int, EachLayer]:
        """Return the choices that are made layer by layer, by their places."""
        values = enumerate(self.choices.values())
        return {at: own for at, own in values if isinstance(own, EachLayer)}

    def count_values(self) -> tuple[int, ...]:
        """Return the number of values of each choice, without mixtures of layers."""
        return tuple(
            len(own.values if isinstance(own, EachLayer) else own) for own in self.choices.values()
        )

    def build(self, chosen: Mapping[str, Tree]) -> tuple[Tree, tuple[Tree, ...], dict[str, Tree]]:
        """Return the step with its arguments and keyword arguments, for chosen values.

        Raises:
            OperandError: if the function builds no step.
        """
        if not self.is_builder:
            return self.fn, self.args, {**self.kwargs, **chosen}
        # Values need not be hashable; their ids are stable, because the lists of choices hold them.
        key = tuple(map(id, chosen.values()))
        if key not in self._built:
            built = self.fn(**chosen)
            if not isinstance(built, tuple) or len(built) < 2 or not callable(built[0]):
                problem = "without arguments, it takes a function that builds the step"
                facts = f"it returned: {type_text(built)}"
                hint = "return the step and its arguments, (step, model, state, batch), or pass the arguments"
                raise OperandError(message("plan", problem, facts, hint=hint))
            self._built[key] = built
        step, *args = self._built[key]
        return step, tuple(args), {}

    @property
    def is_builder(self) -> bool:
        """Whether the function builds the step, so that chosen values may change its arguments."""
        return not (self.args or self.kwargs)

    def find_sizes(self, given: Sequence[int]) -> dict[str, int]:
        """Return, for each axis of the arguments, the common divisor of its sizes, by which devices may divide it."""
        stacks = self.find_stacks()
        key = tuple(0 if at in stacks else number for at, number in enumerate(given))
        if key not in self._sizes:
            self._sizes[key] = find_divisors(self._collect_sizes(self.choose(key)))
        return self._sizes[key]

    def _collect_sizes(self, chosen: Mapping[str, Tree]) -> dict[str, frozenset[int]]:
        """Return the sizes of each axis of the arguments."""
        fn, args, options = self.build(chosen)
        mesh = make_mesh({"device": 1}, "Explicit")
        rows = list_rows(lay_out_arguments(fn, Mappings({}, {}), mesh, args, options))
        return collect_sizes(rows.values())

    def iterate_gifts(self) -> Iterator[tuple[Give, dict[str, int]]]:
        """Yield each value that may change the arguments, with the resulting sizes; see `find_sizes`."""
        if not self.is_builder:
            return
        stacks, count = self.find_stacks(), len(self.choices)
        for at, values in enumerate(self.choices.values()):
            for number in range(1, 0 if at in stacks else len(values)):
                try:
                    sizes = self.find_sizes([number * (own == at) for own in range(count)])
                except (AxonymError, ValueError):
                    # It may need another value of another argument.
                    continue
                yield Give(at, number), sizes

    def link_parts(self, split: Mapping[str, Mapping[str, int]]) -> "Step":
        """Return the step on a mesh with some axes split; the parts keep the link of the original axis."""
        target = find_target(self.target, "plan")
        links = {
            part: target.links[axis]
            for axis, parts in split.items()
            if axis in target.links
            for part in parts
        }
        return dataclasses.replace(self, target=target.linked(**links)) if links else self

    def cost(
        self,
        mappings: Mappings,
        mesh: MeshLike | Mapping[str, int],
        chosen: Mapping[str, Tree],
        microbatches: int | None,
        depth: Literal["compiled", "traced"],
    ) -> Cost:
        """Return the cost of the step; see `axn.cost`.

        Raises:
            AxonymError: the error of `axn.cost`, reported as one of `axn.plan`.
        """
        fn, args, options = self.build(chosen)
        try:
            with self._enter_pipeline(microbatches):
                return cost(fn, mappings, mesh, *args, target=self.target, depth=depth, **options)
        except AxonymError as error:
            # The user called `axn.plan`, and does not know about calls of `axn.cost`.
            if error.function != "cost":
                raise
            text = message("plan", error.problem, *error.facts, hint=error.hint)
            raise type(error)(text) from error.__cause__

    def find_bound(
        self, devices: int, chosen: Sequence[Mapping[str, Tree]], examples: int
    ) -> float:
        """Return a lower bound of the seconds of the step under any mapping; 0 if none is known.

        The devices share all operations except recomputed ones, and read the arguments and write new results once, at
        the rates that are used to compare mappings.

        Args:
            devices: the number of devices.
            chosen: the combinations of chosen values, of which the fastest gives the bound.
            examples: the number of examples in these seconds.
        """
        found: list[float] = []
        for own in chosen:
            try:
                alone = self.count(Mappings({}, {}), {"device": 1}, own, None, is_ideal=True)
            except (AxonymError, ValueError):
                # A step that needs the axes of the mesh.
                return 0.0
            # Donated memory may be updated in place, such as a cache.
            memory = alone.memory
            nbytes = float(memory.arguments + memory.results - memory.donated)
            work = [row for row in alone.work if row.phase != "recomputed"]
            if (shares := alone.target.efficiency) is not None:
                work = [row.slow_down(shares) for row in work]
                nbytes /= shares.memory
            computing = sum(row.computing for row in work)
            seconds = max(computing, nbytes / alone.target.memory_bandwidth) / devices
            found.append(seconds * examples / count_examples(alone))
        return min(found, default=0.0)

    def count(
        self,
        mappings: Mappings,
        mesh: Mapping[str, int],
        chosen: Mapping[str, Tree],
        microbatches: int | None,
        *,
        is_ideal: bool = False,
    ) -> Cost:
        """Return the traced cost of the step, without an explanation if the mapping is not legal; see `trace_cost`.

        Raises:
            AxonymError: if the mapping is not legal.
        """
        fn, args, options = self.build(chosen)
        target, abstract = find_target(self.target, "plan"), abstract_mesh(mesh, "plan")
        ledger = Ledger()
        with self._enter_pipeline(microbatches):
            flags = {"is_explained": False, "is_ideal": is_ideal}
            found = trace_cost(
                fn, mappings, abstract, target, args, options, ledger=ledger, **flags
            )
        self.decisive.update(map(find_base, ledger.decisive))
        return found

    def make_template(
        self,
        given: Sequence[int],
        parameters: Sequence[str],
        states: Sequence[str],
        unmapped: Set[str] = frozenset(),
        yielding: Set[str] = frozenset(),
    ) -> Template | None:
        """Make the template of the step; None if it cannot be traced without the axes of the mesh.

        Args:
            given: the numbers of the chosen values.
            parameters: the names of the axes of parameters.
            states: patterns of the paths at which an optimiser keeps arrays like the parameters.
            unmapped: the axes that the computation leaves unmapped.
            yielding: the decisive axes that take mesh axes only where others leave them free.
        """
        chosen = self.choose(given)
        fn, args, options = self.build(chosen)
        # No mesh axis divides an axis of size 1, and JAX drops it from the types of some gradients.
        names = [name for name, sizes in self._collect_sizes(chosen).items() if max(sizes) > 1]
        roles = {
            "parameters": [name for name in parameters if name in names],
            "names": [name for name in names if name not in unmapped],
        }
        try:
            target = find_target(self.target, "plan")
            return Template(fn, args, options, target, **roles, states=states, yielding=yielding)
        except Exception:
            # The step may do anything; a mistake in it is raised where it is traced for a mesh.
            return None

    def measure(
        self,
        mappings: Mappings,
        mesh: MeshLike | Mapping[str, int],
        chosen: Mapping[str, Tree],
        microbatches: int | None,
    ) -> float:
        """Return the seconds of one run of the step on devices of this machine."""
        fn, args, options = self.build(chosen)
        with self._enter_pipeline(microbatches):
            return measure_run(fn, mappings, mesh, args, options)

    def _enter_pipeline(self, microbatches: int | None) -> AbstractContextManager[Any]:
        # A pipeline is not an argument, but a block around the call.
        if self.piped is None or microbatches is None:
            return nullcontext()
        return pipelined(self.piped[1], microbatches)


def collect_sizes(rows: Iterable[ArrayLayout]) -> dict[str, frozenset[int]]:
    """Return the sizes of each axis of some arrays; derived axes count as their bases."""
    found: dict[str, frozenset[int]] = {}
    for row in rows:
        shape = row.shape[len(row.shape) - len(row.names) :]
        for name, size in zip(map(find_base, row.names), shape, strict=True):
            found[name] = found.get(name, frozenset()) | {size}
    return found


def count_examples(cost: Cost) -> int:
    """Return the number of examples of a step: the product of the sizes of all axes in data but not in parameters."""
    data, parameters = (
        collect_sizes(cost.arguments.get(kind, ())) for kind in ("data", "parameters")
    )
    return math.prod(max(sizes) for name, sizes in data.items() if name not in parameters) or 1


def find_pace(cost: Cost) -> float:
    """Return the seconds of a step per example, which makes steps with different batches comparable."""
    return cost.time.compared / count_examples(cost)


def find_divisors(sizes: Mapping[str, frozenset[int]]) -> dict[str, int]:
    """Return, for each axis, the common divisor of its sizes."""
    # Arrays in which an axis has size 1 are not divided along it, so this size does not count.
    return {name: math.gcd(*(own - {1} or own)) for name, own in sizes.items()}


def find_base(name: str) -> str:
    """Return the name of the axis from which another axis may be derived."""
    return name.partition(".")[0]


def parse_pipeline(pair: object) -> tuple[str, str] | None:
    """Return the names of the axis of layers and of the axis that is cut into microbatches.

    Raises:
        OperandError: if the argument is not a pair of axes.
    """
    if pair is None:
        return None
    hint = 'write pipelined=("layers", "batch")'
    if not isinstance(pair, tuple) or len(pair) != 2:
        problem = f"pipelined must be the axis of the layers and the axis that is cut, not {pair!r}"
        raise OperandError(message("plan", problem, hint=hint))
    layers, rows = map(_name, pair)
    if layers == rows:
        problem = f"pipelined has {layers!r} twice"
        raise OperandError(message("plan", problem, hint=hint))
    return layers, rows


def _name(axis: AxisSelector) -> str:
    return axis_name(axis)


def find_state_patterns(report: Cost) -> tuple[str, ...]:
    """Return the paths at which an optimiser keeps arrays like the parameters, such as `0.mu`."""
    paths = [row.path.split(".") for row in report.arguments.get("parameters", ())]
    found: dict[str, None] = {}
    for row in report.arguments.get("optimizer", ()):
        parts = row.path.split(".")
        # The path has the name of the argument first, and ends like the path of a parameter.
        for at in range(2, len(parts)):
            if any(parts[at:] == path[1:] for path in paths):
                found[".".join(parts[1:at])] = None
                break
    return tuple(found)
