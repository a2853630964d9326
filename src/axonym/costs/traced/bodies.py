"""Internal. The arguments and results of programs that equations run, such as the bodies of loops.

`Walk` uses it. It must not know collectives.
"""

from collections.abc import Mapping, Sequence

from jax.sharding import PartitionSpec

from ...engine import Entry, Layout, without
from .equations import Equation, Program, Value, count_unstacked, find_layout


def pass_arguments(equation: Equation, body: Program, inputs: Sequence[Value]) -> list[Value]:
    """Return the arguments of a body, with layouts from the operands of the equation that runs it."""
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        whole = count_unstacked(equation.invars, body.invars)
        return [*inputs[:whole], *map(_slice, inputs[whole:])]
    if name == "while":
        # Constants of the condition come first.
        return list(inputs[params["cond_nconsts"] :])
    if name == "cond":
        # The number of the branch comes first.
        return list(inputs[1:])
    if name != "shard_map":
        return list(inputs)
    # Inside, a device sees its own part: Manual mesh axes divide nothing there.
    given: list[Value] = []
    for variable, value in zip(body.invars, inputs, strict=True):
        rest = [without(entry, params["newly_manual_axes"]) for entry in value.entries]
        given.append(find_layout(variable, rest))
    return given


def pass_divisions(
    equation: Equation, body: Program, divided: Sequence[Mapping[str, int]]
) -> dict[int, Mapping[str, int]]:
    """Return the mesh axes that divide the results of a body at their uses."""
    name = equation.primitive.name
    if name in ("while", "cond"):
        return {}
    # The next iteration also uses the arrays that a loop carries, as they are.
    first = count_unstacked(equation.outvars, body.outvars) if name == "scan" else 0
    return {
        id(variable): axes
        for variable, axes in zip(body.outvars[first:], divided[first:], strict=False)
    }


def join_entries(spec: PartitionSpec, entries: Sequence[Entry]) -> list[Entry]:
    """Return the mesh axes of a `shard_map`'s result: the ones that divide it outside, and the ones inside."""
    own = Layout.from_spec(spec)
    found: list[Entry] = []
    for i, entry in enumerate(entries):
        outer: Entry = own[i] if i < len(own) else ()
        found.append((*outer, *entry))
    return found


def _slice(value: Value) -> Value:
    """Return the slice of an array that a loop takes in one iteration."""
    return value._replace(shape=value.shape[1:], entries=value.entries[1:])
