"""Saves that are killed, and what is then on the disk: all of the old files or all of the new ones.

Run as `python kills.py FOLDER EVERY RANDOM`: each change from one save to another is killed before each call of the
system that it makes, or before every third of them and so on, and, RANDOM times, at a random moment. Whatever is left,
the next save has to succeed and to remove it. All of it: `python tests/state_dict/kills.py /tmp/kills 1 100`.
"""

import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import load_file

from axonym.state_dict import load_state_dict, save_state_dict

CALLS = {"open", "write", "flush", "close", "replace", "unlink", "listdir"}
# The sizes in bytes of files, for the old and the new state; None is one file for all.
CHANGES = [(None, None), (None, 40_000), (40_000, 40_000), (40_000, 20_000), (40_000, None)]
SIZES = {"a": 2_000, "b": 5_000, "c": 5_000, "d": 300}


def state_of(step: int) -> dict[str, np.ndarray]:
    """Make arrays that tell the step."""
    return {key: np.full(size, step, np.float32) for key, size in SIZES.items()}


def save(folder: Path, step: int, size: int | None) -> None:
    """Save the arrays of a step."""
    save_state_dict(state_of(step), folder / "model.safetensors", max_bytes=size)


def steps_by_others(folder: Path) -> set[int]:
    """Return the steps in the files of a folder, in the order of Hugging Face: the index counts if no file is there."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.exists():
        return {int(value) for array in load_file(whole).values() for value in array}
    where = json.loads(index.read_text())["weight_map"]
    assert list(where) == list(SIZES)
    return {int(value) for key, name in where.items() for value in load_file(folder / name)[key]}


def check(folder: Path, expected: set[int], what: str) -> int:
    """Return the step of what is loaded, which has to be whole."""
    loaded = load_state_dict(folder)
    steps = {int(value) for array in loaded.values() for value in array}
    assert list(loaded) == list(SIZES), what
    assert len(steps) == 1, f"{what}: a mixture of steps {steps}"
    assert steps <= expected, f"{what}: step {steps}"
    assert steps_by_others(folder) == steps, what
    return steps.pop()


def check_next(folder: Path, size: int | None, what: str) -> None:
    """Save once more: nothing but the new files may be left."""
    save(folder, 3, size)
    check(folder, {3}, what)
    names = {each.name for each in folder.iterdir()}
    if size is None:
        assert names == {"model.safetensors"}, f"{what}: {names}"
    else:
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        assert names == {"model.safetensors.index.json", *index["weight_map"].values()}, f"{what}: {names}"


def killed_before(call: int) -> None:
    """Kill this process before a call of the system by the code that saves."""
    seen = itertools.count()

    def watch(frame, event, argument):
        ours = Path(frame.f_code.co_filename).stem in {"_switch", "pathlib", "_local"}
        if event == "c_call" and ours and argument.__name__ in CALLS and next(seen) == call:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)


def in_child(folder: Path, size: int | None, call: int | None = None, after: float | None = None) -> int:
    """Save step 2 in a process that is killed before a call, or after some seconds; returns how it ended."""
    child = os.fork()
    if child == 0:
        if call is not None:
            killed_before(call)
        if after is not None:
            signal.setitimer(signal.ITIMER_REAL, after)  # Python handles no SIGALRM, so that it kills
        try:
            save(folder, 2, size)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def prepared(folder: Path, size: int | None) -> None:
    """Start from a folder with the old files alone."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save(folder, 1, size)


def at_each_call(folder: Path, before: int | None, after: int | None, every: int) -> list[int]:
    """Kill before each call; returns the step that is found after each kill."""
    found = []
    for call in itertools.count(0, every):
        prepared(folder, before)
        status = in_child(folder, after, call)
        what = f"{before} to {after}, killed before call {call}"
        assert status in {0, signal.SIGKILL}, what
        found.append(check(folder, {1, 2}, what))
        check_next(folder, (before, after)[len(found) % 2], what)
        if status == 0:
            return found


def at_a_random_moment(folder: Path, before: int | None, after: int | None) -> int:
    """Kill at some time of a save; returns the step that is found then."""
    prepared(folder, before)
    start = time.monotonic()
    save(folder, 2, after)
    usual = time.monotonic() - start  # a forked process is slower: it copies what it writes to
    prepared(folder, before)
    assert in_child(folder, after, after=random.uniform(0, 3 * usual)) in {0, signal.SIGALRM}
    found = check(folder, {1, 2}, f"{before} to {after}, killed at random")
    check_next(folder, after, f"{before} to {after}, killed at random")
    return found


def main(folder: Path, every: int, times: int) -> None:
    """Print what was found."""
    jax.process_index()  # starts the backend, which a child cannot
    os.fsync = lambda handle: None  # a killed process loses nothing that it has written, and waiting takes long
    for before, after in CHANGES:
        found = at_each_call(folder, before, after, every)
        assert sorted(found) == found, f"old after new: {found}"
        assert set(found) == {1, 2}
        print(f"{before} to {after}: {len(found) - 1} kills, {found.count(1)} times the old files")
    random.seed(0)
    moments = [at_a_random_moment(folder, *change) for change, _ in zip(itertools.cycle(CHANGES), range(times))]
    print(f"{times} random kills: {moments.count(1)} times the old files, {moments.count(2)} times the new ones")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
