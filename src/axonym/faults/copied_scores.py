"""Internal. XLA copies all scores in the backward pass if an axis of size 1 follows the positions.

XLA for CPUs does so up to at least jax 0.10.2; the reproducer is `tests/upstream/test_copied_scores.py`. Grouped heads
have such an axis if no heads share keys.
"""

from collections.abc import Container, Mapping


def find_single_axes(sizes: Mapping[str, int], known: Container[str]) -> tuple[str, ...]:
    """Return the axes of one element that only queries have; scores are computed without them.

    Args:
        sizes: the axes of the queries.
        known: the axes of keys and values, and that of the positions.
    """
    return tuple(name for name, size in sizes.items() if size == 1 and name not in known)
