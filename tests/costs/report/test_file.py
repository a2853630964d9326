"""What files keep."""

import dataclasses
import json

import pytest

from axonym.costs.report.file import compare, load, summarise
from axonym.errors import OperandError
from tests.costs.made import GATHER, SUM, WEIGHT, made


def test_a_file_has_layouts_collectives_memory_and_sums(tmp_path):
    path = tmp_path / "layout.json"
    made().save(path)
    content, _ = load(path)
    assert content == summarise(made())
    assert content["layouts"] == {"model.blocks.up.weight": "float32 embed→data"}
    assert content["communication"]["all-gather over data because of embed, bytes sent"] == GATHER.sent
    assert content["communication"]["all-reduce over data because of batch, runs"] == SUM.count
    assert content["memory"]["peak"] == made().memory.peak
    # One line for each number, so that a diff can be read.
    assert path.read_text().count("\n") > 20
    assert str(compare(content, summarise(made()), ("a", "b"))).endswith("nothing differs")


def test_diff_lists_what_another_mapping_changes():
    cost = made()
    elsewhere = dataclasses.replace(WEIGHT, spec=None, note="replicated")
    other = dataclasses.replace(made(communication=(SUM,)), title="other", arguments={"parameters": (elsewhere,)})
    found = cost.diff(other)
    changed = {change.what: (change.before, change.after) for change in found.changes}
    assert changed["model.blocks.up.weight"] == (
        "float32 embed→data",
        "float32 replicated",
    )
    assert changed["all-gather over data because of embed, runs"] == (6, None)
    assert "before: step\nafter:  other" in str(found)


@pytest.mark.parametrize("text", ["no json", "[]", json.dumps({"version": 99})])
def test_other_files(text, tmp_path):
    path = tmp_path / "layout.json"
    path.write_text(text)
    with pytest.raises(OperandError) as raised:
        load(path)
    assert str(raised.value) == (
        f"assert_layout: {path} is not a file of what a program costs, version 1\n"
        "  hint: write it anew: AXONYM_UPDATE_LAYOUTS=1"
    )
