"""Many processes that train together: they start as one, agree when to stop, and none waits for one that is gone."""

import dataclasses
import os
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

LEFT = 3  # the status of a process that ends because another one is gone


@dataclasses.dataclass(frozen=True)
class Processes:
    """Which process this is.

    Attributes:
        coordinator: address and free port of the first process; by default as the cluster says, or alone.
        processes: how many there are.
        process_id: which one this is.
        silence: seconds without a sign after which a process counts as gone.
    """

    coordinator: str | None = None
    processes: int = 1
    process_id: int = 0
    silence: float = 30.0

    def join(self) -> None:
        """Start together with the others, before anything else of JAX."""
        # Without accelerators there are eight devices in all.
        jax.config.update("jax_num_cpu_devices", max(1, 8 // self.processes))
        if self.processes > 1:
            jax.distributed.initialize(self.coordinator, self.processes, self.process_id)


def is_first() -> bool:
    """Return whether this is the process that tells of the run."""
    return jax.process_index() == 0


def any_of_all(own: bool) -> bool:
    """Return whether something holds on any process; all of them have to ask."""
    if jax.process_count() == 1:
        return own
    return bool(multihost_utils.process_allgather(np.array(own)).any())


def tell(problem: str) -> None:
    """Write an error below the progress bar, whose line has no end."""
    print(f"\n{problem}", file=sys.stderr, flush=True)


class Watch:
    """Signs of life in a folder that all processes see, because JAX does not tell which process is gone.

    Each process writes a number to a file of its own, higher each second, and looks at those of the others. If one
    stays the same for too long, this process says so and ends: it would wait forever.

    Args:
        folder: is made if need be.
        silence: seconds after which a process counts as gone.
    """

    def __init__(self, folder: Path, silence: float) -> None:
        self._folder, self._silence = folder, silence
        self._own, self._count = jax.process_index(), jax.process_count()
        self._over = threading.Event()
        self._seen: dict[int, tuple[str, float]] = {}
        if self._count == 1:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._write("0")
        # All processes wait here, so that nobody reads a file of an earlier run.
        multihost_utils.sync_global_devices("watch")
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def done(self) -> None:
        """Stop: this process ends as it should."""
        self._over.set()
        if self._count > 1:
            self._write("done")

    def leave(self, error: BaseException) -> None:
        """End this process after an error, once it is clear whether another one is gone.

        A normal exit would wait for the others, which may wait for this one.
        """
        tell(f"error of process {self._own}: {error}")
        if isinstance(error, RuntimeError):
            # A collective broke off; the process that is missing will be named.
            self._over.wait(self._silence + 5)
        os._exit(1)

    def _write(self, text: str) -> None:
        part = self._folder / f"{self._own}.part"
        part.write_text(text)
        part.replace(self._folder / str(self._own))

    def _run(self) -> None:
        number = 0
        while not self._over.wait(1):
            number += 1
            self._write(str(number))
            for other in self._gone():
                signs = f"there is no sign of it for {self._silence:g} seconds"
                todo = "start all processes again: they go on with the last checkpoint"
                tell(f"error: process {other} of {self._count} is gone: {signs}; {todo}")
                os._exit(LEFT)

    def _gone(self) -> list[int]:
        """Return the processes that have been silent for too long, by the clock of this one."""
        now = time.monotonic()
        gone: list[int] = []
        for other in range(self._count):
            file = self._folder / str(other)
            text = file.read_text() if file.exists() else ""
            before, since = self._seen.get(other, (None, now))
            if text != before:
                self._seen[other] = (text, now)
            elif text != "done" and other != self._own and now > since + self._silence:
                gone.append(other)
        return gone
