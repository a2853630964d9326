"""Print the one-line command under a heading of README.md: `python3 tools/readme_command.py Test`."""

import re
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def command(heading: str, text: str) -> str:
    """Return the only line of the only fenced block under the only `## heading` of `text`."""
    # Fenced blocks are cut out first: a line "## ..." inside one is a comment, not a heading.
    blocks: list[str] = []

    def cut(fence: re.Match[str]) -> str:
        blocks.append(fence[1])
        return f"\0{len(blocks) - 1}\n"

    outline = re.sub(r"^```[^\n]*\n(.*?)^```$", cut, text, flags=re.MULTILINE | re.DOTALL)
    sections = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", outline, re.MULTILINE | re.DOTALL)
    if len(sections) != 1:
        raise ValueError(f"README.md has {len(sections)} headings '## {heading}', not one")
    lines = [line for i in re.findall(r"\0(\d+)", sections[0]) for line in blocks[int(i)].splitlines()]
    if sections[0].count("\0") != 1 or len(lines) != 1:
        raise ValueError(f"README.md, '## {heading}': expected one block of one line, found {lines}")
    return lines[0]


if __name__ == "__main__":
    try:
        print(command(sys.argv[1], README.read_text(encoding="utf-8")))
    except ValueError as error:
        sys.exit(str(error))
