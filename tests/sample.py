"""The number that decides what a run looks at where it cannot look at everything.

It comes from the commit: a run can be repeated, all processes of a run agree, and the next commit sees something else.
"""

import os
import random
import subprocess
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path

__all__ = ["SEED", "in_ninth", "in_sample", "in_share", "part_of"]

ROOT = Path(__file__).parent.parent
# Cases of one test are alike where there are many: of fewer than so many, one of so many runs.
PARTS = {10: 3, 30: 6, sys.maxsize: 10}


def _seed() -> int:
    """Take the number from the environment, from the commit, or where neither is there, a fixed one."""
    if given := os.environ.get("AXONYM_TEST_SEED"):
        return int(given)
    # A checkout may belong to another user.
    git = ["git", "-c", "safe.directory=*", "rev-parse", "HEAD"]
    try:
        found = subprocess.run(git, cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return zlib.crc32(found.stdout.strip())


SEED = _seed()


def in_sample(row: object, seed: int = SEED) -> bool:
    """Tell whether a row of a large table, known by its text, is among the third that this run looks at closely."""
    return zlib.crc32(f"{seed} {row}".encode()) % 3 == 0


def in_ninth(row: object) -> bool:
    """Tell whether a row is in two samples: op by op it compiles several programs, in a program a twelfth of one."""
    return in_sample(row) and in_sample(row, SEED + 1)


def part_of(cases: Iterable[str], parts: int | None = None, seed: int = SEED) -> set[str]:
    """Choose a third of the cases of one test, less of many, or the given part, and at least one of them."""
    ordered = sorted(cases, key=lambda case: zlib.crc32(f"{seed} {case}".encode()))
    parts = parts or next(parts for many, parts in PARTS.items() if len(ordered) < many)
    return set(ordered[: -(-len(ordered) // parts)])


def in_share(path: Path, shares: int, seed: int = SEED) -> bool:
    """Tell whether a file of tests is in the share that this run looks at: one of so many."""
    # The last bits of a checksum would be those of the path, whatever the seed.
    return random.Random(f"{seed} {path.relative_to(ROOT)}").randrange(shares) == 0
