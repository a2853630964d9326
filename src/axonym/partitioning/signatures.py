"""Internal. The records of `named_jit`: compiled functions by structure of arguments, and how to rebuild results."""

import dataclasses
from typing import Any

import jax

from .flattened import Structure


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """How to rebuild a result from its arrays; it passes through jit as part of the tree structure.

    Attributes:
        tree: the structure of the result, with None for leaves that are not arrays.
        modules: for each module that the result is or has as an entry: where (None or a position), its range among the
            arrays, and its structure.
        rest: the leaves that are not arrays, in the structure of the result; None if all are arrays.
    """

    tree: Any
    modules: tuple[tuple[int | None, int, int, Structure], ...]
    rest: Any


def identify(leaf: Any) -> Any:
    """Return what else tells a static value from equal ones: its type, and the signs of its zeros.

    To Python, 1, 1.0 and True are equal, and so are 0.0 and -0.0, but their programs differ.
    """
    kind = type(leaf)
    if (kind is float and leaf == 0) or (kind is complex and 0 in (leaf.real, leaf.imag)):
        return kind, repr(leaf)
    return kind


class Signature:
    """The compiled function for one structure of the arguments and one set of static values.

    Attributes:
        compiled: a function of arrays.
        dynamic: which leaves are arrays.
        probed: the leaves that show whether the memory of an argument is gone.
        gifts: whether each leaf of the arguments is donated, until the first call has checked them; None if no leaf is
            donated.
    """

    __slots__ = ("compiled", "dynamic", "gifts", "probed")
    compiled: jax.stages.Wrapped

    def __init__(
        self, compiled: Any, dynamic: list[int], probed: list[int], gifts: list[bool] | None
    ) -> None:
        self.compiled = compiled
        self.dynamic = dynamic
        self.probed = probed
        self.gifts = gifts

    def arrays(self, leaves: list[object]) -> list[Any]:
        """Return the leaves that are arrays."""
        # As usual, all leaves are arrays, and no list is made.
        if len(self.dynamic) == len(leaves):
            return leaves
        return [leaves[i] for i in self.dynamic]


def has_hash(leaf: object) -> bool:
    """Return whether the class of a static value defines a hash; parts of the value may still lack one."""
    return getattr(leaf, "__hash__", None) is not None
