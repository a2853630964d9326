"""`python -m axonym.compat.haliax` runs programs as `python` does, and they find Axonym as haliax.

The programs run in processes of their own; what plain Python makes of the same file is what is expected.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src"
AXONYM = ["-m", "axonym.compat.haliax"]


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # A settled working folder of the program's own, and no settings of JAX but the program's.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env=env | {"PYTHONPATH": str(SRC), "JAX_PLATFORMS": "cpu"},
    )


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


USE = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=3"
import jax
import haliax as hax
import haliax.nn as hnn
from haliax.partitioning import named_jit
import beside
import axonym.compat.haliax
assert hax is axonym.compat.haliax and hax.__spec__.name == "axonym.compat.haliax"
assert type(hax.zeros(hax.Axis("embed", 4))) is hax.NamedArray
assert jax.device_count() == 3
assert sys.modules["__main__"].__dict__ is globals() and __name__ == "__main__"
print(sys.argv, __file__, beside.value)
"""


def test_a_script_finds_axonym_and_its_own_surroundings(tmp_path: Path) -> None:
    put(tmp_path / "app/beside.py", "value = 7")
    put(tmp_path / "app/train.py", USE)
    # A package of the name, as an installed Haliax: the command says which one is meant.
    put(tmp_path / "app/haliax/__init__.py", "raise RuntimeError('this is not Axonym')")
    done = python(tmp_path, "-W", "error", *AXONYM, "app/train.py", "--steps", "3", "-m")
    assert done.stderr == ""
    assert done.stdout == "['app/train.py', '--steps', '3', '-m'] app/train.py 7\n"


def test_a_module_finds_axonym_and_its_own_surroundings(tmp_path: Path) -> None:
    put(tmp_path / "beside.py", "value = 7")
    put(tmp_path / "app/__init__.py", "")
    file = put(tmp_path / "app/train.py", USE)
    done = python(tmp_path, "-W", "error", *AXONYM, "-m", "app.train", "--steps", "3")
    assert done.stderr == ""
    assert done.stdout == f"['{file}', '--steps', '3'] {file} 7\n"


CAUSED = """
def f():
    1 / 0

try:
    f()
except ZeroDivisionError as error:
    raise KeyError("here") from error
"""
ENDINGS = {
    "error": CAUSED,
    "syntax": "x = = 3\n",
    "status": "import sys\nsys.exit(3)\n",
    "interrupt": "raise KeyboardInterrupt\n",
}


@pytest.mark.parametrize("program", ENDINGS.values(), ids=ENDINGS.keys())
def test_a_script_ends_as_under_python(tmp_path: Path, program: str) -> None:
    put(tmp_path / "train.py", program)
    plain, here = python(tmp_path, str(tmp_path / "train.py")), python(tmp_path, *AXONYM, str(tmp_path / "train.py"))
    assert plain.returncode
    assert (here.returncode, here.stdout, here.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_what_is_not_there_is_said_as_python_says_it(tmp_path: Path) -> None:
    done = python(tmp_path, *AXONYM, "train.py")
    text = f"{sys.executable}: can't open file '{tmp_path}/train.py': [Errno 2] No such file or directory\n"
    assert (done.returncode, done.stderr) == (2, text)

    done = python(tmp_path, *AXONYM, "-m", "train")
    assert (done.returncode, done.stderr) == (1, f"{sys.executable}: No module named train\n")


@pytest.mark.parametrize(("words", "status"), [([], 2), (["-m"], 2), (["--other", "train.py"], 2), (["--help"], 0)])
def test_without_a_program_it_tells_its_use(
    tmp_path: Path, words: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    from axonym.compat.haliax.__main__ import main

    if status:
        with pytest.raises(SystemExit) as ending:
            main(words)
        assert ending.value.code == status
    else:
        main(words)
    out, err = capsys.readouterr()
    assert (err if status else out).splitlines() == [
        "usage: python -m axonym.compat.haliax script.py [argument ...]",
        "       python -m axonym.compat.haliax -m module [argument ...]",
        "",
        "Run a program that says `import haliax` on Axonym.",
    ]
