"""Annotations of named arrays by axes and dtype, such as `f32["batch embed"]` and `Int[NamedArray, "batch ..."]`."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp

from ._annotation import annotated
from .core import NamedArray

__all__ = [
    "Complex",
    "DTypeCategory",
    "Float",
    "Int",
    "Named",
    "UInt",
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


@dataclasses.dataclass(frozen=True)
class DTypeCategory:
    """A kind of dtypes, such as `jnp.floating`, which prints as its name."""

    name: str
    category: Any

    def __repr__(self) -> str:
        return self.name


class Named:
    """The annotation for arrays of any dtype: `Named[NamedArray, "a b"]`, or `Named["a b"]`."""

    _dtype: ClassVar[Any] = None

    def __class_getitem__(cls, item: Any) -> Any:
        kind: type = NamedArray
        axes = item
        if isinstance(item, tuple) and item and isinstance(item[0], type):
            kind, axes = item[0], item[1] if len(item) == 2 else item[1:]
        return annotated(kind, "..." if axes is ... else axes, cls._dtype)


def _of(name: str, dtype: Any) -> type[Named]:
    return type(
        name,
        (Named,),
        {"_dtype": dtype, "__doc__": f'Annotate arrays by dtype and axes: `{name}["a b"]`.'},
    )


Float = _of("Float", DTypeCategory("float", jnp.floating))
Complex = _of("Complex", DTypeCategory("complex", jnp.complexfloating))
Int = _of("Int", DTypeCategory("int", jnp.signedinteger))
UInt = _of("UInt", DTypeCategory("uInt", jnp.unsignedinteger))

bool_ = _of("bool_", jnp.bool_)
bf16 = _of("bf16", jnp.bfloat16)
f16 = _of("f16", jnp.float16)
f32 = _of("f32", jnp.float32)
f64 = _of("f64", jnp.float64)
i8 = _of("i8", jnp.int8)
i16 = _of("i16", jnp.int16)
i32 = _of("i32", jnp.int32)
i64 = _of("i64", jnp.int64)
u8 = _of("u8", jnp.uint8)
u16 = _of("u16", jnp.uint16)
u32 = _of("u32", jnp.uint32)
u64 = _of("u64", jnp.uint64)
complex64 = _of("complex64", jnp.complex64)
complex128 = _of("complex128", jnp.complex128)
