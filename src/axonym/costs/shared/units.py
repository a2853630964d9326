"""Internal. Texts of large numbers, short times and meshes, for tables and pictures."""

from collections.abc import Iterable


def write_time(seconds: float) -> str:
    """Write a time, such as `1.5 ms`."""
    # The largest unit in which the number is at least one.
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return "0"


def write_count(number: float) -> str:
    """Write a large number, such as `1.5 T`."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def write_mesh(mesh: Iterable[tuple[str, int]]) -> str:
    """Write the axes of a mesh with their sizes, such as `data=4, model=2`."""
    return ", ".join(f"{axis}={size}" for axis, size in mesh)
