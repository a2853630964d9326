"""Internal. The names of dtypes in XLA's programs, and in JAX.

Jaxprs use the names of JAX, and compiled programs use the names of XLA. Reports show XLA's names, and tables of targets
have JAX's.
"""

XLA_NAMES = {
    "bfloat16": "bf16",
    "bool": "pred",
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
JAX_NAMES = {short: name for name, short in XLA_NAMES.items()}
