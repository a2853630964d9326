"""A plugin of pytest for tests that say `import haliax`: `pytest -p axonym.compat.haliax.pytest_plugin`.

pytest imports plugins named with `-p`, on the command line or in `addopts`, before those of installed packages and
before any `conftest.py`.
"""

from ._program import prepare, unused, used

__all__ = ["pytest_report_header"]

prepare()


def pytest_report_header() -> str:
    """Say which package the tests find as `haliax`."""
    other = unused()
    not_used = f"; the one at {other} is not used" if other else ""
    return f"haliax: {used()}{not_used}"
