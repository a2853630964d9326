"""A test that notices changes of a layout."""

import dataclasses

import jax
import pytest

from axonym.errors import ShardingError
from axonym.partitioning import assert_layout
from tests.costs.made import GATHER, MEMORY, SUM, made


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "layout.json"
    made().save(path)
    return path


def test_what_a_file_says_passes(path):
    assert_layout(made(), path)
    grown = dataclasses.replace(MEMORY, temporary=MEMORY.temporary + 500)
    assert_layout(made(memory=grown), path)


def test_a_new_collective_and_memory_are_told(path):
    grown = dataclasses.replace(MEMORY, temporary=2 * MEMORY.temporary)
    swapped = dataclasses.replace(GATHER, kind="all-to-all")
    with pytest.raises(ShardingError) as raised:
        assert_layout(made(memory=grown, communication=(swapped, SUM)), path, tolerance=0.5)
    assert (
        str(raised.value)
        == f"""assert_layout: step is not what {path} says
  communication: all-gather over data because of embed, bytes sent: 18.0 KiB -> none (-100.0%)
  communication: all-gather over data because of embed, runs: 6 -> none (-100.0%)
  communication: all-reduce over data because of unattributed, bytes sent: 6 B -> none (-100.0%)
  communication: all-reduce over data because of unattributed, runs: 1 -> none (-100.0%)
  communication: all-to-all over data because of embed, bytes sent: none -> 4.5 KiB
  communication: all-to-all over data because of embed, runs: none -> 6
  memory: temporaries: 19.5 KiB -> 39.1 KiB (+100.0%)
  hint: to accept what is there now, run again with AXONYM_UPDATE_LAYOUTS=1"""
    )


def test_a_file_of_another_jax_says_so(path):
    path.write_text(path.read_text().replace(jax.__version__, "0.1"))
    assert_layout(made(), path)
    with pytest.raises(ShardingError, match=r"was written with jax 0\.1, this is"):
        assert_layout(made(communication=()), path)


def test_one_command_writes_it_anew(path, monkeypatch):
    other = made(communication=())
    monkeypatch.setenv("AXONYM_UPDATE_LAYOUTS", "1")
    assert_layout(other, path)
    monkeypatch.delenv("AXONYM_UPDATE_LAYOUTS")
    assert_layout(other, path)


def test_without_a_file(tmp_path):
    with pytest.raises(ShardingError) as raised:
        assert_layout(made(), tmp_path / "layout.json")
    assert str(raised.value) == (
        f"assert_layout: there is no file {tmp_path / 'layout.json'}\n"
        "  hint: to write it, run with AXONYM_UPDATE_LAYOUTS=1"
    )
