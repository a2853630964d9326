"""Random expressions that read and write pieces of arrays."""

from tests.fuzz.draw import Draw

__all__ = ["indexing", "taking", "updating"]


def indexing(d: Draw) -> str:
    x = d.variable(lambda x: x.names)
    return f"{x}[{selector(d, x)}]"


def selector(d: Draw, x: str, unique: bool = False) -> str:
    """Return pairs of an axis and what to take of it."""
    axis = d.axis(x)
    size = d.size(x, axis)
    first = one_selector(d, x, axis, size, unique)
    others = [name for name in d.free(x) if name != axis]
    if others and d.chance(0.35):
        second = d.one(others)
        return f"{axis!r}, {first}, {second!r}, {static_selector(d, d.size(x, second))}"
    return f"{axis!r}, {first}"


def static_selector(d: Draw, size: int) -> str:
    if size and d.chance(0.5):
        return str(d.between(-size, size - 1))
    bounds = sorted((d.between(0, size), d.between(0, size)))
    return d.one(
        [
            f"slice({bounds[0]}, {bounds[1]})",
            "slice(None, None, 2)",
            "slice(None, None, -1)",
            "slice(1, None)",
            "slice(-2, None)",
        ]
    )


def one_selector(d: Draw, x: str, axis: str, size: int, unique: bool) -> str:
    pick = d.between(0, 7)
    if pick < 3 or not size:
        return static_selector(d, size)
    if pick == 3:
        count = d.between(0 if d.chance(0.2) else 1, size)
        if unique:
            return repr(d.some(range(size), min(count, size), count) if count else [])
        return repr([d.between(-size, size - 1) for _ in range(count)])
    if pick == 4:
        return f"n.dslice({d.between(-1, size)}, {d.between(1, size)})"
    if pick == 5 and not unique:
        return traced_index(d, x, axis, size)
    places = d.some(range(size), 1) if unique else [d.between(-size, size - 1) for _ in range(d.between(1, 4))]
    return f"n.named({places!r}, ({d.fresh()!r},))"


def traced_index(d: Draw, x: str, axis: str, size: int) -> str:
    """Return the text of integers computed from a variable, without the indexed axis."""
    other = d.number(
        lambda y: len(y.names) <= 3 and all(d.values[x].shape.get(name) == s for name, s in y.shape.items())
    )
    shape = d.values[other].shape
    if shape.get(axis, 0):
        return f"n.argmax({other}, {axis!r})"
    return f"n.astype(n.abs({other}) * 2, 'int32')"


def taking(d: Draw) -> str:
    x = d.variable(lambda x: x.names)
    axis = d.axis(x, lambda size: size > 0)
    size = d.size(x, axis)
    pick = d.between(0, 3)
    wide = [d.between(-size - 1, size + 1) for _ in range(d.between(1, 3))]
    index = d.one([repr(wide), f"n.named({wide!r}, ({d.fresh()!r},))"])
    if pick == 0:
        return f"n.take({x}, {axis!r}, {index}, mode={d.one(['clip', 'wrap'])!r})"
    if pick == 1:
        return f"n.take({x}, {axis!r}, {index}, fill_value=1)"
    if pick == 2:
        length = d.between(0, size)
        start = d.one(
            [
                str(d.between(0, size - length)),
                f"n.astype(n.sum({d.number(lambda y: not set(y.names) & d.kept)}), 'int32')",
            ]
        )
        return f"n.slice({x}, {axis!r}, start={start}, length={length})"
    y = d.real(lambda y: not y.names or True)
    return f"n.one_hot(n.astype({y} * 2, 'int32'), n.Axis({d.fresh()!r}, {d.between(1, 4)}), dtype='float32')"


def updating(d: Draw) -> str:
    x = d.number(lambda x: x.names)
    method = d.one(["set", "set", "add", "multiply", "min", "max"])
    axis = d.axis(x)
    if d.chance(0.15):
        size = d.size(x, axis)
        length = d.between(0, size)
        start = d.between(0, size - length)
        update = f"{x}[{axis!r}, {start}:{start + length}]" if d.chance(0.5) else "1"
        start = start if update != "1" else d.between(0, max(size - 1, 0))
        return f"n.updated_slice({x}, {{{axis!r}: {start}}}, {update})"
    # JAX has no gradient of products at index arrays.
    plain = method == "multiply"
    item = f"{axis!r}, {static_selector(d, d.size(x, axis))}" if plain else selector(d, x, unique=method == "set")
    part = f"{x}[{item}]"
    update = d.one(["1", "2", f"{part} * 2" if "dslice" not in item else "3"])
    if d.chance(0.4):
        shape, dtype = d.values[x].shape, d.values[x].dtype
        update = d.number(
            lambda y: (
                y.dtype == dtype
                and all(shape.get(name) == size and f"'{name}'" not in item for name, size in y.shape.items())
            )
        )
    return f"{x}.at[{item}].{method}({update})"
