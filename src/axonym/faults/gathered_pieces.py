"""Internal. XLA loses the rest of a split array if a piece at its start is gathered and written back.

All versions, on all platforms; `tests/upstream/test_gathered_pieces.py` shows it.
"""

from collections.abc import Callable
from typing import Any

import jax


def keep_apart(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function whose results XLA does not merge with the operation that uses them."""
    return lambda *arrays: jax.lax.optimization_barrier(fn(*arrays))
