"""Write the pages of the API by public names: `axn.softmax`, where the sources say `axonym.ops.softmax.softmax`.

A page asks for a module, `::: axonym.ops.softmax`, and gets its docstring, and each of its names that users reach, in
the order of the sources. Names that only other modules of the package use are left out.
"""

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

MODULE = re.compile(r"^::: (axonym[\w.]*)$((?:\n    .+)*)", re.MULTILINE)
# Where a page wants the list of all names.
INDEX = "<!-- api: index -->"
# Where users find a name; the first that has it counts.
NAMESPACES = (
    "axn",
    "axn.nn",
    "axn.nn.initializer",
    "axn.random",
    "axn.linalg",
    "axn.image",
    "axn.errors",
    "axn.typing",
    "axn.tree",
    "axn.parameters",
    "axn.collectives",
    "axn.partitioning",
    "axn.optim",
    "axn.state_dict",
    "axn.quant",
    "axn.debug",
    "axn.mup",
    "axn.models",
)

# Classes that users get and do not make.
RETURNED = {
    "ArrayLayout",
    "At",
    "Collective",
    "Kept",
    "Layouts",
    "Memory",
    "Picture",
    "Problem",
    "Report",
    "ScatterMode",
    "Shape",
    "Time",
    "Work",
}


class Name(NamedTuple):
    """A public name: what users write, and where it is defined."""

    public: str
    path: str


def names(module: str) -> list[Name]:
    """Return the public names of a module, in the order of its sources."""
    loaded = importlib.import_module(module)
    found = [Name(public, f"{module}.{name}") for name, public in _public(loaded)]
    source = Path(loaded.__file__ or "").read_text(encoding="utf-8")
    return sorted(found, key=lambda name: _line(source, name.path.rpartition(".")[2]))


def _public(module: ModuleType) -> Iterator[tuple[str, str]]:
    for name in module.__all__:
        value = getattr(module, name)
        for place in NAMESPACES:
            space = namespace(place)
            if getattr(space, name, None) is value and _offers(space, name):
                yield name, f"{place}.{name}"
                break
        else:
            if name in RETURNED:  # without a place of its own
                yield name, name


def namespace(place: str) -> ModuleType:
    """Return the module that users call by this name."""
    found = importlib.import_module("axonym")
    for part in place.split(".")[1:]:
        found = getattr(found, part)
    return found


def _offers(space: ModuleType, name: str) -> bool:
    """Return whether a namespace means to show a name; that of layers has no list, but stars."""
    listed = getattr(space, "__all__", None)
    return listed is None or name in listed


def _line(source: str, name: str) -> int:
    """Return where a name is defined, in characters."""
    found = re.search(rf"^(?:def |class )?{name}\b *[:=(\[]", source, re.MULTILINE)
    if found is None:
        return len(source)
    return found.start()


def expanded(markdown: str) -> str:
    """Replace each module that a page asks for by its docstring and its public names.

    Where a page lists the members itself, it stays as it is; other options are those of all blocks.
    """

    def blocks(asked: re.Match[str]) -> str:
        own = asked[2].removeprefix("\n    options:")
        if "members:" in own.split():
            return asked[0]
        parts = [_block(asked[1], own, members=False)]
        for name in names(asked[1]):
            heading = {"heading": name.public, "toc_label": name.public}
            parts.append(_block(name.path, own, show_root_heading=True, show_root_toc_entry=True, **heading))
        return "\n".join(parts)

    return MODULE.sub(blocks, markdown)


def _block(path: str, own: str, **options: object) -> str:
    lines = [f"      {key}: {json.dumps(value)}" for key, value in options.items()]
    return "\n".join([f"::: {path}", "    options:", *lines]) + f"{own}\n"


def index(folder: Path, pages: list[str]) -> str:
    """Write the list of all public names, page by page."""
    lines: list[str] = []
    for path in pages:
        text = (folder / path).read_text(encoding="utf-8")
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        found: list[str] = []
        for module, options in MODULE.findall(text):
            # Of what a page lists itself, not all names have an anchor.
            form = "`{0.public}`" if "members:" in options else "[`{0.public}`][{0.path}]"
            found += map(form.format, names(module))
        if title and found:
            lines.append(f"- [{title[1]}]({path}): {', '.join(found)}")
    return "\n".join(lines)
