"""A stand-in for W&B and trackio, which takes what both document and keeps the calls."""

import json
import types
from typing import Any

TAKEN = {
    "wandb": {"project", "name", "config", "resume", "id", "dir", "allow_val_change"},
    "trackio": {"project", "name", "config", "resume"},
}


class Tracker(types.ModuleType):
    """A module; `runs` has the options of each `init`, and what was logged until `finish`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.runs: list[tuple[dict[str, Any], list[tuple[int, dict[str, float]]]]] = []
        self.is_open = False

    def init(self, **options: Any) -> None:
        assert not self.is_open
        assert options.keys() <= TAKEN[self.__name__]
        json.dumps(options["config"])
        self.runs.append((options, []))
        self.is_open = True

    def log(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert self.is_open
        assert step is not None
        self.runs[-1][1].append((step, metrics))

    def finish(self) -> None:
        assert self.is_open
        self.is_open = False
