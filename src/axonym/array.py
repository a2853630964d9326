"""`NamedArray`: an array whose dimensions have names, with its methods."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .axis import Axis, AxisSelection, AxisSelector, names_in, selection
from .base.callers import find_calling_module
from .base.calls import explain_call
from .base.foreign import ATTRIBUTES, Lacking
from .base.kinds import Payload, is_concrete
from .base.phrases import write_size_conflict
from .engine.checks import refuse_names, refuse_words, require
from .engine.core import Core, Order, axes_of, facts, register, shape_of
from .engine.operators import equality_operator, left_operator, right_operator
from .errors import AxisSizeError, OperandError, message
from .ops import (
    contract,
    cumulative,
    diagonal as diagonal_ops,
    elementwise,
    index,
    join,
    logical,
    quantiles,
    reduce,
    repeat,
    roll,
    shape as shape_ops,
    sorting,
    update,
    where,
)
from .protocols import printing
from .protocols.numpy_functions import ArrayFunction
from .shape import Shape
from .typing import Annotation, AxesPattern, annotation

__all__ = ["NamedArray", "is_named_array", "named"]


def _refuse_matmul(x: object, y: object) -> NoReturn:
    hint = 'write x.dot(y, axis="embed")'
    problem = "a product of named arrays needs the axis to sum over"
    if find_calling_module().startswith("equinox."):
        problem = "a layer of Equinox takes arrays without names"
        hint = 'write axn.nmap(layer, out_axis="embed")(x.untag("embed")), or use one of axn.nn'
    raise OperandError(message("@", problem, hint=hint))


@register
class NamedArray(Core):
    """A JAX array whose trailing dimensions have names; each method is the function of the same name.

    Names are static; sizes are read from the array. The array is stored unchanged: it may be a tracer, a
    `jax.ShapeDtypeStruct`, or anything else that JAX's transformations use as a leaf.

    Args:
        array: the array.
        axes: one axis per trailing dimension: an `Axis`, whose size must match, or a name.

    Raises:
        AxisSizeError: if there are more axes than dimensions, or a size does not match.
        AxisClashError: if a name is given twice.

    Examples:
        >>> x = axn.NamedArray(jnp.ones((2, 3)), (axn.Axis("batch", 2), "embed"))
        >>> x.mean("embed").names
        ('batch',)
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # == is elementwise
    __array_ufunc__ = None  # so that numpy_array + x calls x.__radd__
    __array_function__ = ArrayFunction()

    def __init__(self, array: Payload, axes: AxisSelection) -> None:
        pairs = selection(axes, "NamedArray")
        names = names_in(pairs)
        refuse_names("NamedArray", array)
        # Transformations use other objects as leaves, such as `None` or a sharding, which have no shape to check.
        have = getattr(array, "shape", None)
        if have is not None and len(have) < len(names):
            problem = f"{len(names)} axes for an array of shape {tuple(have)}"
            raise AxisSizeError(message("NamedArray", problem, f"axes: {', '.join(names)}"))
        if have is not None:
            for (name, size), real in zip(pairs, have[len(have) - len(names) :], strict=True):
                if size is not None and size != real:
                    given = ", ".join(n if s is None else f"{n}={s}" for n, s in pairs)
                    problem = write_size_conflict(name, size, f"that dimension has size {real}")
                    lines = (f"axes: {given}", f"shape of the array: {tuple(have)}")
                    raise AxisSizeError(message("NamedArray", problem, *lines))
        self.node = ((array,), Order(names))

    # properties
    @property
    def axes(self) -> tuple[Axis, ...]:
        """The named axes with their sizes, in storage order."""
        return axes_of("axes", self)

    @property
    def shape(self) -> Shape:
        """The sizes of the named axes by name; it cannot be iterated or unpacked, which would give the names."""
        return Shape(self.axes)

    @property
    def dtype(self) -> np.dtype[Any]:
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
        return self.size * self.itemsize

    @property
    def itemsize(self) -> int:
        """The number of bytes of one element."""
        size: int = self.dtype.itemsize  # of the dtype, which an abstract array has too
        return size

    @property
    def weak_type(self) -> bool:
        """Whether the dtype is weak: type promotion prefers the dtype of the other operand, as for a Python number."""
        return bool(jax.typeof(self.array).weak_type)

    @property
    def sharding(self) -> jax.sharding.Sharding:
        """The sharding of the array, whose spec is by position; `axn.show` prints it by name."""
        return self.array.sharding

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process can address all devices of the array."""
        return self.array.is_fully_addressable

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each device holds the whole array."""
        return self.array.is_fully_replicated

    @property
    def committed(self) -> bool:
        """Whether the array was explicitly placed on its devices, so that operations on it run there."""
        return self.array.committed

    def devices(self) -> set[Any]:
        """Return the devices that hold the array."""
        return self.array.devices()

    def block_until_ready(self) -> "NamedArray":
        """Wait until the elements are computed."""
        self.array.block_until_ready()
        return self

    def is_deleted(self) -> bool:
        """Return whether the memory of the array has been freed, as by donation."""
        return self.array.is_deleted()

    @property
    def at(self) -> update.At:
        """Select a part to update: `x.at["batch", 0].set(1.0)` returns a new array."""
        return update.At(self)

    @property
    def real(self) -> "NamedArray":
        """The real parts."""
        return elementwise.real(self)

    @property
    def imag(self) -> "NamedArray":
        """The imaginary parts."""
        return elementwise.imag(self)

    def has_axis(self, axis: AxisSelection) -> bool:
        """Return whether the array has all of these axes; the size of an `Axis` must match."""
        have = self.shape
        return all(
            name in have and size in (None, have[name])
            for name, size in selection(axis, "has_axis")
        )

    def matches_axes(self, axes: AxesPattern | Annotation) -> bool:
        """Return whether the axes match an annotation, or the contents of its brackets.

        Examples:
            >>> axn.ones({"batch": 2, "pos": 3, "embed": 4}).matches_axes("batch ... embed")
            True
        """
        return isinstance(self, axes if isinstance(axes, Annotation) else annotation(axes))

    @overload
    def axis_size(self, axis: AxisSelector) -> int: ...  # type: ignore[overload-overlap]  # a str is a Sequence too
    @overload
    def axis_size(
        self, axis: Sequence[AxisSelector] | Mapping[str, int | None]
    ) -> tuple[int, ...]: ...
    def axis_size(self, axis: AxisSelection) -> int | tuple[int, ...]:
        """Return the size of an axis, or the sizes of several as a tuple; errors are those of `resolve_axis`.

        Examples:
            >>> axn.zeros({"batch": 2, "embed": 3}).axis_size("embed")
            3
        """
        found = require("axis_size", self, axis)
        return found[0].size if isinstance(axis, Axis | str) else tuple(each.size for each in found)

    @overload
    def axis_indices(self, axis: AxisSelector) -> int: ...  # type: ignore[overload-overlap]  # as above
    @overload
    def axis_indices(
        self, axis: Sequence[AxisSelector] | Mapping[str, int | None]
    ) -> tuple[int, ...]: ...
    def axis_indices(self, axis: AxisSelection) -> int | tuple[int, ...]:
        """Return the position of an axis among the dimensions of the array, or the positions of several as a tuple.

        Anonymous dimensions count. Use it to call functions of JAX on `x.array`; functions of Axonym take names.

        Examples:
            >>> axn.zeros({"batch": 2, "embed": 3}).axis_indices(("embed", "batch"))
            (1, 0)
        """
        anonymous = self.ndim - len(self.names)
        found = [
            anonymous + self.names.index(each.name) for each in require("axis_indices", self, axis)
        ]
        return found[0] if isinstance(axis, Axis | str) else tuple(found)

    @overload
    def resolve_axis(self, axis: AxisSelector) -> Axis: ...  # type: ignore[overload-overlap]  # as above
    @overload
    def resolve_axis(
        self, axis: Sequence[AxisSelector] | Mapping[str, int | None]
    ) -> tuple[Axis, ...]: ...
    def resolve_axis(self, axis: AxisSelection) -> Axis | tuple[Axis, ...]:
        """Return an axis with its size, or several as a tuple.

        Raises:
            AxisNotFoundError: if one is missing.
            AxisSizeError: if an `Axis` has another size.

        Examples:
            >>> axn.zeros({"batch": 2, "embed": 3}).resolve_axis("embed")
            Axis(name='embed', size=3)
        """
        found = require("resolve_axis", self, axis)
        return found[0] if isinstance(axis, Axis | str) else found

    # leaving the names
    def scalar(self) -> jax.Array:
        """Return the 0-d array of an array without axes, such as a loss for `jax.grad`.

        Raises:
            AxisSizeError: if there are dimensions.

        Examples:
            >>> jax.grad(lambda w: w.sum().scalar())(axn.ones({"embed": 2})).tolist()
            [1.0, 1.0]
        """
        if shape_of("scalar", self.array, self.names):
            problem = "the array has dimensions"
            hint = "reduce them first, as x.mean().scalar() does"
            if not self.names:  # x.mean() would need names
                hint = "reductions need names: add them with x.tag(...), or use x.array"
            raise AxisSizeError(message("scalar", problem, f"array has: {facts(self)}", hint=hint))
        return self.array

    def item(self) -> Any:
        """Return the only element as a Python scalar.

        Raises:
            AxisSizeError: if there are several elements.
            OperandError: if the array is traced: no gradient would go through a Python number.

        Examples:
            >>> axn.arange(axn.Axis("pos", 4)).sum().item()
            6
        """
        array = self.array
        # JAX's own error would talk of concretisation, and not say how to go on.
        if isinstance(array, Tracer):
            problem = (
                "a traced array cannot become a Python number: gradients would not go through it"
            )
            hint = 'go on with x.scalar(); to look at the value, write jax.debug.print("{x}", x=x)'
            raise OperandError(message("item", problem, f"array has: {facts(self)}", hint=hint))
        if is_concrete(array) and array.size != 1:
            problem = "the array has several elements" if array.size else "the array has no element"
            hint = "reduce it, as x.mean().item() does; x.tolist() has all"
            raise AxisSizeError(message("item", problem, f"array has: {facts(self)}", hint=hint))
        return array.item()

    def tolist(self) -> Any:
        """Return the elements as nested Python lists, in storage order."""
        return self.array.tolist()

    def tobytes(self, order: Literal["C", "F", "A"] = "C") -> bytes:
        """Return the elements as bytes, in storage order."""
        return np.asarray(self).tobytes(order)

    # There is no __jax_array__: with it, jnp.sin(x) would silently drop the names.
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.array
        if not is_concrete(array):
            # A lost axis is reported first: it is the mistake that explains the other one.
            shape_of("asarray", array, self.names)
            hint = "inside of jit there are none: compute with functions of axonym, or look with jax.debug.print"
            problem = "the array has no values yet"
            raise OperandError(message("asarray", problem, f"array has: {facts(self)}", hint=hint))
        return np.array(array, dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        array: Any = self.array
        return array.__dlpack_device__()

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """Return the elements as an array of NumPy, in storage order; matplotlib calls it."""
        return np.asarray(self)

    def __len__(self) -> int:
        shape = shape_of("len", self.array, self.names)
        if len(shape) == 1:
            return shape[0]
        problem = f"only an array of one dimension has a length, not one of {len(shape)}"
        hint = (
            'x.axis_size("batch") is the length along an axis; np.asarray(x) is an array of NumPy'
        )
        raise OperandError(message("len", problem, f"array has: {facts(self)}", hint=hint))

    def __bool__(self) -> bool:
        if isinstance(self.array, jax.ShapeDtypeStruct):  # true, as any object by default
            problem = "the array has no values yet"
            raise OperandError(message("bool", problem, f"array has: {facts(self)}"))
        if shape_of("bool", self.array, self.names) and self.size != 1:
            hint = "reduce it: x.all() or x.any()"
            problem = "the truth of an array of several elements is ambiguous"
            raise AxisSizeError(message("bool", problem, f"array has: {facts(self)}", hint=hint))
        return bool(self.array)

    def __int__(self) -> int:
        return int(self._number("int"))

    def __float__(self) -> float:
        return float(self._number("float"))

    def __complex__(self) -> complex:
        return complex(self._number("complex"))

    def __index__(self) -> int:
        return operator.index(self._number("index"))

    def _number(self, function: str) -> jax.Array:
        """Return the array, for a conversion to a Python number; raise if it has dimensions."""
        if shape_of(function, self.array, self.names):
            problem = "an array with dimensions is not a number"
            hint = "reduce or index it first; x.item() takes the only element"
            raise OperandError(message(function, problem, f"array has: {facts(self)}", hint=hint))
        return self.array

    def __round__(self, ndigits: int | None = None) -> "NamedArray":
        return elementwise.round(self, ndigits or 0)

    if (
        not TYPE_CHECKING
    ):  # type checkers report the use of a missing method, but not of one that raises

        def __contains__(self, value: object) -> bool:
            problem = "`in` is ambiguous: it could test for an axis or for an element"
            hint = "write x.has_axis(name) or (x == value).any()"
            raise OperandError(message("in", problem, f"array has: {facts(self)}", hint=hint))

        def __iter__(self) -> Iterator["NamedArray"]:
            hint = "write for part in x.unbind(axis); np.asarray(x) is an array of NumPy"
            problem = "cannot iterate over a NamedArray without naming an axis"
            raise OperandError(message("iter", problem, f"array has: {facts(self)}", hint=hint))

        def __setitem__(self, item: object, value: object) -> None:
            hint = 'x.at["batch", 0].set(1.0) returns a new array'
            raise OperandError(
                message("[]", "arrays of JAX do not change", f"array has: {facts(self)}", hint=hint)
            )

    # Names of other libraries, which only raise, are no completions.
    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in ATTRIBUTES]

    # printing and annotations
    def __repr__(self) -> str:
        return printing.text(self)

    def __format__(self, spec: str) -> str:
        return printing.format_element(self, spec)

    def __pdoc__(self, **options: Any) -> Any:
        return printing.document(self, **options)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        from .protocols import treescope

        return treescope.render(self, path, subtree_renderer)

    def __treescope_ndarray_adapter__(self) -> Any:
        from .protocols import treescope

        return treescope.adapter(self)

    def __class_getitem__(cls, axes: AxesPattern) -> Annotation:
        return annotation(axes)

    # operators
    # Each entry of the tables below is the function itself: a wrapper would take time in each call, and hide its
    # signature and docstring.
    __abs__ = elementwise.abs
    __add__ = left_operator(elementwise.add, "__radd__")
    __and__ = left_operator(logical.bitwise_and, "__rand__")
    __divmod__ = left_operator(elementwise.divmod, "__rdivmod__")
    __floordiv__ = left_operator(elementwise.floor_divide, "__rfloordiv__")
    __ge__ = left_operator(logical.greater_equal, "__le__")
    __getitem__ = index.getitem
    __gt__ = left_operator(logical.greater, "__lt__")
    __invert__ = logical.bitwise_invert
    __le__ = left_operator(logical.less_equal, "__ge__")
    __lshift__ = left_operator(logical.left_shift, "__rlshift__")
    __lt__ = left_operator(logical.less, "__gt__")
    __mod__ = left_operator(elementwise.remainder, "__rmod__")
    __mul__ = left_operator(elementwise.multiply, "__rmul__")
    __neg__ = elementwise.negative
    __or__ = left_operator(logical.bitwise_or, "__ror__")
    __pos__ = elementwise.positive
    __pow__ = left_operator(elementwise.power, "__rpow__")
    __rshift__ = left_operator(logical.right_shift, "__rrshift__")
    __sub__ = left_operator(elementwise.subtract, "__rsub__")
    __truediv__ = left_operator(elementwise.divide, "__rtruediv__")
    __xor__ = left_operator(logical.bitwise_xor, "__rxor__")

    __radd__ = right_operator(elementwise.add)
    __rand__ = right_operator(logical.bitwise_and)
    __rdivmod__ = right_operator(elementwise.divmod)
    __rfloordiv__ = right_operator(elementwise.floor_divide)
    __rlshift__ = right_operator(logical.left_shift)
    __rmod__ = right_operator(elementwise.remainder)
    __rmul__ = right_operator(elementwise.multiply)
    __ror__ = right_operator(logical.bitwise_or)
    __rpow__ = right_operator(elementwise.power)
    __rrshift__ = right_operator(logical.right_shift)
    __rsub__ = right_operator(elementwise.subtract)
    __rtruediv__ = right_operator(elementwise.divide)
    __rxor__ = right_operator(logical.bitwise_xor)

    if TYPE_CHECKING:  # unlike those of object; type checkers take the type from the assignment

        def __eq__(self, other: object, /) -> "NamedArray": ...  # type: ignore[override]  # elementwise
        def __ne__(self, other: object, /) -> "NamedArray": ...  # type: ignore[override]  # elementwise
    else:
        __eq__ = equality_operator(logical.equal, True)
        __ne__ = equality_operator(logical.not_equal, False)
        __matmul__ = left_operator(_refuse_matmul, "__rmatmul__")
        __rmatmul__ = right_operator(_refuse_matmul)

    # elementwise
    astype = elementwise.astype
    clip = elementwise.clip
    conj = elementwise.conj
    copy = elementwise.copy
    round = elementwise.round

    # reductions
    all = reduce.all
    any = reduce.any
    argmax = reduce.argmax
    argmin = reduce.argmin
    max = reduce.max
    mean = reduce.mean
    median = quantiles.median
    min = reduce.min
    prod = reduce.prod
    ptp = reduce.ptp
    quantile = quantiles.quantile
    std = reduce.std
    sum = reduce.sum
    var = reduce.var

    # along axes
    cumprod = cumulative.cumprod
    cumsum = cumulative.cumsum
    flip = roll.flip
    roll = roll.roll

    # sorting
    argpartition = sorting.argpartition
    argsort = sorting.argsort
    partition = sorting.partition
    sort = sorting.sort
    top_k = sorting.top_k

    # contraction
    dot = contract.dot

    # indexing
    put_along_axis = update.put_along_axis
    slice = index.slice
    take = index.take
    take_along_axis = index.take_along_axis
    updated_slice = update.updated_slice

    # choosing elements
    choose = where.choose
    nonzero = where.nonzero
    searchsorted = sorting.searchsorted

    # joining, repeating and splitting
    repeat = repeat.repeat
    split = join.split
    unbind = join.unbind

    # diagonals of two axes
    diagonal = diagonal_ops.diagonal
    trace = diagonal_ops.trace

    # names, order and grouping of axes
    broadcast_axis = shape_ops.broadcast_axis
    broadcast_to = shape_ops.broadcast_to
    flatten = shape_ops.flatten
    flatten_axes = shape_ops.flatten_axes
    rearrange = shape_ops.rearrange
    rename = shape_ops.rename
    squeeze = shape_ops.squeeze
    tag = shape_ops.tag
    unflatten_axis = shape_ops.unflatten_axis
    untag = shape_ops.untag


for _name, _hint in ATTRIBUTES.items():
    # They would replace a method that came later.
    assert not hasattr(NamedArray, _name), _name
    setattr(NamedArray, _name, Lacking(_name, _hint))


@explain_call
def named(array: Payload, axes: AxisSelection) -> NamedArray:
    """Name the dimensions of anything that `jax.numpy.asarray` accepts.

    Args:
        array: an array, a nested list or a scalar.
        axes: one axis per dimension: an `Axis`, whose size must match, or a name.

    Returns:
        An array with these axes. In contrast to `NamedArray(...)`, no dimension stays anonymous, and lists are
        converted.

    Raises:
        AxisSizeError: if the number of axes or a size does not match.

    Examples:
        >>> axn.named([1, 2, 3], "x")
        NamedArray(int32[x=3])
        [1 2 3]
    """
    refuse_names("named", array)
    if not isinstance(array, jax.Array):
        refuse_words("named", array)
        array = jnp.asarray(array)
    given = dict(selection(axes, "named"))
    if len(given) != array.ndim:
        problem = f"{len(given)} axes for an array of shape {array.shape}"
        # Other libraries take "batch embed" for two names.
        words = axes.replace(",", " ").split() if isinstance(axes, str) else []
        quoted = ", ".join(f'"{word}"' for word in words)
        hint = f"a string is one name; write ({quoted})" if len(words) > 1 else None
        lines = f"axes: {', '.join(given) or 'none'}"
        raise AxisSizeError(message("named", problem, lines, hint=hint))
    return NamedArray(array, given)


def is_named_array(leaf: object) -> bool:
    """Return whether `leaf` is a NamedArray; as `is_leaf` of `jax.tree` functions, this makes named arrays leaves.

    Examples:
        >>> jax.tree.map(lambda x: x.names, {"x": axn.ones({"pos": 2})}, is_leaf=axn.is_named_array)
        {'x': ('pos',)}
    """
    return isinstance(leaf, NamedArray)
