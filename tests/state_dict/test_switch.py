"""Files that are replaced at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from axonym.errors import ArgumentError
from axonym.state_dict import load_state_dict, save_state_dict

KILLS = Path(__file__).with_name("kills.py")
NAMES = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"


def state(step):
    return {"a": np.full(4, step, "f4"), "b": np.full(4, step, "f4")}


def save(folder, step, max_bytes=16):
    save_state_dict(state(step), folder / "model.safetensors", max_bytes=max_bytes)


def steps(folder):
    return {int(value) for array in load_state_dict(folder).values() for value in array}


def names(folder):
    return sorted(each.name for each in folder.iterdir())


def error_of(path):
    with pytest.raises(ArgumentError) as error:
        load_state_dict(path)
    return str(error.value)


def test_a_killed_save_leaves_the_old_files_or_the_new_ones(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(KILLS), str(tmp_path / "set"), "3", "10"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert [line.split(":")[0] for line in ran.stdout.splitlines()] == [
        "None to None",
        "None to 40000",
        "40000 to 40000",
        "40000 to 20000",
        "40000 to None",
        "10 random kills",
    ]


def called(folder, step, max_bytes):
    """Return what a save asks of the system, in order."""
    found = []

    def watch(frame, event, argument):
        if event == "c_call" and argument.__name__ in {"fsync", "replace", "unlink"} and argument.__module__ == "posix":
            local = frame.f_locals
            handle = local.get("handle", local["out"].fileno() if "out" in local else None)
            target = os.readlink(f"/proc/self/fd/{handle}") if argument.__name__ == "fsync" else str(local["self"])
            name = Path(target).name
            found.append(f"{argument.__name__} {'folder' if name == folder.name else name}")

    sys.setprofile(watch)
    try:
        save(folder, step, max_bytes)
    finally:
        sys.setprofile(None)
    return found


def written(name):
    return [f"fsync {name}.unfinished", f"replace {name}.unfinished"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of open files from /proc")
def test_what_counts_is_on_the_disk_before_what_it_replaces_goes(tmp_path):
    assert called(tmp_path, 1, None) == [
        *written("model.safetensors"),
        "fsync folder",
        f"unlink {INDEX}",
        "fsync folder",
    ]
    one = [*written(NAMES[0]), *written(NAMES[1]), "fsync folder", *written(INDEX), "fsync folder"]
    assert called(tmp_path, 2, 16) == [*one, "unlink model.safetensors", "fsync folder"]
    again = called(tmp_path, 3, 16)
    number = json.loads((tmp_path / INDEX).read_text())["metadata"]["axonym.save"]
    new = [name.replace("model", f"model-{number}") for name in NAMES]
    two = [*written(new[0]), *written(new[1]), "fsync folder", *written(INDEX), "fsync folder"]
    assert again[: len(two)] == two
    assert again[len(two)] == "unlink model.safetensors"  # not there
    assert sorted(again[len(two) + 1 :]) == ["fsync folder", *(f"unlink {name}" for name in NAMES)]


def test_files_in_use_are_not_touched_by_the_ones_that_replace_them(tmp_path):
    save(tmp_path, 1)
    first, opened = names(tmp_path), load_state_dict(tmp_path)
    assert first == [*NAMES, INDEX]
    save(tmp_path, 2)
    number = json.loads((tmp_path / INDEX).read_text())["metadata"]["axonym.save"]
    assert names(tmp_path) == sorted([*(name.replace("model", f"model-{number}") for name in NAMES), INDEX])
    np.testing.assert_array_equal(opened["a"], state(1)["a"])  # mapped before
    save(tmp_path, 3)
    assert names(tmp_path) == first
    assert steps(tmp_path) == {3}
    save(tmp_path, 4, None)
    assert names(tmp_path) == ["model.safetensors"]


def test_files_of_two_saves_are_no_model(tmp_path):
    (tmp_path / "other").mkdir()
    save(tmp_path, 1)
    save(tmp_path / "other", 2)
    (tmp_path / "other" / NAMES[1]).replace(tmp_path / NAMES[1])
    text = error_of(tmp_path).splitlines()
    numbers = [line.rpartition(" ")[2] for line in text[1:4]]
    assert numbers[0] == numbers[1] != numbers[2]
    assert text == [
        f"load_state_dict: {INDEX} and its files are not all from one save",
        f"  {INDEX}: save {numbers[0]}",
        f"  {NAMES[0]}: save {numbers[0]}",
        f"  {NAMES[1]}: save {numbers[2]}",
        "  hint: copy all files of one save, the index too",
    ]
    # An index that another program has written knows no number, but the files have to agree.
    listed = {"metadata": {}, "weight_map": {"a": NAMES[0], "b": NAMES[1]}}
    (tmp_path / INDEX).write_text(json.dumps(listed))
    assert f"{INDEX}: save unknown\n" in error_of(tmp_path)
    save_file(state(1), tmp_path / NAMES[1])
    assert f"{NAMES[1]}: save unknown\n" in error_of(tmp_path)
    for file in NAMES:
        save_file(state(5), tmp_path / file)
    assert steps(tmp_path) == {5}  # none has one
    (tmp_path / NAMES[1]).unlink()
    assert error_of(tmp_path) == f"load_state_dict: {INDEX} lists {NAMES[1]}, which is no file here"


def test_an_index_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    save(tmp_path, 1)
    read, times = Path.read_bytes, []

    def slow(path):
        text = read(path)
        times.append(path)
        if len(times) == 1:
            save(tmp_path, 2)
        return text

    monkeypatch.setattr(Path, "read_bytes", slow)
    assert steps(tmp_path) == {2}


def test_files_of_others_stay(tmp_path):
    save_file(state(0), tmp_path / "model-00001-of-00003.safetensors")  # no save of ours, and in no index
    others = [
        "model-ema-00001-of-00002.safetensors",
        "model-00001-of-00002.bin",
        "model.txt.unfinished",
        "a.safetensors",
    ]
    for name in others:
        (tmp_path / name).write_text("mine")
    for name in ("model-00009-of-00009.safetensors.unfinished", "model.safetensors.unfinished", f"{INDEX}.unfinished"):
        (tmp_path / name).write_text("killed")
    save(tmp_path, 1)
    save(tmp_path, 2, None)
    assert names(tmp_path) == sorted([*others, "model-00001-of-00003.safetensors", "model.safetensors"])
    assert steps(tmp_path) == {2}


def test_the_files_of_a_damaged_index_are_replaced(tmp_path):
    (tmp_path / INDEX).write_text("[" * 10)
    save(tmp_path, 1)
    assert steps(tmp_path) == {1}


def test_a_set_of_hugging_face_is_replaced_as_a_whole(tmp_path):
    for name, key in zip(NAMES, "ab", strict=True):
        save_file({key: np.zeros(4, "f4")}, tmp_path / name, metadata={"format": "pt"})
    where = {"a": NAMES[0], "b": NAMES[1]}
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 32}, "weight_map": where}))
    assert steps(tmp_path) == {0}
    save(tmp_path, 1)
    index = json.loads((tmp_path / INDEX).read_text())
    assert names(tmp_path) == sorted([*index["weight_map"].values(), INDEX])
    for key, name in index["weight_map"].items():
        np.testing.assert_array_equal(load_file(tmp_path / name)[key], state(1)[key])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"weight_map": {',
        '{"weight_map": 3}',
        '{"weight_map": {"x": 3}}',
        '{"weight_map": {"x": ""}}',
        '{"weight_map": {"x": "a/b.safetensors"}}',
        '{"weight_map": {"x": "/etc/passwd"}}',
        '{"weight_map": {"x": "a\\u0000b"}}',
        '{"weight_map": {"x": "a", "x": "b"}}',
        '{"weight_map": {}, "metadata": 3}',
        '{"weight_map": {}, "metadata": {"axonym.save": 3}}',
        "[" * 100_000,
        '{"weight_map": {"\\ud800": "a"}}',
        '{"weight_map": {"x": "\\ud800"}}',
    ],
)
def test_damaged_indexes(tmp_path, text):
    (tmp_path / "b.json").write_text(text)
    assert error_of(tmp_path / "b.json") == "load_state_dict: b.json is not a readable index of files"


@pytest.mark.parametrize("name", ["..", "a" * 300, "folder", "missing"])
def test_an_index_lists_files(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "b.json").write_text(json.dumps({"weight_map": {"x": name}}))
    shown = name if name != ".." else tmp_path.name
    assert error_of(tmp_path / "b.json") in {
        f"load_state_dict: b.json lists {shown}, which is no file here",
        "load_state_dict: b.json lists .., which is no file here",
    }


def test_an_index_of_bytes_that_are_no_text(tmp_path):
    (tmp_path / "b.json").write_bytes(b"\xff\xfe{")
    assert error_of(tmp_path / "b.json") == "load_state_dict: b.json is not a readable index of files"
    (tmp_path / "a.safetensors.index.json").write_text('{"weight_map": {}}')
    assert load_state_dict(tmp_path / "a.safetensors") == {}
