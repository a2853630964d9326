"""Run the `python` blocks of README and docs, but for the pages about other libraries: see `tests/neighbours`."""

from pathlib import Path

import pytest

from tests.pages import BLOCK, NEIGHBOURS, ROOT, name_of, run_blocks

FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in FILES if BLOCK.search(page.read_text()) and NEIGHBOURS not in page.parents]


@pytest.mark.sampled
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_blocks(page, monkeypatch)
