"""What a run costs, before it runs and without its devices: operations for each token, layouts, memory."""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from layouts import Shape, checked
from rows import Batch
from trainer import Trainer

import axonym as axn
from axonym import NamedArray
from axonym.costs.report import Cost
from axonym.models import DecoderConfig

Depth = Literal["compiled", "traced"]
AnyMesh = jax.sharding.Mesh | jax.sharding.AbstractMesh

# Dense products of bfloat16 per second, from the data sheets.
PEAKS = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
}


def forward_flops(config: DecoderConfig, length: int) -> float:
    """Count the operations of products for one token of a text of some length, on average over its positions."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    weights = config.embed * (2 * queries + 2 * keys)
    matrices = 3 if config.gated else 2
    if config.experts is None:
        weights += matrices * config.embed * config.mlp
    else:
        experts = config.experts
        active = experts.chosen * experts.mlp + (experts.shared or 0)
        weights += matrices * config.embed * active + config.embed * experts.count
    total = config.layers * 2.0 * weights
    for i in range(config.layers):
        window = config.window if config.pattern[i % len(config.pattern)] == "local" else None
        # Scores, and the sum of the values that they weigh.
        total += 4 * queries * seen(length, window)
    return total + 2 * config.embed * config.vocab


def seen(length: int, window: int | None) -> float:
    """Return how many positions a position sees, on average."""
    most = min(window or length, length)
    return most - most * (most - 1) / (2 * length)


def train_flops(config: DecoderConfig, length: int) -> float:
    """Count the operations for one token of training: the backward pass takes two products for each one forward.

    What is computed a second time to save memory does not count, as usual.
    """
    return 3 * forward_flops(config, length)


def utilisation(tokens_per_s: float, config: DecoderConfig, length: int, devices: list[jax.Device]) -> float | None:
    """Return which share of their operations devices spend on the model; None where their peak is not known."""
    peak = PEAKS.get(devices[0].device_kind)
    if peak is None:
        return None
    return tokens_per_s * train_flops(config, length) / (peak * len(devices))


def peak_bytes(devices: list[jax.Device]) -> int | None:
    """Return the most memory that some device has held; None where it does not say."""
    found = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in devices]
    known = [number for number in found if number is not None]
    return max(known, default=None)


def per_device(tree: object, mapping: axn.ResourceMapping, mesh: AnyMesh) -> int:
    """Return the bytes that a device has of the arrays of a tree."""
    arrays = axn.parameters.table(tree, mapping=mapping, mesh=mesh, strict=False).arrays
    return sum(array.nbytes_per_device or 0 for array in arrays)


def plan(trainer: Trainer, mesh: AnyMesh, batch: int, length: int) -> str:
    """Describe layouts and memory of a run.

    Args:
        trainer: of the run.
        mesh: may be abstract, and larger than the machine.
        batch: rows that are computed at a time, or in one pipeline.
        length: positions that the model sees.
    """
    stored, computed = trainer.mappings
    config = trainer.config
    state = jax.eval_shape(trainer.fresh, jax.random.key(0))
    dtype = trainer.policy.compute_dtype
    sizes = (config.layers, batch, length, config.embed)
    stream = NamedArray(jax.ShapeDtypeStruct(sizes, dtype), ("layers", "batch", "pos", "embed"))
    # Each stage of a pipeline keeps what its own layers get, of all rows.
    kept = {**computed, **trainer.layout.rows}
    computed_in = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), state.model)
    rows = {
        "parameters": per_device(state.model, stored, mesh),
        "state of the optimiser": per_device(state.optimizer, stored, mesh),
        "average of the parameters": per_device(state.average, stored, mesh),
        "gradients": per_device(state.model, stored, mesh),
        f"parameters to compute with ({jnp.dtype(dtype).name})": per_device(computed_in, stored, mesh),
        "what is kept of each layer for the backward pass": per_device(stream, kept, mesh),
    }
    told = [str(axn.parameters.table(state.model, mapping=stored, mesh=mesh, strict=False)), ""]
    told += [f"{what + ':':<56}{size / 2**20:>12,.3f} MiB" for what, size in rows.items() if size]
    told.append(f"{'on each device, beside what one layer computes:':<56}{sum(rows.values()) / 2**20:>12,.3f} MiB")
    told.append(f"{'operations for a token of training:':<56}{train_flops(config, length) / 1e9:>12,.3f} GFLOP")
    return "\n".join(told)


def simulate(shape: Shape) -> None:
    """Have as many devices as a mesh, simulated, to compile for; before anything else of JAX."""
    sizes, _ = checked(shape)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", math.prod(sizes.values()))


def step_cost(trainer: Trainer, mesh: AnyMesh, batch: Batch, target: str, depth: Depth = "compiled") -> Cost:
    """Tell what a step of a run costs: the function that a run calls, with its state and a batch as they lie there.

    Args:
        trainer: of the run.
        mesh: may be abstract; to compile, as many devices must be there, perhaps simulated.
        batch: of a step; only its shapes count.
        target: the device that times and memory are for.
        depth: as in `axn.cost`.
    """
    state = jax.eval_shape(trainer.fresh, jax.random.key(0))
    specs = axn.pspec_for(batch, trainer.rows, mesh, strict=False)

    def placed(x: NamedArray, spec: jax.P) -> NamedArray:
        sharding = jax.sharding.NamedSharding(mesh, spec)
        return NamedArray(jax.ShapeDtypeStruct(x.array.shape, x.array.dtype, sharding=sharding), x.axes)

    rows = jax.tree.map(placed, batch, specs, is_leaf=axn.is_named_array)
    return axn.cost(trainer.step, None, mesh, state, rows, jax.random.key(0), target=target, depth=depth)
