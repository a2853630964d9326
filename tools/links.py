"""Give links between files of the repository their public address, where a text is shown without those files.

A package index shows README.md alone, and the site has the pages of docs without the programs that they link to. In the
sources all links are relative: they work in a clone, and the address is in `[project.urls]` of pyproject.toml alone.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Code comes first, so that `layers[0](x)` is no link.
CODE_OR_TARGET = re.compile(
    r"""^\ *```.*?^\ *```$ | `[^`\n]*` | (?P<target>(?<=\]\()[^)\s]+ | (?<=\ src=")[^"]+ | (?<=\ srcset=")[^"]+)""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)


def publish(text: str, page: Path, source: str, shown: Path | None = None) -> str:
    """Return the text of a page with absolute links to all files outside of the folder `shown`."""

    def link(found: re.Match[str]) -> str:
        target = found["target"]
        if target is None or re.match(r"\w+:|#", target):
            return found[0]
        name, *anchor = target.split("#")
        path = (page.parent / name).resolve()
        if shown is not None and path.is_relative_to(shown):
            return found[0]
        raw = "?raw=true" if path.suffix in (".svg", ".png") else ""
        return "#".join([f"{source}/blob/main/{path.relative_to(ROOT).as_posix()}{raw}", *anchor])

    return CODE_OR_TARGET.sub(link, text)
