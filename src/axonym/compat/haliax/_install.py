"""Make `import haliax` find this package."""

import importlib
import pkgutil
import sys

__all__ = ["install"]

_HERE = __name__.rpartition(".")[0]
# Modules that Haliax does not have: how programs come to this package.
_OWN = {f"{_HERE}.pytest_plugin"}


def install() -> None:
    """Make `import haliax`, and imports of its modules, resolve to Axonym; importing this package does so.

    Raises:
        ImportError: if the real Haliax has been imported.
    """
    package = sys.modules[_HERE]
    real = sys.modules.get("haliax", package)
    if real is not package:
        where = getattr(real, "__file__", None) or "an unknown place"
        raise ImportError(
            f"haliax has been imported already, from {where}: two libraries cannot share the name. "
            "Import axonym.compat.haliax before anything that imports haliax"
        )
    modules = [
        _HERE,
        *(module.name for module in pkgutil.walk_packages(package.__path__, f"{_HERE}.")),
    ]
    for name in modules:
        is_private = "._" in name.removeprefix(_HERE).removeprefix("._src")
        if not is_private and name not in _OWN:
            sys.modules["haliax" + name.removeprefix(_HERE)] = importlib.import_module(name)


install()
