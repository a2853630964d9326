"""Internal. The meshes that a plan compares for a number of devices.

`axn.plan` calls it. It must not know mappings.
"""

import math
from collections.abc import Iterator, Mapping, Set

from ...errors import ArgumentError, message
from ...report import abstract_mesh

# The mesh axis for a part of another one, and the mesh axis of slices.
INNER = "inner"
SLICE = "slice"
# Fewer starts on each mesh than this do not show which rule is good; then the first mesh, whose devices are in one row,
# has this many.
RULES = 6
ALONE = 3
# Tensor parallelism over more devices is rarely faster.
MOST = 16


def iterate_meshes(
    mesh: object, *, is_symmetric: bool, slices: int = 1
) -> Iterator[dict[str, int]]:
    """Yield the sizes of a mesh, or of all meshes with a number of devices.

    Args:
        mesh: a mesh, or a number of devices.
        is_symmetric: whether axes that swap their sizes give the same mesh.
        slices: the number of slices, which are a mesh axis if there are several.

    Raises:
        ArgumentError: if the number is not positive.
    """
    # A bool is an int to Python, but no number of devices; the error comes from `abstract_mesh`.
    if not isinstance(mesh, int) or isinstance(mesh, bool):
        yield dict(abstract_mesh(mesh, "plan").shape)
        return
    if mesh < 1:
        raise ArgumentError(message("plan", f"the number of devices must be positive, not {mesh}"))
    inside = mesh // slices
    between = {SLICE: slices} if slices > 1 else {}
    for model in range(1, min(inside, MOST) + 1):
        if inside % model == 0 and not (is_symmetric and model * model > inside):
            yield {**between, "data": inside // model, "model": model}


def iterate_finer(
    mesh: Mapping[str, int], pinned: Set[str]
) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield each mesh axis that can be divided, with the mesh where a part of it is a separate axis.

    Args:
        mesh: the axes with their sizes.
        pinned: the axes that stay as they are.
    """
    for axis, size in mesh.items():
        if axis in pinned:
            continue
        # The two parts may swap their roles, so the inner one is never the larger one.
        for part in range(2, min(MOST, int(size**0.5)) + 1):
            if size % part:
                continue
            yield axis, _divide(mesh, axis, part)


def iterate_groups(mesh: Mapping[str, int], axis: str) -> Iterator[dict[str, int]]:
    """Yield the meshes where neighbours along a mesh axis are groups, which have an axis of their own.

    Args:
        mesh: the axes with their sizes.
        axis: the axis.
    """
    for part in range(2, mesh[axis] // 2 + 1):
        if mesh[axis] % part == 0:
            yield _divide(mesh, axis, part)


def _divide(mesh: Mapping[str, int], axis: str, part: int) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, own in mesh.items():
        sizes[name] = own
        if name == axis:
            sizes |= {axis: own // part, INNER: part}
    return sizes


def share_starts(starts: int, meshes: int) -> dict[int, int]:
    """Return the number of starts on each mesh, in the order in which to count them.

    With few starts, one mesh of several axes shows which rules are good, and the others begin with these.

    Args:
        starts: the number of starts.
        meshes: the number of meshes.
    """
    first, middle, each = 0, meshes // 2, starts // meshes
    if each >= RULES or meshes < 3:
        return dict.fromkeys((first, middle, *range(meshes)), max(1, each))
    others = meshes - 2
    alone = max(1, min(ALONE, starts - others - 1))
    shares = dict.fromkeys((first, middle, *range(meshes)), 1)
    return shares | {first: alone, middle: max(1, starts - alone - others)}


def check_limit(limit: int, meshes: int) -> None:
    """Check that a mapping can be counted on each mesh.

    Raises:
        ArgumentError: if not.
    """
    if not isinstance(limit, int):
        problem = f"limit must be an integer, not {limit!r}"
        raise ArgumentError(message("plan", problem))
    if limit < meshes:
        problem = f"limit must be at least {meshes}, the number of meshes, not {limit}"
        raise ArgumentError(message("plan", problem))


def count_in_slice(mesh: object, slices: int) -> int:
    """Return the number of devices in each of some slices.

    Raises:
        ArgumentError: if the slices do not divide the devices.
    """
    count = mesh
    if not isinstance(count, int):
        count = math.prod(next(iterate_meshes(mesh, is_symmetric=True)).values())
    if slices < 1 or count % slices:
        problem = f"slices={slices} do not divide {count} devices"
        raise ArgumentError(message("plan", problem))
    return count // slices
