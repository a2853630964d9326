"""What the docs show beside text: notebooks that run, and pictures that pages ask for."""

import ast
import re
import runpy
import types
from pathlib import Path

import pytest

import axonym as axn

ROOT = Path(__file__).parents[2]
NOTEBOOK = runpy.run_path(str(ROOT / "tools/notebook.py"), run_name="notebook")


API = runpy.run_path(str(ROOT / "tools/api_pages.py"))


def test_pages_of_the_api_show_public_names():
    page = API["expanded"]("# softmax\n\n::: axonym.ops.softmax\n\nText\n")
    assert page.startswith("# softmax\n\n::: axonym.ops.softmax\n    options:\n      members: false\n\n")
    assert "::: axonym.ops.softmax.softmax\n    options:\n" in page
    assert '      heading: "axn.softmax"\n' in page
    assert page.endswith("\n\nText\n")
    listed = "::: axonym.engine\n    options:\n      members:\n        - nary\n"
    assert API["expanded"](listed) == listed


def test_the_api_has_all_public_names_and_no_other():
    shown = set()
    for path in (ROOT / "docs/api").rglob("*.md"):
        text = path.read_text()
        # What a reader looks for, and not where it is defined.
        assert not text.startswith("# axonym."), path
        for module, _ in API["MODULE"].findall(text):
            shown.update(name.public for name in API["names"](module))
    for place in API["NAMESPACES"]:
        space = API["namespace"](place)
        for name in getattr(space, "__all__", ()):
            if isinstance(getattr(space, name), types.ModuleType):
                continue
            assert {f"{known}.{name}" for known in API["NAMESPACES"]} & shown, f"{place}.{name}"
    # Of names without a place, those of what functions return.
    assert {name for name in shown if "." not in name} == API["RETURNED"]
    assert "axn.nn.Linear" in shown
    assert not {name for name in shown if re.search("names_held|Roles|AttentionCall", name)}


def test_the_list_of_public_names():
    listed = API["index"](ROOT / "docs/api", ["index.md", "ops/softmax.md"])
    assert listed.startswith(
        "- [softmax, standardize](ops/softmax.md): [`axn.log_softmax`][axonym.ops.softmax.log_softmax]"
    )
    assert len(listed.splitlines()) == 1


def test_what_assistants_read(tmp_path):
    hook = runpy.run_path(str(ROOT / "tools/llms.py"))
    site = {"site_name": "Axonym", "site_description": "Names", "site_dir": str(tmp_path)}

    def page(path, text):
        where = {"url": path.replace(".md", "/"), "file": types.SimpleNamespace(src_path=path)}
        made = types.SimpleNamespace(title=path, **where, is_page=True, is_section=False, children=None)
        assert hook["on_page_markdown"](text, made, site, None) is None
        return made

    home = page("faq.md", "# FAQ\n\n```python\nx\n```\n\n<!-- picture: a -->\n\nThe [first](a.md) one. The second.\n")
    notebook = page("notebooks/arrays.md", "# Arrays\n\n<svg>\n")
    api = page("api/ops/softmax.md", "# softmax\n\n::: axonym.ops.softmax\n")
    part = types.SimpleNamespace(title="Parts", is_page=False, is_section=True, children=[notebook, api])
    hook["on_nav"](types.SimpleNamespace(items=[home, part]), site, None)
    hook["on_post_build"](site)
    listed = (tmp_path / "llms.txt").read_text()
    assert listed.startswith("# Axonym\n\n> Names\n\n## Pages\n\n- [faq.md](faq/): The first one.\n\n## Parts\n")
    full = (tmp_path / "llms-full.txt").read_text()
    assert "<!-- picture" not in full
    assert "<svg>" not in full
    assert "```python\nimport" in full
    assert "## `axn.softmax(" in full
    assert axn.softmax.__doc__.splitlines()[0] in full


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
    assert len(notebooks) == 9
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
