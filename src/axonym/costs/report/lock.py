"""Compare a cost with a file, so that a test notices a new layout, a new collective or more memory."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from ...errors import ShardingError, message

if TYPE_CHECKING:
    from .cost import Cost
    from .difference import Change

__all__ = ["assert_layout"]

UPDATE = "AXONYM_UPDATE_LAYOUTS"


def assert_layout(report: "Cost", path: str | Path, *, tolerance: float = 0.05) -> None:
    """Raise if a program is not what a file says: other layouts, a new collective, more memory.

    With the environment variable `AXONYM_UPDATE_LAYOUTS=1`, the file is written instead.

    Args:
        report: what `axn.cost` returned.
        path: a file that `report.save` wrote.
        tolerance: by which share numbers may grow or shrink. Layouts, and which collectives there are, must be equal.

    Raises:
        ShardingError: if something differs, with all of it; if the file is not there.
        OperandError: if the file is not one of `save`.

    Examples:
        >>> axn.partitioning.assert_layout(report, "tests/layout.json", tolerance=0.02)  # doctest: +SKIP
    """
    # Here, so that importing the package does not wait for it.
    from .file import compare, load, save, summarise

    hint = f"to accept what is there now, run again with {UPDATE}=1"
    if os.environ.get(UPDATE, "") not in ("", "0"):
        save(report, path)
        return
    if not Path(path).exists():
        problem = f"there is no file {path}"
        raise ShardingError(
            message("assert_layout", problem, hint=f"to write it, run with {UPDATE}=1")
        )

    written, version = load(path)
    found = compare(written, summarise(report), (str(path), report.title))
    lines = [
        f"{change.section}: {change}" for change in found.changes if _is_notable(change, tolerance)
    ]
    if not lines:
        return
    problem = f"{report.title} is not what {path} says"
    if version != jax.__version__:
        lines.append(f"the file was written with jax {version}, this is {jax.__version__}")
    raise ShardingError(message("assert_layout", problem, *lines, hint=hint))


def _is_notable(change: "Change", tolerance: float) -> bool:
    """Return whether a change is more than noise: another text, something new or gone, or a number far off."""
    return change.ratio is None or abs(change.ratio - 1) > tolerance
