"""Run a program that says `import haliax` on Axonym, without a change to its files.

    python -m axonym.compat.haliax script.py [argument ...]
    python -m axonym.compat.haliax -m module [argument ...]

The program runs as it does under `python`: as `__main__`, with its own `sys.argv`, exit status and traceback.
"""

import errno
import importlib.util
import os
import runpy
import sys
from types import TracebackType

from ._program import prepare

__all__ = ["main"]

_USAGE = """\
usage: python -m axonym.compat.haliax script.py [argument ...]
       python -m axonym.compat.haliax -m module [argument ...]

Run a program that says `import haliax` on Axonym.
"""


def main(arguments: list[str]) -> None:
    """Run the program that is the first of the arguments, with the others as its own."""
    match arguments:
        case ["-h" | "--help", *_]:
            print(_USAGE, end="")
        case ["-m", name, *rest]:
            _begin("-m", rest)
            _run_module(name)
        case [script, *rest] if not script.startswith("-"):
            _begin(script, rest)
            _run_script(script)
        case _:
            print(_USAGE, end="", file=sys.stderr)
            sys.exit(2)


def _begin(name: str, arguments: list[str]) -> None:
    prepare()
    sys.argv = [name, *arguments]
    sys.excepthook = _show


def _run_module(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        sys.exit(f"{sys.executable}: No module named {name}")
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_script(path: str) -> None:
    if not os.path.exists(path):
        reason = f"[Errno {errno.ENOENT}] {os.strerror(errno.ENOENT)}"
        print(
            f"{sys.executable}: can't open file {os.path.abspath(path)!r}: {reason}",
            file=sys.stderr,
        )
        sys.exit(2)
    if os.path.isfile(path) and not sys.flags.safe_path:
        # `python -m` has put the working folder there, `python script.py` puts the folder of the script.
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    runpy.run_path(path, run_name="__main__")


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Show an error of the program as Python does, without the steps that led to the program."""
    while traceback is not None and _is_ours(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    sys.__excepthook__(kind, error.with_traceback(traceback), traceback)


def _is_ours(filename: str) -> bool:
    return filename == __file__ or filename.startswith("<frozen ")


if __name__ == "__main__":
    main(sys.argv[1:])
