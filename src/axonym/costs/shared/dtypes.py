"""Internal. The names of dtypes in XLA's programs, and in JAX.

Jaxprs use the names of JAX, and compiled programs use the names of XLA. Reports show XLA's names, and tables of targets
have JAX's.
"""

import re

XLA_NAMES = {
    "bfloat16": "bf16",
    "bool": "pred",
    "complex128": "c128",
    "complex64": "c64",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "float8_e4m3fn": "f8e4m3fn",
    "float8_e5m2": "f8e5m2",
    "int16": "s16",
    "int32": "s32",
    "int64": "s64",
    "int8": "s8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "uint8": "u8",
}
# The number of elements that share a byte in compiled programs; JAX counts a byte for each.
_SHARING = {"int4": 2, "uint4": 2, "float4_e2m1fn": 2, "int2": 4, "uint2": 4}
# The precision of products of float32 numbers, by the words that jaxprs and compiled programs have for it.
_PRECISIONS = {
    "BF16_BF16_F32": "bfloat16",
    "BF16_BF16_F32_X3": "float32_high",
    "HIGH": "float32_high",
    "TF32_TF32_F32_X3": "float32_high",
    "BF16_BF16_F32_X6": "float32_highest",
    "BF16_BF16_F32_X9": "float32_highest",
    "F32_F32_F32": "float32_highest",
    "HIGHEST": "float32_highest",
}
JAX_NAMES = {short: name for name, short in XLA_NAMES.items()}


def find_precision(dtype: str, attributes: str) -> str:
    """Return what sets the rate of a product with these attributes: its dtype, or a precision of float32."""
    words = set(re.split(r"\W+", attributes.upper()))
    found = [one for word, one in _PRECISIONS.items() if word in words]
    # Other dtypes need one pass. The last precision is the highest.
    return found[-1] if found and dtype == "float32" else dtype


def find_real(dtype: str) -> str:
    """Return the dtype of the parts of complex numbers; other dtypes stay as they are."""
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


def pack_bytes(nbytes: int, dtype: str) -> int:
    """Return the bytes of an array in memory, given those that JAX counts: some elements share a byte."""
    return -(-nbytes // _SHARING.get(dtype, 1))
