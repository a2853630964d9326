"""Haliax's policies for what a loop saves for its backward pass."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

import equinox as eqx
import jax

import axonym
from axonym.errors import ArgumentError, message, suggestion

from ._adapt import adapted

__all__ = ["ScanCheckpointPolicy", "ScanCheckpointSpec", "policy_of", "tree_checkpoint_name"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
CARRY = "carry of a loop"
INPUTS = "inputs of a loop"
Where: TypeAlias = bool | Literal["offload"]


class ScanCheckpointPolicy(axonym.ScanCheckpointPolicy):
    """The arrays that a loop saves for its backward pass.

    The fields are in another order than in `axonym`, and unknown names do not warn.
    """

    def __init__(
        self,
        save_carries: Where = True,
        save_inputs: Where = False,
        save_block_internals: bool | Sequence[str] = False,
        offload_block_internals: Sequence[str] = (),
        prevent_cse: bool = False,
        disable: bool = False,
        simple: bool = False,
        nested: bool | int = False,
        alternating: Sequence[
            Any
        ] = (),  # Haliax has none, and `dataclasses.replace` passes all fields
    ) -> None:
        adapted(super().__init__)(
            disable,
            save_block_internals,
            offload_block_internals,
            save_carries,
            save_inputs,
            nested,
            prevent_cse,
            simple,
            alternating,
        )

    @staticmethod
    def from_bool_or_str(remat_policy: bool | str) -> "ScanCheckpointPolicy":
        """Make a policy from its short form.

        Raises:
            ArgumentError: if the form is unknown.
        """
        if remat_policy in _SHORT:
            return _SHORT[remat_policy]
        problem = f"{remat_policy!r} is not a checkpoint policy"
        known = [short for short in _SHORT if isinstance(short, str)]
        facts, hint = (
            f"short forms: True, False, {', '.join(known)}",
            suggestion(str(remat_policy), known),
        )
        raise ArgumentError(message("ScanCheckpointPolicy", problem, facts, hint=hint))

    @property
    def names(self) -> tuple[str, ...]:
        """The names that a loop warns about if no value has them: this policy has no such names."""
        return ()

    def checkpoint(
        self, carry_name: str, input_name: str, callable: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Apply the policy to one step of a loop, with these names for its carry and its inputs."""
        if self.disable:
            return callable
        return eqx.filter_checkpoint(
            callable,
            policy=self._named_policy(carry_name, input_name),
            prevent_cse=self.prevent_cse,
        )

    def wrap(self, step: Callable[P, R], *, unrolled: bool = False) -> Callable[P, R]:
        """Apply the policy to one step, or to a group of steps; only the carries between groups are kept."""
        if self.disable:
            return step
        policy = self._named_policy(CARRY, INPUTS) if self.nested is False else None
        return jax.checkpoint(step, policy=policy, prevent_cse=self.prevent_cse or unrolled)

    def mark(self, carry: T, inputs: R) -> tuple[T, R]:
        """Name the carry and the arguments inside a step, whether they are kept or recomputed."""
        if self.disable or self.simple:
            return carry, inputs
        return tree_checkpoint_name(carry, CARRY), tree_checkpoint_name(inputs, INPUTS)

    def _named_policy(self, carry: str, inputs: str) -> Any:
        if self.simple:
            return None
        policies = jax.checkpoint_policies
        loop = ((self.save_carries, carry), (self.save_inputs, inputs))
        if self.save_block_internals is True:
            if any(where == "offload" for where, _ in loop):
                problem = "save_block_internals=True keeps everything on the device, so that nothing is left to offload"
                raise ArgumentError(
                    message("ScanCheckpointPolicy", problem, hint="name what to save: [...]")
                )
            return policies.save_anything_except_these_names(
                *(name for where, name in loop if not where)
            )
        named = self.save_block_internals or ()
        saved = [*named, *(name for where, name in loop if where is True)]
        offloaded = [
            *self.offload_block_internals,
            *(name for where, name in loop if where == "offload"),
        ]
        if not offloaded:
            return policies.save_only_these_names(*saved)
        return policies.save_and_offload_only_these_names(
            names_which_can_be_saved=saved,
            names_which_can_be_offloaded=offloaded,
            offload_src="device",
            offload_dst="pinned_host",
        )


_OneSpec: TypeAlias = (
    axonym.ScanCheckpointPolicy
    | bool
    | Literal["offload", "recompute", "full", "save_all", "nested"]
)
ScanCheckpointSpec: TypeAlias = _OneSpec | Sequence[_OneSpec]

_SHORT: dict[bool | str, ScanCheckpointPolicy] = {
    True: ScanCheckpointPolicy(simple=True),
    False: ScanCheckpointPolicy(disable=True),
    "offload": ScanCheckpointPolicy(save_carries="offload", save_inputs="offload"),
    "recompute": ScanCheckpointPolicy(save_carries=False),
    "full": ScanCheckpointPolicy(save_carries=False),
    "save_all": ScanCheckpointPolicy(save_inputs=True, save_block_internals=True),
    "nested": ScanCheckpointPolicy(nested=True),
}


def policy_of(spec: ScanCheckpointSpec) -> axonym.ScanCheckpointPolicy:
    """Make a policy from a value of `remat` or `gradient_checkpointing`."""
    if isinstance(spec, axonym.ScanCheckpointPolicy):
        return spec
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        return axonym.ScanCheckpointPolicy(alternating=list(map(policy_of, spec)))
    return ScanCheckpointPolicy.from_bool_or_str(spec)


def tree_checkpoint_name(x: T, name: str) -> T:
    """Give the arrays of a tree a name for use in a policy."""
    return axonym.tree_checkpoint_name(x, name)
