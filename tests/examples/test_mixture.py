"""Mixtures of texts: shares of rows by weights, a position that Grain and a resumed run go on from, and refusals."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metrics import read
from options import Options, read_weight
from rows import Packed, Rows, Windows, batch_of
from train import main
from trainer import Recipe

from tests.nn.layouts import fails

SIZES: dict[str, Any] = {"layers": 1, "embed": 16, "heads": 2, "positions": 8, "batch": 8, "sample": 0}
RECIPE = Recipe(strategy="single", steps=6, warmup=2, microbatches=2)


def texts(kind: str) -> list[Rows]:
    """Make sources whose tokens tell them apart."""
    low = np.random.default_rng(0).integers(1, 100, 900).astype(np.uint8)
    high = np.random.default_rng(1).integers(100, 200, 400).astype(np.uint8)
    if kind == "windows":
        return [Windows(low, 8, 0), Windows(high, 8, 0)]
    low[::11], high[::13] = 0, 0
    return [Packed(low, 8, 0, 0), Packed(high, 8, 0, 0)]


@pytest.mark.parametrize("kind", ["windows", "packed"])
def test_each_text_gives_its_own_rows_in_order_and_its_share(kind: str) -> None:
    pytest.importorskip("grain")
    from mixture import Mixture

    sources = texts(kind)
    mixture = Mixture(sources, [0.75, 0.25])
    whole = batch_of(mixture, 0, 400, 2)
    rows = np.asarray(whole.tokens.array).reshape(400, 9)
    from_high = rows.max(axis=1) >= 100
    # In any piece the shares are as close as whole rows can be.
    for stop in (4, 40, 399, 400):
        assert abs(from_high[:stop].sum() - stop / 4) < 1.5
    for source, own in zip(sources, (~from_high, from_high), strict=True):
        expected = [source.rows(i, 1, np.zeros(1, int))[0][0] for i in range(own.sum())]
        np.testing.assert_array_equal(rows[own], expected)
    # A process that has a part of each batch draws the same rows, and steps follow each other.
    parts = [batch_of(mixture, step, 8, 2, slice(1, 3)).tokens.array for step in range(50)]
    np.testing.assert_array_equal(np.stack(parts), rows.reshape(50, 2, 4, 9)[:, :, 1:3])


def test_a_position_is_that_of_grains_iterator_and_outlasts_the_size_of_batches() -> None:
    pytest.importorskip("grain")
    from mixture import Mixture

    mixture = Mixture(texts("windows"), [2, 1])
    rows = batch_of(mixture, 0, 60).tokens.array[0]
    state = mixture.state(3, 8)
    iterator = iter(mixture.dataset.to_iter_dataset())
    iterator.set_state(json.loads(json.dumps(state)))
    for expected in rows[24:40]:
        (row,) = next(iterator)
        np.testing.assert_array_equal(row, expected)
    assert iterator.get_state() == mixture.state(5, 8)
    again = Mixture(texts("windows"), [2, 1])
    again.go_on(state, 3, 12)
    np.testing.assert_array_equal(batch_of(again, 3, 12).tokens.array[0], rows[24:36])
    np.testing.assert_array_equal(batch_of(again, 4, 12).tokens.array[0], rows[36:48])
    assert again.state(5, 12) == {"next_index": 48}


def losses(out: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in read(out / "metrics.jsonl") if "loss" in line]


def test_a_run_goes_on_with_its_mixture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("grain")
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("to be or not to be, that is the question. " * 100)
    two.write_text("whether it is nobler in the mind to suffer. " * 80)
    whole = Options(RECIPE, mix=(f"{one}:3", f"{two}:1"), save_every=2, out=tmp_path / "run", **SIZES)
    main(whole)
    expected = losses(whole.out)
    shutil.rmtree(whole.out / "checkpoints" / "6")  # as if it had been killed before
    main(dataclasses.replace(whole, mix=(f"{one}:0.75", f"{two}:0.25")))
    assert "going on after 4 steps\n" in capsys.readouterr().err
    assert losses(whole.out) == expected
    longer = dataclasses.replace(RECIPE, steps=7)
    main(dataclasses.replace(whole, recipe=longer, batch=4))
    assert (
        "the state and the text stay as they were, and the mixture goes on with its next row" in capsys.readouterr().err
    )
    refused = f"{whole.out} has a run of 7 steps with "
    told = f"{refused}other options: weights='[0.5, 0.5]', but it was '[0.75, 0.25]'; pass another --out"
    evenly = dataclasses.replace(whole, recipe=longer, batch=4, mix=(f"{one}:1", f"{two}:1"))
    fails(ValueError, told, lambda: main(evenly))
    two.write_text(two.read_text()[1:])
    changed = dataclasses.replace(whole, recipe=longer, batch=4)
    fails(ValueError, f"{refused}another text or tokenizer; pass another --out", lambda: main(changed))


def test_what_is_no_mixture_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_weight("a:b.npy:7") == (Path("a:b.npy"), 7.0)
    for text in ("a.npy", "a.npy:", "a.npy:x", "a.npy:0", "a.npy:-1", "a.npy:nan", "a.npy:inf"):
        path = text.rpartition(":")[0] or text
        told = f"mix={text} must be a path and a weight above 0, such as {path}:0.5"
        fails(ValueError, told, lambda text=text: read_weight(text))
    both = Options(RECIPE, data=tmp_path / "a.txt", mix=("b.txt:1", "c.txt:2"), out=tmp_path / "run")
    told = f"data={tmp_path / 'a.txt'} and mix=b.txt:1 c.txt:2 both say the texts: pass one of them"
    fails(ValueError, told, lambda: main(both))
    long, short = tmp_path / "long.txt", tmp_path / "short.txt"
    long.write_text("a" * 1000)
    short.write_text("b" * 60)
    mixed = Options(RECIPE, mix=(f"{long}:1", f"{short}:1"), out=tmp_path / "run", **SIZES)
    told = f"the held-out text of {short} has 3 tokens and must have 9 tokens for one sequence: give more text"
    fails(ValueError, told, lambda: main(mixed))
    short.write_text("b" * 1000)
    monkeypatch.setitem(sys.modules, "grain", None)
    fails(ValueError, "mix needs the package grain: pip install grain", lambda: main(mixed))
