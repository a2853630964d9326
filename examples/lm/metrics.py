"""What a run tells: a line of JSON for each step, which a resumed run goes on with; and TensorBoard, where asked."""

import json
import os
import sys
from pathlib import Path
from typing import Any


class Metrics:
    """Append lines to a file; those of steps from `start` on are of a run that stopped, and go.

    Where the disk is full, a warning says so once, and numbers are lost until there is room again.

    Args:
        path: the file, `.jsonl`.
        start: the first step to come.
        tensorboard: a folder for TensorBoard, too.

    Raises:
        OSError: if the file cannot be written.
        ValueError: if there is no tensorboardX to write for TensorBoard.
    """

    def __init__(self, path: Path, start: int = 0, tensorboard: Path | None = None) -> None:
        self._board = None if tensorboard is None else board(tensorboard, start)
        kept = [line for line in read(path) if line["step"] < start]
        part = path.with_name(f"{path.name}.part")
        part.write_text("".join(json.dumps(line) + "\n" for line in kept))
        os.replace(part, path)
        self._file = path.open("ab", buffering=0)
        self._torn = b""

    def add(self, step: int, **values: float) -> None:
        """Tell numbers of a step."""
        line = self._torn + json.dumps({"step": step, **values}).encode() + b"\n"
        try:
            if self._file.write(line) != len(line):
                raise OSError("No space left on device")
            self._torn = b""
        except OSError as error:
            if not self._torn:
                print(f"warning: no numbers of step {step}, the run goes on: {error}", file=sys.stderr)
            # Part of a line may be there: the next one begins below it.
            self._torn = b"\n"
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


class Silent(Metrics):
    """The metrics of a process that leaves telling to the first one."""

    def __init__(self) -> None:
        pass

    def add(self, step: int, **values: float) -> None:
        pass

    def close(self) -> None:
        pass


def board(folder: Path, start: int) -> Any:
    """Open a folder for TensorBoard; what it has of steps to come is hidden there."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise ValueError("numbers for TensorBoard are written by tensorboardX: pip install tensorboardX") from None
    return SummaryWriter(str(folder), purge_step=start)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file, without those that were cut off."""
    if not path.exists():
        return []
    found: list[dict[str, Any]] = []
    for line in path.read_text().splitlines(keepends=True):
        if line.startswith("{") and line.endswith("}\n"):
            found.append(json.loads(line))
    return found
