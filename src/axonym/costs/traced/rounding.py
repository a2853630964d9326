"""Internal. The bytes per element that products read: a compiler that rounds operands sends rounded numbers.

`Walk` uses it for each array that is gathered for a TPU.
"""

from collections.abc import Mapping, Sequence, Set

from jax.lax import Precision

from .equations import PASSING, Equation, Variable, find_readers, list_bodies

# Products of float32 take one pass of bfloat16 on a TPU, unless they ask for more.
_ROUNDED = 2
_ROUNDING = (None, Precision.DEFAULT)
_ONE_BY_ONE = ("while", "cond", "shard_map")


def find_width(
    variable: Variable, readers: Mapping[int, Sequence[Equation]], returned: Set[int]
) -> int:
    """Return the bytes per element that the readers of an array need, at most the size of the array's dtype.

    Args:
        variable: the array.
        readers: the equations that read each array of its program, by its id.
        returned: the ids of the results of that program.
    """
    whole = int(variable.aval.dtype.itemsize)
    # A result is returned with all its bits.
    if str(variable.aval.dtype) != "float32" or id(variable) in returned:
        return whole
    needed = 0
    for reader in readers.get(id(variable), ()):
        needed = max(needed, _find_width_for(reader, variable, readers, returned))
    return needed or whole


def _find_width_for(
    reader: Equation,
    variable: Variable,
    readers: Mapping[int, Sequence[Equation]],
    returned: Set[int],
) -> int:
    whole = int(variable.aval.dtype.itemsize)
    name = reader.primitive.name
    if name == "dot_general" and _is_rounding(reader.params["precision"]):
        return _ROUNDED
    if name in PASSING:
        # A reader that rounds its operands may as well round before; for others, their own readers decide.
        (result,) = reader.outvars
        width = int(result.aval.dtype.itemsize)
        return width if width < whole else find_width(result, readers, returned)
    inner = list_bodies(reader)
    # Compilers do not move a rounding out of loops and branches.
    if name in _ONE_BY_ONE or len(inner) != 1 or len(inner[0].invars) != len(reader.invars):
        return whole
    (body,) = inner
    inside = find_readers(body.eqns)
    results = set(map(id, body.outvars))
    needed = 0
    for operand, own in zip(reader.invars, body.invars, strict=True):
        if operand is variable:
            needed = max(needed, find_width(own, inside, results))
    return needed


def _is_rounding(precision: object) -> bool:
    # Operands may have one precision, or one each.
    several = precision if isinstance(precision, tuple) else (precision,)
    return all(one in _ROUNDING for one in several)
