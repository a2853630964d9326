"""Draw sentences for an editor to judge: half of them from the pages, half from docstrings.

python tools/sentences.py [--seed 47] [--count 200]

The same seed draws the same sentences from the same texts. docs/design/sentences.md has a sample and its verdicts.
"""

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Quoted sentences of others are no sentences of ours.
QUOTING = {ROOT / "docs/design/how-we-write.md", ROOT / "docs/design/sentences.md"}
NO_PROSE = re.compile(
    r"\A---\n.*?^---$|^\ *```.*?^\ *```$|<!--.*?-->|^\ *(?:\||!!!|:::|>>>|\#).*?$", re.M | re.S | re.X
)
SECTION = re.compile(r"^(?:Args|Returns|Raises|Examples|Yields|Attributes):$", re.MULTILINE)
FEWEST_WORDS = 4


def pages() -> Iterator[tuple[str, str]]:
    """Yield the pages, with the names of their files."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if page not in QUOTING:
            yield str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the docstrings up to their first section, with the names of their files."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield str(path.relative_to(ROOT)), SECTION.split(ast.get_docstring(node) or "")[0]


def split(text: str) -> list[str]:
    """Return the sentences of a text, without code blocks, tables, headings and the targets of links."""
    prose = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", NO_PROSE.sub("", text))
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", f"\n{prose}")
    flat = (re.sub(r"^(?:[-*]|\d+\.) ", "", " ".join(block.split())) for block in blocks)
    found = [sentence for block in flat for sentence in re.split(r"(?<=[.!?:]) (?=[A-Z`*])", block)]
    return [sentence for sentence in found if len(sentence.split()) >= FEWEST_WORDS]


def draw(texts: Iterator[tuple[str, str]], seed: int, count: int) -> list[tuple[str, str]]:
    """Return the drawn sentences with their files, in the order of the files."""
    known = [(name, sentence) for name, text in texts for sentence in split(text)]
    return [known[i] for i in sorted(random.Random(seed).sample(range(len(known)), count))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=47)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    for texts in pages(), docstrings():
        for name, sentence in draw(texts, options.seed, options.count // 2):
            print(f"{name}: {sentence}")
