"""The pages of docs/neighbours: their blocks run, and they name the releases that `axonym[neighbours]` asks for."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.pages import BLOCK, NEIGHBOURS, ROOT, name_of, run_blocks

PAGES = [page for page in sorted(NEIGHBOURS.glob("*.md")) if BLOCK.search(page.read_text())]
VERSIONS = re.compile(r"^Tested with (.*?)\.$", re.MULTILINE | re.DOTALL)


# Qwix reads all names of Flax, old ones too, when it replaces functions.
@pytest.mark.filterwarnings("ignore:'VariableState' was removed:DeprecationWarning")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Some libraries write beside the program.
    monkeypatch.chdir(tmp_path)
    run_blocks(page, monkeypatch)


def test_pages_name_the_releases_of_the_extra() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["neighbours"]
    bounds = dict(requirement.split(">=") for requirement in extra)
    tested: dict[str, str] = {}
    for page in PAGES:
        (versions,) = VERSIONS.findall(page.read_text())
        tested |= dict(re.findall(r"`([\w-]+)` ([\d.]*\d)", versions))
    assert tested == {name: bounds.get(name) for name in tested}


def test_the_table_lists_the_pages_of_one_screen() -> None:
    index = (NEIGHBOURS / "index.md").read_text()
    assert set(re.findall(r"\]\((\w+\.md)\)", index)) == {page.name for page in PAGES}
    assert [page.name for page in PAGES if len(page.read_text().splitlines()) > 90] == []
