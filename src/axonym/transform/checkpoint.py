"""Gradient checkpointing: which intermediates are kept for the backward pass, and which are recomputed."""

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
CARRY, INPUTS = "scan_carry", "scan_inputs"


@dataclasses.dataclass(frozen=True)
class ScanCheckpointPolicy:
    """What a scan over layers keeps for its backward pass.

    By default, only the carries between steps are kept, and everything inside a step is recomputed.

    Attributes:
        disable: keep everything, as without checkpointing.
        save_block_internals: what to keep inside a step: False for nothing, True for the results of contractions
            without batch axes, a list for values of these names, given by `tree_checkpoint_name`.
        offload_block_internals: names of values to offload to host memory.
        save_carries: True keeps carries on the device, "offload" in host memory. False is the same as True, since
            something has to be kept.
        save_inputs: what to keep of the arguments of a step, such as the parameters of its layer. The loop holds them
            anyway, so False and True need no copy; "offload" copies those of each step to host memory.
        nested: split the steps into groups and keep only the carries between groups, so that memory grows with the
            square root of the number of steps: True chooses the groups, an int is their number, which must divide the
            steps.
        prevent_cse: prevent the compiler from merging the recomputation with the first computation. A compiled loop
            does not need it; an unrolled loop always has it.
        simple: keep only the carries, whatever the other fields say, except `disable` and `nested`.

    Reference:
        Chen et al. (2016), Training deep nets with sublinear memory cost.
    """

    disable: bool = False
    save_block_internals: bool | Sequence[str] = False
    offload_block_internals: Sequence[str] = ()
    save_carries: bool | Literal["offload"] = True
    save_inputs: bool | Literal["offload"] = False
    nested: bool | int = False
    prevent_cse: bool = False
    simple: bool = False

    def __post_init__(self) -> None:
        if self.save_block_internals is True and self.offload_block_internals:
            problem = "save_block_internals=True keeps everything on the device, so that nothing is left to offload"
            raise OperandError(
                message("ScanCheckpointPolicy", problem, hint="name what to save: [...]")
            )
        for field in ("save_block_internals", "offload_block_internals"):
            value = getattr(self, field)
            if isinstance(value, str):
                problem = f"{field} must be a list of names, not the str {value!r}"
                raise OperandError(
                    message("ScanCheckpointPolicy", problem, hint=f"write [{value!r}]")
                )
            if not isinstance(value, bool):
                object.__setattr__(
                    self, field, tuple(value)
                )  # hashable: a policy is a static part of a module
        for field in ("save_carries", "save_inputs"):
            if getattr(self, field) not in (True, False, "offload"):
                problem = f"{field} must be a bool or 'offload', not {getattr(self, field)!r}"
                raise OperandError(message("ScanCheckpointPolicy", problem))

    @staticmethod
    def make(spec: "ScanCheckpointSpec") -> "ScanCheckpointPolicy":
        """Make a policy from its short form.

        Args:
            spec: False or "save_all" (keep everything), True, "full" or "recompute" (keep carries only), "nested",
                "offload" (keep carries in host memory), or a policy.

        Raises:
            OperandError: for anything else.
        """
        if isinstance(spec, ScanCheckpointPolicy):
            return spec
        if isinstance(spec, bool | str) and spec in _SHORT:
            return _SHORT[spec]
        known = ", ".join(map(repr, _SHORT))
        problem = f"{spec!r} is not a checkpoint policy"
        near = None
        if isinstance(spec, str):
            near = suggestion(spec, [short for short in _SHORT if isinstance(short, str)])
        facts = f"short forms: {known}"
        raise OperandError(message("ScanCheckpointPolicy", problem, facts, hint=near))

    @staticmethod
    def from_bool_or_str(remat_policy: bool | str) -> "ScanCheckpointPolicy":
        """Make a policy from its short form; see `make`."""
        spec: Any = remat_policy
        return ScanCheckpointPolicy.make(spec)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of values inside a step that the policy lists."""
        if self.disable or self.simple:
            return ()
        return (*self._saved, *self.offload_block_internals)

    def wrap(self, step: Callable[P, R], *, unrolled: bool = False) -> Callable[P, R]:
        """Apply the policy to one step."""
        if self.disable:
            return step
        return jax.checkpoint(
            step, policy=self._jax_policy(), prevent_cse=self.prevent_cse or unrolled
        )

    def inside(self) -> "ScanCheckpointPolicy":
        """Return the policy of a loop in a function that `around` wraps."""
        return _Inside(**vars(self))

    def around(self) -> "ScanCheckpointPolicy":
        """Return the policy of a function around a loop: it keeps what the loop keeps, and nothing runs thrice."""
        if self.disable:
            return ScanCheckpointPolicy()
        return self.inside()

    def mark(self, carry: T, inputs: R) -> tuple[T, R]:
        """Name the carry and the arguments inside a step, if the policy needs it."""
        if CARRY in self._offloaded:
            carry = tree_checkpoint_name(carry, CARRY)
        if INPUTS in self._offloaded:
            inputs = tree_checkpoint_name(inputs, INPUTS)
        return carry, inputs

    def groups(self, steps: int) -> int:
        """Return the number of groups of steps; 1 without groups.

        Raises:
            AxisSizeError: if the given number does not divide the steps.
        """
        if self.disable or self.nested is False or steps == 0:
            return 1
        if self.nested is True:
            return max(n for n in range(1, math.isqrt(steps) + 1) if steps % n == 0)
        if self.nested < 1 or steps % self.nested:
            problem = f"{steps} steps cannot be split into {self.nested} equal groups"
            raise AxisSizeError(
                message("ScanCheckpointPolicy", problem, hint="nested=True chooses a number")
            )
        return self.nested

    @property
    def _saved(self) -> Sequence[str]:
        if isinstance(self.save_block_internals, bool):
            return ()
        return self.save_block_internals

    @property
    def _offloaded(self) -> list[str]:
        if self.disable or self.simple:
            return []
        offloaded = list(self.offload_block_internals)
        if self.save_carries == "offload":
            offloaded.append(CARRY)
        if self.save_inputs == "offload":
            offloaded.append(INPUTS)
        return offloaded

    def _jax_policy(self) -> Any:
        if self.simple:
            return None
        policies = jax.checkpoint_policies
        dots = policies.dots_with_no_batch_dims_saveable
        named = None
        if self._saved:
            named = policies.save_only_these_names(*self._saved)
        if self._offloaded:
            named = policies.save_and_offload_only_these_names(
                names_which_can_be_saved=list(self._saved),
                names_which_can_be_offloaded=self._offloaded,
                offload_src="device",
                offload_dst="pinned_host",
            )
        if self.save_block_internals is not True:
            return named
        if named is None:
            return dots
        by_name = named
        return lambda *args, **params: dots(*args, **params) or by_name(*args, **params)


class _Inside(ScanCheckpointPolicy):
    """Name the carries of a loop, so that a function around it can keep them too."""

    def mark(self, carry: T, inputs: R) -> tuple[T, R]:
        carry, inputs = super().mark(carry, inputs)
        if CARRY not in self._offloaded:
            carry = tree_checkpoint_name(carry, CARRY)
        return carry, inputs

    def _jax_policy(self) -> Any:
        kept, more = jax.checkpoint_policies.save_only_these_names(CARRY), super()._jax_policy()
        if more is None or CARRY in self._offloaded:
            return more or kept
        return lambda *args, **params: kept(*args, **params) or more(*args, **params)


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
    """Give the arrays of a tree a name that a checkpoint policy can list."""

    def with_name(leaf: object) -> object:
        if isinstance(leaf, jax.Array):
            return checkpoint_name(leaf, name)
        return leaf

    named: T = jax.tree.map(with_name, tree)
    return named
