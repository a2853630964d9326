"""The older form of constructors, in which a class is called with axes and a key."""

import inspect
from collections.abc import Callable
from typing import Any, dataclass_transform

import equinox as eqx

__all__ = ["TwoSpellings"]

_Meta: Any = type(eqx.Module)


@dataclass_transform(field_specifiers=(eqx.field,))
class TwoSpellings(_Meta):  # type: ignore[misc]  # the metaclass of equinox has no public name
    """A metaclass that redirects calls with `key=`, no field's name, to `init`: `Linear(In, Out, key=key)`."""

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Construct from fields, or call `init`; a subclass whose own constructor takes a key keeps it."""
        if "key" in kwargs and not _takes_key(self.__init__):
            return self.init(*args, **kwargs)
        return super().__call__(*args, **kwargs)


def _takes_key(constructor: Callable[..., Any]) -> bool:
    parameters = inspect.signature(constructor).parameters
    return "key" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
