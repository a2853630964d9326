"""Random programs: lines are drawn one by one, and kept if the reference can compute them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from tests.fuzz.draw import Draw, UnsuitableError
from tests.fuzz.looping import looping
from tests.fuzz.operations import OPERATIONS, collective
from tests.fuzz.program import Input, Line, Program
from tests.fuzz.reference import REFERENCE
from tests.fuzz.table import RejectedError, Table, kind_of

__all__ = ["Style", "generate", "reference"]

_LARGEST = {"float16": 200.0, "bfloat16": 1e4, "float32": 1e5, "complex64": 1e4}
_ELEMENTS = 3000


@dataclasses.dataclass(frozen=True)
class Style:
    """What programs may be made of.

    Attributes:
        sizes: the sizes of axes to choose from.
        dtypes: the dtypes of inputs to choose from.
        kept: an axis that operations must leave alone, and its size; collectives reduce it.
        special: the fraction of programs whose inputs hold NaN and infinities.
        mesh: the sizes of mesh axes, over which inputs are split.
        smooth: whether programs are to be differentiated in float32.
    """

    sizes: tuple[int, ...] = (0, 1, 2, 2, 3, 3, 4, 5, 7)
    dtypes: tuple[str, ...] = ("float32",) * 5 + ("int32", "bool", "float16", "bfloat16", "complex64", "int8", "uint8")
    kept: Mapping[str, int] = dataclasses.field(default_factory=dict)
    special: float = 0.05
    mesh: Mapping[str, int] = dataclasses.field(default_factory=dict)
    smooth: bool = False


def generate(seed: int, style: Style) -> Program:
    """Make the program of a seed."""
    rng = np.random.default_rng(seed)
    # Programs beside each other have the same sizes, so that what is compiled for one serves the next.
    around = np.random.default_rng([seed // 50, 7])
    sizes = {name: int(around.choice(style.sizes)) for name in "abcd"} | dict(style.kept)
    special = rng.random() < style.special
    inputs = {f"v{i}": _input(rng, sizes, style, special) for i in range(int(rng.integers(1, 4)))}
    values = {name: given.table() for name, given in inputs.items()}
    lines: list[Line] = []
    wanted, tries = int(rng.integers(2, 7)), 0
    while len(lines) < wanted and tries < 200:
        tries += 1
        line = _line(Draw(rng, values, frozenset(style.kept)), values, style, special)
        if line is not None:
            lines.append(line)
    used = set().union(*(line.operands for line in lines), set())
    outs = tuple(name for line in lines for name in line.results if name not in used)
    program = Program(inputs, tuple(lines), outs, seed, not special).pruned()
    return _laid_out(program, rng, style) if style.mesh else program


def _input(rng: np.random.Generator, sizes: Mapping[str, int], style: Style, special: bool) -> Input:
    names = [name for name in sizes if name in style.kept or rng.random() < 0.6]
    if style.kept and rng.random() < 0.25:
        names = [name for name in names if name not in style.kept]
    names = [names[int(i)] for i in rng.permutation(len(names))]
    shape = [sizes[name] for name in names]
    dtype = str(rng.choice(style.dtypes))
    kind = kind_of(dtype)
    if kind == "bool":
        values: Any = rng.random(shape) < 0.5
    elif kind == "int":
        values = rng.integers(0 if dtype == "uint8" else -9, 10, shape)
    else:
        values = rng.normal(size=shape)
        if rng.random() < 0.15 and style.special:
            values = np.round(values) + 0.0
        if special and kind == "float":
            values = np.where(rng.random(shape) < 0.2, rng.choice([np.nan, np.inf, -np.inf], shape), values)
        if kind == "complex":
            values = values + 1j * rng.normal(size=shape)
    held = np.asarray(values).astype(jnp.dtype(dtype))
    wide = held.astype({"bool": bool, "int": np.int64, "float": np.float64, "complex": np.complex128}[kind])
    return Input(tuple(names), wide, dtype)


def _laid_out(program: Program, rng: np.random.Generator, style: Style) -> Program:
    """Split inputs over a mesh: most by one mapping, some by another, some not at all, some on one device."""
    sizes = {name: size for given in program.inputs.values() for name, size in given.shape.items()}
    mapping = _mapping(rng, sizes, style.mesh)
    inputs = {}
    for name, given in program.inputs.items():
        pick = rng.random()
        own = (
            mapping
            if pick < 0.6
            else _mapping(rng, given.shape, style.mesh)
            if pick < 0.8
            else {}
            if pick < 0.9
            else None
        )
        inputs[name] = dataclasses.replace(given, layout=own)
    current = mapping if rng.random() < 0.3 else None
    return dataclasses.replace(program, inputs=inputs, mapping=current)


def _mapping(rng: np.random.Generator, sizes: Mapping[str, int], mesh: Mapping[str, int]) -> dict[str, Any]:
    choices = [((axis,), size) for axis, size in mesh.items()]
    if len(mesh) > 1 and rng.random() < 0.2:
        choices = [(tuple(mesh), int(np.prod(list(mesh.values()))))]
    found: dict[str, Any] = {}
    for axes, ways in choices:
        fitting = [name for name, size in sizes.items() if size % ways == 0 and name not in found]
        if fitting and rng.random() < 0.85:
            found[str(rng.choice(fitting))] = axes if len(axes) > 1 else axes[0]
    return found


def _line(draw: Draw, values: dict[str, Table], style: Style, special: bool) -> Line | None:
    """Draw a line that the reference computes, and note its result."""
    try:
        text = _expression(draw)
        result = evaluate(text, values, special)
    except (UnsuitableError, RejectedError, StopIteration, FloatingPointError, OverflowError):
        return None
    results = result if isinstance(result, tuple) else (result,)
    if not all(_comparable(each, special) for each in results):
        return None
    # Zero times infinity has no slope, in JAX either.
    if style.smooth and not all(np.isfinite(each.values).all() for each in results):
        return None
    has_no_slope = "n.pmax" in text or "n.pmin" in text or any("float16" in each.dtype for each in results)
    if style.smooth and has_no_slope:
        return None
    names = tuple(f"v{len(values) + i}" for i in range(len(results)))
    values.update(zip(names, results, strict=True))
    return Line(names, text)


def _expression(draw: Draw) -> str:
    if draw.kept and draw.chance(0.15):
        return collective(draw)
    if draw.chance(0.1):
        return looping(draw)
    weights = np.array([weight for weight, _ in OPERATIONS], float)
    at = int(draw.rng.choice(len(weights), p=weights / weights.sum()))
    return OPERATIONS[at][1](draw)


def evaluate(text: str, values: Mapping[str, Table], special: bool) -> Any:
    """Compute an expression by the reference; numbers that are not finite are refused unless they are special."""
    with np.errstate(all="ignore" if special else "raise", under="ignore"):
        return eval(text, {"n": REFERENCE, **values})


def _comparable(x: Table, special: bool) -> bool:
    if not isinstance(x, Table) or x.values.size > _ELEMENTS or len(x.names) > 6:
        return False
    if x.kind in ("bool", "int"):
        return x.kind == "bool" or bool(np.abs(x.values).max(initial=0) < 2**24)
    finite = np.isfinite(x.values)
    if x.dtype == "float16" and ((np.abs(x.values) < 2.0**-14) & (x.values != 0)).any():
        return False  # processors take some numbers as small as these for zero
    if x.kind == "complex" and not finite.all():
        return False  # the parts of an infinite product depend on how it is computed
    if not special and not finite.all() and not (np.isneginf(x.values) | np.isnan(x.values) | finite).all():
        return False
    return bool(np.abs(x.values[finite]).max(initial=0) < _LARGEST[x.dtype])


def reference(program: Program) -> tuple[Table, ...]:
    """Compute a program by the reference."""
    tables = [given.table() for given in program.inputs.values()]
    with np.errstate(all="ignore"):
        return program.function()(REFERENCE, *tables)
