"""What a run tells: a line of JSON for each step, which a resumed run goes on with.

Where asked, TensorBoard and a tracker, W&B or trackio, get the same numbers.
"""

import dataclasses
import importlib
import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any, Literal

TrackerName = Literal["wandb", "trackio"]


class Metrics:
    """Append lines to a file; those of steps from `start` on are of a run that stopped, and go.

    Where the disk is full, a warning says so once, and numbers are lost until there is room again.

    Args:
        path: the file, `.jsonl`.
        start: the first step to come.
        tensorboard: a folder for TensorBoard, too.
        tracker: a library with an open run, see `open_tracker`.

    Raises:
        OSError: if the file cannot be written.
        ValueError: if there is no tensorboardX to write for TensorBoard.
    """

    def __init__(self, path: Path, start: int = 0, tensorboard: Path | None = None, tracker: Any = None) -> None:
        self._board = None if tensorboard is None else board(tensorboard, start)
        self._tracker = tracker
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
        if self._tracker is not None:
            self._tracker.log(values, step=step)

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()
        if self._tracker is not None:
            self._tracker.finish()


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


def open_tracker(name: TrackerName, project: str, folder: Path, options: Any, start: int = 0) -> Any:
    """Open the run of a folder in W&B or trackio, and return the library, which logs to it.

    The folder keeps the name of the run there: a run that is resumed goes on in the same one.

    Args:
        name: of the library.
        project: of the run.
        folder: of the run.
        options: what the library keeps as the config, a dataclass.
        start: the first step to come.

    Raises:
        ValueError: if the library is not installed.
    """
    try:
        library: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ValueError(f"log={name} needs the package {name}: pip install {name}") from None
    file = folder / "run-id.txt"
    own = file.read_text() if start and file.exists() else f"{folder.absolute().name}-{secrets.token_hex(4)}"
    file.write_text(own)
    # Paths become text. Some options may change when a run goes on, which W&B refuses unless it is asked to take them.
    config = json.loads(json.dumps(dataclasses.asdict(options), default=str))
    more = {"id": own.rpartition("-")[2], "dir": folder, "allow_val_change": True} if name == "wandb" else {}
    library.init(project=project, name=own, config=config, resume="allow", **more)
    return library


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file, without those that were cut off."""
    if not path.exists():
        return []
    found: list[dict[str, Any]] = []
    for line in path.read_text().splitlines(keepends=True):
        if line.startswith("{") and line.endswith("}\n"):
            found.append(json.loads(line))
    return found
