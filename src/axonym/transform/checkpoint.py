"""Gradient checkpointing: which intermediates are kept for the backward pass, and which are recomputed.

A loop over layers keeps the activations of each layer until its gradient is computed. A policy trades this memory for
time: it keeps the carries between steps, named values, or groups of steps, and computes the rest again.
"""

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
# Names of our own for carries and arguments, beside those that users give.
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
            anyway, so False and True need no copy; "offload" copies the arguments of each step to host memory.
        nested: split the steps into groups and keep only the carries between groups, so that memory grows with the
            square root of the number of steps: True chooses the groups, an int is their number, which must divide the
            steps.
        prevent_cse: prevent the compiler from merging the recomputation with the first computation. A compiled loop
            does not need it; an unrolled loop always has it.
        simple: keep only the carries, whatever the other fields say, except `disable` and `nested`.
        alternating: policies or their short forms that steps use alternately, instead of the other fields. Their number
            must divide the steps. A compiled loop has as many steps in one iteration.

    Raises:
        OperandError: if fields contradict each other, or have another type.

    Reference:
        Chen et al. (2016), Training deep nets with sublinear memory cost.

    Examples:
        >>> policy = axn.ScanCheckpointPolicy(save_block_internals=["attention"], nested=True)
        >>> step = lambda carry, x: (carry + axn.tree_checkpoint_name(x * x, "attention"), None)
        >>> X = axn.Axis("x", 4)
        >>> loss = lambda x: axn.scan(step, X, remat=policy)(axn.zeros(()), x)[0]
        >>> axn.grad(loss)(axn.ones(X)).tolist()
        [2.0, 2.0, 2.0, 2.0]
    """

    disable: bool = False
    save_block_internals: bool | Sequence[str] = False
    offload_block_internals: Sequence[str] = ()
    save_carries: bool | Literal["offload"] = True
    save_inputs: bool | Literal["offload"] = False
    nested: bool | int = False
    prevent_cse: bool = False
    simple: bool = False
    alternating: "Sequence[ScanCheckpointSpec]" = ()

    def __post_init__(self) -> None:
        turns = tuple(map(ScanCheckpointPolicy.make, self.alternating))
        object.__setattr__(self, "alternating", turns)
        for turn in turns:
            if turn.nested or turn.alternating:
                problem = "policies that alternate are for single steps, and have no groups"
                hint = "leave `nested` out of them, and list them flat"
                raise OperandError(message("ScanCheckpointPolicy", problem, hint=hint))
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
                # A policy is a static part of a module, and so must be hashable.
                object.__setattr__(self, field, tuple(value))
        for field in ("save_carries", "save_inputs"):
            if getattr(self, field) not in (True, False, "offload"):
                problem = f"{field} must be a bool or 'offload', not {getattr(self, field)!r}"
                raise OperandError(message("ScanCheckpointPolicy", problem))

    def __repr__(self) -> str:
        """Return the fields that differ from their defaults."""
        fields = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        changed = [f"{own.name}={value!r}" for own, value in fields if value != own.default]
        return f"{type(self).__name__}({', '.join(changed)})"

    @staticmethod
    def make(spec: "ScanCheckpointSpec") -> "ScanCheckpointPolicy":
        """Make a policy from its short form.

        Args:
            spec: False or "save_all" (keep everything), True, "full" or "recompute" (keep carries only), "nested",
                "offload" (keep carries in host memory), a policy, or a list of these, which steps use in turn.

        Returns:
            The policy; one that was passed comes back as it is.

        Raises:
            OperandError: for anything else.

        Examples:
            >>> axn.ScanCheckpointPolicy.make("offload").save_carries
            'offload'
            >>> [policy.disable for policy in axn.ScanCheckpointPolicy.make([True, False]).turns]
            [False, True]
        """
        if isinstance(spec, ScanCheckpointPolicy):
            return spec
        if isinstance(spec, list | tuple) and spec:
            return ScanCheckpointPolicy(alternating=spec)
        # Other objects may have no hash, and 1 is equal to True.
        if isinstance(spec, bool | str) and spec in _SHORT:
            return _SHORT[spec]
        known = ", ".join(map(repr, _SHORT))
        problem = f"{spec!r} is not a checkpoint policy"
        shorts = [short for short in _SHORT if isinstance(short, str)]
        near = suggestion(spec, shorts) if isinstance(spec, str) else None
        facts = f"short forms: {known}"
        raise OperandError(message("ScanCheckpointPolicy", problem, facts, hint=near))

    @staticmethod
    def from_bool_or_str(remat_policy: bool | str) -> "ScanCheckpointPolicy":
        """Make a policy from its short form, as `make` does; this is its name in Haliax.

        Examples:
            >>> axn.ScanCheckpointPolicy.from_bool_or_str(False).disable
            True
        """
        spec: Any = remat_policy
        return ScanCheckpointPolicy.make(spec)

    @property
    def turns(self) -> "tuple[ScanCheckpointPolicy, ...]":
        """The policies that steps use in turn; the policy itself if it does not alternate.

        Examples:
            >>> len(axn.ScanCheckpointPolicy(alternating=["full", "full", "save_all"]).turns)
            3
        """
        return tuple(map(ScanCheckpointPolicy.make, self.alternating)) or (self,)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of values inside a step that the policy lists, to save and then to offload.

        Examples:
            >>> axn.ScanCheckpointPolicy(save_block_internals=["a"], offload_block_internals=["b"]).names
            ('a', 'b')
        """
        if self.alternating:
            return tuple(dict.fromkeys(name for turn in self.turns for name in turn.names))
        if self.disable or self.simple:
            return ()
        return (*self._saveable, *self.offload_block_internals)

    def wrap(self, step: Callable[P, R], *, unrolled: bool = False) -> Callable[P, R]:
        """Apply the policy to one step.

        Args:
            step: a function of arrays.
            unrolled: whether the step is outside of a compiled loop: the compiler could then merge the recomputation
                with the first computation, and keep everything after all.

        Returns:
            A function with the same values and gradients.

        Raises:
            OperandError: if policies alternate.

        Examples:
            >>> float(jax.grad(axn.ScanCheckpointPolicy().wrap(jnp.sin))(0.0))
            1.0
        """
        if self.alternating:
            problem = "policies that alternate are for a loop, not for one step"
            hint = "wrap each step by one of `turns`"
            raise OperandError(message("ScanCheckpointPolicy.wrap", problem, hint=hint))
        if self.disable:
            return step
        return jax.checkpoint(
            step, policy=self._jax_policy(), prevent_cse=self.prevent_cse or unrolled
        )

    def inside(self) -> "ScanCheckpointPolicy":
        """Return the policy of a loop inside a function with the policy of `around`.

        Examples:
            >>> policy = axn.ScanCheckpointPolicy()
            >>> policy.inside().nested == policy.nested
            True
        """
        if self.alternating:
            inside = [turn.inside() for turn in self.turns]
            return dataclasses.replace(self, alternating=inside)
        return _Inside(**vars(self))

    def around(self) -> "ScanCheckpointPolicy":
        """Return the policy of a function around a loop: it keeps the same values, so that nothing runs three times.

        Examples:
            >>> axn.ScanCheckpointPolicy(disable=True).around().disable
            False
        """
        if self.disable:
            return ScanCheckpointPolicy()
        if self.alternating:
            # All carries are kept in one place, since they have one name.
            is_offloaded = any(CARRY in turn._offloadable for turn in self.turns)
            return _SHORT["offload" if is_offloaded else "full"].inside()
        return self.inside()

    def mark(self, carry: T, inputs: R) -> tuple[T, R]:
        """Name the carry and the arguments inside a step, if the policy offloads them.

        Examples:
            >>> axn.ScanCheckpointPolicy().mark(1, 2)
            (1, 2)
        """
        if CARRY in self._offloadable:
            carry = tree_checkpoint_name(carry, CARRY)
        if INPUTS in self._offloadable:
            inputs = tree_checkpoint_name(inputs, INPUTS)
        return carry, inputs

    def groups(self, steps: int) -> int:
        """Return the number of groups of steps; 1 without groups.

        Args:
            steps: the number of steps.

        Raises:
            AxisSizeError: if the given number of groups, or the number of alternating policies, does not divide the
                steps.

        Examples:
            >>> axn.ScanCheckpointPolicy(nested=True).groups(12)
            3
        """
        if self.alternating and steps % len(self.alternating):
            problem = f"{steps} steps cannot have {len(self.alternating)} policies in turn"
            hint = "list as many policies as divide the steps"
            raise AxisSizeError(message("ScanCheckpointPolicy", problem, hint=hint))
        if self.disable or self.nested is False or steps == 0:
            return 1
        if self.nested is True:
            # Memory is that of the groups and of the steps in one group: least near the square root.
            return max(n for n in range(1, math.isqrt(steps) + 1) if steps % n == 0)
        if self.nested < 1 or steps % self.nested:
            problem = f"{steps} steps cannot be split into {self.nested} equal groups"
            raise AxisSizeError(
                message("ScanCheckpointPolicy", problem, hint="nested=True chooses a number")
            )
        return self.nested

    @property
    def _saveable(self) -> Sequence[str]:
        return () if isinstance(self.save_block_internals, bool) else self.save_block_internals

    @property
    def _offloadable(self) -> list[str]:
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
        named = policies.save_only_these_names(*self._saveable) if self._saveable else None
        if self._offloadable:
            # It replaces the policy above, so it lists the names to save as well.
            named = policies.save_and_offload_only_these_names(
                names_which_can_be_saved=list(self._saveable),
                names_which_can_be_offloaded=self._offloadable,
                offload_src="device",
                offload_dst="pinned_host",
            )
        if self.save_block_internals is not True:
            return named
        if named is None:
            return dots
        # JAX joins no policies: a value is kept if one of the two says so.
        by_name = named
        return lambda *args, **params: dots(*args, **params) or by_name(*args, **params)


class _Inside(ScanCheckpointPolicy):
    """Name the carries of a loop, so that a function around it can keep them too.

    The checkpoint around the loop would otherwise drop the carries that the loop has kept, and run it twice.
    """

    def mark(self, carry: T, inputs: R) -> tuple[T, R]:
        carry, inputs = super().mark(carry, inputs)
        if CARRY not in self._offloadable:
            carry = tree_checkpoint_name(carry, CARRY)
        return carry, inputs

    def _jax_policy(self) -> Any:
        # Carries that are offloaded must not be kept on the device too.
        kept, more = jax.checkpoint_policies.save_only_these_names(CARRY), super()._jax_policy()
        if more is None or CARRY in self._offloadable:
            return more or kept
        return lambda *args, **params: kept(*args, **params) or more(*args, **params)


_OneSpec: TypeAlias = (
    ScanCheckpointPolicy | bool | Literal["save_all", "full", "recompute", "nested", "offload"]
)
ScanCheckpointSpec: TypeAlias = _OneSpec | Sequence[_OneSpec]

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
    """Give the arrays of a tree a name that a checkpoint policy can list.

    `jax.ad_checkpoint.checkpoint_name` does so for one plain array.

    Args:
        tree: named or plain arrays; other leaves stay as they are.
        name: the name for `save_block_internals` or `offload_block_internals`.

    Returns:
        The same tree, with the same values.

    Examples:
        >>> axn.tree_checkpoint_name(axn.ones({"embed": 2}), "hidden").tolist()
        [1.0, 1.0]
    """

    def name_leaf(leaf: object) -> object:
        return checkpoint_name(leaf, name) if isinstance(leaf, jax.Array) else leaf

    named: T = jax.tree.map(name_leaf, tree)
    return named
