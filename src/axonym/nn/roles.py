"""Internal. The roles that modules state for the axes of their arrays: stacks, inputs, outputs, and special ones.

A module states it by static fields that hold axes, `In` and `Out`, `Vocab` and `Embed`, `Pos` and `Embed`, `Experts` or
`axis`. An attribute `axis_roles` says the rest, in the form of `Overrides`, also for the modules inside.
"""

import dataclasses
from collections.abc import Mapping, Sequence, Set
from typing import Any, Literal, Self, TypeAlias

import equinox as eqx

from ..axis import axis_name
from ..errors import ArgumentError, message
from ..layout.assignment import matches
from ..names.plans import Names
from ..partitioning.trees import find_static_axes
from .layer import Layer
from .stack.stacked import Stacked

Role: TypeAlias = Literal["stack", "expert", "input", "window", "table", "output", "head"]
"""What an axis of a parameter is for; a head, and a table that scores, are inputs or outputs as well."""
Dimension: TypeAlias = str | int
"""The name of an axis, or the number of a dimension without a name."""
Kind: TypeAlias = Literal["matrix", "table", "scale", "shift", "unknown"]
Overrides: TypeAlias = Mapping[str, Role | Mapping[str, Role] | Sequence[Role]]
"""Roles by the name of an axis, or by a pattern of paths."""
STACKS: tuple[Role, ...] = ("stack", "expert")
INPUTS: tuple[Role, ...] = ("input", "window", "table")
SIDES: tuple[Role, ...] = (*INPUTS, "output")

_PAIRS: tuple[tuple[str, Role, str], ...] = (
    ("In", "input", "Out"),
    ("Vocab", "table", "Embed"),
    ("Pos", "table", "Embed"),
)
_STACK: tuple[Role, ...] = ("stack",)
_VECTOR: tuple[Role, ...] = ("output",)
_WEIGHT: tuple[Role, ...] = ("output", "input")
_WINDOW: tuple[Role, ...] = ("window",)
_TABLE: tuple[Role, ...] = ("table", "output")


class Part(tuple[str, ...]):
    """The names of a part of a parameter that an optimiser sees as one array, such as a matrix of one layer.

    Attributes:
        whole: the parameter, without its array.
        number: which parameter of its tree this is. Two parts are the same only if it is, so that an optimiser's state
            says of each array which parameter it belongs to.
    """

    whole: Any
    number: int

    @classmethod
    def of(cls, names: Names, whole: Any, number: int) -> Self:
        """Name the axes of a part."""
        part = cls(names)
        part.whole, part.number = dataclasses.replace(whole, array=None), number
        return part

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Part):
            return False
        return tuple(self) == tuple(other) and self.number == other.number

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((tuple(self), self.number))


def state_roles(
    nodes: Sequence[Any], names: Names, ndim: int, path: str, overrides: Overrides
) -> tuple[dict[Dimension, Role | None], dict[Dimension, Role]]:
    """Return the roles that modules state, inputs and outputs in the order in which they declare them, and marks.

    Args:
        nodes: what is on the way to the array, its owner last.
        names: the names of its trailing dimensions.
        ndim: the number of all dimensions.
        path: the path of the array.
        overrides: what the user states.
    """
    modules = [node for node in nodes if isinstance(node, eqx.Module)]
    storage = [axis.name for node in modules if isinstance(node, Stacked) for axis in node.storage]
    dimensions: tuple[Dimension, ...] = (*range(ndim - len(names)), *names)
    roles: dict[Dimension, Role | None] = {}
    if names:  # dimensions without a name are those of a raw `jax.vmap`
        roles = {at: "stack" for at in dimensions if isinstance(at, int) or at in storage}
        fields = _of_fields(modules[-1], names) if modules else {}
        roles = {**fields, **roles}
    elif modules and type(modules[-1]).__module__.startswith("equinox.nn"):
        roles = _of_equinox(modules[-1], path.rpartition(".")[2], ndim, len(storage))
    else:
        roles = dict.fromkeys(range(min(ndim, len(storage))), "stack")
    marks: dict[Dimension, Role] = {}
    for given in (*(getattr(module, "axis_roles", {}) for module in modules[::-1]), overrides):
        for key, own in given.items():
            if isinstance(own, str):
                _amend(roles, marks, {key: own}, dimensions)
            elif matches(key, path):
                _amend(roles, marks, _by_dimension(own, path, ndim), dimensions, of_one=True)
    missing = [at for at in dimensions if at not in roles]
    rest: Role | None = None
    if any(role in SIDES for role in roles.values()):
        # A layer states all axes of its arrays, so others were added by a `vmap` of its `init`.
        rest = "stack" if modules and isinstance(modules[-1], Layer) else None
    elif len(missing) == 1:  # a vector
        rest = "output"
    return {**roles, **dict.fromkeys(missing, rest)}, marks


def _amend(
    roles: dict[Dimension, Role | None],
    marks: dict[Dimension, Role],
    given: Mapping[Any, Any],
    dimensions: Sequence[Dimension],
    of_one: bool = False,
) -> None:
    """Change roles of axes: of one array, or of all arrays that have the axis.

    Of all arrays, an axis that is an input or output remains so: what one layer sums over, another one returns.
    """
    for at, role in given.items():
        if at not in dimensions:
            continue
        if role in ("head", "table"):
            marks[at] = role
        is_settled = role in SIDES and roles.get(at) in SIDES and not of_one
        if role != "head" and not is_settled:
            roles[at] = role


def _by_dimension(
    roles: Mapping[str, Role] | Sequence[Role], path: str, ndim: int
) -> Mapping[Any, Role]:
    """Return the given roles of one array by dimension."""
    if isinstance(roles, Mapping):
        return roles
    if len(roles) != ndim:
        problem = f"{len(roles)} roles for {path!r}, which has {ndim} dimensions"
        raise ArgumentError(message("roles", problem, hint="give axes by name: {name: role}"))
    return dict(enumerate(roles))


def kind_of(roles: Mapping[Dimension, Role | None], tables: Set[Dimension], field: str) -> Kind:
    """Return what kind of parameter has these roles."""
    has_inputs = any(role in INPUTS for role in roles.values())
    own = [at for at, role in roles.items() if role not in STACKS]
    if len(own) > 1 and None in roles.values():
        return "unknown"
    if has_inputs:
        is_table = "table" in roles.values() or not tables.isdisjoint(own)
        return "table" if is_table else "matrix"
    return "shift" if "bias" in field else "scale"


def _of_fields(owner: eqx.Module, names: Names) -> dict[Dimension, Role | None]:
    """Return the roles by static fields: a name that is on both sides is called `<name>.out` as an output."""
    declared = {field: axis_name(axes) for field, axes in find_static_axes(owner).items()}
    sides: dict[str, Role] = {}
    for In, role, Out in _PAIRS:
        if In in declared and Out in declared:
            sides |= dict.fromkeys(declared.pop(In), role)
            for name in declared.pop(Out):
                stored = f"{name}.out" if f"{name}.out" in names else name
                sides[stored] = "output"
            break
    else:
        sides = dict.fromkeys(declared.pop("axis", ()), "output")
    if not sides:
        return {}
    sides |= dict.fromkeys(declared.pop("Experts", ()), "expert")
    for further in declared.values():
        for name in further:
            sides.setdefault(name, "stack")
    return {name: role for name, role in sides.items() if name in names}


def _of_equinox(
    owner: eqx.Module, field: str, ndim: int, stacked: int
) -> dict[Dimension, Role | None]:
    """Return the roles of an array of `equinox.nn`, whose weights have outputs first."""
    own = _VECTOR * (ndim - stacked)
    if isinstance(owner, eqx.nn.Embedding):
        own = _TABLE
    elif isinstance(owner, eqx.nn.Conv | eqx.nn.ConvTranspose):
        window = owner.num_spatial_dims
        own = _VECTOR * (1 + window) if field == "bias" else _WEIGHT + _WINDOW * window
    elif isinstance(owner, eqx.nn.Linear | eqx.nn.GRUCell | eqx.nn.LSTMCell):
        own = _VECTOR if "bias" in field else _WEIGHT
    roles = _STACK * (ndim - len(own)) + own
    order = sorted(range(ndim), key=lambda at: roles[at] == "output")  # inputs come first
    return {at: roles[at] for at in order}
