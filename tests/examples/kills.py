"""Kill a training run at random moments; it always goes on from a whole checkpoint, to the losses of one left alone.

    python tests/examples/kills.py FOLDER TIMES [SEED]

Half of the kills hit the run while a checkpoint is being written. The losses are compared bit by bit. Runs are forked
from one process that has imported all they need, because importing takes longer than such a run.
"""

import dataclasses
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "lm"))

from metrics import read
from options import Options
from train import main as train
from trainer import Recipe

PRECISION = "params=float32,compute=float32,output=float32"
RECIPE = Recipe(strategy="single", steps=60, microbatches=1, warmup=2, precision=PRECISION)
SIZES = {"layers": 1, "embed": 16, "heads": 2, "positions": 8, "batch": 4, "sample": 0}
OPTIONS = Options(RECIPE, save_every=4, **SIZES)
LIMIT = 300  # seconds for anything to happen


def started(options: Options) -> int:
    """Start a run in a process of its own, and return its id."""
    child = os.fork()
    if child:
        return child
    try:
        log = os.open(f"{options.out}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        train(options)
        os._exit(0)
    except BaseException as error:
        print(f"failed: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)


def ended(child: int) -> int | None:
    """Return how a process ended, if it has."""
    found, status = os.waitpid(child, os.WNOHANG)
    if not found:
        return None
    return os.waitstatus_to_exitcode(status)


def losses(out: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in read(out / "metrics.jsonl") if "loss" in line]


def checkpoints(out: Path) -> tuple[list[int], bool]:
    """Return the steps of the whole checkpoints, and whether one is being written."""
    try:
        names = os.listdir(out / "checkpoints")
    except FileNotFoundError:
        return [], False
    return sorted(int(name) for name in names if name.isdigit()), any("tmp" in name for name in names)


def killed(options: Options, chance: random.Random, saving: bool) -> tuple[int | None, bool]:
    """Start a run and kill it some steps later; returns how it ended, and whether a checkpoint was being written."""
    file = options.out / "metrics.jsonl"
    before = file.stat().st_mtime_ns if file.exists() else 0
    child, begin = started(options), time.monotonic()
    steps, pause = chance.randrange(12), chance.uniform(0, 0.02)
    first = None
    while (status := ended(child)) is None:
        assert time.monotonic() < begin + LIMIT, f"{options.out}.log"
        time.sleep(0.001)
        # The file is written anew when a run goes on.
        if not file.exists() or file.stat().st_mtime_ns == before:
            continue
        taken = len(losses(options.out))
        first = taken if first is None else first
        if taken < first + steps or (saving and not checkpoints(options.out)[1]):
            continue
        time.sleep(pause)
        writing = checkpoints(options.out)[1]
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == -signal.SIGKILL:
            return None, writing
        return os.waitstatus_to_exitcode(status), False
    return status, False


def went_on(options: Options) -> int:
    """Return from which step the last run went on, as it says."""
    told = re.search(r"^going on after (\d+) steps$", Path(f"{options.out}.log").read_text(), re.MULTILINE)
    return int(told[1]) if told else 0


def check(options: Options, whole: list[tuple[int, float]], kept: list[int]) -> int:
    """Compare a run that was started from some checkpoints with one left alone; returns where it went on."""
    log = Path(f"{options.out}.log").read_text()
    assert "failed: " not in log, log
    found = losses(options.out)
    assert found == whole[: len(found)], f"{options.out}: other losses than those of a run left alone"
    step = went_on(options)
    assert step == max(kept, default=0), f"{options.out}: went on after {step} steps, but has checkpoints of {kept}"
    return step


def main(folder: Path, times: int, seed: int) -> None:
    """Print what was found."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(seed)
    text = folder / "text.txt"
    text.write_text("".join(chance.choice("to be or not ") for _ in range(20_000)))
    alone = dataclasses.replace(OPTIONS, data=text, out=folder / "alone")
    _, status = os.waitpid(started(alone), 0)
    assert status == 0, Path(f"{alone.out}.log").read_text()
    whole = losses(alone.out)
    assert len(whole) == RECIPE.steps
    done, runs, found, places = 0, 0, Counter[str](), Counter[int]()
    options = dataclasses.replace(alone, out=folder / "run0")
    while done < times:
        kept, _ = checkpoints(options.out)
        status, writing = killed(options, chance, saving=done % 2 == 1)
        places[check(options, whole, kept)] += 1
        if status is None:
            done += 1
            if done % 10 == 0:
                print(f"{done} kills", file=sys.stderr, flush=True)
            found["while saving" if writing else "not saving"] += 1
            continue
        assert status == 0, Path(f"{options.out}.log").read_text()
        assert losses(options.out) == whole
        runs += 1
        options = dataclasses.replace(alone, out=folder / f"run{runs}")
    print(f"{done} kills: {dict(found)}; {runs} runs came to their end")
    print(f"went on after so many steps, so many times: {dict(sorted(places.items()))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
