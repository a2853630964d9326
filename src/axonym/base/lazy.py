"""Internal. Import at first use: names of a package, and libraries that only some calls need.

`import axonym` loads no layer and no report. The `__init__` of each package takes its functions from `names_of`.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .places import BELOW, NAMES


def names_of(package: str) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package whose names are in the table of places.

    The package keeps each loaded name, so Python asks for it only once.
    """
    places = {name: module for module, names in NAMES[package].items() for name in names.split()}
    below = BELOW[package].split()

    def load(name: str) -> object:
        """Return what a name of the package stands for; Python calls it for a name that was not used before."""
        place = places.get(name)
        if place is None and name not in below:
            from .foreign import missing  # what other libraries call things is long

            raise missing(package, name)
        if place is None or place == package:
            value: object = import_module(f"{package}.{name}")
        else:
            value = getattr(__import__(place, fromlist=(name,)), name)
        setattr(sys.modules[package], name, value)
        return value

    return list(places), load, lambda: list(places)


def library(function: str, name: str, extra: str | None = None) -> Any:
    """Import a library that Axonym does not depend on; `extra` of Axonym installs it, if there is one.

    Raises:
        ImportError: if it is not installed, with the command that installs it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # the library is there, and misses something itself
            raise
        from ..errors import message

        problem = f"the library {name!r} is not installed"
        source = name if extra is None else f"'axonym[{extra}]'"
        text = message(function, problem, hint=f"pip install {source}")
        raise ImportError(text, name=name) from None
