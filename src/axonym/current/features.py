"""Internal. Values that are current inside a `with` block, such as the mapping.

Each feature registers its own value, as a `Feature` in the module that it belongs to. This module does not know any of
them. All values together are one `jax.make_user_context` value, which JAX makes part of the key of every trace cache: a
function that is called under another mapping is traced again.
"""

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, TypeAlias, TypeVar

import jax

from ..errors import ShardingError
from .blocks import Blocks, Entered

V = TypeVar("V")

# The values of all features by their numbers. Defaults at the end are left out, so that a feature of a module that is
# imported later does not change the key of what was traced before.
Values: TypeAlias = tuple[Any, ...]

_features: list["Feature[Any]"] = []


class Feature(Generic[V]):
    """A kind of value that is current inside a `with` block.

    Attributes:
        default: the value outside of all blocks.
        depends_on_names: whether an operation that reads the value depends on the names of its axes.
        is_shown: whether errors about blocks in a wrong order show the value.
    """

    def __init__(
        self, default: V, *, depends_on_names: bool = False, is_shown: bool = False
    ) -> None:
        self.default = default
        self.depends_on_names = depends_on_names
        self.is_shown = is_shown
        self._number = len(_features)
        _features.append(self)

    def get(self) -> V:
        """Return the value that is current in this thread.

        Raises:
            ShardingError: if another task or generator of the thread set it; if a block was made and not entered.
        """
        return self.pick(_load())

    def pick(self, values: Values) -> V:
        """Return the value of this feature from the values of all features."""
        value: V = values[self._number] if self._number < len(values) else self.default
        return value

    def put(self, values: Values, value: V) -> Values:
        """Return the values of all features, with the value of this one replaced."""
        missing = self._number + 1 - len(values)
        defaults = (feature.default for feature in _features[len(values) : len(values) + missing])
        changed = [*values, *defaults]
        changed[self._number] = value
        # Equal values must be equal keys, however they came about.
        while changed and changed[-1] is _features[len(changed) - 1].default:
            changed.pop()
        return tuple(changed)

    def using(self, value: V) -> AbstractContextManager[None]:
        """Make a value current inside a `with` block."""
        return Block(lambda values: self.put(values, value))


def using(changes: Mapping[Feature[Any], object]) -> AbstractContextManager[None]:
    """Make values of several features current inside one `with` block."""

    def change(values: Values) -> Values:
        for feature, value in changes.items():
            values = feature.put(values, value)
        return values

    return Block(change)


# One context for all features: each one is a part of the key of every trace cache, and costs time at each call.
_values = jax.make_user_context(default_value=())


def _describe(values: Values) -> str:
    shown = [feature.pick(values) for feature in _features if feature.is_shown]
    return ", ".join(map(str, shown))


_blocks: Blocks[Values] = Blocks("axis_mapping", (), _describe)


class NamesMatter(BaseException):
    """Raised where a trace that all names share reads a value that depends on names.

    The engine catches it and traces again with the real names. It is not an Exception, so that user code does not catch
    it.
    """


class _Nameless(threading.local):
    depth = 0  # no feature, since it must not be part of the keys of JAX's caches


_nameless = _Nameless()


@contextmanager
def nameless() -> Generator[None, None, None]:
    """Trace for any names inside a `with` block: reading a value that depends on names raises NamesMatter."""
    _nameless.depth += 1
    try:
        yield
    finally:
        _nameless.depth -= 1


_unread_errors: dict[int, str] = {}


def raise_at_next_read(text: str) -> None:
    """Raise a ShardingError when this thread next reads a value.

    A finaliser notices a block that was never entered, but cannot raise the error itself.
    """
    _unread_errors[threading.get_ident()] = text


def _load() -> Values:
    # Each eager operation asks, so that the usual case must be short.
    values: Values = _values.value
    if _blocks.innermost.get().value is not values:
        _blocks.check()
    if _unread_errors and threading.get_ident() in _unread_errors:
        raise ShardingError(_unread_errors.pop(threading.get_ident()))
    if _nameless.depth and _has_names(values):
        raise NamesMatter
    return values


def _has_names(values: Values) -> bool:
    pairs = zip(_features, values, strict=False)
    return any(
        feature.depends_on_names and value is not feature.default for feature, value in pairs
    )


class Block(AbstractContextManager[None]):
    """A block in which other values are current; one object may be entered inside itself and in other threads.

    A context of JAX stores the previous value on itself, so each entry makes a new one.
    """

    def __init__(self, change: Callable[[Values], Values]) -> None:
        self._change = change
        self._entered = threading.local()

    def __enter__(self) -> None:
        changed = self._change(_load())
        entered = _blocks.enter(changed, _values(changed))
        self._entered.__dict__.setdefault("stack", []).append(entered)

    def __exit__(self, *raised: object) -> None:
        entered: Entered[Values] = self._entered.stack.pop()
        _blocks.leave(entered, *raised)
