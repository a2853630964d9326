"""What README promises and what `.ci/run` does are the same thing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def readme_command(heading: str) -> str:
    """Return what `.ci/run` reads; the tool fails unless the heading has exactly one block of one line."""
    tool = [sys.executable, str(ROOT / "tools/readme_command.py"), heading]
    return subprocess.run(tool, check=True, capture_output=True, text=True).stdout.rstrip("\n")


@pytest.mark.parametrize(
    ("heading", "ends_with"),
    [("Train", "python examples/gpt2/train.py"), ("Test", "python -m pytest -n auto")],
)
def test_readme_has_one_command_per_heading(heading: str, ends_with: str) -> None:
    command = readme_command(heading)
    assert (ROOT / "README.md").read_text().count(f"\n```\n{command}\n```\n") == 1
    # A stranger has Python and pip, nothing else.
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert command.endswith(ends_with)


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci/run").read_text()
    assert "test_command=$(python3 tools/readme_command.py Test)" in script
    assert 'bash -c "$test_command"' in script
    assert (ROOT / ".ci/run").stat().st_mode & 0o111, ".ci/run is not executable"


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    # New files count before they are committed, ignored ones never; a checkout may belong to another user.
    git = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(git, cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git checkout")
    machine_path = re.compile(r"(?<![\w.~/-])/(?:root|work|home|Users)/")
    found: list[str] = []
    for name in listing.stdout.split("\0")[:-1]:
        path = ROOT / name
        if path.is_file():
            lines = enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), 1)
            found += [f"{name}:{number}: {line}" for number, line in lines if machine_path.search(line)]
    assert not found, "\n".join(found)
