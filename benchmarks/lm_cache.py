"""Count how often programs of decoding copy the cache of keys and values: of examples/lm's decoder, and of plain JAX.

    python benchmarks/lm_cache.py                 compiled for the CPU
    python benchmarks/lm_cache.py --target tpu    compiled for a TPU v5e, larger; needs libtpu, no TPU

A step adds one token of each sequence to a donated cache; the loop is that of `nn.generate`, between its prompt and its
result. A copy is an instruction whose result has as many elements as all keys, or as those of one layer, and that only
moves them: an update in place is none. Cycles are what the compiler for TPUs expects of a step.

Caches that are split over a mesh of 4 x 2 devices are counted, too: in these rows, copies are those of a device's part,
and collectives are those that send as much as its part of one layer's keys.
"""

import argparse
import dataclasses
import functools
import importlib.util
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "lm"))

import raw_decoder as raw
from lm_decode import SIZES, plain
from measure import table

import axonym as axn
import axonym.nn as nn
from axonym import Axis, NamedArray
from axonym.costs.compiled.program import KINDS, Instruction, Program, find_called, parse_arrays
from axonym.models import Decoder, DecoderConfig

LARGE = dataclasses.replace(
    SIZES, vocab=32000, layers=8, embed=2048, mlp=5632, heads=16, kv_heads=8, head_dim=128, positions=8192
)
TINY = dataclasses.replace(SIZES, vocab=96, layers=3, embed=64, mlp=96, heads=4, kv_heads=2, head_dim=16)
MOVES = {"copy", "transpose", "reshape", "slice", "dynamic-slice"}
# Which axes of a cache devices share.
SPLIT = {
    "batch and heads": {"batch": "data", "kv_heads": "model"},
    "positions and heads": {"pos.key": "data", "kv_heads": "model"},
}
NAMELESS = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element"}


def copies(text: str, elements: int, *, of_loops: bool = False) -> int:
    """Return how often a compiled program copies an array of so many elements; `of_loops`: inside of loops alone."""
    program = Program(text, unknown_trip_count=1)
    found = 0
    for name, instructions in program.computations.items():
        if name in program.fused or (of_loops and name == program.entry):
            continue
        for instruction in instructions.values():
            if elements in _sizes(instruction) and _only_moves(program, instruction, elements):
                found += program.runs[name]
    return found


def sent(text: str, elements: int) -> int:
    """Return how many collectives of a compiled program send at least so many elements."""
    program = Program(text, unknown_trip_count=1)
    found = 0
    for name, instructions in program.computations.items():
        for instruction in instructions.values():
            is_one = instruction.opcode.removesuffix("-start") in KINDS
            if is_one and max(_sizes(instruction), default=0) >= elements:
                found += program.runs[name]
    return found


def _sizes(instruction: Instruction) -> list[int]:
    return [math.prod(array.shape) for array in parse_arrays(instruction.type)]


def _only_moves(program: Program, instruction: Instruction, elements: int) -> bool:
    """Return whether an instruction does nothing to so many elements but put them elsewhere."""
    if instruction.opcode != "fusion":
        return instruction.opcode.removesuffix("-start") in MOVES
    moves = False
    for name in find_called(instruction):
        for inner in program.computations[name].values():
            if elements not in _sizes(inner) or inner.opcode in NAMELESS:
                continue
            if not _only_moves(program, inner, elements):
                return False
            moves = True
    return moves


def cycles(text: str) -> float:
    """Return the millions of cycles that the compiler for TPUs expects; loops of unknown length count once."""
    program = Program(text, unknown_trip_count=1)
    total = 0
    for name, instructions in program.computations.items():
        for instruction in instructions.values():
            found = re.search(r'"estimated_cycles":"(\d{1,12})"', instruction.line)
            if found and name not in program.fused:
                total += program.runs[name] * int(found[1])
    return total / 1e6


@dataclasses.dataclass(frozen=True)
class Programs:
    """Programs of decoding, not compiled yet.

    Attributes:
        sizes: the model.
        batch: the number of sequences.
        places: the positions in the cache.
        dtype: of weights and cache.
        sharding: the device to compile for.
    """

    sizes: DecoderConfig
    batch: int
    places: int
    dtype: Any = jnp.float32
    sharding: jax.sharding.Sharding | None = None

    @property
    def elements(self) -> int:
        """The number of elements of the keys of one layer."""
        return self.batch * self.places * self.sizes.kv_heads * self.sizes.head_dim

    def compiled(self, function: Callable[..., Any], *args: Any, donate: int | None = None) -> str:
        """Compile a function; of its arguments, only shapes matter."""

        def shape(leaf: Any) -> jax.ShapeDtypeStruct:
            dtype = self.dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype
            return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=self.sharding)

        return jax.jit(function, donate_argnums=donate).lower(*jax.tree.map(shape, args)).compile().as_text()

    def model(self) -> Decoder:
        """Return the model, without values."""
        return jax.eval_shape(functools.partial(Decoder.init, self.sizes), key=jax.random.key(0))

    def cache(self, model: Decoder, lengths: bool) -> nn.KVCache:
        """Return a cache with one length, or one for each sequence."""
        cache = model.cache(self.places, Axis("batch", self.batch), dtype=self.dtype)
        if lengths:
            return cache
        return dataclasses.replace(cache, length=axn.zeros(self.sizes.Layers, dtype=int))

    def step(self, lengths: bool) -> str:
        """Return the program of one step."""
        model = self.model()
        tokens = NamedArray(jax.ShapeDtypeStruct((self.batch,), jnp.int32), ("batch",))

        def step(cache: nn.KVCache, model: Decoder, tokens: NamedArray) -> Any:
            count = axn.full(tokens.axes, 1) if lengths else None
            return model.extend(cache, tokens, count)

        return self.compiled(step, jax.eval_shape(lambda: self.cache(model, lengths)), model, tokens, donate=0)

    def split_step(self, lengths: bool, mapping: axn.ResourceMapping, mesh: jax.sharding.Mesh) -> str:
        """Return the program of one step whose cache devices share."""
        model = self.model()
        tokens = NamedArray(jax.ShapeDtypeStruct((self.batch,), jnp.int32), ("batch",))
        given = jax.eval_shape(lambda: self.cache(model, lengths)), model, tokens

        def shape(leaf: NamedArray) -> NamedArray:
            dtype = self.dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype
            spec = axn.pspec_for(leaf, mapping, mesh, strict=False)
            sharding = jax.sharding.NamedSharding(mesh, spec)
            return NamedArray(jax.ShapeDtypeStruct(leaf.array.shape, dtype, sharding=sharding), leaf.names)

        def step(cache: nn.KVCache, model: Decoder, tokens: NamedArray) -> Any:
            return model.extend(cache, tokens)

        args = jax.tree.map(shape, given, is_leaf=lambda leaf: isinstance(leaf, NamedArray))
        with axn.set_mesh(mesh):
            compiled = axn.named_jit(step, mapping, donate_args=(True, False, False))
            return compiled.lower(*args).compile().as_text()

    def loop(self, lengths: bool) -> str:
        """Return the program that continues prompts of 16 tokens by 8."""
        prompt = NamedArray(jax.ShapeDtypeStruct((self.batch, 16), jnp.int32), ("batch", "pos"))

        def run(prompt: NamedArray, model: Decoder) -> NamedArray:
            count = axn.full(prompt.resolve_axis("batch"), 16) if lengths else None
            cache = self.cache(model, lengths)
            return nn.generate(model.extend, cache, prompt, Axis("new", 8), count=count).tokens

        return self.compiled(run, prompt, self.model())

    def step_by_hand(self) -> str:
        """Return the program of one step in plain JAX."""
        sizes = self.sizes
        shape = (sizes.layers, self.batch, self.places, sizes.kv_heads, sizes.head_dim)
        whole = jax.ShapeDtypeStruct(shape, self.dtype)
        tokens, start = jax.ShapeDtypeStruct((self.batch, 1), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32)
        params = jax.eval_shape(plain, self.model())

        def step(cache: Any, params: Any, tokens: jax.Array, start: jax.Array) -> Any:
            return raw.extend(params, tokens, cache, start)

        return self.compiled(step, (whole, whole), params, tokens, start, donate=0)


def tpus() -> Sequence[jax.Device]:
    """Return eight devices of a TPU v5e to compile for."""
    if importlib.util.find_spec("libtpu") is None:
        sys.exit("error: --target tpu needs libtpu, the compiler for TPUs: pip install 'jax[tpu]'")
    jax.config.update("jax_platforms", "cpu")
    # Read when libtpu starts; the names of a TPU keep it from asking a server.
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-16",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
    os.environ |= {"TPU_WORKER_ID": "0", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true"}
    from jax.experimental import topologies

    return topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices


def mesh_of(devices: Sequence[jax.Device]) -> jax.sharding.Mesh:
    """Return a mesh of eight devices."""
    grid = np.array(devices[:8]).reshape(4, 2)
    return jax.sharding.Mesh(grid, ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def split_rows(
    sizes: DecoderConfig, dtype: Any, devices: Sequence[jax.Device], is_tpu: bool
) -> Iterator[dict[str, str]]:
    """Count what a step does with a cache of 16 sequences that devices share."""
    programs = Programs(sizes, 16, 4096, dtype)
    part = programs.elements // 8
    for what, mapping in SPLIT.items():
        for name, lengths in {"one length": False, "a length for each": True}.items():
            text = programs.split_step(lengths, mapping, mesh_of(devices))
            row = {"split": what, "program": f"a step, {name}"}
            row["copies of all keys or values"] = str(copies(text, part * sizes.layers))
            row["of one layer's"] = str(copies(text, part))
            row["collectives"] = str(sent(text, part))
            if is_tpu:
                row["million cycles"] = f"{cycles(text):.1f}"
            yield row


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=["cpu", "tpu"], default="cpu")
    is_tpu = parser.parse_args().target == "tpu"
    rows: list[dict[str, str]] = []
    if not is_tpu:
        jax.config.update("jax_num_cpu_devices", 8)
    devices = tpus() if is_tpu else jax.devices()
    for batch in (1, 8):
        programs = Programs(SIZES, batch, 4096)
        if is_tpu:
            programs = Programs(LARGE, batch, 4096, jnp.bfloat16, jax.sharding.SingleDeviceSharding(devices[0]))
        texts = {
            "a step, one length": programs.step(lengths=False),
            "a step, a length for each": programs.step(lengths=True),
            "a step in plain JAX by hand": programs.step_by_hand(),
            "the loop, one length": programs.loop(lengths=False),
            "the loop, a length for each": programs.loop(lengths=True),
        }
        for name, text in texts.items():
            of_loops = "loop" in name
            row = {
                "batch": str(batch),
                "program": name,
                "copies of all keys or values": str(
                    copies(text, programs.elements * programs.sizes.layers, of_loops=of_loops)
                ),
                "of one layer's": str(copies(text, programs.elements, of_loops=of_loops)),
            }
            if is_tpu:
                row["million cycles"] = "" if of_loops else f"{cycles(text):.1f}"
            rows.append(row)
    shared = split_rows(LARGE if is_tpu else SIZES, jnp.bfloat16 if is_tpu else jnp.float32, devices, is_tpu)
    print(f"{table(rows)}\n\n{table(list(shared))}")


if __name__ == "__main__":
    main()
