"""What a run tells: a line of JSON for each step, which a resumed run goes on with."""

import json
import os
from pathlib import Path
from typing import Any


class Metrics:
    """Append lines to a file; those of steps from `start` on are of a run that stopped, and go.

    Args:
        path: the file, `.jsonl`.
        start: the first step to come.
    """

    def __init__(self, path: Path, start: int = 0) -> None:
        kept = [line for line in read(path) if line["step"] < start]
        part = path.with_name(f"{path.name}.part")
        part.write_text("".join(json.dumps(line) + "\n" for line in kept))
        os.replace(part, path)
        self._file = path.open("a", buffering=1)

    def add(self, step: int, **values: float) -> None:
        """Tell numbers of a step."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file, without one that was cut off."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
