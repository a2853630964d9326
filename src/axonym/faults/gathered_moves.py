"""Internal. XLA gathers the complete array if one reshard moves mesh axes from several dimensions to another.

Its partitioner exchanges blocks for one dimension at a time; for more, it warns of an "Involuntary full
rematerialization", in all versions, on all platforms. `tests/upstream/test_gathered_moves.py` shows it.
"""

from ..layout.assignment import Entry
from ..layout.layout import Layout


def list_moves(source: Layout, target: Layout) -> list[Layout]:
    """Return the layouts between two given ones, both included; consecutive layouts are one exchange apart."""
    if any(entry[: len(kept)] != kept for entry, kept in zip(target, source, strict=True) if entry):
        return [source, target]
    found = [source]
    rest = {at: entry[len(source[at]) :] for at, entry in enumerate(target)}
    while any(rest.values()):
        at, group = _choose_group(rest, found[-1])
        before = found[-1].without(group)
        found.append(before.replace(at, (*before[at], *group)))
        rest[at] = rest[at][len(group) :]
    return found if found[-1] == target else [*found, target]


def _choose_group(rest: dict[int, Entry], here: Layout) -> tuple[int, Entry]:
    """Return the mesh axes that a dimension gets next: the innermost ones of another dimension, or free ones."""
    used = here.mesh_axes
    for at, entry in rest.items():
        for count in range(len(entry), 0, -1):
            group = entry[:count]
            if used.isdisjoint(group) or any(own[-count:] == group for own in here):
                return at, group
    return next((at, entry[:1]) for at, entry in rest.items() if entry)
