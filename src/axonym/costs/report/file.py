"""Internal. Files of costs: layouts, collectives by named axis, memory and sums, one line for each.

`Cost.save` and `Cost.diff` call it, and so does `assert_layout`. Times change with the target, so a file has them only
next to a measured time, as a record of their accuracy.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import jax

from ...errors import OperandError, message
from ..shared.units import write_mesh
from .difference import Change, Difference

if TYPE_CHECKING:
    from .cost import Cost

VERSION = 1
Locked: TypeAlias = dict[str, dict[str, str | int]]


def summarise(cost: "Cost") -> Locked:
    """Return the content of a file: layouts, collectives by named axis, memory and sums."""
    layouts: dict[str, str | int] = {}
    # The state of an optimiser repeats the layouts of parameters; if it does not, its memory differs.
    for kind in ("parameters", "data"):
        for array in cost.arguments.get(kind, ()):
            layouts[array.path or "array"] = f"{array.dtype} {', '.join(array.layout)}"

    # Collectives of the same kind for the same axis are one row: layers may be renamed.
    sent: dict[str, int] = {}
    for one in cost.communication:
        over = ", ".join(one.mesh_axes)
        what = f"{one.kind} over {over} because of {one.axis}"
        for measure, amount in (("runs", one.count), ("bytes sent", one.sent)):
            key = f"{what}, {measure}"
            sent[key] = sent.get(key, 0) + amount

    memory = cost.memory
    totals: dict[str, str | int] = {
        name: round(cost.totals[name]) for name in ("flops", "bytes accessed", "bytes sent")
    }
    mesh = write_mesh(cost.mesh)
    return {
        "about": {"depth": cost.depth, "mesh": mesh, "compiled for": cost.compiler},
        "layouts": dict(sorted(layouts.items())),
        "communication": dict(sorted(sent.items())),
        "memory": {
            "parameters": memory.parameters,
            "state of the optimiser": memory.optimizer,
            "data": memory.data,
            "temporaries": memory.temporary,
            "peak": memory.peak,
        },
        "totals": totals,
    }


def list_times(cost: "Cost") -> dict[str, str | int]:
    """Return the times of one run in nanoseconds: the bound, and the expected and measured times, if known."""
    time = cost.time
    found = {"of one run": time.seconds, "expected": time.expected, "measured": cost.measured}
    return {what: round(seconds * 1e9) for what, seconds in found.items() if seconds is not None}


def compare(before: Locked, after: Locked, titles: tuple[str, str]) -> Difference:
    """Compare the contents of two files, whose titles appear in the result."""
    changes: list[Change] = []
    # New or missing rows differ, too.
    for section in dict.fromkeys((*before, *after)):
        old, new = before.get(section, {}), after.get(section, {})
        for what in dict.fromkeys((*old, *new)):
            if old.get(what) != new.get(what):
                changes.append(Change(section, what, old.get(what), new.get(what)))
    return Difference(titles, tuple(changes))


def save(cost: "Cost", path: str | Path) -> None:
    """Write a file with one line for each layout and number, which makes its diffs readable."""
    content = {"version": VERSION, "jax": jax.__version__, **summarise(cost)}
    if cost.measured is not None:
        content["time"] = list_times(cost)
    Path(path).write_text(
        json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def load(path: str | Path) -> tuple[Locked, str]:
    """Return the content of a file, and the version of JAX that wrote it.

    Raises:
        OperandError: if it is no file of a cost, or a file of another version.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, Mapping) or content.get("version") != VERSION:
        problem = f"{path} is not a file of what a program costs, version {VERSION}"
        raise OperandError(
            message("assert_layout", problem, hint="write it anew: AXONYM_UPDATE_LAYOUTS=1")
        )
    written = {
        section: entries for section, entries in content.items() if isinstance(entries, dict)
    }
    return written, str(content.get("jax"))
