"""The reference's reductions and functions along axes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.fuzz.table import Names, RejectedError, Table, blur, dtype_of, lined, made, rounded

__all__ = ["FUNCTIONS"]

Axes = str | tuple[str, ...] | None


def chosen(x: Table, axis: Axes) -> Names:
    """Return the names of an axis argument; None means all."""
    if axis is None:
        return x.names
    return (axis,) if isinstance(axis, str) else tuple(axis)


def rows(x: Table, axis: Axes) -> tuple[np.ndarray, Names]:
    """Return the values with the elements over `axis` along one last dimension, and the names of the others."""
    over = chosen(x, axis)
    rest = tuple(name for name in x.names if name not in over)
    values = lined(x, (*rest, *over))
    return values.reshape(
        (*(x.shape[name] for name in rest), int(np.prod([x.shape[name] for name in over], dtype=int)))
    ), rest


def _masked(x: Table, axis: Axes, where: Any) -> tuple[np.ndarray, np.ndarray, Names]:
    values, rest = rows(x, axis)
    if where is None:
        return values, np.ones(values.shape, bool), rest
    if not isinstance(where, Table):
        return values, np.broadcast_to(np.bool_(where), values.shape), rest
    full = Table(np.broadcast_to(lined(where, x.names), x.values.shape), x.names, "bool")
    return values, rows(full, axis)[0], rest


def _nonempty(mask: np.ndarray) -> None:
    if not mask.shape[-1] or not mask.any(-1).all():
        raise RejectedError("a reduction of nothing")


def _reduction(name: str, fn: Callable[..., Any], exact: bool, empty: bool, asked: Any = None) -> Callable[..., Any]:
    like = asked or getattr(jnp, name)

    def function(x: Table, axis: Axes = None, *, where: Any = None, **options: Any) -> Table:
        values, mask, rest = _masked(x, axis, where)
        if not empty and "initial" not in options:
            _nonempty(mask)
        return made(fn(values, mask, **options), rest, dtype_of(like, x))

    function.__name__ = name
    return function if exact else rounded(function)


def _max(values: np.ndarray, mask: np.ndarray, initial: float | None = None) -> np.ndarray:
    if values.dtype == bool:
        return (values & mask).any(-1) | bool(initial)
    low = np.int64(-(2**40)) if values.dtype == np.int64 else -np.inf
    start = low if initial is None else initial
    return np.max(np.where(mask, values, start), -1, initial=start)


def _nanmax(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    missing = np.isnan(values)
    found = _max(values, mask & ~missing)
    return np.where(mask.any(-1) & (missing | ~mask).all(-1), np.nan, found) if missing.any() else found


def _min(values: np.ndarray, mask: np.ndarray, initial: float | None = None) -> np.ndarray:
    if values.dtype == bool:
        return ~_max(~values, mask, initial is not None and not initial)
    return -_max(-values, mask, None if initial is None else -initial)


def _mean(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, values, 0).sum(-1) / mask.sum(-1)


def _var(values: np.ndarray, mask: np.ndarray, ddof: int = 0) -> np.ndarray:
    centred = np.where(mask, values - _mean(values, mask)[..., None], 0)
    return (np.abs(centred) ** 2).sum(-1) / (mask.sum(-1) - ddof)


def _logsumexp(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    top = _max(values, mask)[..., None]
    with np.errstate(invalid="ignore"):
        terms = np.where(mask & (values != top), np.exp(values - top), np.where(mask, 1, 0))
    return np.log(terms.sum(-1)) + top[..., 0]


REDUCTIONS = {
    "sum": _reduction("sum", lambda v, m, initial=0: np.where(m, v, 0).sum(-1) + initial, False, True),
    "prod": _reduction("prod", lambda v, m, initial=1: np.where(m, v, 1).prod(-1) * initial, False, True),
    "mean": _reduction("mean", _mean, False, False),
    "var": _reduction("var", _var, False, False),
    "std": _reduction("std", lambda v, m, ddof=0: np.sqrt(_var(v, m, ddof)), False, False),
    "max": _reduction("max", _max, True, False),
    "min": _reduction("min", _min, True, False),
    "ptp": _reduction("ptp", lambda v, m, initial=None: _max(v, m, initial) - _min(v, m, initial), False, False),
    "all": _reduction("all", lambda v, m: np.where(m, v != 0, True).all(-1), True, True),
    "any": _reduction("any", lambda v, m: np.where(m, v != 0, False).any(-1), True, True),
    "nansum": _reduction("nansum", lambda v, m: np.where(m & ~np.isnan(v), v, 0).sum(-1), False, True),
    "nanmax": _reduction("nanmax", _nanmax, True, False),
    "nanmean": _reduction("nanmean", lambda v, m: _mean(v, m & ~np.isnan(v)), False, False),
}


_exact_logsumexp = _reduction("logsumexp", _logsumexp, False, False, jax.scipy.special.logsumexp)


def logsumexp(x: Table, axis: Axes = None, *, where: Any = None) -> Table:
    result = _exact_logsumexp(x, axis, where=where)
    # The sum of exponentials, of which the largest is one, is rounded before its logarithm is taken.
    near_one = blur(made(np.ones(result.values.shape), result.names, result.dtype))
    return made(result.values + np.log(near_one.values), result.names, result.dtype)


def count_nonzero(x: Table, axis: Axes = None) -> Table:
    values, rest = rows(x, axis)
    return made((values != 0).sum(-1), rest, "int32")


def _search(fn: Callable[..., Any]) -> Callable[..., Table]:
    def function(x: Table, axis: Axes = None) -> Table:
        values, rest = rows(x, axis)
        if not values.shape[-1]:
            raise RejectedError("a search in nothing")
        return made(fn(values, axis=-1), rest, "int32")

    return function


def median(x: Table, axis: Axes = None) -> Table:
    values, rest = rows(x, axis)
    if not values.shape[-1]:
        raise RejectedError("the median of nothing")
    return made(np.median(values, -1), rest, dtype_of(jnp.median, x))


def quantile(x: Table, q: float, axis: Axes = None) -> Table:
    values, rest = rows(x, axis)
    if not values.shape[-1]:
        raise RejectedError("the quantile of nothing")
    if not np.isfinite(values).all():
        raise RejectedError("NumPy and JAX interpolate infinite values by other formulas")
    return made(np.quantile(values, q, axis=-1), rest, dtype_of(jnp.quantile, x, q))


def _last(x: Table, axis: str) -> tuple[np.ndarray, int]:
    """Return the values with one axis moved to the end, and where it was."""
    at = x.names.index(axis)
    return np.moveaxis(x.values, at, -1), at


def _along(name: str, fn: Callable[..., Any], exact: bool = True, asked: Any = None) -> Callable[..., Any]:
    like = asked or getattr(jnp, name)

    def function(x: Table, axis: str, *args: Any, **options: Any) -> Table:
        values, at = _last(x, axis)
        result = np.moveaxis(fn(values, *args, **options), -1, at)
        return made(result, x.names, like(x.dtype) if isinstance(like, type) else dtype_of(like, x))

    function.__name__ = name
    return function if exact else rounded(function)


def _running(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(values: np.ndarray, reverse: bool = False) -> np.ndarray:
        if values.dtype == bool and fn in (np.cumsum, np.cumprod):
            values = values.astype(np.int64)
        flipped = values[..., ::-1] if reverse else values
        out = fn(flipped, -1)
        return out[..., ::-1] if reverse else out

    return run


def _sort(values: np.ndarray, descending: bool = False) -> np.ndarray:
    out = np.sort(values, -1)
    return out[..., ::-1] if descending else out


def _argsort(values: np.ndarray, descending: bool = False) -> np.ndarray:
    if not descending:
        return np.argsort(values, -1, kind="stable")
    # Equal elements keep their order: sort the mirrored ones, and mirror the places back.
    size = values.shape[-1]
    return (size - 1 - np.argsort(values[..., ::-1], -1, kind="stable"))[..., ::-1]


def _cumlogsumexp(values: np.ndarray, reverse: bool = False) -> np.ndarray:
    return _running(np.logaddexp.accumulate)(values, reverse)


def _same(x: Any, **_: Any) -> Any:
    return x


ALONG = {
    "cumsum": _along("cumsum", _running(np.cumsum), False),
    "cumprod": _along("cumprod", _running(np.cumprod), False),
    "cummax": _along("cummax", _running(np.maximum.accumulate), asked=_same),
    "cummin": _along("cummin", _running(np.minimum.accumulate), asked=_same),
    "cumlogsumexp": _along("cumlogsumexp", _cumlogsumexp, False, asked=jnp.exp),
    "sort": _along("sort", _sort),
    "argsort": _along("argsort", _argsort),
    "diff": _along("diff", lambda v, n=1: np.diff(v, n), False, asked=_same),
}


def roll(x: Table, shift: int, axis: str) -> Table:
    return Table(np.roll(x.values, shift, x.names.index(axis)), x.names, x.dtype)


def flip(x: Table, axis: Axes = None) -> Table:
    return Table(np.flip(x.values, [x.names.index(name) for name in chosen(x, axis)]), x.names, x.dtype)


def _weights(x: Table, axis: Axes, where: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    over = chosen(x, axis)
    at = tuple(x.names.index(name) for name in over)
    mask = np.broadcast_to(True if where is None else lined(where, x.names), x.values.shape)
    if not mask.any(at).all():
        raise RejectedError("a softmax of nothing")
    shifted = x.values - np.where(mask, x.values, -np.inf).max(at, keepdims=True, initial=-np.inf)
    weights = np.where(mask, np.exp(np.where(mask, shifted, 0)), 0)
    total = blur(made(weights.sum(at, keepdims=True), x.names, x.dtype)).values
    return weights, total, shifted, mask


@rounded
def softmax(x: Table, axis: Axes = None, *, where: Any = None) -> Table:
    weights, total, _, mask = _weights(x, axis, where)
    return made(np.where(mask, weights / total, 0), x.names, dtype_of(jax.nn.softmax, x))


@rounded
def log_softmax(x: Table, axis: Axes = None, *, where: Any = None) -> Table:
    _, total, shifted, mask = _weights(x, axis, where)
    return made(np.where(mask, shifted - np.log(total), -np.inf), x.names, dtype_of(jax.nn.log_softmax, x))


@rounded
def standardize(x: Table, axis: Axes = None) -> Table:
    at = tuple(x.names.index(name) for name in chosen(x, axis))
    if not x.values.size:
        raise RejectedError("the mean of nothing")
    centred = x.values - x.values.mean(at, keepdims=True)
    variance = (centred**2).mean(at, keepdims=True)
    return made(centred / np.sqrt(variance + 1e-5), x.names, x.dtype)


def top_k(x: Table, axis: str, k: int) -> tuple[Table, Table]:
    values, at = _last(x, axis)
    if k > values.shape[-1]:
        raise RejectedError("too few")
    # As in XLA, minus zero is less than zero here, and only here.
    keys = np.where((values == 0) & np.signbit(values), -5e-324, values)
    places = _argsort(keys, descending=True)[..., :k]
    found = np.take_along_axis(values, places, -1)
    return (
        made(np.moveaxis(found, -1, at), x.names, x.dtype),
        made(np.moveaxis(places, -1, at), x.names, "int32"),
    )


def _transformed(name: str, fn: Callable[..., Any]) -> Callable[..., Table]:
    @rounded
    def function(x: Table, axis: str) -> Table:
        values, at = _last(x, axis)
        return made(np.moveaxis(fn(values, axis=-1), -1, at), x.names, dtype_of(getattr(jnp.fft, name), x))

    return function


@rounded
def segment_sum(x: Table, ids: Table, segments: tuple[str, int], axis: Axes = None) -> Table:
    """Add up the elements with the same number; those with a number out of range are left out."""
    segment, size = segments
    over = chosen(x, axis)
    values, rest = rows(x, over)
    full = Table(np.broadcast_to(lined(ids, x.names), x.values.shape), x.names, ids.dtype)
    numbers = rows(full, over)[0]
    out = np.stack([np.where(numbers == i, values, 0).sum(-1) for i in range(size)])
    return made(out, (segment, *rest), x.dtype)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **REDUCTIONS,
    **ALONG,
    "logsumexp": logsumexp,
    "count_nonzero": count_nonzero,
    "argmax": _search(np.argmax),
    "argmin": _search(np.argmin),
    "median": rounded(median),
    "quantile": rounded(quantile),
    "roll": roll,
    "flip": flip,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "standardize": standardize,
    "top_k": top_k,
    "segment_sum": segment_sum,
    **{name: _transformed(name, getattr(np.fft, name)) for name in ("fft", "ifft", "rfft")},
}
