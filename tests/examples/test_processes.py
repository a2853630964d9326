"""The training example on several processes: as alone, from one number to another, and without the one that is gone."""

import dataclasses
import os
import re
import shutil
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
from metrics import read
from options import Options
from processes import LEFT
from train import STOPPED, main
from trainer import Recipe

PROGRAM = Path(__file__).parents[2] / "examples" / "lm" / "train.py"
PRECISION = "params=float32,compute=float32,output=float32"
RECIPE = Recipe(strategy="fsdp", steps=6, microbatches=1, warmup=2, precision=PRECISION)
SIZES = {"layers": 1, "embed": 16, "heads": 2, "positions": 8, "batch": 16, "sample": 0, "save_every": 3}
LIMIT = 500  # seconds for any one thing, on a machine that is busy with other tests


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("to be or not to be, that is the question. " * 400)
    return file


def arguments(count: int, text: Path, out: Path, *more: str) -> list[list[str]]:
    """Return the command of each process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    recipe = ["--microbatches", "1", "--warmup", "2", "--precision", PRECISION]
    if "--mesh" not in more:
        recipe += ["--strategy", "fsdp"]
    sizes = [part for key, value in SIZES.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    common = [*recipe, *sizes, "--data", str(text), "--out", str(out), "--coordinator", address, *more]
    own = (["--processes", str(count), "--process-id", str(i)] for i in range(count))
    return [[sys.executable, str(PROGRAM), *common, *which] for which in own]


@contextmanager
def started(commands: list[list[str]], folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Start programs, each with a file for what it prints; none outlives the block."""
    # Each process has devices of its own; programs are compiled as quickly as in other tests.
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    environment = {**os.environ, "XLA_FLAGS": " ".join(flags)}
    processes: list[subprocess.Popen[str]] = []
    try:
        for i, command in enumerate(commands):
            with (folder / f"{i}.log").open("w") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=log, text=True, env=environment))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(count: int, text: Path, out: Path, *more: str) -> None:
    """Train on some processes."""
    folder = out.parent / f"logs-{out.name}"
    folder.mkdir()
    with started(arguments(count, text, out, "--steps", str(RECIPE.steps), *more), folder) as processes:
        codes = [process.wait(LIMIT) for process in processes]
    assert codes == [0] * count, "".join((folder / f"{i}.log").read_text()[-3000:] for i in range(count))


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in read(out / "metrics.jsonl") if "loss" in line]


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def until_trained(processes: list[subprocess.Popen[str]], out: Path, folder: Path) -> None:
    """Wait for five steps of a run, of which no process may end."""

    def trained() -> bool:
        for i, process in enumerate(processes):
            assert process.poll() is None, (folder / f"{i}.log").read_text()[-3000:]
        return (out / "metrics.jsonl").exists() and len(losses(out)) >= 5

    until(trained, "five steps take too long")


def test_two_processes_train_like_one_and_any_number_goes_on(text: Path, tmp_path: Path) -> None:
    alone = Options(RECIPE, data=text, out=tmp_path / "alone", **SIZES)
    held_out = main(alone)
    run(2, text, tmp_path / "two")
    # The order of sums differs.
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(alone.out), rtol=1e-5)
    (last,) = [line["held_out"] for line in read(tmp_path / "two" / "metrics.jsonl") if "held_out" in line]
    np.testing.assert_allclose(last, held_out, rtol=1e-5)
    assert (tmp_path / "two" / "model.safetensors").exists()
    for count in (1, 4):
        out = tmp_path / f"then{count}"
        shutil.copytree(tmp_path / "two", out)
        shutil.rmtree(out / "checkpoints" / "6")
        if count == 1:
            main(dataclasses.replace(alone, out=out))
        else:
            run(count, text, out)
            assert "going on after 3 steps" in (tmp_path / f"logs-{out.name}" / "0.log").read_text()
        assert losses(out)[:3] == losses(tmp_path / "two")[:3]
        np.testing.assert_allclose(losses(out), losses(alone.out), rtol=1e-5)


@pytest.mark.parametrize("mesh", ["stage=2,data=4", "context=2,data=4"])
def test_stages_and_parts_of_sequences_may_be_on_different_processes(text: Path, tmp_path: Path, mesh: str) -> None:
    whole = Options(RECIPE, data=text, out=tmp_path / "whole", **{**SIZES, "layers": 2, "dropout": 0.0})
    alone = dataclasses.replace(whole, recipe=dataclasses.replace(RECIPE, strategy="single"))
    held_out = main(alone)
    run(2, text, tmp_path / "two", "--mesh", mesh, "--layers", "2", "--dropout", "0.0", "--microbatches", "2")
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(alone.out), rtol=1e-5)
    (last,) = [line["held_out"] for line in read(tmp_path / "two" / "metrics.jsonl") if "held_out" in line]
    np.testing.assert_allclose(last, held_out, rtol=1e-5)


def test_a_process_that_is_killed_is_named_by_the_other(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    commands = arguments(2, text, out, "--steps", "100000", "--silence", "10")
    with started(commands, tmp_path) as (first, second):
        until_trained([first, second], out, tmp_path)
        second.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        assert first.wait(60) == LEFT
        assert time.monotonic() - killed < 60
    told = (tmp_path / "0.log").read_text()
    message = "error: process 1 of 2 is gone: there is no sign of it for 10 seconds; "
    message += "start all processes again: they go on with the last checkpoint"
    assert re.search(f"^{re.escape(message)}$", told, re.MULTILINE), told[-3000:]


@pytest.mark.parametrize("asked", [0, 1])
def test_all_processes_save_and_stop_when_one_is_asked_to(text: Path, tmp_path: Path, asked: int) -> None:
    out = tmp_path / "run"
    # No step would save of itself.
    commands = arguments(2, text, out, "--steps", "100000", "--save-every", "100000")
    with started(commands, tmp_path) as processes:
        until_trained(processes, out, tmp_path)
        processes[asked].send_signal(signal.SIGTERM)
        assert [process.wait(LIMIT) for process in processes] == [STOPPED, STOPPED]
    logs = [(tmp_path / f"{i}.log").read_text() for i in range(2)]
    ends = [re.search(r"^stopped after (\d+) steps$", log, re.MULTILINE) for log in logs]
    # Both stopped after the same step, which is the last one that was told, and the one that was saved.
    assert [end and end[1] for end in ends] == [str(len(losses(out)))] * 2, logs
    assert [path.name for path in (out / "checkpoints").iterdir()] == [str(len(losses(out)))]
