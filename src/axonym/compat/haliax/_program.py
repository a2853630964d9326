"""Common parts of the command and the pytest plugin that let an unchanged program import Axonym as `haliax`.

The program runs after Axonym and JAX have been imported. So if it sets environment variables that JAX reads on import,
this comes too late; its first `import haliax` checks for this.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import jax

import axonym

from ._install import install

__all__ = ["prepare", "unused", "used"]

_PACKAGE = sys.modules[__name__.rpartition(".")[0]]
_FROM_THE_START = dict(os.environ)


def prepare() -> None:
    """Answer the program's first `import haliax` with Axonym's layer, and check the environment variables it has set.

    Raises:
        ImportError: if the real Haliax has been imported.
    """
    install()
    for name in [name for name in sys.modules if name.partition(".")[0] == "haliax"]:
        del sys.modules[name]
    sys.meta_path.insert(0, _FirstImport())


def used() -> str:
    """Say which package `haliax` is."""
    return f"axonym.compat.haliax of Axonym {axonym.__version__}"


def unused() -> str | None:
    """Return the location of another package that `import haliax` would find without Axonym's layer."""
    for finder in sys.meta_path:
        spec = None if isinstance(finder, _FirstImport) else finder.find_spec("haliax", None)
        if spec is not None and spec.origin is not None:  # a mere folder of that name has no origin
            return spec.origin
    return None


class _FirstImport(MetaPathFinder, Loader):
    """A finder that gives the alias once; after that, `sys.modules` has the modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname == "haliax" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, _FirstImport)]
        _warn_of_late_settings()
        self._own_spec = _PACKAGE.__spec__
        return _PACKAGE

    def exec_module(self, module: ModuleType) -> None:
        # It has run, under its own name; the import system has just given it the spec of the alias.
        module.__spec__ = self._own_spec
        install()


def _warn_of_late_settings() -> None:
    late: list[str] = []
    for name, value in os.environ.items():
        if _is_read_at_import(name) and value != _FROM_THE_START.get(name):
            late.append(f"{name}={value}")
    if late:
        text = (
            f"the program has set {', '.join(late)} in os.environ, without effect: JAX had been imported with Axonym. "
            "Set it in the environment of the command, or call jax.config.update"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def _is_read_at_import(name: str) -> bool:
    return name.startswith("JAX_") and hasattr(jax.config, name.lower())
