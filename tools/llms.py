"""Write llms.txt and llms-full.txt beside the pages, for assistants that read text: a hook of mkdocs.

The first lists all pages with a sentence of each, the second has their text. Pages of the API have signatures and
docstrings there, and notebooks their cells.
"""

import importlib
import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
API = runpy.run_path(str(ROOT / "tools/api_pages.py"))
NOTEBOOK = runpy.run_path(str(ROOT / "tools/notebook.py"), run_name="notebook")
texts: dict[str, str] = {}  # the text of each page, by its address
order: list[Any] = []  # the parts of the navigation


def on_nav(nav: Any, config: Any, files: Any) -> None:
    """Remember the order of the pages; the hook returns nothing, so the navigation stays as it is."""
    order[:] = nav.items


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> None:
    """Remember what a page says."""
    texts[page.url] = text_of(page.file.src_path, markdown)


def on_post_build(config: Any) -> None:
    """Write both files."""
    folder = Path(config["site_dir"])
    head = f"# {config['site_name']}\n\n> {config['site_description']}\n"
    lists, full = [head], [head]
    for section, pages in sections():
        rows = [f"- [{page.title}]({page.url or 'index.html'}): {opening(texts[page.url])}" for page in pages]
        lists.append(f"## {section}\n\n" + "\n".join(rows) + "\n")
        full += [texts[page.url].strip() + "\n" for page in pages]
    (folder / "llms.txt").write_text("\n".join(lists), encoding="utf-8")
    (folder / "llms-full.txt").write_text("\n".join(full), encoding="utf-8")


def sections() -> Iterator[tuple[str, list[Any]]]:
    """Yield the pages of each part of the navigation; pages outside of parts come first, together."""
    yield "Pages", [item for item in order if item.is_page]
    for item in order:
        if item.is_section:
            yield item.title, list(leaves(item))


def leaves(item: Any) -> Iterator[Any]:
    """Yield the pages under a part of the navigation."""
    if item.is_page:
        yield item
    for child in item.children or ():
        yield from leaves(child)


def text_of(path: str, markdown: str) -> str:
    """Return what a page says, without pictures."""
    if path.startswith("notebooks/"):
        cells = NOTEBOOK["cells"]((ROOT / "docs" / path).with_suffix(".py").read_text(encoding="utf-8"))
        return "\n\n".join(part.strip() if text else f"```python\n{part.strip()}\n```" for text, part in cells)
    if path.startswith("api/"):
        return API["MODULE"].sub(lambda asked: "\n\n".join(describe(asked[1])), markdown)
    return re.sub(r"^<!--.*?-->\n", "", markdown, flags=re.MULTILINE)


def describe(module: str) -> Iterator[str]:
    """Yield the docstring of a module, and the signatures and docstrings of its public names."""
    loaded = importlib.import_module(module)
    yield inspect.getdoc(loaded) or ""
    for name in API["names"](module):
        value = getattr(loaded, name.path.rpartition(".")[2])
        yield f"## `{name.public}{signature(value)}`\n\n{inspect.getdoc(value) or ''}"
        methods = vars(value).items() if inspect.isclass(value) else ()
        for method, function in methods:
            if inspect.isroutine(function) and not method.startswith("_"):
                yield f"### `{method}{signature(function)}`\n\n{inspect.getdoc(function) or ''}"


def signature(value: Any) -> str:
    """Return how to call a value, where Python can tell."""
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):
        return ""


def opening(text: str) -> str:
    """Return the first sentence of a page."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    blocks = [block for block in prose.split("\n\n") if block.strip() and not re.match(r"\s*[#<|]", block)]
    words = " ".join(blocks[0].split()) if blocks else ""
    return re.split(r"(?<=[.:?]) (?=[A-Z`])", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", words))[0]
