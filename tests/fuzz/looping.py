"""Random loops: expressions in which a step, itself a random expression, runs over the positions of an axis."""

from tests.fuzz.draw import Draw, UnsuitableError
from tests.fuzz.loops import _position
from tests.fuzz.operations import OPERATIONS
from tests.fuzz.table import Table

__all__ = ["looping"]


def looping(d: Draw) -> str:
    """Return a loop over an axis of one variable, or of two that have it."""
    over = d.variable(lambda x: x.names)
    axis = d.axis(over)
    others = [name for name, x in d.values.items() if x.shape.get(axis, d.size(over, axis)) == d.size(over, axis)]
    given = [over, *(d.some(others, 0, 1))]
    given = list(dict.fromkeys(given))
    if d.chance(0.15):
        combine = d.one(["a + b", "n.maximum(a, b)", "a * b"])
        reverse = ", reverse=True" if d.chance(0.3) else ""
        number = d.number(lambda x: axis in x.names)
        return f"n.associative_scan(lambda a, b: {combine}, {axis!r}{reverse})({number})"
    names = [f"v{900 + i}" for i in range(len(given))]
    inside = {new: _position(d.values[old], axis, 0) for new, old in zip(names, given, strict=True)}
    step = _expression(d, inside, axis)
    kind = d.between(0, 3)
    parameters = ", ".join(names)
    if kind < 2:
        loop = "map" if kind else "vmap"
        return f"n.{loop}(lambda {parameters}: {step}, {axis!r})({', '.join(given)})"
    carry = d.variable(lambda x: x.kind == "float" and axis not in x.names)
    if not isinstance(d.values[carry], Table):
        raise UnsuitableError
    following = d.one(["c * 0.5 + s", "n.maximum(c, s)", "c - s", "n.where(s > c, s, c)", "n.sin(c) + s"])
    options = d.one(["", "", ", reverse=True", ", remat=True", ", unroll=2"])
    if kind == 2:
        call = f"n.fold(lambda c, {parameters}: (lambda s: {following})({step}), {axis!r}{options})"
        return f"{call}({carry}, {', '.join(given)})"
    out = d.one(["s", "c", "c * 2", "s + c"])
    call = f"n.scan(lambda c, {parameters}: (lambda s: ({following}, {out}))({step}), {axis!r}{options})"
    return f"{call}({carry}, {', '.join(given)})"


def _expression(d: Draw, inside: dict[str, Table], axis: str) -> str:
    """Draw the step of a loop: one expression, over variables without the axis of the loop."""
    outside = {name for x in d.values.values() for name in x.names}
    draw = Draw(d.rng, inside, d.kept, frozenset(outside | {axis}))
    drawn = OPERATIONS[int(d.rng.integers(len(OPERATIONS)))][1]
    if drawn.__name__ in ("cast", "renaming"):
        raise UnsuitableError
    return drawn(draw)
