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
    """Raise if the cost of a program differs from a file: in layouts, collectives, memory or sums.

    With the environment variable `AXONYM_UPDATE_LAYOUTS=1`, the file is written instead.

    Args:
        report: the result of `axn.cost`.
        path: a file that `report.save` wrote.
        tolerance: the share by which numbers may grow or shrink. Layouts and the set of collectives must be equal.

    Raises:
        ShardingError: if something differs, with a list of all differences; if there is no such file.
        OperandError: if the file was not written by `save`.

    Examples:
        >>> axn.partitioning.assert_layout(report, "tests/layout.json", tolerance=0.02)  # doctest: +SKIP
    """
    # Imported here, so that a package that names this function does not wait for the report.
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
    # A measured time is a record, not a promise.
    written.pop("time", None)
    found = compare(written, summarise(report), (str(path), report.title))
    lines = [
        f"{change.section}: {change}" for change in found.changes if _is_notable(change, tolerance)
    ]
    if not lines:
        return
    problem = f"{report.title} is not what {path} says"
    if version != jax.__version__:
        # Another version of JAX may be the reason for all differences.
        lines.append(f"the file was written with jax {version}, this is {jax.__version__}")
    raise ShardingError(message("assert_layout", problem, *lines, hint=hint))


def _is_notable(change: "Change", tolerance: float) -> bool:
    """Return whether a change is more than noise: another text, a new or missing row, or a number that is far off."""
    return change.ratio is None or abs(change.ratio - 1) > tolerance
