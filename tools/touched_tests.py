"""Print the files of tests that belong to what a branch changes: `python tools/touched_tests.py [BASE]`.

A changed test file counts itself, a changed module the file at the same path below `tests`, and a changed example that
of its name in `tests/examples`. Without BASE, what is compared with is where the branch left `origin/main` or `main`,
and on the main branch itself the commit before.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Suites with an environment of their own, and the one in which a failure is a notice; `.ci/run` runs them whole.
APART = ("neighbours", "huggingface", "upstream")


def git(*words: str) -> str:
    """Return what git prints; nothing where it has no answer."""
    # A checkout may belong to another user.
    command = ["git", "-c", "safe.directory=*", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def base() -> str:
    """Return the commit that the branch started from."""
    head = git("rev-parse", "HEAD")
    for main in ("origin/main", "main"):
        found = git("merge-base", "HEAD", main)
        if found and found != head:
            return found
    return git("rev-parse", "HEAD~1")


def tests_of(path: Path) -> Path | None:
    """Return the file of tests for a file of the project."""
    if path.suffix != ".py":
        return None
    if path.parts[0] == "tests" and path.parts[1] in APART:
        return None
    if path.parts[0] == "tests":
        return path if path.name.startswith("test_") else None
    if path.parts[0] == "examples":
        return Path("tests", "examples", f"test_{path.stem}.py")
    if path.parts[:2] != ("src", "axonym"):
        return None
    return Path("tests", *path.parts[2:-1], f"test_{path.stem.strip('_')}.py")


def main() -> None:
    """Print one file a line."""
    start = sys.argv[1] if len(sys.argv) > 1 else base()
    changed = git("diff", "--name-only", start).splitlines() if start else []
    found = {tests_of(Path(name)) for name in changed}
    for path in sorted(path for path in found if path is not None and (ROOT / path).is_file()):
        print(path)


if __name__ == "__main__":
    main()
