"""The claim that transformations do not change numbers: `jit`, `vmap`, loops, differentiation and other dtypes."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.kinds import Tree
from ..errors import ArgumentError, message
from .blame import find_first_layer
from .differences import differences
from .explain import fail, first_place, write_place
from .program import Arrays, Program, is_float, is_key
from .tolerances import tolerance
from .trace import Trace

__all__ = ["assert_same_under"]

UNDER: tuple[str, ...] = ("jit", "vmap", "scan", "grad", "remat")


def assert_same_under(f: Callable[..., Any], *args: Tree, under: Sequence[Any] = UNDER) -> None:
    """Check that a function gives the same numbers under transformations, and in other dtypes up to rounding.

    Args:
        f: any function of named arrays, a module or its method.
        args: its arguments.
        under: the names of transformations, and dtypes. Under "vmap" and "scan", two equal copies of all arguments are
            mapped over; under "grad", the values are computed together with a gradient. In a dtype, all floating
            arguments are cast to it; results may then differ as `TOLERANCES` says.

    Raises:
        ClaimError: with the transformation, the result that differs, and the layer.

    Examples:
        >>> x = axn.random.normal(jax.random.key(0), axn.make_axes(batch=4, embed=8))
        >>> axn.testing.assert_same_under(axn.nn.gelu, x, under=["jit", "grad", jnp.bfloat16])
    """
    program = Program("assert_same_under", f, args)
    wanted = program.run(program.arrays)
    for how in under:
        if isinstance(how, str) and how not in _WAYS and not _is_dtype(how):
            hint = f"known: {', '.join(_WAYS)}, and dtypes"
            raise ArgumentError(
                message(program.function, f"unknown transformation {how!r}", hint=hint)
            )
        dtype = None if isinstance(how, str) and how in _WAYS else jnp.dtype(how)
        for found in _WAYS[how](program) if dtype is None else [_cast(program, dtype)]:
            for i, (one, other) in enumerate(zip(wanted, found, strict=True)):
                change = differences(one, other, is_same_program=False)
                if dtype is not None:
                    # The result was computed in this dtype, even if it has another one.
                    change = _beyond(one, other, dtype)
                if change.any():
                    place = program.results[i]
                    at = write_place(first_place(place, change))
                    name = f"in {dtype.name}" if dtype is not None else f"under {how}"
                    raise fail(
                        "same_under",
                        f"{name}, {at or place.path or 'the result'} is another",
                        *((f"result: {place.path}",) if place.path else ()),
                        axis=None,
                        causes="under",
                        target=first_place(place, change),
                        effect=float(change.max()),
                        place=None if dtype is None else _locate(program, dtype),
                    )


def _is_dtype(how: str) -> bool:
    try:
        jnp.dtype(how)
    except TypeError:
        return False
    return True


def _run_grad(program: Program) -> list[Arrays]:
    floats = [i for i, array in enumerate(program.arrays) if is_float(array)]

    def loss(own: Arrays) -> tuple[Any, Arrays]:
        arrays = list(program.arrays)
        for i, array in zip(floats, own, strict=True):
            arrays[i] = array
        found = program.run(arrays)
        return sum(jnp.sum(jnp.abs(x)) for x in found if is_float(x)), found

    differentiate = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, found), _ = differentiate([program.arrays[i] for i in floats])
    return [found]


def _run_mapped(program: Program, run: Callable[[Arrays], Arrays]) -> list[Arrays]:
    stacked = [jnp.stack([jnp.asarray(x) if not is_key(x) else x] * 2) for x in program.arrays]
    found = run(stacked)
    return [[x[i] for x in found] for i in range(2)]


_WAYS: dict[str, Callable[[Program], list[Arrays]]] = {
    "jit": lambda program: [program(program.arrays)],
    "vmap": lambda program: _run_mapped(program, jax.jit(jax.vmap(program.run))),
    "scan": lambda program: _run_mapped(
        program, lambda arrays: jax.lax.scan(lambda _, x: (None, program.run(x)), None, arrays)[1]
    ),
    "grad": _run_grad,
    "remat": lambda program: [jax.checkpoint(program.run)(program.arrays)],
}


def _narrow(program: Program, dtype: Any) -> Arrays:
    return [jnp.asarray(x).astype(dtype) if is_float(x) else x for x in program.arrays]


def _cast(program: Program, dtype: Any) -> Arrays:
    return program(_narrow(program, dtype))


def _beyond(one: Any, other: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Return the differences between results beyond the tolerance of the dtype in which they were computed."""
    change = differences(one, other, is_same_program=False)
    return np.where(change > tolerance(dtype, is_same_program=False), change, 0.0)


def _locate(program: Program, dtype: Any) -> tuple[str, str, str]:
    narrow = _narrow(program, dtype)
    traces = [Trace(program.run_unwrapped, arrays, program) for arrays in (program.arrays, narrow)]
    values = [trace.run(a) for trace, a in zip(traces, (program.arrays, narrow), strict=True)]
    # If all layers agree, what is around them does not.
    return find_first_layer(traces[0], values[0], traces[1], values[1], dtype) or ("", "", "")
