"""The reference's array: values in NumPy, in double precision, and the names of their dimensions.

Nothing here knows axonym. Arrays meet through `lined`, one explicit transpose; dtypes are asked of `jax.numpy`, whose
rules are axonym's; and whatever rounds in single or half precision is blurred on demand (see `blur`), which shows how
far apart two right answers may be.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = [
    "RejectedError",
    "Table",
    "blur",
    "blurring",
    "dtype_of",
    "lined",
    "made",
    "names_of_all",
    "rounded",
    "widest",
]

Names = tuple[str, ...]


class RejectedError(Exception):
    """What a program asks for has no defined answer, or none that could be compared."""


class Table:
    """Values over named dimensions; `dtype` is that of the array which it stands for."""

    def __init__(self, values: np.ndarray, names: Names, dtype: str) -> None:
        if values.ndim != len(names) or len(set(names)) != len(names):
            raise RejectedError(f"{names} for {values.shape}")
        self.values, self.names, self.dtype = values, names, dtype

    @property
    def shape(self) -> dict[str, int]:
        return dict(zip(self.names, self.values.shape, strict=True))

    @property
    def kind(self) -> str:
        """Return "bool", "int", "float" or "complex"."""
        return kind_of(self.dtype)

    def __repr__(self) -> str:
        return f"Table({self.dtype}, {self.shape}, {self.values.tolist()})"


@functools.cache
def kind_of(dtype: str) -> str:
    """Return "bool", "int", "float" or "complex"."""
    if dtype == "bool":
        return "bool"
    if jnp.issubdtype(dtype, jnp.integer):
        return "int"
    return "complex" if jnp.issubdtype(dtype, jnp.complexfloating) else "float"


WIDE = {"bool": np.bool_, "int": np.int64, "float": np.float64, "complex": np.complex128}


def made(values: Any, names: Sequence[str], dtype: str) -> Table:
    """Make a table: whole numbers wrap around as those of `dtype` do, everything else stays in double precision."""
    array = np.asarray(values)
    kind = kind_of(dtype)
    if kind == "int" and array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RejectedError("a number that is not finite has no integer")
    array = array.astype(WIDE[kind])
    if kind == "int":
        array = array.astype(dtype).astype(np.int64)
    return Table(array, tuple(names), dtype)


@functools.cache
def _asked(fn: Callable[..., Any], operands: tuple[Any, ...], options: tuple[tuple[str, Any], ...]) -> Any:
    structs = [jax.ShapeDtypeStruct((1,), x) if isinstance(x, str) else x[0] for x in operands]
    places = [i for i, x in enumerate(operands) if isinstance(x, str)]

    def called(*arrays: Any) -> Any:
        filled = dict(zip(places, arrays, strict=True))
        return fn(*(filled.get(i, x) for i, x in enumerate(structs)), **dict(options))

    out = jax.eval_shape(called, *(structs[i] for i in places))
    return str((out[0] if isinstance(out, tuple) else out).dtype)


def dtype_of(fn: Callable[..., Any], *operands: Any, **options: Any) -> str:
    """Return the dtype that a function of `jax.numpy` gives to vectors like these operands."""
    keys = tuple(x.dtype if isinstance(x, Table) else (x, type(x)) for x in operands)
    return _asked(fn, keys, tuple(sorted(options.items())))


def widest(tables: Sequence[Table]) -> Names:
    """Return the names of the first table that has those of all others."""
    every = set().union(*(table.names for table in tables))
    for table in tables:
        if set(table.names) == every:
            return table.names
    raise RejectedError("no operand has the axes of all others")


def names_of_all(tables: Sequence[Table]) -> Names:
    """Return all names in the order in which they appear."""
    return tuple(dict.fromkeys(name for table in tables for name in table.names))


def lined(table: Table, names: Sequence[str]) -> np.ndarray:
    """Return the values with dimensions in the order of `names`, of size one where the table lacks a name."""
    own = [name for name in names if name in table.names]
    if len(own) != len(table.names):
        raise RejectedError(f"{table.names} is not among {tuple(names)}")
    ordered = np.transpose(table.values, [table.names.index(name) for name in own])
    return ordered.reshape([table.shape.get(name, 1) for name in names])


def one_size(tables: Sequence[Table]) -> dict[str, int]:
    """Return the size of each name, which must be the same in all tables."""
    sizes: dict[str, int] = {}
    for table in tables:
        for name, size in table.shape.items():
            if sizes.setdefault(name, size) != size:
                raise RejectedError(f"two sizes of {name}")
    return sizes


_blurring: list[tuple[np.random.Generator, float]] = []


@contextlib.contextmanager
def blurring(seed: int, strength: float = 3.0) -> Iterator[None]:
    """Change every number that is rounded by a random part of `strength` units in its last place."""
    _blurring.append((np.random.default_rng(seed), strength))
    try:
        yield
    finally:
        _blurring.pop()


@functools.cache
def precision(dtype: str) -> tuple[float, float]:
    """Return the distance from one to the next number, and the smallest normal number."""
    info = jnp.finfo(dtype)
    return float(info.eps), float(info.tiny)


def blur(x: Any) -> Any:
    """Change a table as rounding in its dtype might, while `blurring` is on."""
    if not _blurring or not isinstance(x, Table) or x.kind in ("bool", "int"):
        return x
    rng, strength = _blurring[-1]
    eps, tiny = precision(x.dtype)

    def noise() -> np.ndarray:
        return strength * rng.uniform(-1, 1, x.values.shape)

    values = x.values
    with np.errstate(all="ignore"):
        # A zero may have either sign: the sum of no products, or a product with zero.
        zeros = np.copysign(0.0, rng.uniform(-1, 1, values.shape))
        values = np.where(values == 0, zeros, values * (1 + eps * noise()) + tiny * noise())
        if x.kind == "complex":
            # The parts of a complex number are rounded as parts of its length.
            values = values + 1j * eps * np.abs(values) * noise()
    return Table(np.where(np.isfinite(x.values), values, x.values), x.names, x.dtype)


def rounded(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that rounds: its operands and its results are blurred."""

    @functools.wraps(fn)
    def blurred(*args: Any, **options: Any) -> Any:
        shaken = [[blur(x) for x in arg] if isinstance(arg, list | tuple) else blur(arg) for arg in args]
        result = fn(*shaken, **options)
        return tuple(map(blur, result)) if isinstance(result, tuple) else blur(result)

    return blurred


def count(sizes: Sequence[int]) -> int:
    """Return the number of elements."""
    return math.prod(sizes)
