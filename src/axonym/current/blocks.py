"""Internal. Blocks that make a value current for a thread that several asyncio tasks or generators may share.

A context of JAX belongs to a thread: a block stores the previous value when it is entered and restores it when it is
left. Tasks of a thread take turns, and generators may pause inside a block. So blocks may be left in a different order
than they were entered, and code may run inside the block of another task. Each task has its own `contextvars`, which
tell the block that the task entered last.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from ..errors import ShardingError, message

V = TypeVar("V")


class Entered(Generic[V]):
    """A block that was entered.

    Attributes:
        value: what it makes current.
        inner: the context of JAX that does so; None where nothing was entered.
        thread: the thread that entered it.
        before: the block around it.
        left: whether it was left; it may then still be below one that was not.
    """

    __slots__ = ("before", "inner", "left", "thread", "value")

    def __init__(
        self, value: V, inner: AbstractContextManager[object] | None, before: "Entered[V] | None"
    ) -> None:
        self.value = value
        self.inner = inner
        self.thread = threading.get_ident()
        self.before = before
        self.left = False


class Blocks(Generic[V]):
    """All blocks of one kind.

    Attributes:
        innermost: the block that the running task has entered last.
    """

    def __init__(self, function: str, nothing: V, describe: Callable[[V], str]) -> None:
        self._function = function
        self._describe = describe
        self._root = Entered(nothing, None, None)
        self._local = threading.local()
        self.innermost: ContextVar[Entered[V]] = ContextVar(function, default=self._root)

    def enter(self, value: V, inner: AbstractContextManager[object]) -> Entered[V]:
        """Enter a block.

        Raises:
            ShardingError: inside of a block of another task.
        """
        before = self.check()
        inner.__enter__()
        entered = Entered(value, inner, before)
        self._stack().append(entered)
        self.innermost.set(entered)
        return entered

    def leave(self, entered: Entered[V], *raised: Any) -> None:
        """Leave a block; exit JAX's context once all blocks that were entered later have been left.

        Raises:
            ShardingError: if there is such a block, unless an error ends this one.
        """
        entered.left = True
        if self.innermost.get() is entered:
            # Blocks around it may have been left first, by another task or generator.
            outer = entered
            while outer.left and outer.before is not None:
                outer = outer.before
            self.innermost.set(outer)
        stack = self._stack()
        if stack and stack[-1] is entered:
            stack.pop()
            assert entered.inner is not None
            entered.inner.__exit__(*raised or (None, None, None))
            self._tidy()
        elif not any(raised):  # an error that ends the block must not be hidden
            problem = (
                "a block was left while one that was entered later in the same thread is still open"
            )
            here, there = self._describe(entered.value), self._describe(self._top().value)
            raise ShardingError(
                message(self._function, problem, f"left: {here}", f"open: {there}", hint=_HINT)
            )

    def check(self) -> Entered[V]:
        """Return the innermost block.

        Raises:
            ShardingError: if it is that of another task or generator of the thread.
        """
        self._tidy()
        seen, top = self.innermost.get(), self._top()
        # `asyncio.to_thread` copies the variables of a task to a thread in which it has entered nothing.
        known = seen if seen.thread == threading.get_ident() else self._root
        if known is not top:
            problem = "another task or generator of this thread has changed what is current"
            here, there = self._describe(known.value), self._describe(top.value)
            raise ShardingError(
                message(self._function, problem, f"here: {here}", f"current: {there}", hint=_HINT)
            )
        return top

    def _stack(self) -> list[Entered[V]]:
        stack: list[Entered[V]] = self._local.__dict__.setdefault("stack", [])
        return stack

    def _top(self) -> Entered[V]:
        stack = self._stack()
        return stack[-1] if stack else self._root

    def _tidy(self) -> None:
        """Exit JAX's contexts of blocks that were left out of order, now that all inner blocks have ended."""
        stack = self._stack()
        while stack and stack[-1].left:
            inner = stack.pop().inner
            assert inner is not None
            inner.__exit__(None, None, None)


_HINT = (
    "leave the block before `await` or `yield`, or run it in a thread of its own: asyncio.to_thread"
)
