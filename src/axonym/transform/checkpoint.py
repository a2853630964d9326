"""Gradient checkpointing: which intermediate results are kept for the backward pass, and which are computed again."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name

from ..errors import AxisSizeError, OperandError, message, suggestion

__all__ = ["ScanCheckpointPolicy", "ScanCheckpointSpec", "tree_checkpoint_name"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
CARRY = "scan_carry"


@dataclasses.dataclass(frozen=True)
class ScanCheckpointPolicy:
    """Say what a scan over layers keeps for its backward pass.

    By default, only what goes from one step to the next (the carry) is kept, and everything inside of a step is
    computed again.

    Attributes:
        disable: keep everything, as without checkpointing.
        save_block_internals: what to keep of the inside of a step: False nothing, True the results of contractions
            without batch axes, a list the values that `tree_checkpoint_name` gave these names.
        offload_block_internals: names of values to keep in the host's memory.
        save_carries: True keeps carries on the device, "offload" in the host's memory.
        nested: cut the steps into groups and keep only the carries between groups, so that memory grows with the root
            of the number of steps: True chooses the groups, an int is their number, which must divide the steps.
        prevent_cse: keep the compiler from merging the second computation with the first. A compiled loop does not need
            it; a loop that is written out has it always.

    Reference:
        Chen et al. (2016), Training deep nets with sublinear memory cost.
    """

    disable: bool = False
    save_block_internals: bool | Sequence[str] = False
    offload_block_internals: Sequence[str] = ()
    save_carries: bool | Literal["offload"] = True
    nested: bool | int = False
    prevent_cse: bool = False

    def __post_init__(self) -> None:
        if self.save_block_internals is True and self.offload_block_internals:
            problem = "save_block_internals=True keeps everything on the device, so that nothing is left to offload"
            raise OperandError(message("ScanCheckpointPolicy", problem, hint="name what to save: [...]"))
        for field in ("save_block_internals", "offload_block_internals"):
            value = getattr(self, field)
            if isinstance(value, str):
                problem = f"{field} is a list of names, not the str {value!r}"
                raise OperandError(message("ScanCheckpointPolicy", problem, hint=f"write [{value!r}]"))
            if not isinstance(value, bool):
                object.__setattr__(self, field, tuple(value))  # hashable: a policy is a static part of a module
        if self.save_carries not in (True, False, "offload"):
            problem = f"save_carries is a bool or 'offload', not {self.save_carries!r}"
            raise OperandError(message("ScanCheckpointPolicy", problem))

    @staticmethod
    def make(spec: "ScanCheckpointSpec") -> "ScanCheckpointPolicy":
        """Make a policy of its short form.

        Args:
            spec: False or "save_all" (keep everything), True, "full" or "recompute" (keep carries only), "nested",
                "offload" (keep carries in the host's memory), or a policy.

        Raises:
            OperandError: for anything else.
        """
        if isinstance(spec, ScanCheckpointPolicy):
            return spec
        if isinstance(spec, bool | str) and spec in _SHORT:
            return _SHORT[spec]
        known = ", ".join(map(repr, _SHORT))
        problem = f"{spec!r} is no checkpoint policy"
        near = (
            suggestion(spec, [short for short in _SHORT if isinstance(short, str)]) if isinstance(spec, str) else None
        )
        raise OperandError(message("ScanCheckpointPolicy", problem, f"short forms: {known}", hint=near))

    def wrap(self, step: Callable[P, R], *, unrolled: bool = False) -> Callable[P, R]:
        """Make one step keep for its backward pass what the policy says."""
        if self.disable:
            return step
        return jax.checkpoint(step, policy=self._jax_policy(), prevent_cse=self.prevent_cse or unrolled)

    def mark_carry(self, carry: T) -> T:
        """Name the carry inside of a step, where the policy speaks of it."""
        return tree_checkpoint_name(carry, CARRY) if self.save_carries == "offload" else carry

    def groups(self, steps: int) -> int:
        """Return into how many groups to cut the steps; 1 if not at all.

        Raises:
            AxisSizeError: if the number that was given does not divide the steps.
        """
        if self.disable or self.nested is False or steps == 0:
            return 1
        if self.nested is True:
            return max(n for n in range(1, math.isqrt(steps) + 1) if steps % n == 0)
        if self.nested < 1 or steps % self.nested:
            problem = f"{steps} steps cannot be cut into {self.nested} equal groups"
            raise AxisSizeError(message("ScanCheckpointPolicy", problem, hint="nested=True chooses a number"))
        return self.nested

    def _jax_policy(self) -> Any:
        policies = jax.checkpoint_policies
        if self.save_block_internals is True:
            return _saving_dots if self.save_carries == "offload" else policies.dots_with_no_batch_dims_saveable
        saved = list(self.save_block_internals or ())
        offloaded = [*self.offload_block_internals, *([CARRY] if self.save_carries == "offload" else [])]
        if offloaded:
            return _offloading(saved, offloaded)
        return policies.save_only_these_names(*saved) if saved else None


def _offloading(saved: list[str], offloaded: list[str]) -> Any:
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=saved,
        names_which_can_be_offloaded=offloaded,
        offload_src="device",
        offload_dst="pinned_host",
    )


def _saving_dots(*args: Any, **params: Any) -> Any:
    """Save contractions without batch axes on the device, and offload carries."""
    saved = jax.checkpoint_policies.dots_with_no_batch_dims_saveable(*args, **params)
    return saved or _offloading([], [CARRY])(*args, **params)


ScanCheckpointSpec: TypeAlias = (
    ScanCheckpointPolicy | bool | Literal["save_all", "full", "recompute", "nested", "offload"]
)

_SHORT: dict[bool | str, ScanCheckpointPolicy] = {
    False: ScanCheckpointPolicy(disable=True),
    True: ScanCheckpointPolicy(),
    "save_all": ScanCheckpointPolicy(disable=True),
    "full": ScanCheckpointPolicy(),
    "recompute": ScanCheckpointPolicy(),
    "nested": ScanCheckpointPolicy(nested=True),
    "offload": ScanCheckpointPolicy(save_carries="offload"),
}


def tree_checkpoint_name(tree: T, name: str) -> T:
    """Give the arrays of a tree a name that a checkpoint policy can speak of."""
    named: T = jax.tree.map(lambda leaf: checkpoint_name(leaf, name) if isinstance(leaf, jax.Array) else leaf, tree)
    return named
