"""What README promises and what `.ci/run` does are the same thing."""

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import axonym
from tests.sample import in_sample, in_share, part_of

ROOT = Path(__file__).parent.parent


def readme_command(heading: str) -> str:
    """Return what `.ci/run` reads; the tool fails unless the heading has exactly one block of one line."""
    tool = [sys.executable, str(ROOT / "tools/readme_command.py"), heading]
    return subprocess.run(tool, check=True, capture_output=True, text=True).stdout.rstrip("\n")


@pytest.mark.parametrize(
    ("heading", "ends_with"),
    [("Train", "python examples/lm/train.py"), ("Test", "python -m pytest -n auto")],
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


@pytest.mark.parametrize(
    ("arguments", "runs"),
    [
        (["tests"], False),
        (["tests/ops", "tests/test_axis.py"], False),
        (["tests/compat"], True),
        (["tests/ops", "tests/compat/haliax/test_core.py::test_one"], True),
    ],
)
def test_the_suite_for_haliax_runs_where_it_is_named(
    arguments: list[str], runs: bool, request: pytest.FixtureRequest
) -> None:
    (hook,) = [
        plugin.pytest_ignore_collect
        for plugin in request.config.pluginmanager.get_plugins()
        if getattr(plugin, "__file__", None) == str(ROOT / "tests/conftest.py")
    ]
    config = SimpleNamespace(args=arguments, invocation_params=SimpleNamespace(dir=ROOT))
    assert hook(ROOT / "tests/compat", config) is (None if runs else True)
    assert hook(ROOT / "tests/ops", config) is None


def test_shares_of_the_files_are_about_as_large_and_cover_all_of_them() -> None:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    assert all(in_share(file, 1) for file in files)
    seen = set()
    for seed in range(16):
        share = {file for file in files if in_share(file, 2, seed)}
        assert 0.35 < len(share) / len(files) < 0.65
        seen |= share
    assert seen == set(files)


@pytest.mark.parametrize("suite", ["benchmarks", "compat", "docs", "examples", "huggingface", "neighbours"])
def test_ci_runs_the_suites_that_are_apart(suite: str) -> None:
    script = (ROOT / ".ci/run").read_text()
    assert re.search(rf"^gate .*/bin/python -m pytest -n auto tests/{suite}( --all-rows)?$", script, re.MULTILINE)


def test_links_of_the_readme_work_in_a_clone_and_on_a_package_index() -> None:
    publish = runpy.run_path(str(ROOT / "tools/links.py"))["publish"]
    readme = ROOT / "README.md"
    local = re.findall(r"\]\((?!https:)([^)]+)\)", readme.read_text())
    assert len(local) > 10
    assert [target for target in local if not (ROOT / target).exists()] == []
    text = publish(readme.read_text(), readme, "https://host/axonym")
    assert re.findall(r"\]\((?!https:)([^)]+)\)", text) == []
    assert "](https://host/axonym/blob/main/docs/guides/plain-jax.md)" in text
    assert ' src="https://host/axonym/blob/main/docs/logo.svg?raw=true"' in text
    code = "`f[0](x)` and\n\n```python\nlayers[0](x)\n```\n"
    assert publish(code, readme, "https://host/axonym") == code


def test_links_of_pages_leave_the_docs_by_the_public_address_alone() -> None:
    publish = runpy.run_path(str(ROOT / "tools/links.py"))["publish"]
    text = "[a](index.md#why-names), [b](../README.md#train), [c](https://jax.dev), [d](#here)"
    published = publish(text, ROOT / "docs/faq.md", "https://host/axonym", shown=ROOT / "docs")
    assert published == text.replace("../README.md", "https://host/axonym/blob/main/README.md")


def test_the_public_address_is_in_the_metadata_alone() -> None:
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    pages = [ROOT / "README.md", ROOT / "mkdocs.yml", *sorted((ROOT / "docs").rglob("*.md"))]
    assert [page.name for page in pages if source in page.read_text()] == []
    assert f"repository-code: {source}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.parametrize("page", ["docs/index.md", "docs/getting-started.md"])
def test_pages_have_the_install_lines_of_the_readme(page: str) -> None:
    lines = re.findall(r"^pip install \..*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(lines) == 3
    assert re.findall(r"^pip install \..*$", (ROOT / page).read_text(), re.MULTILINE) == lines


def test_the_version_is_the_same_wherever_it_stands() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [axonym.__version__]
    # The changes since are above the heading of the version, and both have their link.
    headings = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", axonym.__version__]


def test_the_file_of_tests_of_a_file() -> None:
    tool = runpy.run_path(str(ROOT / "tools/touched_tests.py"))["tests_of"]
    assert tool(Path("src/axonym/ops/reduce.py")) == Path("tests/ops/test_reduce.py")
    assert tool(Path("src/axonym/engine/kernels.py")) == Path("tests/engine/test_kernels.py")
    assert tool(Path("examples/lm/rows.py")) == Path("tests/examples/test_rows.py")
    assert tool(Path("tests/nn/test_mask.py")) == Path("tests/nn/test_mask.py")
    assert [tool(Path(name)) for name in ("tests/laws.py", "docs/index.md", "benchmarks/measure.py")] == [None] * 3


def test_each_planted_fault_has_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    for fault in runpy.run_path(str(ROOT / "tools/mutations.py"))["FAULTS"]:
        assert (ROOT / "src/axonym" / fault.file).read_text().count(fault.right) == 1, fault


def test_each_row_of_a_table_comes_into_the_sample_at_some_commit() -> None:
    rows = [f"row-{i}" for i in range(100)]
    samples = [{row for row in rows if in_sample(row, seed)} for seed in range(40)]
    assert set().union(*samples) == set(rows)
    assert all(15 < len(sample) < 55 for sample in samples)


def test_each_case_comes_into_the_third_at_some_commit() -> None:
    cases = [f"test_value[{kind}]" for kind in ("auto", "explicit", "mixed", "no mesh")]
    thirds = [part_of(cases, seed=seed) for seed in range(40)]
    assert set().union(*thirds) == set(cases)
    assert {len(third) for third in thirds} == {2}
    assert part_of(["test_value"]) == {"test_value"}


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
