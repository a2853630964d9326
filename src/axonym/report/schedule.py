"""The schedule of a pipeline: which stage works on which microbatch, tick by tick."""

import dataclasses
import html
from pathlib import Path

from ..errors import ArgumentError, message
from .picture import ALONE, FONT, LETTER

__all__ = ["Schedule", "schedule"]

WIDTH = 760  # of a picture, in pixels
HEIGHT = 24  # of a row


@dataclasses.dataclass(frozen=True, repr=False)
class Schedule:
    """The work of the stages of a pipeline; it prints as a table, and notebooks show a picture.

    Attributes:
        stages: the number of stages.
        microbatches: the number of microbatches.
        backward: whether stages work backward in the same ticks, as in `pipeline_value_and_grad`.
        rounds: how often a microbatch passes all stages.

    Examples:
        >>> plan = axn.partitioning.schedule(stages=2, microbatches=4)
        >>> plan.ticks, plan.bubble, plan.microbatch(stage=1, tick=3)
        (5, 0.2, 2)
    """

    stages: int
    microbatches: int
    backward: bool = False
    rounds: int = 1

    def __post_init__(self) -> None:
        for name in ("stages", "microbatches", "rounds"):
            count = getattr(self, name)
            if count < 1:
                problem = f"the number of {name} must be positive, not {count}"
                raise ArgumentError(message("schedule", problem))
        if self.rounds == 1:
            return
        # The limits of `axn.pipelined` and `axn.pipeline_value_and_grad`, whose schedules these are.
        if self.backward:
            problem = f"there are {self.rounds} rounds, and stages work backward in the same ticks"
            raise ArgumentError(message("schedule", problem, hint="leave one of the two out"))
        if self.microbatches % self.stages:
            problem = f"{self.microbatches} microbatches cannot be divided evenly among {self.stages} stages"
            hint = f"several rounds need a multiple: microbatches={2 * self.stages}"
            raise ArgumentError(message("schedule", problem, hint=hint))

    @property
    def ticks(self) -> int:
        """The number of ticks; in one, each stage works on one microbatch."""
        waiting = (self.stages - 1) * (2 if self.backward else 1)
        return self._steps + waiting

    @property
    def _steps(self) -> int:
        """The number of ticks in which a stage works."""
        return self.rounds * self.microbatches

    @property
    def bubble(self) -> float:
        """The part of the time in which a stage waits."""
        return (self.ticks - self._steps) / self.ticks

    def microbatch(self, stage: int, tick: int) -> int | None:
        """Return the microbatch on which a stage works forward in a tick; None while it waits."""
        # Groups of as many microbatches as there are stages go through all rounds, one group after the other.
        known = self._limit(tick - stage)
        if known is None:
            return None
        return known // (self.rounds * self.stages) * self.stages + known % self.stages

    def round(self, stage: int, tick: int) -> int | None:
        """Return the round in which a stage works in a tick; None while it waits."""
        known = self._limit(tick - stage)
        return None if known is None else known // self.stages % self.rounds

    def returning(self, stage: int, tick: int) -> int | None:
        """Return the microbatch on which a stage works backward in a tick; None if it does no backward work."""
        # A microbatch reaches the last stage after `stages - 1` ticks, and comes back in as many.
        return self._limit(tick - 2 * (self.stages - 1) + stage) if self.backward else None

    def _limit(self, at: int) -> int | None:
        return at if 0 <= at < self._steps else None

    def __repr__(self) -> str:
        # A cell has the number of a microbatch, with `backward` two of them, with rounds also that of the round.
        width = len(str(self.ticks)) + 1
        if self.backward:
            width *= 2
        if self.rounds > 1:
            width = max(width, len(f"{self.microbatches - 1}:{self.rounds - 1}") + 1)
        lines = ["tick".ljust(10) + "".join(f"{tick:>{width}}" for tick in range(self.ticks))]
        for stage in range(self.stages):
            cells = "".join(self._text(stage, tick).rjust(width) for tick in range(self.ticks))
            lines.append(f"stage {stage}".ljust(10) + cells)
        lines.append(f"waiting: {self.bubble:.0%}")
        return "\n".join(lines)

    def _text(self, stage: int, tick: int) -> str:
        forward, back = self.microbatch(stage, tick), self.returning(stage, tick)
        parts = [] if forward is None else [self._label(stage, tick, forward)]
        if back is not None:
            parts.append(f"-{back}")
        return "".join(parts) or "."

    def _label(self, stage: int, tick: int, micro: int) -> str:
        return str(micro) if self.rounds == 1 else f"{micro}:{self.round(stage, tick)}"

    def svg(self) -> str:
        """Return the schedule as SVG, in the colour of the text around it."""
        return self._svg("")

    def save(self, path: str | Path) -> None:
        """Write the picture to a file; its colours follow the light or dark mode of a reader's system."""
        Path(path).write_text(self._svg(ALONE) + "\n", encoding="utf-8")

    def _repr_html_(self) -> str:
        return self.svg()

    def _svg(self, style: str) -> str:
        left = LETTER * len(f"stage {self.stages}") + 8
        wide = min(40.0, (WIDTH - left) / self.ticks)  # a few ticks do not fill the page
        found: list[str] = []
        for stage in range(self.stages):
            top = stage * HEIGHT
            found.append(f'<text x="0" y="{top + 16}">stage {stage}</text>')
            ticks = range(self.ticks)
            found += [self._cell(stage, tick, left + tick * wide, wide) for tick in ticks]
        bottom = self.stages * HEIGHT + 6
        title = f"{self.stages} stages, {self.microbatches} microbatches"
        if self.rounds > 1:
            title += f", {self.rounds} rounds"
        right = left + self.ticks * wide
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-2 -2 {right + 4:g} {bottom}"'
                f' width="{right + 4:g}" style="max-width:100%;height:auto" role="img"'
                f' aria-label="{html.escape(title)}" fill="currentColor" {FONT}>{style}',
                *found,
                "</svg>",
            ]
        )

    def _cell(self, stage: int, tick: int, x: float, wide: float) -> str:
        y, high = stage * HEIGHT, HEIGHT - 2
        frame = (
            f'<rect x="{x:g}" y="{y}" width="{wide:g}" height="{high}" fill="rgb(128 128 128 / 0.12)"'
            ' stroke="currentColor" stroke-width="0.5"/>'
        )
        forward, back = self.microbatch(stage, tick), self.returning(stage, tick)
        text = "" if forward is None else self._label(stage, tick, forward)
        if not self.backward:
            return frame + self._work(forward, text, x, y, wide)
        # Forward work at the left, backward work at the right, as stages do them in a tick.
        half = wide / 2
        work = self._work(forward, text, x, y, half)
        return frame + work + self._work(back, str(back), x + half, y, half)

    def _work(self, at: int | None, text: str, x: float, y: float, wide: float) -> str:
        """Draw the work on one microbatch."""
        if at is None:
            return ""
        colour = f"hsl({round(330 * at / self.microbatches)} 75% 55% / 0.55)"
        found = (
            f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{HEIGHT - 2}" fill="{colour}"/>'
        )
        if LETTER * len(text) > wide:
            return found
        return (
            f'{found}<text x="{x + wide / 2:g}" y="{y + 15:g}" text-anchor="middle">{text}</text>'
        )


def schedule(
    stages: int, microbatches: int, *, backward: bool = False, rounds: int = 1
) -> Schedule:
    """Return which stage of a pipeline works on which microbatch, to print or to draw.

    Args:
        stages: the number of stages.
        microbatches: the number of microbatches.
        backward: whether stages work backward on one microbatch in the ticks in which they work forward on another, as
            in `axn.pipeline_value_and_grad`; microbatches that go back have a minus sign, or the right half of a cell.
        rounds: how often a microbatch passes all stages; cells show the microbatch and the round.

    Raises:
        ArgumentError: if a number is not positive, or the rounds do not fit the other numbers.

    Examples:
        >>> axn.partitioning.schedule(stages=2, microbatches=4)
        tick       0 1 2 3 4
        stage 0    0 1 2 3 .
        stage 1    . 0 1 2 3
        waiting: 20%
    """
    return Schedule(stages, microbatches, backward, rounds)
