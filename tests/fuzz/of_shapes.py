"""Random expressions that reorder, split, merge, join and extend axes."""

from tests.fuzz.draw import Draw, UnsuitableError

__all__ = ["extending", "joining", "matrices", "merging", "order", "renaming", "splitting"]


def order(d: Draw) -> str:
    x = d.variable(lambda x: len(x.names) > 1)
    names = list(d.values[x].names)
    shuffled = d.some(names, len(names))
    pick = d.between(0, 3)
    if pick == 0:
        return f"{'n.rearrange'}({x}, {tuple(shuffled)!r})"
    if pick == 1:
        return f"n.rearrange({x}, ({shuffled[0]!r}, ...))"
    if pick == 2:
        letters = {name: f"x{i}" for i, name in enumerate(names)}
        return f"n.rearrange({x}, '{' '.join(letters.values())} -> {' '.join(letters[name] for name in shuffled)}')"
    return f"n.rearrange({x}, '{{{shuffled[0]}}} -> ... {shuffled[0]}')"


def renaming(d: Draw) -> str:
    x = d.variable(lambda x: x.names)
    free = d.free(x)
    if len(free) > 1 and d.chance(0.4):
        a, b = d.some(free, 2, 2)
        return f"n.rename({x}, {{{a!r}: {b!r}, {b!r}: {a!r}}})"
    return f"n.rename({x}, {{{d.one(free)!r}: {d.fresh()!r}}})"


def merging(d: Draw) -> str:
    x = d.variable(lambda x: len(x.names) > 1)
    names = d.some(d.free(x), 2)
    new = d.one([d.fresh(), names[0]])
    pick = d.between(0, 2)
    if pick == 0:
        return f"n.flatten_axes({x}, {tuple(names)!r}, {new!r})"
    if pick == 1:
        return f"n.rearrange({x}, '{{{' '.join(names)}}} -> ({d.fresh()}: {' '.join(names)}) ...')"
    every = d.values[x].names
    letters = {name: f"x{i}" for i, name in enumerate(every)}
    rest = [letters[name] for name in every if name not in names]
    left, joined = " ".join(letters.values()), " ".join(letters[name] for name in names)
    return f"n.rearrange({x}, '{left} -> {' '.join(rest)} ({d.fresh()}: {joined})')"


def splitting(d: Draw) -> str:
    x = d.variable(lambda x: any(size > 1 and size % 2 == 0 for size in x.shape.values()))
    axis = d.axis(x, lambda size: size > 1 and size % 2 == 0)
    first = d.fresh()
    second = d.fresh(first)
    half = d.size(x, axis) // 2
    pick = d.between(0, 2)
    if pick == 0:
        return f"n.unflatten_axis({x}, {axis!r}, {{{first!r}: 2, {second!r}: {half}}})"
    if pick == 1:
        return f"n.rearrange({x}, '{{({axis}: {first} {second})}} -> {second} ... {first}', {first}=2)"
    return f"n.rearrange({x}, '{{({axis}: {first} {second})}} -> ... ({axis}: {second} {first})', {second}={half})"


def joining(d: Draw) -> str:
    x = d.variable(lambda x: x.names)
    shape = d.values[x].shape
    pick = d.between(0, 5)
    if pick == 0:
        y = d.variable(lambda y: y.shape == shape or sorted(y.shape.items()) == sorted(shape.items()))
        return f"n.stack({d.fresh()!r}, [{x}, {y}])"
    axis = d.axis(x)
    if pick == 1:
        y = d.variable(lambda y: {**y.shape, axis: 0} == {**shape, axis: 0} and set(y.names) == set(shape))
        return f"n.concatenate({axis!r}, [{x}, {y}])"
    size = d.size(x, axis)
    if pick == 2:
        at = d.between(0, size)
        return (
            f"n.split({x}, {axis!r}, [n.Axis({axis!r}, {at}), n.Axis({d.fresh()!r}, {size - at})])[{d.between(0, 1)}]"
        )
    if pick == 3 and size:
        return f"n.unbind({x}, {axis!r})[{d.between(-size, size - 1)}]"
    if pick == 4:
        at = d.some(range(size + 1), 1, 2)
        return f"n.insert({x}, {at!r}, 1, {axis!r})"
    if not size:
        raise UnsuitableError
    return f"n.delete({x}, {d.some(range(size), 1, 2)!r}, {axis!r})"


def extending(d: Draw) -> str:
    x = d.variable(lambda x: x.names)
    axis = d.axis(x)
    size = d.size(x, axis)
    pick = d.between(0, 5)
    if pick == 0:
        return f"n.repeat({x}, {d.between(0, 3)}, {axis!r})"
    if pick == 1:
        counts = [d.between(0, 2) for _ in range(size)]
        return f"n.repeat({x}, {counts}, {axis!r})"
    if pick == 2:
        return f"n.tile({x}, {{{axis!r}: {d.between(0, 3)}}})"
    width = d.between(0, 2), d.between(0, 2)
    if pick == 3:
        return f"n.pad({x}, {{{axis!r}: {width!r}}})"
    if pick == 4 and size > 2:
        return f"n.pad({x}, {{{axis!r}: {width!r}}}, mode={d.one(['edge', 'wrap', 'reflect', 'symmetric'])!r})"
    return f"n.broadcast_axis({x}, {{{d.fresh()!r}: {d.between(1, 3)}}})"


def matrices(d: Draw) -> str:
    x = d.variable(lambda x: len(x.names) > 1)
    rows, columns = d.some(d.free(x), 2, 2)
    k = d.between(-1, 1)
    pick = d.between(0, 4)
    if pick < 2:
        return f"n.{d.one(['tril', 'triu'])}({x}, {rows!r}, {columns!r}, {k})"
    if pick == 2:
        return f"n.diagonal({x}, {rows!r}, {columns!r}, {d.one([rows, d.fresh()])!r}, {k})"
    if pick == 3:
        return f"n.trace({x}, {rows!r}, {columns!r}, {k})"
    return f"n.diag({x}, {rows!r}, {rows!r}, {d.fresh()!r}, {k})"
