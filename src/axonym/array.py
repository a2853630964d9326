"""`NamedArray`: an array whose dimensions have names, with its methods."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .axis import Axis, AxisSelection, AxisSelector, selection, selector
from .core import Core, axes_of, facts, register, shape_of
from .errors import AxisClashError, AxisNotFoundError, AxisSizeError, OperandError, describe, message, suggestion
from .ops import along, contract, elementwise, index, logical, reduce
from .ops import shape as shape_ops

__all__ = ["NamedArray", "is_named_array", "named"]


@register
class NamedArray(Core):
    """A JAX array whose trailing dimensions have names; each method is the function of the same name.

    Names are static, sizes are those of the array. The array is kept as it is: it may be a tracer, a
    `jax.ShapeDtypeStruct`, or anything else that JAX's transformations put into a tree.

    Args:
        array: the array.
        axes: one axis per trailing dimension: an `Axis`, whose size must agree, or just a name.

    Raises:
        AxisSizeError: if the number of axes or a size does not fit the array.
        AxisClashError: if a name is given twice.

    Example:
        >>> x = axn.NamedArray(jnp.ones((2, 3)), (axn.Axis("batch", 2), "embed"))
        >>> x.mean("embed").names
        ('batch',)
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # == is elementwise
    __array_ufunc__ = None  # numpy on the left of an operator leaves it to the reflected one here

    def __init__(self, array: Any, axes: AxisSelection) -> None:
        pairs = selection(axes, "NamedArray")
        names = tuple(name for name, _ in pairs)
        if len(set(names)) != len(names):
            raise AxisClashError(message("NamedArray", f"names are given twice: {', '.join(names)}"))
        have = getattr(array, "shape", None)
        if have is not None and len(have) < len(names):
            problem = f"{len(names)} axes for an array of shape {tuple(have)}"
            raise AxisSizeError(message("NamedArray", problem, f"axes: {', '.join(names)}"))
        if have is not None:
            for (name, size), real in zip(pairs, have[len(have) - len(names) :], strict=True):
                if size is not None and size != real:
                    given = ", ".join(n if s is None else f"{n}={s}" for n, s in pairs)
                    problem = f"axis {name!r} was given with size {size}, but the array has {real} there"
                    lines = (f"axes: {given}", f"shape of the array: {tuple(have)}")
                    raise AxisSizeError(message("NamedArray", problem, *lines))
        self.node = ((array,), names)

    # what it is
    @property
    def axes(self) -> tuple[Axis, ...]:
        """The named axes with their sizes, in storage order."""
        return axes_of("axes", self)

    @property
    def shape(self) -> dict[str, int]:
        """The sizes of the named axes."""
        return {axis.name: axis.size for axis in self.axes}

    @property
    def dtype(self) -> Any:
        """The dtype of the elements."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions, anonymous ones included."""
        return self.array.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.array.size

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements."""
        return self.array.nbytes

    @property
    def sharding(self) -> jax.sharding.Sharding:
        """How the array lies on devices."""
        return self.array.sharding

    @property
    def real(self) -> "NamedArray":
        """The real parts."""
        return elementwise.real(self)

    @property
    def imag(self) -> "NamedArray":
        """The imaginary parts."""
        return elementwise.imag(self)

    def has_axis(self, axis: AxisSelection) -> bool:
        """Tell whether all of these axes are here; the size of an `Axis` counts."""
        have = self.shape
        return all(name in have and size in (None, have[name]) for name, size in selection(axis, "has_axis"))

    def axis_size(self, axis: AxisSelector) -> int:
        """Return the size of an axis."""
        return self.resolve_axis(axis).size

    def resolve_axis(self, axis: AxisSelector) -> Axis:
        """Return an axis with its size.

        Raises:
            AxisNotFoundError: if it is not here.
            AxisSizeError: if an `Axis` has another size.
        """
        name, size = selector(axis, "resolve_axis")
        have = self.shape
        if name not in have:
            hint = suggestion(name, have)
            problem = f"no axis named {name!r}"
            raise AxisNotFoundError(message("resolve_axis", problem, f"array has: {facts(self)}", hint=hint))
        if size not in (None, have[name]):
            problem = f"axis {name!r} was given with size {size}, but has size {have[name]}"
            raise AxisSizeError(message("resolve_axis", problem, f"array has: {facts(self)}"))
        return Axis(name, have[name])

    # leaving the names
    def scalar(self) -> jax.Array:
        """Return the 0-d array of an array without axes, such as a loss for `jax.grad`.

        Raises:
            AxisSizeError: if there are dimensions.
        """
        if shape_of("scalar", self.array, self.names):
            problem = "the array has dimensions"
            hint = "reduce them first, as x.mean().scalar() does"
            raise AxisSizeError(message("scalar", problem, f"array has: {facts(self)}", hint=hint))
        return self.array

    def item(self) -> Any:
        """Return the one element as a Python scalar."""
        return self.array.item()

    def tolist(self) -> Any:
        """Return the elements as nested Python lists."""
        return self.array.tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.array, dtype=dtype) if copy else np.asarray(self.array, dtype=dtype)

    def __bool__(self) -> bool:
        return bool(self.array)

    def __int__(self) -> int:
        return int(self.array)

    def __float__(self) -> float:
        return float(self.array)

    def __complex__(self) -> complex:
        return complex(self.array)

    def __iter__(self) -> Iterator["NamedArray"]:
        hint = "write for part in x.unbind(axis)"
        raise OperandError(message("iter", "a NamedArray has no first axis", f"array has: {facts(self)}", hint=hint))

    def __repr__(self) -> str:
        (array,), names = self.node
        if isinstance(array, Core) or not hasattr(array, "dtype"):
            return f"NamedArray({array!r}, {names})"
        head = f"NamedArray({array.dtype}[{describe(names, array.shape).replace('no axes', '')}])"
        if isinstance(array, Tracer) or not isinstance(array, jax.Array | np.ndarray) or array.size > 16:
            return head
        return f"{head}\n{np.asarray(array)}" if getattr(array, "is_fully_addressable", True) else head

    # operators
    __abs__ = elementwise.abs
    __add__ = elementwise.add
    __and__ = logical.bitwise_and
    __divmod__ = elementwise.divmod
    __eq__ = logical.equal  # type: ignore[assignment]  # elementwise, unlike object's
    __floordiv__ = elementwise.floor_divide
    __ge__ = logical.greater_equal
    __getitem__ = index.getitem
    __gt__ = logical.greater
    __invert__ = logical.bitwise_invert
    __le__ = logical.less_equal
    __lshift__ = logical.left_shift
    __lt__ = logical.less
    __mod__ = elementwise.remainder
    __mul__ = elementwise.multiply
    __ne__ = logical.not_equal  # type: ignore[assignment]  # elementwise, unlike object's
    __neg__ = elementwise.negative
    __or__ = logical.bitwise_or
    __pos__ = elementwise.positive
    __pow__ = elementwise.power
    __rshift__ = logical.right_shift
    __sub__ = elementwise.subtract
    __truediv__ = elementwise.divide
    __xor__ = logical.bitwise_xor

    def __matmul__(self, other: object) -> "NamedArray":
        hint = 'write x.dot(y, axis="embed")'
        raise OperandError(message("@", "a product of named arrays needs the axis to sum over", hint=hint))

    __rmatmul__ = __matmul__

    def __radd__(self, other: Any) -> "NamedArray":
        return elementwise.add(other, self)

    def __rand__(self, other: Any) -> "NamedArray":
        return logical.bitwise_and(other, self)

    def __rdivmod__(self, other: Any) -> tuple["NamedArray", "NamedArray"]:
        return elementwise.divmod(other, self)

    def __rfloordiv__(self, other: Any) -> "NamedArray":
        return elementwise.floor_divide(other, self)

    def __rlshift__(self, other: Any) -> "NamedArray":
        return logical.left_shift(other, self)

    def __rmod__(self, other: Any) -> "NamedArray":
        return elementwise.remainder(other, self)

    def __rmul__(self, other: Any) -> "NamedArray":
        return elementwise.multiply(other, self)

    def __ror__(self, other: Any) -> "NamedArray":
        return logical.bitwise_or(other, self)

    def __rpow__(self, other: Any) -> "NamedArray":
        return elementwise.power(other, self)

    def __rrshift__(self, other: Any) -> "NamedArray":
        return logical.right_shift(other, self)

    def __rsub__(self, other: Any) -> "NamedArray":
        return elementwise.subtract(other, self)

    def __rtruediv__(self, other: Any) -> "NamedArray":
        return elementwise.divide(other, self)

    def __rxor__(self, other: Any) -> "NamedArray":
        return logical.bitwise_xor(other, self)

    # elementwise
    astype = elementwise.astype
    clip = elementwise.clip
    conj = elementwise.conj
    round = elementwise.round

    # reductions
    all = reduce.all
    any = reduce.any
    argmax = reduce.argmax
    argmin = reduce.argmin
    max = reduce.max
    mean = reduce.mean
    min = reduce.min
    prod = reduce.prod
    ptp = reduce.ptp
    std = reduce.std
    sum = reduce.sum
    var = reduce.var

    # along axes
    argsort = along.argsort
    cumprod = along.cumprod
    cumsum = along.cumsum
    sort = along.sort

    # contraction
    dot = contract.dot

    # indexing
    slice = index.slice
    take = index.take

    # names, order and grouping of axes
    broadcast_axis = shape_ops.broadcast_axis
    broadcast_to = shape_ops.broadcast_to
    flatten = shape_ops.flatten
    flatten_axes = shape_ops.flatten_axes
    rearrange = shape_ops.rearrange
    rename = shape_ops.rename
    split = shape_ops.split
    tag = shape_ops.tag
    unbind = shape_ops.unbind
    unflatten_axis = shape_ops.unflatten_axis
    untag = shape_ops.untag


def named(array: Any, axes: AxisSelection) -> NamedArray:
    """Name the dimensions of anything that `jax.numpy.asarray` accepts.

    Args:
        array: an array, a nested list or a scalar.
        axes: one axis per dimension: an `Axis`, whose size must agree, or just a name.

    Raises:
        AxisSizeError: if the number of axes or a size does not fit.

    Example:
        >>> axn.named([1, 2, 3], "x")
        NamedArray(int32[x=3])
        [1 2 3]
    """
    array = jnp.asarray(array)
    given = selection(axes, "named")
    if len(given) != array.ndim:
        problem = f"{len(given)} axes for an array of shape {array.shape}"
        raise AxisSizeError(message("named", problem, f"axes: {', '.join(name for name, _ in given) or 'none'}"))
    return NamedArray(array, axes)


def is_named_array(leaf: object) -> bool:
    """Tell whether something is a NamedArray: the `is_leaf` of a tree function that keeps named arrays whole."""
    return isinstance(leaf, NamedArray)
