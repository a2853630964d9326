"""Random expressions over the variables of a program: every function here draws one."""

from collections.abc import Callable

import numpy as np

from tests.fuzz.draw import Draw, Unsuitable
from tests.fuzz.table import Table

__all__ = ["OPERATIONS", "simple"]

Generator = Callable[[Draw], str]


def _shares(x: Table) -> Callable[[Table], bool]:
    return lambda y: all(x.shape.get(name, size) == size for name, size in y.shape.items())


def _finite_beside_booleans(d: Draw, *variables: str) -> None:
    """Refuse NaN and infinities beside booleans: XLA may choose where it was asked to multiply by zero."""
    tables = [d.values[name] for name in variables]
    if any(x.kind == "bool" for x in tables) and not all(np.isfinite(x.values).all() for x in tables):
        raise Unsuitable


def unary(d: Draw) -> str:
    x = d.variable()
    kind = d.values[x].kind
    if kind == "bool":
        return d.one([f"n.logical_not({x})", f"~{x}", f"n.astype({x}, 'float32')", f"n.astype({x}, 'int32')"])
    if kind == "int":
        return d.one(
            [f"n.abs({x})", f"-{x}", f"n.sign({x})", f"n.square({x})", f"~{x}", f"n.sin({x})", f"n.logical_not({x})"]
        )
    if kind == "complex":
        return d.one([f"n.{f}({x})" for f in ("abs", "real", "imag", "conj", "negative", "square", "exp", "isfinite")])
    smooth = (
        "sin",
        "cos",
        "tanh",
        "square",
        "negative",
        "arctan",
        "expm1",
        "exp",
        "erf",
        "arcsinh",
        "cbrt",
        "deg2rad",
        "sinc",
    )
    jumps = (
        "abs",
        "sign",
        "floor",
        "ceil",
        "trunc",
        "rint",
        "isnan",
        "isfinite",
        "signbit",
        "nan_to_num",
        "logical_not",
        "conj",
    )
    positive = ("sqrt", "log1p", "rsqrt", "log", "reciprocal", "gammaln")
    pick = d.between(0, 9)
    if pick < 5:
        return f"n.{d.one(smooth)}({x})"
    if pick < 7:
        return f"n.{d.one(jumps)}({x})"
    if pick < 9:
        return f"n.{d.one(positive)}(n.abs({x}) + 0.5)"
    return d.one([f"n.clip({x}, -0.5, 0.75)", f"n.round({x}, 1)", f"n.tanh({x}) * 2", f"n.square({x})"])


def binary(d: Draw) -> str:
    x = d.variable()
    kind = d.values[x].kind
    if d.chance(0.2) and kind != "bool":
        # A float beside whole numbers would give a weak dtype.
        number = d.one(["2", "3"] if kind == "int" else ["2", "3", "0.5", "1.5"])
        if kind == "complex":
            return d.one([f"{x} * {number}", f"{number} + {x}", f"{x} / {number}", f"{x} == {number}"])
        if kind == "int" and d.chance(0.3):
            return f"n.divide({x}, {x} * 0 + {number})"
        return d.one([f"{x} * {number}", f"{number} - {x}", f"{x} ** 2", f"{x} // {number}", f"{x} % {number}",
                      f"{x} > {number}", f"{x} ** 2", f"n.maximum({x}, {number})"])  # fmt: skip
    y = d.beside(x)
    if d.chance(0.5):
        x, y = y, x
    kinds = {d.values[x].kind, d.values[y].kind}
    _finite_beside_booleans(d, x, y)
    if kinds == {"bool"}:
        functions = [
            "logical_and",
            "logical_or",
            "logical_xor",
            "bitwise_and",
            "bitwise_or",
            "bitwise_xor",
            "add",
            "multiply",
            "equal",
            "maximum",
        ]
    elif "complex" in kinds:
        functions = ["add", "subtract", "multiply", "equal", "not_equal"]
    elif kinds <= {"bool", "int"}:
        functions = [
            "add",
            "multiply",
            "maximum",
            "minimum",
            "less",
            "equal",
            "bitwise_and",
            "bitwise_or",
            "bitwise_xor",
            "logical_and",
        ]
        functions += ["subtract", "gcd"] if kinds == {"int"} else []
    else:
        functions = ["add", "subtract", "multiply", "add", "multiply", "maximum", "minimum", "less", "greater_equal", "not_equal",
                     "arctan2", "hypot", "logaddexp", "copysign", "fmax", "logical_or"]  # fmt: skip
        if d.chance(0.3) and kinds == {"float"}:
            return d.one([f"{x} / (n.abs({y}) + 1)", f"{x} % (n.abs({y}) + 1)", f"n.power(n.abs({x}) + 0.5, {y})",
                          f"n.fmod({x}, n.abs({y}) + 1)", f"n.isclose({x}, {y})", f"n.floor_divide({x}, n.abs({y}) + 1)"])  # fmt: skip
    symbols = {"add": "+", "subtract": "-", "multiply": "*", "less": "<", "greater_equal": ">=", "bitwise_and": "&"}
    function = d.one(functions)
    if function in symbols and d.chance(0.7):
        return f"{x} {symbols[function]} {y}"
    return f"n.{function}({x}, {y})"


def choice(d: Draw) -> str:
    x = d.variable()
    mask = d.mask(x) if d.values[x].kind != "complex" else d.beside(x, lambda y: y.kind == "bool")
    other = d.beside(x) if d.chance(0.6) else d.one(["0", "1"])
    return f"n.where({mask}, {x}, {other})" if d.chance(0.5) else f"n.where({mask}, {other}, {x})"


def cast(d: Draw) -> str:
    x = d.variable(lambda x: x.kind != "complex")
    choices = ["float32", "float16", "bfloat16", "int32", "bool", "complex64", "int8"]
    return f"n.astype({x}, {d.one(choices)!r})"


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
    axes = d.axes(x)
    where = f", where={d.mask(x)}" if kind != "complex" and d.chance(0.35) else ""
    if function in ("sum", "prod", "max", "min") and kind in ("int", "float") and d.chance(0.25):
        where += f", initial={d.one(['1', '2'])}"
    return f"n.{function}({x}, {axes}{where})"


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
    if d.chance(0.2):
        return f"n.standardize({x}, {d.axes(x)})"
    where = f", where={d.mask(x)}" if d.chance(0.35) else ""
    return f"n.{d.one(['softmax', 'softmax', 'log_softmax'])}({x}, {d.axes(x)}{where})"


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
        return f"n.top_k({x}, {axis!r}, {d.between(0 if d.chance(0.1) else 1, max(d.size(x, axis), 1))})[{d.between(0, 1)}]"
    return f"n.take_along_axis({x}, n.argsort({d.number(lambda y: y.shape == d.values[x].shape)}, {axis!r}), {axis!r})"


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
        raise Unsuitable
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


def contraction(d: Draw) -> str:
    x = d.variable(lambda x: x.names)
    y = d.variable(_shares(d.values[x]))
    kinds = {d.values[x].kind, d.values[y].kind}
    _finite_beside_booleans(d, x, y)
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
        _finite_beside_booleans(d, x, y, z)
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
        raise Unsuitable
    return f"n.outer({x}, {y})"


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
    if axis in shape and shape[axis]:
        return f"n.argmax({other}, {axis!r})" if axis not in d.kept else f"n.astype(n.abs({other}) * 2, 'int32')"
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
        others = [name for name in d.values[x].names if name != axis]
        fits = lambda y: all(name in others and d.values[x].shape[name] == size for name, size in y.shape.items())
        update = d.number(
            lambda y: fits(y) and y.dtype == d.values[x].dtype and f"'{next(iter(y.names), ' ')}'" not in item
        )
    return f"{x}.at[{item}].{method}({update})"


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
    return f"n.rearrange(n.segment_sum({x}, {numbers}, n.Axis({segment!r}, {d.between(1, 4)}), {axis!r}), ({segment!r}, ...))"


def collective(d: Draw) -> str:
    """Return a reduction of an axis that is split over devices, each of which has a block of it."""
    axis = d.one(sorted(d.kept))
    x = d.real(lambda x: axis in x.names)
    if d.chance(0.3):
        y = d.number(lambda y: axis in y.names and _shares(d.values[x])(y))
        return f"n.psum(n.dot({x}, {y}, axis={axis!r}), {axis!r})"
    reduction, collective = d.one([("sum", "psum"), ("max", "pmax"), ("min", "pmin"), ("mean", "pmean")])
    return f"n.{collective}(n.{reduction}({x}, {axis!r}), {axis!r})"


simple: list[tuple[int, Generator]] = [
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
OPERATIONS = simple
