"""Let programs that say `import haliax` find Axonym's layer for it, without a change to their files.

`axonym_haliax.pth`, which Python reads when it starts, calls `watch` where the environment has `AXONYM_HALIAX=1`.
Nothing is imported before a program asks for haliax: JAX reads some of its settings when it is imported, and a program
may want to make them first.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["watch"]


def watch() -> None:
    """Answer the first `import haliax` of this process with Axonym's layer."""
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname == "haliax" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        package = importlib.import_module("axonym.compat.haliax")
        self._own_spec = package.__spec__
        return package

    def exec_module(self, module: ModuleType) -> None:
        # It has run, under its own name; the import system has just given it the spec of the alias.
        module.__spec__ = self._own_spec
