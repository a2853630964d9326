"""The report on a program's costs: communication, memory and time, as data, text and tables.

Both readers fill it, and the search compares it. It must not know programs.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from ...report import ArrayLayout, Cell, Printed, Table, byte_text
from ..shared.flags import list_flags
from ..shared.overlap import join_recomputed
from ..shared.rows import OUTSIDE, Collective, Memory, Time, Work
from ..shared.targets import Target
from ..shared.units import write_count, write_mesh, write_time
from .bars import Bar, Bars
from .difference import Difference
from .file import compare, list_times, save, summarise

__all__ = ["Cost"]

Depth: TypeAlias = Literal["compiled", "traced"]
# Columns of numbers, aligned to the right.
RIGHT = (
    "runs",
    "sent",
    "time",
    "hidden",
    "per device",
    "FLOPs",
    "read, written",
    "computing",
    "memory",
    "sending",
)
WORDS = {"parameters": "parameters", "optimizer": "the state of the optimiser"}


@dataclasses.dataclass(frozen=True, repr=False)
class Cost(Printed):
    """The cost of a program, which prints as tables, also in notebooks. All numbers are for one device.

    Attributes:
        title: the name of the function and the mapping.
        depth: the source of the numbers: `compiled` for the program of a compiler, `traced` for the function.
        compiler: the kind of device that the program was compiled for; empty if traced.
        target: the device for which times are estimated.
        mesh: the axes of the mesh with their sizes.
        arguments: the layouts of the arguments by kind: `parameters`, `optimizer` and `data`.
        communication: the collectives, each with its named axis, layer, bytes and seconds.
        memory: the bytes that a device holds.
        work: the computation, reading and sending of each layer and phase.
        bubble: the share of the time in which a stage of a pipeline waits. The numbers of `work` include this waiting.
        notes: texts about work that the numbers leave out.
        operations: seconds of all operations in sequence, if the target's own compiler made the program; otherwise
            None.
        attention: the implementations of attention, each with its layers, and with a reason if it is no kernel of the
            target.
        measured: seconds of one run, if it was measured. `dataclasses.replace(cost, measured=3.4)` puts your own
            measurement beside a cost, and `save` writes it.

    Examples:
        >>> Batch, Embed = axn.make_axes(batch=64, embed=32)
        >>> x = axn.ones((Batch, Embed))
        >>> report = axn.cost(lambda x: x.sum("embed"), {"embed": "model"}, {"model": 8}, x, depth="traced")
        >>> report.by_axis["embed"][:2]  # one collective, which sends 448 bytes
        (1, 448)
        >>> report.totals["peak memory"] == report.memory.peak
        True
    """

    title: str
    depth: Depth
    compiler: str
    target: Target
    mesh: tuple[tuple[str, int], ...]
    arguments: Mapping[str, tuple[ArrayLayout, ...]]
    communication: tuple[Collective, ...]
    memory: Memory
    work: tuple[Work, ...]
    bubble: float = 0.0
    notes: tuple[str, ...] = ()
    operations: float | None = None
    attention: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    measured: float | None = None

    @property
    def is_scheduled(self) -> bool:
        """Whether times and overlap come from the schedule of the program; otherwise they are assumed."""
        return self.operations is not None

    @functools.cached_property
    def time(self) -> Time:
        """An estimate of the time of one run: at the peaks of the target, and at the shares of them that it reaches."""
        sums = _sum_work(join_recomputed(self.work))
        overlapped = sums.overlapped + sums.copied
        utilisation = 0.0
        if overlapped:
            useful = sum(work.flops for work in self.work if work.phase in ("forward", "backward"))
            # An idle stage computes values that are discarded.
            needed = useful * (1 - self.bubble)
            utilisation = needed / self.target.peak / overlapped
        exposed = sum(one.exposed for one in self.communication)
        scheduled = sums.busy + exposed
        if self.operations is not None:
            # Copies that run beside operations read and write, too, so memory may be the limit.
            scheduled = max(self.operations, sums.moving) + exposed
        return Time(
            overlapped,
            sums.busy + sums.sending + sums.copying,
            scheduled + sums.copied,
            sums.computing,
            sums.moving,
            sums.sending,
            self.bubble,
            utilisation,
            sums.copying,
            sums.copied,
            self._expect(sums, exposed),
        )

    def _expect(self, bound: "_Sums", exposed: float) -> float | None:
        """Return the expected time at the shares of the target's peaks; None if the target has no shares."""
        shares = self.target.efficiency
        if shares is None:
            return None
        rows = [work.slow_down(shares) for work in self.work]
        if self.operations is None:
            # In published times, recomputation does not overlap with the rest of the backward pass.
            sums = _sum_work(rows)
            return sums.overlapped + sums.copied
        sums = _sum_work(join_recomputed(rows))
        # Operations of a schedule slow down like layers; exposed sending stays exposed.
        slower = sums.busy / bound.busy if bound.busy else 1.0
        return max(self.operations * slower, sums.moving) + exposed / shares.links + sums.copied

    @functools.cached_property
    def totals(self) -> Mapping[str, float]:
        """Sums by name: `flops`, `bytes accessed`, `bytes sent`, `collectives`, `peak memory` and `seconds`."""
        flops = nbytes = 0.0
        for work in self.work:
            flops += work.flops
            nbytes += work.nbytes
        count, sent, _ = _sum_up(self.communication)
        return {
            "flops": flops,
            "bytes accessed": nbytes,
            "bytes sent": sent,
            "collectives": count,
            "peak memory": self.memory.peak,
            "seconds": self.time.seconds,
        }

    @property
    def unattributed(self) -> float:
        """The share of the sent bytes without a known named axis."""
        whole = known = 0
        for one in self.communication:
            whole += one.sent
            if one.axes:
                known += one.sent
        return 1 - known / whole if whole else 0.0

    @property
    def by_axis(self) -> Mapping[str, tuple[int, int, float]]:
        """For each named axis: the number of collectives, the bytes that a device sends, and seconds."""
        return self._sum_by(lambda one: one.axis)

    @property
    def by_layer(self) -> Mapping[str, tuple[int, int, float]]:
        """For each layer: the number of collectives, the bytes that a device sends, and seconds."""
        return self._sum_by(lambda one: one.layer)

    def _sum_by(self, key: Callable[[Collective], str]) -> dict[str, tuple[int, int, float]]:
        sums: dict[str, tuple[int, int, float]] = {}
        for one in self.communication:
            count, sent, seconds = sums.get(key(one), (0, 0, 0.0))
            sums[key(one)] = count + one.count, sent + one.sent, seconds + one.seconds
        return dict(sorted(sums.items(), key=lambda item: -item[1][1]))

    @property
    def problems(self) -> tuple[str, ...]:
        """The memory problem of a program that does not fit, with its remedies; empty if it fits."""
        memory, capacity = self.memory, self.target.memory
        if memory.peak <= capacity:
            return ()
        over = memory.peak - capacity
        text = f"{byte_text(memory.peak)} at the peak do not fit into the {byte_text(capacity)}"
        return (f"{text} of {self.target.name}, by {byte_text(over)}", *self.remedies(over))

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler flags that published runs on such devices set, each with its purpose; the source comes last."""
        return list_flags(self.target.platform)

    def remedies(self, over: int) -> tuple[str, ...]:
        """List the remedies that save memory, the best one first, with the bytes that each saves.

        Args:
            over: the bytes that do not fit. A remedy that saves less than 1 % of them is left out.
        """
        memory, ways = self.memory, self.devices
        found: list[tuple[int, str]] = []
        for kind, held in (("parameters", memory.parameters), ("optimizer", memory.optimizer)):
            whole = 0
            for array in self.arguments.get(kind, ()):
                whole += array.nbytes or 0
            # If nothing else divides them, each device could hold an equal share.
            found.append((held - whole // ways, f"split {WORDS[kind]} over all mesh axes"))
        # Only parameters and the state of the optimiser have results that may replace them.
        spare = min(memory.results - memory.donated, memory.parameters + memory.optimizer)
        found.append((spare, "donate the arguments that the results replace"))
        text = "half the batch of a device, by more microbatches or devices, or keep less for the"
        found.append((memory.temporary // 2, f"{text} backward pass"))
        found.sort(reverse=True)
        return tuple(
            f"to save {byte_text(saved)}: {remedy}" for saved, remedy in found if saved > over / 100
        )

    @property
    def devices(self) -> int:
        """The number of devices."""
        count = 1
        for _, size in self.mesh:
            count *= size
        return count

    def diff(self, other: "Cost") -> Difference:
        """Compare with another cost, row by row: the cost of another mapping, batch, policy or mesh.

        Args:
            other: the cost after the change.

        Returns:
            The difference, which prints as a table.
        """
        before, after = summarise(self), summarise(other)
        for content, cost in ((before, self), (after, other)):
            # A file has times only with a measured one, but a reader of a comparison wants them.
            content["time"] = list_times(cost)
        return compare(before, after, (self.title, other.title))

    def save(self, path: str | Path) -> None:
        """Write layouts, collectives and sums to a file, which `axn.partitioning.assert_layout` reads."""
        save(self, path)

    def picture(self) -> Bars:
        """Return a picture with three groups of bars: bytes sent for each axis, memory, and seconds of each layer."""
        sent = [
            Bar(axis, nbytes, byte_text(nbytes)) for axis, (_, nbytes, _) in self.by_axis.items()
        ]
        held = [
            Bar(what, nbytes, byte_text(nbytes)) for what, nbytes in self._list_memory().items()
        ]
        seconds: dict[str, float] = {}
        for work in self.work:
            layer = work.layer or OUTSIDE
            seconds[layer] = seconds.get(layer, 0.0) + work.seconds
        layers = [Bar(layer, time, write_time(time)) for layer, time in seconds.items()]
        groups = {
            "sent because of": tuple(sent),
            f"memory, of {byte_text(self.target.memory)}": tuple(held),
            "time by layer": tuple(layers),
        }
        return Bars(self._write_headline(), groups)

    def _write_expectation(self) -> str:
        name, seconds, shares = self.target.name, self.time.expected, self.target.efficiency
        if shares is None or seconds is None:
            return f"expected: not known, since {name} says no shares of its peaks"
        reached = ", ".join(f"{share:.0%} in {what}" for what, share in vars(shares).items())
        return f"expected: {write_time(seconds)}, if {name} reaches of its peaks {reached}"

    def _write_measured(self, seconds: float) -> str:
        time = self.time
        what = "bound" if time.expected is None else "expected"
        return f"measured: {write_time(seconds)}, {seconds / (time.compared or 1):.2f} of the {what} time"

    def _list_memory(self) -> dict[str, int]:
        """Return the parts of memory at the peak that are not empty."""
        memory = self.memory
        held = {
            "parameters": memory.parameters,
            "state of the optimiser": memory.optimizer,
            "data": memory.data,
            "temporaries": memory.temporary,
            "results in new memory": memory.results - memory.donated,
        }
        return {what: nbytes for what, nbytes in held.items() if nbytes}

    def parts(self) -> Iterator[str | Table]:
        """Yield the paragraphs and tables."""
        yield self._write_headline()
        if self.communication:
            yield self._make_axes_table()
            yield self._make_collectives_table()
        else:
            yield "nothing is sent"
        yield self._make_memory_table()
        if self.memory.kept:
            yield self._make_kept_table()
        yield self._make_work_table()
        yield self._write_summary()

    def _write_headline(self) -> str:
        on = write_mesh(self.mesh) or "one device"
        text = f"{self.title} on the mesh {on}, for {self.target.name}"
        if self.compiler:
            text += f"; compiled for {self.compiler}"
        return text

    def _make_axes_table(self) -> Table:
        _, whole, _ = _sum_up(self.communication)
        rows: list[tuple[Cell, ...]] = []
        for axis, (count, sent, seconds) in self.by_axis.items():
            share = f"{sent / max(whole, 1):.0%}"
            rows.append((axis, str(count), byte_text(sent), share, write_time(seconds)))
        header = ("sent because of", "runs", "sent", "share", "time")
        return Table(header, tuple(rows), right=(*RIGHT, "share"))

    def _make_collectives_table(self) -> Table:
        groups: dict[tuple[str, ...], list[Collective]] = {}
        for one in self.communication:
            over = ", ".join(one.mesh_axes)
            layer = one.layer or OUTSIDE
            key: tuple[str, ...] = (one.kind, over, one.axis, layer, one.phase)
            groups.setdefault(key, []).append(one)
        lines: list[tuple[Cell, ...]] = []
        times: list[float] = []
        for cells, same in groups.items():
            count, sent, seconds = _sum_up(same)
            hidden, by = _sum_hidden(same)
            numbers = (str(count), byte_text(sent), write_time(seconds), write_time(hidden))
            lines.append((*cells, *numbers, by))
            times.append(seconds)
        # The longest collectives come first.
        order = sorted(range(len(lines)), key=lambda i: -times[i])
        rows = tuple(map(lines.__getitem__, order))
        place = ("collective", "over", "because of", "layer", "phase")
        count, sent, seconds = _sum_up(self.communication)
        hidden, _ = _sum_hidden(self.communication)
        numbers = (str(count), byte_text(sent), write_time(seconds), write_time(hidden))
        last = ("all", "", "", "", "", *numbers, "")
        header = (*place, "runs", "sent", "time", "hidden", "by")
        return Table(header, rows, last, right=RIGHT)

    def _make_memory_table(self) -> Table:
        memory = self.memory
        cells: list[tuple[Cell, ...]] = [
            (what, byte_text(held), f"{held / self.target.memory:.1%}")
            for what, held in self._list_memory().items()
        ]
        share = f"{memory.peak / self.target.memory:.1%}"
        last = ("peak", byte_text(memory.peak), share)
        header = ("memory", "per device", f"of {self.target.name}")
        return Table(header, tuple(cells), last, right=("per device", header[2]))

    def _make_kept_table(self) -> Table:
        rows: list[tuple[Cell, ...]] = []
        for kept in self.memory.kept:
            each = f"{kept.count} x {kept.dtype}{[*kept.shape]}"
            each += " on the host" if kept.is_on_host else ""
            rows.append((kept.layer, kept.names, each, byte_text(kept.nbytes)))
        header = ("kept for the backward pass", "axes", "arrays", "per device")
        return Table(header, tuple(rows))

    def _make_work_table(self) -> Table:
        rows: list[tuple[Cell, ...]] = []
        for work in sorted(self.work, key=lambda work: -work.seconds):
            rows.append(
                (
                    work.layer or OUTSIDE,
                    work.phase,
                    write_count(work.flops),
                    byte_text(round(work.nbytes)),
                    write_time(work.computing),
                    write_time(work.moving),
                    write_time(work.sending),
                    work.bound,
                )
            )
        header = (
            "layer",
            "phase",
            "FLOPs",
            "read, written",
            "computing",
            "memory",
            "sending",
            "bound",
        )
        return Table(header, tuple(rows), right=RIGHT)

    def _write_summary(self) -> str:
        time = self.time
        lines = [
            f"bound: {write_time(time.seconds)} if within each layer, computing, reading and sending"
            f" overlap; {write_time(time.serial)} if sending does not",
            self._write_expectation(),
            f"{time.utilisation:.1%} of the peak of {self.target.name} for the model",
        ]
        if self.is_scheduled and self.communication:
            hidden, _ = _sum_hidden(self.communication)
            how = "it sends nothing while it computes"
            # A sentence is clearer than a time of zero.
            if hidden:
                how = f"{write_time(hidden)} of {write_time(time.sending)} of sending are hidden"
            lines.insert(1, f"{write_time(time.scheduled)} as the program is scheduled: {how}")
        if self.measured is not None:
            lines.append(self._write_measured(self.measured))
        if self.memory.host:
            beside = write_time(time.copying - time.copied)
            text = f"copies take {write_time(time.copying)}, of which {beside} are hidden"
            lines.append(f"the host holds {byte_text(self.memory.host)} for a device; {text}")
        if time.bubble:
            lines.append(f"{time.bubble:.0%} of the time, a stage of the pipeline waits")
        if self.communication:
            lines.append(f"{self.unattributed:.1%} of the bytes sent are unattributed")
        for implementation, layers in self.attention.items():
            lines.append(f"attention in {', '.join(layers)}: {implementation}")
        lines += self.notes
        if self.flags:
            lines.append("published runs set these flags of the compiler:")
            lines += [f"  {flag}" for flag in self.flags]
        if self.problems:
            lines.append(f"error: {self.problems[0]}")
        for remedy in self.problems[1:]:
            lines.append(f"  {remedy}")
        return "\n".join(lines)


class _Sums(NamedTuple):
    """Seconds of all layers; `overlapped` if sending overlaps with the work of each layer, `busy` without sending."""

    overlapped: float
    busy: float
    computing: float
    moving: float
    sending: float
    copying: float
    copied: float


def _sum_work(rows: Sequence[Work]) -> _Sums:
    # A layer is copied while another one computes.
    phases: dict[str, list[float]] = {}
    for work in rows:
        of_phase = phases.setdefault(work.half, [0.0, 0.0])
        of_phase[0] += work.seconds
        of_phase[1] += work.copying
    return _Sums(
        sum(work.seconds for work in rows),
        sum(max(work.computing, work.moving) for work in rows),
        sum(work.computing for work in rows),
        sum(work.moving for work in rows),
        sum(work.sending for work in rows),
        sum(copying for _, copying in phases.values()),
        sum(max(0.0, copying - busy) for busy, copying in phases.values()),
    )


def _sum_hidden(several: Iterable[Collective]) -> tuple[float, tuple[str, ...]]:
    """Return the seconds of sending that overlap, and the layers or resources that hide most of them."""
    total = 0.0
    by: dict[tuple[str, ...], float] = {}
    for one in several:
        total += one.hidden
        by[one.hidden_by] = by.get(one.hidden_by, 0.0) + one.hidden
    most = max(by, key=lambda names: by[names], default=())
    return total, most or ("nothing",)


def _sum_up(several: Iterable[Collective]) -> tuple[int, int, float]:
    """Return the number of collectives, the bytes that a device sends, and seconds."""
    count, sent, seconds = 0, 0, 0.0
    for one in several:
        count, sent, seconds = count + one.count, sent + one.sent, seconds + one.seconds
    return count, sent, seconds
