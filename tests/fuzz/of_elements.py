"""Random expressions of functions that work element by element."""

import numpy as np

from tests.fuzz.draw import Draw, UnsuitableError

__all__ = ["binary", "cast", "choice", "finite_beside_booleans", "unary"]


def finite_beside_booleans(d: Draw, *variables: str) -> None:
    """Refuse NaN and infinities beside booleans: XLA may choose where it was asked to multiply by zero."""
    tables = [d.values[name] for name in variables]
    if any(x.kind == "bool" for x in tables) and not all(np.isfinite(x.values).all() for x in tables):
        raise UnsuitableError


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
    positive = ("sqrt", "log1p", "rsqrt", "log", "reciprocal")
    pick = d.between(0, 9)
    if pick < 5:
        return f"n.{d.one(smooth)}({x})"
    if pick < 7:
        return f"n.{d.one(jumps)}({x})"
    if pick < 9:
        return f"n.{d.one(positive)}(n.abs({x}) + 0.5)"
    if d.chance(0.15):
        return f"n.gammaln(n.abs({x}) + 2.5)"  # between its zeros and beside them, little of it is exact
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
    finite_beside_booleans(d, x, y)
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
        functions = ["add", "subtract", "multiply", "add", "multiply", "maximum", "minimum", "less", "greater_equal"]
        functions += ["not_equal", "arctan2", "hypot", "logaddexp", "copysign", "fmax", "logical_or"]
        if d.chance(0.3) and kinds == {"float"}:
            divisor = f"n.abs({y}) + 1"
            quotients = [f"{x} / ({divisor})", f"{x} % ({divisor})", f"n.fmod({x}, {divisor})"]
            quotients += [f"n.floor_divide({x}, {divisor})", f"n.power(n.abs({x}) + 0.5, {y})", f"n.isclose({x}, {y})"]
            return d.one(quotients)
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
