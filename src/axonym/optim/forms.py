"""Internal. How a transformation sees a parameter: as matrices, vectors, or arrays without their stacks."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from .. import parameters
from ..array import NamedArray
from ..base.kinds import Payload, Tree
from ..engine.core import payload_of, wrap
from ..engine.operands import own_names
from ..errors import ArgumentError, describe, message
from ..names.plans import Names
from ..nn.roles import INPUTS, STACKS, Dimension, Overrides, Part
from ..parameters import Parameter


@dataclasses.dataclass(frozen=True)
class Form:
    """How a transformation sees a parameter: an array for each position of its stacks.

    Attributes:
        part: the names of that array, with the parameter and its number.
        names: the names of the parameter, or None if it is a plain array.
        order: the dimensions of the parameter, those of stacks first.
        sizes: their sizes, in this order.
        stacks: those that are stacks.
        shape: the shape of the array.
        stored: the shape of the parameter, with padding, which transformations do not see.
    """

    part: Part
    names: Names | None
    order: tuple[int, ...]
    sizes: tuple[int, ...]
    stacks: tuple[Dimension, ...]
    shape: tuple[int, ...]
    stored: tuple[int, ...]

    def split(self, array: jax.Array) -> jax.Array:
        """Return the parameter with its stacks first, then the dimensions that the transformation sees."""
        shape = (*self.sizes[: len(self.stacks)], *self.shape)
        real = jnp.transpose(array, self.order)[tuple(map(slice, self.sizes))]
        return jnp.reshape(real, shape)

    def join(self, parted: jax.Array) -> jax.Array:
        """Undo `split`."""
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        real = jnp.transpose(jnp.reshape(parted, self.sizes), back)
        more = [(0, whole - size) for whole, size in zip(self.stored, real.shape, strict=True)]
        return jnp.pad(real, more)

    @property
    def trailing(self) -> Names:
        """The names of a state array of another shape, whose stacks are last; no names, if a stack has none."""
        names = tuple(at for at in self.stacks if isinstance(at, str))
        return names if self.names is not None and len(names) == len(self.stacks) else ()

    def put_last(self, array: jax.Array, back: bool = False) -> jax.Array:
        """Move named stacks from the front to the end, or back: names belong to the last dimensions."""
        count = len(self.trailing)
        ends = tuple(range(count)), tuple(range(-count, 0))
        return jnp.moveaxis(array, *(reversed(ends) if back else ends))

    def add_names(self, value: Payload, is_whole: bool) -> Payload:
        """Name an array of the state that belongs to this parameter, if the parameter has names."""
        if self.names is None:
            return value
        return wrap_unchecked(self.names if is_whole else self.trailing, value)


def make_form(parameter: Parameter, number: int, groups: Sequence[Sequence[Dimension]]) -> Form:
    """Make a form from the stacks, and the axes that become one dimension each."""
    names, every = own_names(parameter.array), list_dimensions(parameter)
    stored = tuple(payload_of(parameter.array).shape)
    sizes: dict[Dimension, int] = dict(zip(every, stored, strict=True))
    sizes.update(parameter.sizes)
    order = [at for group in groups for at in group]
    is_named = isinstance(parameter.array, NamedArray)
    merged = [" ".join(map(str, group)) or "1" for group in groups[1:]]
    return Form(
        part=Part.of(tuple(merged) if is_named else (), parameter, number),
        names=names if is_named else None,
        order=tuple(map(every.index, order)),
        sizes=tuple(sizes[at] for at in order),
        stacks=tuple(groups[0]),
        shape=tuple(math.prod(sizes[at] for at in group) for group in groups[1:]),
        stored=stored,
    )


def list_dimensions(parameter: Parameter) -> list[Dimension]:
    """Return the dimensions of a parameter in storage order."""
    names, ndim = own_names(parameter.array), len(payload_of(parameter.array).shape)
    return [*range(ndim - len(names)), *names]


def find_matrix_axes(
    function: str, parameter: Parameter, *, per_head: bool, per_expert: bool
) -> tuple[list[Dimension], list[Dimension], list[Dimension]]:
    """Return the axes of a parameter that are stacks, rows and columns."""
    if parameter.kind == "unknown":
        raise _explain_undeclared(function, parameter)
    stacks = [*parameter.list_axes(*(STACKS if per_expert else ("stack",)))]
    if per_head:
        stacks += [at for at in parameter.heads if at not in stacks]
    rows = [at for at in parameter.list_axes(*INPUTS) if at not in stacks]
    return stacks, rows, [at for at in parameter.roles if at not in (*stacks, *rows)]


def as_matrix(
    parameter: Parameter,
    number: int,
    cut: Callable[[Parameter], tuple[list[Dimension], list[Dimension], list[Dimension]]],
) -> Form:
    """Pass a matrix or a vector to the transformation."""
    stacks, rows, columns = cut(parameter)
    is_vector = parameter.kind in ("scale", "shift")
    return make_form(parameter, number, (stacks, columns) if is_vector else (stacks, rows, columns))


def as_stored(parameter: Parameter, number: int) -> Form:
    """Pass an array without its stacks to the transformation."""
    every = list_dimensions(parameter)
    stacks = [at for at in every if parameter.roles[at] in STACKS]
    return make_form(parameter, number, (stacks, *([at] for at in every if at not in stacks)))


def _explain_undeclared(function: str, parameter: Parameter) -> ArgumentError:
    """Build the error for a parameter that may or may not be a matrix."""
    sizes = parameter.sizes
    problem = f"cannot tell which axes of {parameter.path!r} are inputs, and which are outputs"
    facts = f"array has: {describe(tuple(sizes), tuple(sizes.values()))}"
    given = "{" + ", ".join(f'"{name}": "output"' for name in sizes) + "}"
    if not sizes:
        facts = f"array has: {payload_of(parameter.array).shape}"
        given = '("output", ...)'
    hint = f'give a role for each, such as roles={{"{parameter.path}": {given}}}'
    return ArgumentError(message(function, problem, facts, hint=hint))


def list_parameters(
    function: str, tree: Tree, roles: Overrides | None, needs_heads: bool
) -> list[Parameter]:
    """Return the parameters of a tree; with `needs_heads`, check that at least one has heads."""
    found = list(parameters.walk(tree, roles))
    if needs_heads and found and not any(own.heads for own in found):
        hint = 'say which axes count them: roles={"heads": "head"}'
        raise ArgumentError(message(function, "no parameter has heads", hint=hint))
    return found


def wrap_unchecked(names: Names, payload: Payload) -> NamedArray:
    """Name an array, or any other value that a state has in its place, unchecked."""
    hollow: NamedArray = object.__new__(NamedArray)
    return wrap(hollow, payload, names)
