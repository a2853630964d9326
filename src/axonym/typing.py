"""Annotations of named arrays by their axes and dtype, such as `f32[NamedArray, "batch embed"]`.

An annotation is a class whose instances are the named arrays that it describes. So `isinstance`, beartype, jaxtyping's
`jaxtyped` and other runtime checkers check axes too, and static type checkers see `NamedArray`.
`NamedArray["batch embed"]` is the annotation for any dtype, for checks at run time only.

The axes are one of:

* a string of names, in order: `"batch embed"`; `""` means no axes. These names have letters, digits and `_`, with
  `.`, `-` or `/` between them; other names need a tuple;
* a tuple of names and `Axis` objects, in order: `("batch", Embed)`; the size of an `Axis` must match;
* a set of the same, in any order: `{"batch", Embed}`.

One `...` among them stands for any number of further axes: at its place, or anywhere in a set. Anonymous dimensions
come first, so only a leading `...`, or one in a set, includes them.

The families of dtypes are those of jaxtyping: `Shaped` and `Named` (any), `Bool`, `Int` (signed), `UInt`, `Integer`
(both), `Float`, `Complex`, `Inexact` (both), `Real` (all but complex and boolean), `Num` (all but boolean) and `Key`.
Single dtypes have short names: `bf16`, `f16`, `f32`, `f64`, `i8`, `i16`, `i32`, `i64`, `u8`, `u16`, `u32`, `u64`,
`complex64`, `complex128` and `bool_`.

Examples:
    >>> from axonym.typing import Float, f32
    >>> x = axn.ones({"batch": 2, "embed": 3})
    >>> isinstance(x, f32[axn.NamedArray, "batch embed"]), isinstance(x, Float[axn.NamedArray, "embed batch"])
    (True, False)
"""

import copyreg
import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence, Set
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from .axis import Axis, Pairs, names_in, selection, selectors
from .engine.core import Core
from .errors import ArgumentError, OperandError, message
from .names.plans import Names

__all__ = [
    "Annotation",
    "AxesPattern",
    "Bool",
    "Complex",
    "DTypeFamily",
    "Float",
    "Inexact",
    "Int",
    "Integer",
    "Key",
    "Named",
    "Num",
    "Real",
    "Shaped",
    "UInt",
    "annotation",
    "bf16",
    "bool_",
    "complex64",
    "complex128",
    "f16",
    "f32",
    "f64",
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
]

Entry: TypeAlias = str | Axis | EllipsisType
AxesPattern: TypeAlias = Entry | Sequence[Entry] | Set[Entry] | Mapping[str, int | None]


# Words that are not axis names in jaxtyping, and how to write the same here.
_ELSEWHERE = (
    (re.compile(r".*=.*|\d+"), 'write a size as an Axis: ("batch", axn.Axis("embed", 64))'),
    (re.compile(r"\*.*|_|.*\.\.\..*"), '... stands for any axes in its place: "... embed"'),
    (
        re.compile(r"[#?].*"),
        "axes are those of the array, whatever their sizes: write the name alone",
    ),
    (re.compile(r".*,.*"), 'there are spaces between names, and no commas: "batch embed"'),
)
_NAME = re.compile(r"\w+(?:[-./]\w+)*")


def _is_name(word: str) -> bool:
    """Return whether a word in a string is the name of an axis; in a tuple, any string is a name."""
    return _NAME.fullmatch(word) is not None and not word.isdecimal() and word != "_"


def _split_words(text: str) -> tuple[str, ...]:
    """Split a string into names and `...`; raise for the syntax of other libraries."""
    words = tuple(text.split())
    for word in words:
        if word != "..." and not _is_name(word):
            problem = f"{word!r} is not a valid axis name"
            other = f"put a name with characters other than letters, digits and _ . - / in a tuple: ({word!r},)"
            hint = next((hint for spelling, hint in _ELSEWHERE if spelling.fullmatch(word)), other)
            raise ArgumentError(message("annotation", problem, f"axes: {text!r}", hint=hint))
    return words


class _Pattern(NamedTuple):
    """The required axes: those before the `...`, those after it (None without one), and whether order matters."""

    before: Pairs
    after: Pairs | None
    ordered: bool

    def fits(self, names: Names, shape: tuple[int, ...]) -> bool:
        """Return whether an array of this shape, whose trailing dimensions have these names, has the axes."""
        anonymous = len(shape) - len(names)
        sizes = shape[anonymous:]
        if not self.ordered:
            have = dict(zip(names, sizes, strict=True))
            if self.after is None and (len(have) != len(self.before) or anonymous):
                return False
            return all(name in have and size in (None, have[name]) for name, size in self.before)
        # In order: the axes before the dots are the first ones, those after them the last ones.
        have_pairs = tuple(zip(names, sizes, strict=True))
        if self.after is None:
            return not anonymous and _agree(self.before, have_pairs)
        first, last = len(self.before), len(names) - len(self.after)
        # Anonymous dimensions are leading, so that a `...` after a name cannot stand for them.
        if first > last or (anonymous and first):
            return False
        return _agree(self.before, have_pairs[:first]) and _agree(self.after, have_pairs[last:])

    def __str__(self) -> str:
        pairs = (*self.before, *(self.after or ()))
        plain = all(size is None and _is_name(name) for name, size in pairs)
        words, entries = list(names_in(pairs)), [_entry_text(*pair) for pair in pairs]
        if self.after is not None:
            entries.insert(len(self.before), "...")
            words.insert(len(self.before), "...")
        # An annotation prints as users write it, and a tuple of one has a comma.
        if not self.ordered:
            return f"{{{', '.join(entries)}}}"
        if plain:
            return f'"{" ".join(words)}"'
        return f"({entries[0]},)" if len(entries) == 1 else f"({', '.join(entries)})"


def _entry_text(name: str, size: int | None) -> str:
    return f'"{name}"' if size is None else f'Axis("{name}", {size})'


def _agree(asked: Pairs, have: tuple[tuple[str, int], ...]) -> bool:
    """Return whether names are equal, and sizes too where one is required."""
    return len(asked) == len(have) and all(
        name == real and size in (None, real_size)
        for (name, size), (real, real_size) in zip(asked, have, strict=True)
    )


def _parse(axes: AxesPattern) -> _Pattern:
    """Parse the axes of an annotation."""
    entries: tuple[Any, ...]
    if isinstance(axes, str):
        entries = _split_words(axes)
    elif isinstance(axes, Mapping):
        entries = selectors(tuple(axes.items()))
    elif isinstance(axes, Sequence | Set):
        entries = tuple(axes)
    else:
        entries = (axes,)
    # An entry of another library may compare with a string element by element.
    dots = [at for at, x in enumerate(entries) if x is ... or (isinstance(x, str) and x == "...")]
    named = selection([x for at, x in enumerate(entries) if at not in dots], "annotation")
    # With two, nothing would say where the axes between them begin.
    if len(dots) > 1:
        problem = "... stands for all other axes, so it may appear only once"
        raise ArgumentError(message("annotation", problem))
    is_ordered = not isinstance(axes, Set) or not named
    if not is_ordered:  # equal sets are one class, which is found by its pattern
        named = tuple(sorted(named, key=lambda pair: pair[0]))
    if not dots:
        return _Pattern(named, None, is_ordered)
    at = dots[0] if is_ordered else len(named)
    return _Pattern(named[:at], named[at:], is_ordered)


@dataclasses.dataclass(frozen=True)
class DTypeFamily:
    """A set of dtypes; `family[NamedArray, axes]` is the annotation for arrays with one of these dtypes and those axes.

    A type of JAX or numpy may replace `NamedArray`: `f32[jax.ShapeDtypeStruct, "batch"]` describes named arrays that
    hold a `ShapeDtypeStruct`.

    Args:
        name: the name that annotations print.
        kinds: dtypes, or abstract dtypes such as `jnp.floating`; none means any dtype.

    Examples:
        >>> Half = axn.typing.DTypeFamily("Half", (jnp.dtype("float16"), jnp.dtype("bfloat16")))
        >>> isinstance(axn.zeros({"embed": 3}, jnp.bfloat16), Half[axn.NamedArray, "embed"])
        True
    """

    name: str
    kinds: tuple[Any, ...]

    def holds(self, dtype: Any) -> bool:
        """Return whether a dtype is one of these."""
        if not self.kinds:
            return True
        return dtype is not None and any(_is_of(dtype, kind) for kind in self.kinds)

    def __getitem__(self, item: Any) -> "Annotation":
        payload: type | None = None
        axes: AxesPattern = item
        # Without a type in front, the item is the axes, as in `NamedArray["batch"]`.
        if isinstance(item, tuple) and item and isinstance(item[0], type):
            if len(item) != 2:
                problem = f"expected an array type and its axes, got {len(item)} entries"
                hint = f'write {self.name}[{item[0].__name__}, "batch embed"]'
                raise OperandError(message("annotation", problem, hint=hint))
            payload, axes = item
            payload = None if issubclass(item[0], Core) else payload  # any named array will do
        return _annotation(self, payload, _parse(axes))


def _is_of(dtype: Any, kind: Any) -> bool:
    return bool(dtype == kind if isinstance(kind, jnp.dtype) else jnp.issubdtype(dtype, kind))


class Annotation(type):
    """The type of annotations: each is a class whose instances are the named arrays that it describes.

    Examples:
        >>> batches = axn.typing.f32[axn.NamedArray, "batch embed"]
        >>> type(batches).__name__, isinstance(axn.zeros({"batch": 2, "embed": 3}), batches)
        ('Annotation', True)
    """

    family: DTypeFamily
    payload: type | None
    pattern: _Pattern

    def __instancecheck__(cls, instance: object) -> bool:
        if not isinstance(instance, Core):
            return False
        (array,), names = instance.node
        shape = getattr(array, "shape", None)
        # JAX's transformations put any leaf into a NamedArray, so that this must never raise.
        if not isinstance(shape, tuple) or len(shape) < len(names):
            return False
        if cls.payload is not None and not isinstance(array, cls.payload):
            return False
        return cls.family.holds(getattr(array, "dtype", None)) and cls.pattern.fits(names, shape)

    def __call__(cls, *arguments: object, **options: object) -> Any:
        """Raise an error: an annotation describes arrays, and does not make them."""
        hint = "make the array with axn.named or axn.NamedArray"
        raise OperandError(
            message("annotation", f"{cls!r} describes arrays and cannot be instantiated", hint=hint)
        )

    def __repr__(cls) -> str:
        return cls.__qualname__


@functools.cache
def _annotation(family: DTypeFamily, payload: type | None, pattern: _Pattern) -> Annotation:
    # The __name__ of jax.Array includes the module in jaxlib that defines it.
    array = "NamedArray" if payload is None else payload.__name__.rpartition(".")[2]
    is_any = (family, payload) == (_ANY, None)
    name = f"{array}[{pattern}]" if is_any else f"{family.name}[{array}, {pattern}]"
    members: dict[str, object] = {"family": family, "payload": payload, "pattern": pattern}
    # In a union, Python prints the module of a class unless it is this one; beartype requires equal reprs.
    members |= {"__module__": "builtins", "__qualname__": name}
    return Annotation(name, (), members)


# A class is pickled by name, which no module has here; so annotations are pickled as the call that makes them.
copyreg.pickle(Annotation, lambda made: (_annotation, (made.family, made.payload, made.pattern)))

_ANY = DTypeFamily("Named", ())


def annotation(axes: AxesPattern) -> Annotation:
    """Return the annotation for arrays of any dtype with these axes, `NamedArray[axes]`.

    Args:
        axes: a string, a tuple or a set, as the module says.

    Raises:
        ArgumentError: if a word is not a name, or `...` appears twice.

    Examples:
        >>> axn.typing.annotation("... embed")
        NamedArray["... embed"]
        >>> isinstance(axn.zeros({"batch": 2, "embed": 3}), axn.typing.annotation({"embed", "batch"}))
        True
    """
    return _annotation(_ANY, None, _parse(axes))


if TYPE_CHECKING:
    # For a type checker, an annotation is the array type with metadata that it ignores.
    from typing import (
        Annotated as Bool,
        Annotated as Complex,
        Annotated as Float,
        Annotated as Inexact,
        Annotated as Int,
        Annotated as Integer,
        Annotated as Key,
        Annotated as Named,
        Annotated as Num,
        Annotated as Real,
        Annotated as Shaped,
        Annotated as UInt,
        Annotated as bf16,
        Annotated as bool_,
        Annotated as complex64,
        Annotated as complex128,
        Annotated as f16,
        Annotated as f32,
        Annotated as f64,
        Annotated as i8,
        Annotated as i16,
        Annotated as i32,
        Annotated as i64,
        Annotated as u8,
        Annotated as u16,
        Annotated as u32,
        Annotated as u64,
    )
else:
    Named = _ANY
    Shaped = DTypeFamily("Shaped", ())
    Bool = DTypeFamily("Bool", (jnp.bool_.dtype,))
    Int = DTypeFamily("Int", (jnp.signedinteger,))
    UInt = DTypeFamily("UInt", (jnp.unsignedinteger,))
    Integer = DTypeFamily("Integer", (jnp.integer,))
    Float = DTypeFamily("Float", (jnp.floating,))
    Complex = DTypeFamily("Complex", (jnp.complexfloating,))
    Inexact = DTypeFamily("Inexact", (jnp.inexact,))
    Real = DTypeFamily("Real", (jnp.floating, jnp.integer))
    Num = DTypeFamily("Num", (jnp.number,))
    Key = DTypeFamily("Key", (jax.dtypes.prng_key,))

    bool_ = DTypeFamily("bool_", (jnp.bool_.dtype,))
    bf16 = DTypeFamily("bf16", (jnp.bfloat16.dtype,))
    f16 = DTypeFamily("f16", (jnp.float16.dtype,))
    f32 = DTypeFamily("f32", (jnp.float32.dtype,))
    f64 = DTypeFamily("f64", (jnp.float64.dtype,))
    i8 = DTypeFamily("i8", (jnp.int8.dtype,))
    i16 = DTypeFamily("i16", (jnp.int16.dtype,))
    i32 = DTypeFamily("i32", (jnp.int32.dtype,))
    i64 = DTypeFamily("i64", (jnp.int64.dtype,))
    u8 = DTypeFamily("u8", (jnp.uint8.dtype,))
    u16 = DTypeFamily("u16", (jnp.uint16.dtype,))
    u32 = DTypeFamily("u32", (jnp.uint32.dtype,))
    u64 = DTypeFamily("u64", (jnp.uint64.dtype,))
    complex64 = DTypeFamily("complex64", (jnp.complex64.dtype,))
    complex128 = DTypeFamily("complex128", (jnp.complex128.dtype,))
