"""Pictures of sizes."""

import re

import jax
import numpy as np

import axonym as axn
from axonym import debug
from axonym.errors import ArgumentError
from tests.nn.layouts import fails


def run():
    """Return the sizes of two arrays in three steps, the one by layer."""
    steps = [
        {"x": axn.named([[1.0, 1.0], [i, 0.0]], ("layers", "embed")), "y": axn.named(np.float32(10 * i), ())}
        for i in (0.0, 1.0, np.inf)
    ]
    sizes = [debug.statistics(step, by="layers") for step in steps]
    return jax.tree.map(lambda *x: axn.stack("step", x), *sizes, is_leaf=axn.is_named_array)


def test_a_line_for_each_layer_and_a_cell_for_each_step():
    picture = run().picture("largest")
    assert picture.lines == {"x layers=0": (1, 1, 1), "x layers=1": (0, 1, np.inf), "y": (0, 10, np.inf)}
    assert repr(picture) == "<Heat of largest: 3 lines, along step>"
    by_layer = run().picture("largest", along="layers")
    assert by_layer.lines["x step=1"] == (1, 1)
    assert by_layer.lines["y step=1"] == (10,)
    cells = re.findall(r'fill="([^"]*)"><title>(.*?)</title>', picture.svg())
    colours = {place: colour for colour, place in cells}
    assert len(cells) == 9 + 9
    assert colours["y step=0: 0"] == "none"
    assert colours["x layers=0 step=1: 1"].startswith("hsl(220 ")
    assert colours["y step=1: 10"].startswith("hsl(0 ")
    assert picture.svg().count("<path") == 2
    # The legend goes from the one to the other, by equal factors.
    assert [place for _, place in cells][-9:][::4] == ["legend: 1", "legend: 3.2", "legend: 10"]


def test_numbers_of_one_size_and_none_at_all(tmp_path):
    one = debug.statistics({"<x>": axn.ones({"embed": 2})}).picture()
    assert one.lines == {"<x>": (1,)}
    assert "legend" not in one.svg()
    assert "&lt;x&gt;" in one._repr_html_()
    one.save(tmp_path / "sizes.svg")
    assert "<style>" in (tmp_path / "sizes.svg").read_text()
    assert debug.Heat("rms", "", {}).svg().startswith("<svg")


def test_what_is_not_there_is_refused():
    fails(
        ArgumentError,
        "picture: no row has a number 'ratio'\n  hint: numbers: largest, rms, zeros",
        lambda: run().picture("ratio"),
    )
    fails(
        ArgumentError,
        "picture: no row has axis 'batch'\n  hint: axes: step, layers",
        lambda: run().picture(along="batch"),
    )
