"""Random expressions over the variables of a program: every function here draws one."""

from collections.abc import Callable

from tests.fuzz.draw import Draw, UnsuitableError
from tests.fuzz.of_elements import binary, cast, choice, finite_beside_booleans, unary
from tests.fuzz.of_pieces import indexing, taking, updating
from tests.fuzz.of_shapes import extending, joining, matrices, merging, order, renaming, splitting
from tests.fuzz.table import Table

__all__ = ["OPERATIONS", "collective"]

Generator = Callable[[Draw], str]


def _shares(x: Table) -> Callable[[Table], bool]:
    return lambda y: all(x.shape.get(name, size) == size for name, size in y.shape.items())


def reduction(d: Draw) -> str:
    x = d.variable()
    kind = d.values[x].kind
    functions = ["sum", "mean", "prod"]
    if kind == "bool":
        functions = ["sum", "all", "any", "mean", "max", "min"]
    elif kind == "int":
        functions += ["max", "min", "ptp", "any", "var"]
    elif kind == "float":
        functions += [
            "max",
            "min",
            "ptp",
            "var",
            "std",
            "logsumexp",
            "all",
            "any",
            "nansum",
            "nanmax",
            "nanmean",
            "sum",
            "mean",
        ]
    function = d.one(functions)
    options = ""
    if kind != "complex" and d.chance(0.35):
        options = f", where={d.mask(x)}"
    needs_start = bool(options) and function in ("max", "min", "ptp")
    if needs_start or (function in ("sum", "prod", "max", "min") and kind in ("int", "float") and d.chance(0.25)):
        options += f", initial={d.one(['1', '2'])}" if kind != "bool" else ", initial=False"
    return f"n.{function}({x}, {d.axes(x)}{options})"


def search(d: Draw) -> str:
    x = d.number()
    if d.chance(0.2) and d.values[x].kind == "float":
        return f"n.quantile({x}, {d.one(['0.25', '0.5', '0.9'])}, {d.axes(x)})"
    return f"n.{d.one(['argmax', 'argmin', 'count_nonzero', 'median'])}({x}, {d.axes(x)})"


def along(d: Draw) -> str:
    x = d.number()
    axis = d.axis(x)
    reverse = ", reverse=True" if d.chance(0.3) else ""
    if d.values[x].kind == "float" and d.chance(0.15):
        return f"n.cumlogsumexp({x}, {axis!r}{reverse})"
    if d.chance(0.6):
        return f"n.{d.one(['cumsum', 'cumprod', 'cummax', 'cummin'])}({x}, {axis!r}{reverse})"
    return d.one([f"n.roll({x}, {d.between(-3, 3)}, {axis!r})", f"n.flip({x}, {d.axes(x)})", f"n.diff({x}, {axis!r})"])


def normalised(d: Draw) -> str:
    x = d.real()
    axes = repr(tuple(d.some(d.free(x), 1)))
    if d.chance(0.2):
        return f"n.standardize({x}, {axes})"
    where = f", where={d.mask(x)}" if d.chance(0.35) else ""
    return f"n.{d.one(['softmax', 'softmax', 'log_softmax'])}({x}, {axes}{where})"


def sorting(d: Draw) -> str:
    x = d.number()
    axis = d.axis(x)
    down = ", descending=True" if d.chance(0.4) else ""
    pick = d.between(0, 4)
    if pick < 2:
        return f"n.sort({x}, {axis!r}{down})"
    if pick == 2:
        return f"n.argsort({x}, {axis!r}{down})"
    if pick == 3:
        count = d.between(0 if d.chance(0.1) else 1, max(d.size(x, axis), 1))
        return f"n.top_k({x}, {axis!r}, {count})[{d.between(0, 1)}]"
    return f"n.take_along_axis({x}, n.argsort({d.number(lambda y: y.shape == d.values[x].shape)}, {axis!r}), {axis!r})"


def contraction(d: Draw) -> str:
    x = d.variable(lambda x: x.names)
    y = d.variable(_shares(d.values[x]))
    kinds = {d.values[x].kind, d.values[y].kind}
    finite_beside_booleans(d, x, y)
    shared = [name for name in d.free(x) if name in d.values[y].names]
    every = list(dict.fromkeys((*d.values[x].names, *d.values[y].names)))
    pick = d.between(0, 7)
    if pick < 2:
        return f"n.dot({x}, {y}, axis={tuple(d.some(shared, 0))!r})"
    if pick == 2:
        over = d.some(shared, 1)
        rest = [name for name in every if name not in over]
        return f"n.dot({x}, {y}, axis={tuple(over)!r}, out_axes=({d.one(rest)!r}, ...))"
    if pick == 3:
        z = d.variable(lambda z: _shares(d.values[x])(z) and _shares(d.values[y])(z))
        finite_beside_booleans(d, x, y, z)
        both = [name for name in shared if name in d.values[z].names]
        return f"n.dot({x}, {y}, {z}, axis={tuple(d.some(both or shared, 1))!r})"
    kept = [name for name in every if name in d.kept or d.chance(0.6)]
    kept = d.some(kept, len(kept))
    if pick == 4:
        letters = {name: f"x{i}" for i, name in enumerate(every)}
        left = ", ".join(" ".join(letters[name] for name in d.values[v].names) for v in (x, y))
        return f"n.einsum('{left} -> {' '.join(letters[name] for name in kept)}', {x}, {y})"
    if pick == 5:
        return f"n.einsum('-> {' '.join(kept)}', {x}, {y})"
    if pick == 6:
        over = d.some(shared, 1)
        braces = f"{{{' '.join(over)}}}"
        return f"n.einsum('{braces}, {braces} -> ...', {x}, {y})"
    if kinds == {"bool"}:
        raise UnsuitableError
    return f"n.outer({x}, {y})"


def transform(d: Draw) -> str:
    x = d.variable(lambda x: x.kind in ("float", "complex") and x.dtype in ("float32", "complex64"))
    axis = d.axis(x, lambda size: size > 0)
    return f"n.{d.one(['fft', 'ifft'] + (['rfft'] if d.values[x].kind == 'float' else []))}({x}, {axis!r})"


def segments(d: Draw) -> str:
    x = d.number(lambda x: x.names)
    axis = d.axis(x)
    ids = d.beside(x, lambda y: axis in y.names and y.kind in ("int", "float"))
    segment = d.fresh()
    numbers = f"n.astype(n.abs({ids}) * 2, 'int32')"
    sums = f"n.segment_sum({x}, {numbers}, n.Axis({segment!r}, {d.between(1, 4)}), {axis!r})"
    return f"n.rearrange({sums}, ({segment!r}, ...))"


def collective(d: Draw) -> str:
    """Return a reduction of an axis that is split over devices, each of which has a block of it."""
    axis = d.one(sorted(d.kept))
    x = d.real(lambda x: axis in x.names)
    if d.chance(0.3):
        y = d.number(lambda y: axis in y.names and _shares(d.values[x])(y))
        return f"n.psum(n.dot({x}, {y}, axis={axis!r}), {axis!r})"
    reduction, collective = d.one([("sum", "psum"), ("max", "pmax"), ("min", "pmin"), ("mean", "pmean")])
    return f"n.{collective}(n.{reduction}({x}, {axis!r}), {axis!r})"


OPERATIONS: list[tuple[int, Generator]] = [
    (6, unary),
    (8, binary),
    (3, choice),
    (3, cast),
    (8, reduction),
    (2, search),
    (4, along),
    (4, normalised),
    (4, sorting),
    (3, order),
    (2, renaming),
    (3, merging),
    (3, splitting),
    (4, joining),
    (4, extending),
    (7, contraction),
    (7, indexing),
    (3, taking),
    (6, updating),
    (3, matrices),
    (1, transform),
    (2, segments),
]
