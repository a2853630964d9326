"""Two processes with four simulated devices each load and save, train like one process, and end when the other dies."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "many_hosts" / "train.py"
LIMIT = 60  # seconds for any one thing to happen, on a machine that is busy with other tests


@contextmanager
def started(folder: Path, commands: list[list[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start Python programs, each with files for what it prints; whatever happens, none outlives the block."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    processes: list[subprocess.Popen[str]] = []
    try:
        for i, command in enumerate(commands):
            with (folder / f"{i}.out").open("w") as out, (folder / f"{i}.err").open("w") as err:
                full = [sys.executable, *command]
                processes.append(subprocess.Popen(full, stdout=out, stderr=err, text=True, env=environment))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def free_address() -> str:
    """Find a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, no longer than the limit."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def ended(processes: list[subprocess.Popen[str]], folder: Path) -> list[int]:
    """Wait for processes to end, and return their exit codes; one that hangs fails the test with what it printed."""
    told = lambda: "\n".join(path.read_text()[-2000:] for path in sorted(folder.glob("*.err")))  # noqa: E731
    try:
        return [process.wait(timeout=LIMIT) for process in processes]
    except subprocess.TimeoutExpired:
        pytest.fail(f"a process hangs\n{told()}")


def losses(folder: Path, process: int = 0) -> list[float]:
    """Read the losses that a training process has printed so far, in the order of the steps."""
    found = re.findall(r"step (\d+) loss (\S+)\n", (folder / f"{process}.out").read_text())
    assert [int(step) for step, _ in found] == list(range(len(found)))
    return [float(loss) for _, loss in found]


def test_each_process_loads_its_part_and_all_save_together(tmp_path: Path) -> None:
    address, worker = free_address(), str(Path(__file__).with_name("worker.py"))
    with started(tmp_path, [[worker, address, str(i), str(tmp_path)] for i in range(2)]) as processes:
        codes = ended(processes, tmp_path)
    for i in range(2):
        assert codes[i] == 0, (tmp_path / f"{i}.err").read_text()
        assert (tmp_path / f"{i}.out").read_text().endswith("all checked\n")


def test_two_processes_train_like_one_and_a_death_ends_both(tmp_path: Path) -> None:
    alone, pair = tmp_path / "alone", tmp_path / "pair"
    alone.mkdir()
    pair.mkdir()
    with started(alone, [[str(EXAMPLE), "--steps", "5"]]) as processes:
        assert ended(processes, alone) == [0], (alone / "0.err").read_text()
    reference = losses(alone)
    assert len(reference) == 5
    assert reference[-1] < 0.6 * reference[0]

    address = free_address()
    many = ["--steps", "20000", "--coordinator", address, "--processes", "2", "--heartbeat", "10"]
    commands = [[str(EXAMPLE), *many, "--process-id", str(i)] for i in range(2)]
    with started(pair, commands) as (first, second):

        def trained() -> bool:
            for i, process in enumerate((first, second)):
                assert process.poll() is None, (pair / f"{i}.err").read_text()
            return len(losses(pair)) >= 5

        until(trained, "five steps take too long")
        # the order of sums differs between one process and two
        np.testing.assert_allclose(losses(pair)[:5], reference, rtol=1e-6)

        second.send_signal(signal.SIGKILL)
        code, killed = ended([first, second], pair)
    assert killed == -signal.SIGKILL
    assert losses(pair, 1) == []
    told = (pair / "0.err").read_text()
    if code == 3:  # a collective noticed
        assert re.match(r"process 0 leaves: .*(Gloo|[Cc]onnection|peer)", told.splitlines()[-1]), told
    else:  # it waits for what never comes, until the heartbeat is missed and JAX ends the process
        assert code == -signal.SIGABRT
        assert "Terminating process because the JAX distributed service detected fatal errors" in told
        assert "another task died" in told
