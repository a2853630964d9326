"""Measure the time from the start of the README's training run to its first step, imports and compilation included.

    python benchmarks/lm_start.py

The time of the processor, over the number of cores, is what an idle machine could do at best; on one that is busy with
other work, the clock says little. The bar is 30 s of the processor.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "examples" / "lm" / "train.py"
ROUNDS = 3
BAR = 30.0


def once(folder: Path) -> tuple[float, float]:
    """Start a run, wait for its first step, end it; returns the seconds of the clock and of the processor."""
    metrics = folder / "run" / "metrics.jsonl"
    began = time.perf_counter()
    command = [sys.executable, str(PROGRAM), "--out", str(folder / "run")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (metrics.exists() and metrics.stat().st_size):
        if process.poll() is not None:
            raise RuntimeError(f"the run ended with status {process.returncode}")
        time.sleep(0.01)
    clock = time.perf_counter() - began
    process.send_signal(signal.SIGKILL)
    _, _, used = os.wait4(process.pid, 0)
    return clock, used.ru_utime + used.ru_stime


def main() -> None:
    """Print the times."""
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            clock, processor = once(Path(folder))
        print(f"first step after {clock:.1f} s of the clock, {processor:.1f} s of the processor")
        if processor > BAR:
            sys.exit(f"error: that is more than {BAR:.0f} s")


if __name__ == "__main__":
    main()
