"""`NamedArray` with the methods that Haliax gives it."""

# Many methods have other parameters than Axonym's of the same name; that is the purpose of this class.
# mypy: disable-error-code="assignment, override"
# pyright: reportIncompatibleMethodOverride=false, reportPrivateUsage=false

import contextlib
import dataclasses
import functools
import inspect
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

import axonym as axn
from axonym import Axis, AxisSelection, AxisSelector, AxisSpec
from axonym.engine import (
    Pairs,
    equality_operator,
    facts,
    left_operator,
    names_in,
    right_operator,
    selection,
    selector,
    selectors,
    wrap,
)
from axonym.errors import AxisClashError, AxisSizeError, message

from . import _contract, _elementwise, _index, _reduce
from ._adapt import Function, KindError, Operand, adapted
from ._annotation import NamedArrayAxes, NamedArrayAxesSpec, NamedArrayMeta, parsed
from ._index import index, slice, take, updated_slice
from ._node import SizedNames, registered
from ._shape import (
    broadcast_arrays,
    broadcast_arrays_and_return_axes,
    broadcast_axis,
    broadcast_to,
    flatten,
    flatten_all_axes_but,
    flatten_axes,
    ravel,
    rename,
    roll,
    split,
    unbind,
    unflatten_axis,
)
from .axis import is_one
from .util import ensure_tuple, is_jax_or_hax_array_like

__all__ = [
    "NamedArray",
    "NamedArrayAxes",
    "NamedArrayAxesSpec",
    "NamedArrayMeta",
    "NamedIndex",
    "NamedOrNumeric",
    "SliceSpec",
    "are_shape_checks_enabled",
    "broadcast_arrays",
    "broadcast_arrays_and_return_axes",
    "broadcast_axis",
    "broadcast_to",
    "check_shape",
    "enable_shape_checks",
    "flatten",
    "flatten_all_axes_but",
    "flatten_axes",
    "index",
    "named",
    "ravel",
    "rename",
    "roll",
    "slice",
    "split",
    "take",
    "unbind",
    "unflatten_axis",
    "updated_slice",
]

NamedOrNumeric = Any
NamedIndex = Any
SliceSpec: TypeAlias = tuple[object, ...] | Mapping[AxisSelector, Any]

_checks: ContextVar[bool] = ContextVar("shape_checks", default=True)


@contextlib.contextmanager
def enable_shape_checks(enabled: bool) -> Generator[bool]:
    """Set whether `NamedArray(...)` compares the axes with the array, in this thread; yield the previous setting."""
    token = _checks.set(enabled)
    try:
        yield token.old_value is token.MISSING or bool(token.old_value)
    finally:
        _checks.reset(token)


def are_shape_checks_enabled() -> bool:
    """Return whether `NamedArray(...)` compares the axes with the array."""
    return _checks.get()


def method(function: Function) -> Function:
    """Convert a function to a method: its first parameter becomes `self`."""

    @functools.wraps(function)
    def call(self: object, *args: object, **kwargs: object) -> Any:
        return function(self, *args, **kwargs)

    signature = inspect.signature(function)
    first, *others = signature.parameters.values()
    parameters = [first.replace(name="self", annotation=inspect.Parameter.empty), *others]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # what inspect reads
    return call


def _refuse(self: object, value: object) -> None:
    raise dataclasses.FrozenInstanceError(
        "cannot assign to a field of a NamedArray: use dataclasses.replace"
    )


@dataclasses.dataclass(frozen=True)
class _Fields:
    """The fields of NamedArray for `dataclasses`."""

    array: object
    axes: tuple[Axis, ...]


@registered
class NamedArray(axn.NamedArray, metaclass=NamedArrayMeta):
    """An array whose dimensions have names, with Haliax's methods.

    Unlike Axonym's, it is created without anonymous dimensions, and with the sizes of all axes.
    """

    __slots__ = ()
    __hash__ = None  # == is elementwise
    __dataclass_fields__ = _Fields.__dataclass_fields__
    __match_args__ = ("array", "axes")

    def __init__(self, array: Any, axes: AxisSpec) -> None:
        given = _pairs("NamedArray", axes)
        if None in dict(given).values():
            hint = "hax.named(array, ...) takes names, and finds the sizes"
            raise KindError(
                message("NamedArray", "axes need sizes here, and a name has none", hint=hint)
            )
        if len(dict(given)) != len(given):
            problem = "Axes must be unique, but a name appears twice"
            raise AxisClashError(message("NamedArray", problem, f"axes: {_listed(given)}"))
        if are_shape_checks_enabled() and is_jax_or_hax_array_like(array):
            problem = "Shape of underlying array does not match shape of axes"
            _agreed("NamedArray", problem, array.shape, given)
        names = names_in(given)
        if not hasattr(array, "shape"):
            names = SizedNames.of(names, [size or 0 for _, size in given])
        self.node = ((array,), names)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes in storage order; they are remembered if the payload is no array."""
        names = self.names
        if isinstance(names, SizedNames) and not isinstance(
            getattr(self.array, "shape", None), tuple
        ):
            return tuple(map(Axis, names, names.sizes))
        return super().axes

    @property
    def shape(self) -> dict[str, int]:
        """The sizes of the axes: a plain dict, which can be iterated."""
        return dict(super().shape)

    def __renamed_hole__(self, names: tuple[str, ...], new: Axis | None) -> axn.NamedArray:
        if not isinstance(self.names, SizedNames):
            return super().__renamed_hole__(names, new)
        sizes = dict(zip(self.names, self.names.sizes, strict=True))
        if new is not None:
            sizes[new.name] = new.size
        return wrap(self, self.array, SizedNames.of(names, [*map(sizes.__getitem__, names)]))

    array = axn.NamedArray.array.setter(_refuse)  # type: ignore[attr-defined]  # mypy takes properties for functions
    axes = axes.setter(_refuse)  # type: ignore[attr-defined]  # as above

    # looking up axes
    @adapted
    def has_axis(self, axis: AxisSelection) -> bool:
        """Return whether the array has all of these axes; the size of an `Axis` must match."""
        return None not in ensure_tuple(self.axis_indices(axis))

    @adapted
    def axis_indices(self, axis: AxisSelection) -> Any:
        """Return the position of an axis, or a tuple of positions; None for a missing axis."""
        asked = selection(axis, "axis_indices")
        self.resolve_axis(selectors(tuple(pair for pair in asked if pair[0] in self.names)))
        places = {name: at for at, name in enumerate(self.names)}
        found = tuple(map(places.get, names_in(asked)))
        if is_one(axis):
            return found[0]
        return found

    _lookup_indices = axis_indices

    @adapted
    def resolve_axis(self, axes: AxisSelection) -> Any:
        """Return an axis with its size, a tuple of several, or a dict for a dict."""
        if isinstance(axes, Mapping):
            return {axis.name: axis.size for axis in super().resolve_axis(axes)}
        return super().resolve_axis(axes)

    @adapted
    def axis_size(self, axis: AxisSelection) -> Any:
        """Return the size of an axis, or a tuple of the sizes of several."""
        return super().axis_size(axis)

    def matches_axes(self, spec: object) -> bool:
        """Return whether the axes, and any dtype, match an annotation or the contents of its brackets."""
        return parsed(spec).fits(self.names, getattr(self.array, "dtype", None))

    def tree_flatten(self) -> tuple[tuple[jax.Array], tuple[Axis, ...]]:
        """Return the array as the only child, and the axes."""
        return (self.array,), self.axes

    @classmethod
    def tree_unflatten(cls, aux: tuple[Axis, ...], tree: Sequence[Any]) -> "NamedArray":
        """Build an array from a child and axes, unchecked."""
        made = object.__new__(cls)
        sizes = [axis.size for axis in aux]
        made.node = ((tree[0],), SizedNames.of(axn.axis_name(aux), sizes))
        return made

    def item(self) -> Any:
        """Return the only element as a Python scalar."""
        if self.size != 1:
            raise KindError(
                message(
                    "item", f"there are {self.size} elements, not one", f"array has: {facts(self)}"
                )
            )
        return self.array.item()  # as in Haliax, also of what jax.grad traces

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __tree_pp__(self, **options: Any) -> object:
        return self.__pdoc__(**options)

    @property
    def at(self) -> _index.At:
        """Select a part to update."""
        return _index.At(self)

    __getitem__ = _index.getitem
    scalar = adapted(axn.NamedArray.scalar)
    if not TYPE_CHECKING:
        __iter__ = adapted(axn.NamedArray.__iter__)
        __contains__ = adapted(axn.NamedArray.__contains__)
        __matmul__ = adapted(axn.NamedArray.__matmul__)
        __rmatmul__ = __matmul__

    # axes
    broadcast_axis = method(broadcast_axis)
    flatten = method(flatten)
    flatten_axes = method(flatten_axes)
    ravel = method(ravel)
    rearrange = method(_contract.rearrange)
    rename = method(rename)
    roll = method(roll)
    slice = method(slice)
    split = method(split)
    take = method(take)
    unbind = method(unbind)
    unflatten_axis = method(unflatten_axis)
    updated_slice = method(updated_slice)

    def broadcast_to(self, axes: AxisSpec) -> axn.NamedArray:
        """Add the axes that this lacks, in front, and put the given axes in the given order."""
        return broadcast_to(self, axes)

    def dot(self, *args: Any, **kwargs: Any) -> axn.NamedArray:
        """Multiply with other arrays by name and sum over `axis=`; passing the axes first is deprecated."""
        if "axis" not in kwargs and args and not isinstance(args[0], axn.NamedArray):
            text = "x.dot(axis, y) is deprecated: write x.dot(y, axis=axis)"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            kwargs["axis"], args = args[0], args[1:]
        return _contract.dot(self, *args, **kwargs)

    # reductions
    all = method(_reduce.all)
    any = method(_reduce.any)
    argmin = method(_reduce.argmin)
    argsort = method(_reduce.argsort)
    cumprod = method(_reduce.cumprod)
    cumsum = method(_reduce.cumsum)
    max = method(_reduce.max)
    mean = method(_reduce.mean)
    min = method(_reduce.min)
    prod = method(_reduce.prod)
    product = method(_reduce.product)
    ptp = method(_reduce.ptp)
    sort = method(_reduce.sort)
    std = method(_reduce.std)
    sum = method(_reduce.sum)
    trace = method(adapted(axn.trace))

    def argmax(self, axis: AxisSelector | None = None) -> Any:
        """Return the index of the largest element."""
        return _reduce.argmax(self, axis)

    def var(
        self,
        axis: AxisSelection | None = None,
        dtype: DTypeLike | None = None,
        ddof: int = 0,
        *,
        where: axn.NamedArray | None = None,
    ) -> Any:
        """Return the variance; unlike in `hax.var`, dtype and ddof may be positional."""
        return _reduce.var(self, axis, dtype=dtype, ddof=ddof, where=where)

    # elementwise
    astype = method(adapted(axn.NamedArray.astype))
    conj = method(_elementwise.conj)
    conjugate = method(_elementwise.conjugate)
    copy = method(_elementwise.copy)
    round = method(_elementwise.round)

    def clip(self, a_min: Operand | None = None, a_max: Operand | None = None) -> axn.NamedArray:
        """Limit each element to an interval."""
        return _clip(self, a_min, a_max)

    __abs__ = _elementwise.abs
    __add__ = left_operator(_elementwise.add, "__radd__")
    __and__ = left_operator(_elementwise.bitwise_and, "__rand__")
    __divmod__ = left_operator(_elementwise.divmod, "__rdivmod__")
    __eq__ = equality_operator(_elementwise.equal, True)
    __floordiv__ = left_operator(_elementwise.floor_divide, "__rfloordiv__")
    __ge__ = left_operator(_elementwise.greater_equal, "__le__")
    __gt__ = left_operator(_elementwise.greater, "__lt__")
    __invert__ = _elementwise.bitwise_invert
    __le__ = left_operator(_elementwise.less_equal, "__ge__")
    __lshift__ = left_operator(_elementwise.left_shift, "__rlshift__")
    __lt__ = left_operator(_elementwise.less, "__gt__")
    __mod__ = left_operator(_elementwise.mod, "__rmod__")
    __mul__ = left_operator(_elementwise.multiply, "__rmul__")
    __ne__ = equality_operator(_elementwise.not_equal, False)
    __neg__ = _elementwise.negative
    __or__ = left_operator(_elementwise.bitwise_or, "__ror__")
    __pos__ = _elementwise.positive
    __pow__ = left_operator(_elementwise.power, "__rpow__")
    __rshift__ = left_operator(_elementwise.right_shift, "__rrshift__")
    __sub__ = left_operator(_elementwise.subtract, "__rsub__")
    __truediv__ = left_operator(_elementwise.true_divide, "__rtruediv__")
    __xor__ = left_operator(_elementwise.bitwise_xor, "__rxor__")

    __radd__ = right_operator(_elementwise.add)
    __rand__ = right_operator(_elementwise.bitwise_and)
    __rdivmod__ = right_operator(_elementwise.divmod)
    __rfloordiv__ = right_operator(_elementwise.floor_divide)
    __rlshift__ = right_operator(_elementwise.left_shift)
    __rmod__ = right_operator(_elementwise.mod)
    __rmul__ = right_operator(_elementwise.multiply)
    __ror__ = right_operator(_elementwise.bitwise_or)
    __rpow__ = right_operator(_elementwise.power)
    __rrshift__ = right_operator(_elementwise.right_shift)
    __rsub__ = right_operator(_elementwise.subtract)
    __rtruediv__ = right_operator(_elementwise.true_divide)
    __rxor__ = right_operator(_elementwise.bitwise_xor)


_clip = adapted(axn.clip)
_selection, _selector = adapted(selection), adapted(selector)


def _pairs(function: str, axes: AxisSelection) -> Pairs:
    """Normalise axes to pairs of a name and a size; a name may occur twice."""
    if isinstance(axes, Axis | str | Mapping):
        return _selection(axes, function)
    if not isinstance(axes, Sequence):
        raise KindError(message(function, f"expected axes, got {type(axes).__name__}"))
    return tuple(_selector(axis, function) for axis in axes)


def _agreed(function: str, text: str, shape: Sequence[int], given: Pairs) -> tuple[Axis, ...]:
    """Compare axes with the shape of an array, and return them with all sizes."""
    fits = len(shape) == len(given)
    for (_, size), real in zip(given, shape, strict=False):
        fits = fits and size in (None, real)
    if not fits:
        lines = (f"shape of the array: {tuple(shape)}", f"axes: {_listed(given) or 'none'}")
        raise AxisSizeError(message(function, text, *lines))
    return tuple(map(Axis, names_in(given), shape))


def _listed(given: Pairs) -> str:
    """List axes in an error: `batch=2, embed`."""
    return ", ".join(name if size is None else f"{name}={size}" for name, size in given)


def check_shape(jnp_shape: Sequence[int], hax_axes: AxisSelection) -> tuple[Axis, ...]:
    """Return the axes of an array of this shape, some of which may be given as names."""
    return _agreed("check_shape", "Shape mismatch", jnp_shape, _pairs("check_shape", hax_axes))


def named(a: object, axis: AxisSelection) -> NamedArray:
    """Name the dimensions of anything that `jax.numpy.asarray` accepts; there are no anonymous ones."""
    if isinstance(a, axn.NamedArray):
        raise KindError(
            message("named", "the array has names already", hint="rename its axes with x.rename")
        )
    array = jnp.asarray(a)
    given = _pairs("named", axis)
    return NamedArray(array, _agreed("named", "Shape mismatch", array.shape, given))
