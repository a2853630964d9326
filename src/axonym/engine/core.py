"""Internal. Storage: an array and the names of its dimensions, registered as a pytree node.

Operations are written against `Core`, and `NamedArray` lists them as methods, without an import cycle. This module has
no operations. `axonym.engine` lists its functions for libraries that are written on Axonym.
"""

import inspect
import json
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import jax
from jax.export import register_pytree_node_serialization
from jax.typing import ArrayLike

from ..axis import Axis
from ..base.kinds import Payload, type_text
from ..errors import LostAxisError, OperandError, describe, message
from ..names.plans import Names

if TYPE_CHECKING:
    from ..array import NamedArray


C = TypeVar("C", bound="Core")


class Order(tuple[str, ...]):
    """The names of an array, as JAX compares and shows them where two trees differ.

    JAX's errors say that the metadata of a node does not match, and not what to write: `cond`, loops and rules of
    gradients want the same order of axes. So in its texts names appear with the call that stores them in this order.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        # Only JAX's own messages need the advice, so the caller decides.
        plain, frame = super().__repr__(), inspect.currentframe()
        asking = frame.f_back if frame is not None else None
        module = "" if asking is None else asking.f_globals.get("__name__", "")
        if len(self) < 2 or not module.startswith("jax."):
            return plain
        return f"{plain} (as axn.rearrange(x, {plain}) stores it)"


class Core:
    """An array whose trailing dimensions have names; dimensions before them are anonymous.

    Attributes:
        node: the array as a tuple of one child, and the names, as JAX's flatten returns them: flatten is then one
            look-up in C, and a round trip of a tree costs a tenth less than with two attributes (47 to 52 us for 100
            arrays; flatten alone 29 % less).
    """

    __slots__ = ("node",)
    node: tuple[tuple[jax.Array], Names]

    @property
    def array(self) -> jax.Array:
        """The array without its names."""
        return self.node[0][0]

    @property
    def names(self) -> Names:
        """The names of the trailing dimensions, in storage order."""
        return self.node[1]

    def __renamed_hole__(self, names: Names, new: Axis | None) -> "NamedArray":
        """Replace the names on a payload that is not an array, such as the None of a filter.

        A subclass whose payloads remember the sizes of axes needs `new`, the axis that the payload lacked, for its
        size.
        """
        return rename_axes(self, names)


Operand: TypeAlias = Core | ArrayLike


def register(cls: type[C]) -> type[C]:
    """Register a subclass of `Core` as a pytree node with one leaf; unflatten takes any leaf, unchecked.

    Programs of `jax.export` may be saved with it: they keep the names.
    """
    allocate: Callable[[], C] = partial(object.__new__, cls)
    key = jax.tree_util.GetAttrKey("array")

    def unflatten(names: Names, children: Any) -> C:
        made = allocate()
        made.node = (children, names)
        return made

    jax.tree_util.register_pytree_with_keys(
        cls,
        lambda x: (((key, x.node[0][0]),), x.node[1]),
        unflatten,
        flatten_func=operator.attrgetter("node"),
    )
    # JAX's error in a process that lacks the class gives this name: reading it imports the class.
    register_pytree_node_serialization(
        cls,
        serialized_name=f"axonym.{cls.__name__}",
        serialize_auxdata=lambda names: json.dumps(names).encode(),
        deserialize_auxdata=lambda data: tuple(json.loads(data)),
    )
    return cls


def wrap(like: Core, array: Payload, names: Names) -> "NamedArray":
    """Name the result of an operation on `like`, unchecked.

    Args:
        like: the operand, whose class the result has.
        array: the array of the result.
        names: the names of its last dimensions.

    Examples:
        >>> from axonym.engine import wrap
        >>> wrap(axn.ones({"x": 2}), jnp.zeros(3), ("y",)).shape
        {'y': 3}
    """
    cls = type(like)
    # The checks of `__init__` cost as much as a small operation.
    made = object.__new__(cls)
    if names.__class__ is tuple:  # another subclass, as Haliax's sized names, stays as it is
        names = Order(names)
    made.node = ((array,), names)
    return made  # type: ignore[return-value]  # the one concrete subclass is NamedArray, which this file cannot import


def rename_axes(x: Core, names: Names) -> "NamedArray":
    """Keep the array and replace its names, unchecked."""
    return wrap(x, x.node[0][0], names)


def rename_hole(hole: Core, names: Names, new: Axis | None = None) -> "NamedArray":
    """Replace the names on a payload that is not an array, unchecked; `new` is the added axis."""
    return hole.__renamed_hole__(names, new)


def shape_of(function: str, array: Payload, names: Names) -> tuple[int, ...]:
    """Return the shape of a payload that is about to be used.

    Args:
        function: the name of the operation, for errors.
        array: the payload.
        names: the names of its last dimensions.

    Raises:
        LostAxisError: if it has fewer dimensions than names.
        OperandError: if it is not an array.

    Examples:
        >>> from axonym.engine import shape_of
        >>> shape_of("my_function", jnp.ones((2, 3)), ("embed",))
        (2, 3)
    """
    # A named array inside of another one has a shape too, of names.
    shape = getattr(array, "shape", None)
    if isinstance(array, Core):
        raise _nesting_error(function, array, names)
    if shape is None:
        problem = f"a NamedArray holds an object of type {type_text(array)}, not an array"
        raise OperandError(message(function, problem, f"its names: {', '.join(names) or 'none'}"))
    if len(shape) < len(names):
        raise dimension_error(function, names, shape)
    return tuple(shape)


def _nesting_error(function: str, inner: Core, names: Names) -> OperandError:
    problem = "a NamedArray holds another NamedArray, as raw jax.jacfwd, jax.jacrev and jax.hessian return it"
    lines = f"its names: {', '.join(names) or 'none'}", f"the inner one has: {facts(inner)}"
    hint = "axn.jacfwd, axn.jacrev and axn.hessian return one array with the names of both"
    return OperandError(message(function, problem, *lines, hint=hint))


def dimension_error(function: str, names: Names, shape: tuple[int, ...]) -> LostAxisError:
    """Build the error for an array that has fewer dimensions than names."""
    problem = (
        f"an array of shape {tuple(shape)} cannot have the {len(names)} axes {', '.join(names)}"
    )
    return LostAxisError(
        message(
            function,
            problem,
            "raw jax.vmap, lax.scan and indexing remove the leading dimension, but not its name",
            hint=f'use axn.vmap(f, "{names[0]}") or axn.scan(f, "{names[0]}"), or make the axis anonymous first: '
            f'x.untag("{names[0]}")',
        )
    )


def payload_of(leaf: Payload) -> Payload:
    """Return the array of a named array, and any other leaf as it is.

    Examples:
        >>> from axonym.engine import payload_of
        >>> payload_of(axn.ones({"x": 2})), payload_of(3)
        (Array([1., 1.], dtype=float32), 3)
    """
    return leaf.array if isinstance(leaf, Core) else leaf


def sizes_of(names: Names, shape: Sequence[int]) -> dict[str, int]:
    """Return the sizes of the trailing dimensions by name."""
    return dict(zip(names, shape[len(shape) - len(names) :], strict=True))


def axes_of(function: str, x: Core) -> tuple[Axis, ...]:
    """Return the named axes with their sizes, checked."""
    (array,), names = x.node
    shape = shape_of(function, array, names)
    return tuple(map(Axis, names, shape[len(shape) - len(names) :]))


def facts(x: Core) -> str:
    """Describe the axes of an array, for an error.

    Examples:
        >>> from axonym.engine import facts
        >>> facts(axn.ones({"batch": 2, "embed": 3}))
        'batch=2, embed=3'
    """
    (array,), names = x.node
    return describe(names, None if isinstance(array, Core) else getattr(array, "shape", None))
