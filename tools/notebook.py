"""Run a notebook: a Python file in cells, `# %%` for code and `# %% [markdown]` for text, as editors and jupytext read.

    python tools/notebook.py docs/notebooks/arrays.py arrays.ipynb

The result is a Jupyter notebook with its outputs: what is printed, figures of matplotlib as SVG in the colours of the
page, and the last expression of a cell. An error in a cell ends the run.
"""

import ast
import contextlib
import html
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

DEVICES = "--xla_force_host_platform_device_count=8"  # on every machine, as the tests have
MARKER = re.compile(r"^# %%(?P<text> \[markdown\])?[^\n]*\n", re.MULTILINE)
INK = "#010203"  # stands for the colour of the page's text, which is not known here
STYLE = {
    "svg.fonttype": "none",
    "savefig.transparent": True,
    "font.family": "sans-serif",
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


def cells(source: str) -> list[tuple[bool, str]]:
    """Split a file into cells: whether each is text, and its content."""
    found = list(MARKER.finditer(source))
    ends = [marker.start() for marker in found[1:]] + [len(source)]
    parts = [(marker["text"] is not None, source[marker.end() : end]) for marker, end in zip(found, ends, strict=True)]
    return [(text, re.sub(r"^# ?", "", part, flags=re.MULTILINE) if text else part) for text, part in parts]


def figure_svg(figure: Any) -> str:
    """Return a figure as SVG in the colours of the page around it."""
    written = io.StringIO()
    figure.savefig(written, format="svg", bbox_inches="tight", metadata={"Date": None})
    svg = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>", "", written.getvalue(), flags=re.DOTALL)
    return svg[svg.index("<svg") :].replace(INK, "currentColor")


def shown(value: Any) -> dict[str, str]:
    """Return what a notebook shows of the last expression of a cell."""
    if value is None:
        return {}
    plain = {"text/plain": repr(value)}
    return {"text/html": value._repr_html_(), **plain} if hasattr(value, "_repr_html_") else plain


def run(source: str, names: dict[str, Any], file: str) -> list[dict[str, Any]]:
    """Run a cell, and return its outputs as Jupyter stores them."""
    import matplotlib.pyplot as plt

    tree = ast.parse(source, file)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, file, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), file, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
    figures = [plt.figure(number) for number in plt.get_fignums()]
    # The last line of a cell that draws is often a call, whose value says nothing.
    data = {} if figures else shown(value)
    if data:
        outputs.append({"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": None})
    for figure in figures:
        svg = {"text/html": figure_svg(figure), "text/plain": "a figure"}
        outputs.append({"output_type": "display_data", "data": svg, "metadata": {}})
    plt.close("all")
    return outputs


def notebook(path: Path) -> dict[str, Any]:
    """Run all cells of a file."""
    import matplotlib as mpl

    mpl.rcParams.update(STYLE)
    names: dict[str, Any] = {"__name__": "__main__"}
    found: list[dict[str, Any]] = []
    for text, source in cells(path.read_text(encoding="utf-8")):
        if text:
            found.append({"cell_type": "markdown", "metadata": {}, "source": source.strip()})
            continue
        outputs = run(source, names, f"{path.name}, cell {len(found) + 1}")
        code = {"cell_type": "code", "metadata": {}, "execution_count": None, "source": source.strip()}
        found.append({**code, "outputs": outputs})
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return {"nbformat": 4, "nbformat_minor": 4, "metadata": kernel, "cells": found}


def page(ran: dict[str, Any], download: str) -> str:
    """Write a notebook that ran as a page of Markdown."""
    blocks: list[str] = []
    for cell in ran["cells"]:
        if cell["cell_type"] == "markdown":
            blocks.append(cell["source"])
            continue
        blocks.append(f"```python\n{cell['source']}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "text/html" in data:
                blocks.append(f'<div class="output">\n{data["text/html"].strip()}\n</div>')
            else:
                text = html.escape(output.get("text", data.get("text/plain", "")).rstrip())
                blocks.append(f'<pre class="output">{text}</pre>')
    title, *rest = blocks
    return "\n\n".join([title, f"[As a Jupyter notebook]({download}){{ download }}", *rest]) + "\n"


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}"
    os.environ["MPLBACKEND"] = "agg"
    Path(sys.argv[2]).write_text(json.dumps(notebook(Path(sys.argv[1])), indent=1), encoding="utf-8")
