"""Published sizes of decoders, by the names that `train.py --shape` takes."""

import dataclasses
from typing import Literal

from axonym.models import DecoderConfig

ShapeName = Literal["gpt2", "llama-7b", "llama-70b"]
# Radford et al. (2019), the small model; Touvron et al., "Llama 2" (2023).
GPT2 = DecoderConfig(50257, 12, embed=768, mlp=3072, heads=12, kv_heads=12, positions=1024).as_gpt2()
LLAMA = DecoderConfig(layers=32, embed=4096, mlp=11008, kv_heads=32, head_dim=128, positions=4096)
WIDE = dataclasses.replace(LLAMA, layers=80, embed=8192, mlp=28672, heads=64, kv_heads=8)
SHAPES: dict[ShapeName, DecoderConfig] = {"gpt2": GPT2, "llama-7b": LLAMA, "llama-70b": WIDE}
