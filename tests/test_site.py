"""What the docs show beside text: notebooks that run, and pictures that pages ask for."""

import ast
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOK = runpy.run_path(str(ROOT / "tools/notebook.py"), run_name="notebook")


@pytest.fixture
def pictures(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return runpy.run_path(str(ROOT / "tools/pictures.py"), run_name="pictures")


def test_the_cells_of_a_file():
    source = "# %% [markdown]\n# # Title\n#\n# Text\n\n# %%\nx = 1\n\n# %% named\nx\n"
    found = [(text, content.strip()) for text, content in NOTEBOOK["cells"](source)]
    assert found == [(True, "# Title\n\nText"), (False, "x = 1"), (False, "x")]


def test_the_outputs_of_a_cell():
    names = {}
    run = NOTEBOOK["run"]
    assert run("x = 1", names, "cell") == []
    (printed,) = run("print(x)", names, "cell")
    assert printed == {"output_type": "stream", "name": "stdout", "text": "1\n"}
    (value,) = run("x + 1", names, "cell")
    assert value["data"] == {"text/plain": "2"}
    (figure,) = run("import matplotlib.pyplot as plt\nplt.plot([1, 2])", names, "cell")
    assert figure["data"]["text/html"].startswith("<svg")
    # A style inside of a page would reach all of it.
    assert "<style" not in figure["data"]["text/html"]


def test_an_error_in_a_cell_names_it():
    with pytest.raises(ZeroDivisionError) as caught:
        NOTEBOOK["run"]("x = 1\n1 / 0", {}, "arrays.py, cell 3")
    assert caught.traceback[-1].lineno == 1
    assert caught.traceback[-1].frame.code.raw.co_filename == "arrays.py, cell 3"


def test_the_page_of_a_notebook():
    code = {"cell_type": "code", "source": "x", "outputs": NOTEBOOK["run"]("'<b>'", {}, "cell")}
    page = NOTEBOOK["page"]({"cells": [{"cell_type": "markdown", "source": "# Title"}, code]}, "title.ipynb")
    expected = "# Title\n\n[As a Jupyter notebook](title.ipynb){ download }\n\n```python\nx\n```\n\n"
    assert page == expected + '<pre class="output">&#x27;&lt;b&gt;&#x27;</pre>\n'


def test_notebooks_end_with_a_picture_and_fit_the_page():
    notebooks = sorted((ROOT / "docs/notebooks").glob("*.py"))
    assert len(notebooks) == 6
    for path in notebooks:
        cells = NOTEBOOK["cells"](path.read_text())
        first, last = cells[0][1], cells[-1][1]
        assert first.startswith("# "), path
        assert re.search("axes|plt|subplots|picture", last), path
        long = [line for text, content in cells if not text for line in content.splitlines() if len(line) > 85]
        assert long == [], path


def test_each_picture_is_on_a_page_and_each_page_has_its_pictures(pictures):
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    asked = re.findall(r"^<!-- picture: (\S+) -->$", pages, re.MULTILINE)
    assert sorted(set(asked)) == sorted(draw.__name__ for draw in pictures["PICTURES"])


def test_the_picture_of_readme_shows_the_layouts_of_the_first_page(pictures):
    block = re.search(r"^LAYOUTS = (\{.*?^\})", (ROOT / "docs/index.md").read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    assert ast.literal_eval(block[1]) == pictures["LAYOUTS"]
    # `python tools/pictures.py docs/layouts.svg` writes it anew.
    assert (ROOT / "docs/layouts.svg").read_text() == pictures["layouts_alone"]()
