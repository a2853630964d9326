"""A GPT in plain functions of named arrays: from a text to a model that writes, under any layout.

    python examples/plain/gpt.py                                     on all devices: data-parallel, sharded weights
    python examples/plain/gpt.py --mesh data=2,model=2,context=2     tensor- and context-parallel, too

There is no class of layers and no registry. Weights are a dict, a layer is a function, and the layout is the two dicts
below: which axes of the weights, and which axes of the computation, are split over which mesh axes.
"""

import argparse
import dataclasses
import functools
import math
import pathlib
import time

import jax
import numpy as np
import optax

import axonym as axn
from axonym import Axis, NamedArray

# Weights are stored in parts, also along `embed`. They are computed with in those of `heads`, `mlp` and `vocab`.
STORED = {"embed": "data", "heads": "model", "mlp": "model", "vocab": "model"}
COMPUTED = {"batch": "data", "heads": "model", "mlp": "model", "vocab": "model"}
LAYOUT = axn.Mappings(parameters=STORED, compute=COMPUTED)


@dataclasses.dataclass(frozen=True)
class Config:
    """The sizes of all axes, and how to train."""

    vocab: int = 256  # bytes
    layers: int = 4
    embed: int = 128
    heads: int = 8
    head_dim: int = 16
    mlp: int = 512
    pos: int = 128
    batch: int = 32
    steps: int = 200
    rate: float = 3e-3

    def axes(self, *names: str) -> tuple[Axis, ...]:
        """Return axes by their names."""
        return tuple(Axis(name, getattr(self, name)) for name in names)


# The model


def init(config: Config, key: jax.Array) -> dict:
    """Draw the weights. Those of all layers are one array each, with a layer axis in front."""
    keys = iter(jax.random.split(key, 7))

    def weight(*names: str, scale: float = 0.02) -> NamedArray:
        return scale * axn.random.normal(next(keys), config.axes(*names))

    deep = 0.02 / math.sqrt(2 * config.layers)
    blocks = {
        "attention_norm": axn.ones(config.axes("layers", "embed")),
        "query": weight("layers", "embed", "heads", "head_dim"),
        "key": weight("layers", "embed", "heads", "head_dim"),
        "value": weight("layers", "embed", "heads", "head_dim"),
        "out": weight("layers", "heads", "head_dim", "embed", scale=deep),
        "mlp_norm": axn.ones(config.axes("layers", "embed")),
        "up": weight("layers", "embed", "mlp"),
        "down": weight("layers", "mlp", "embed", scale=deep),
    }
    return {"table": weight("vocab", "embed"), "blocks": blocks, "norm": axn.ones(config.axes("embed"))}


def rms_norm(x: NamedArray, scale: NamedArray) -> NamedArray:
    """Divide by the root mean square over `embed`, and scale."""
    return x * axn.rsqrt((x * x).mean("embed") + 1e-6) * scale


def attention(x: NamedArray, w: dict) -> NamedArray:
    """Let each position look at itself and at earlier ones."""
    query, key, value = (axn.dot(x, w[name], axis="embed") for name in ("query", "key", "value"))
    query, key = (axn.nn.rotary(part, "pos", "head_dim") for part in (query, key))
    key, value = (part.rename({"pos": "pos.key"}) for part in (key, value))
    seen = axn.nn.dot_product_attention("pos", "pos.key", "head_dim", query, key, value, mask=axn.nn.causal())
    return axn.dot(seen, w["out"], axis=("heads", "head_dim"))


def mlp(x: NamedArray, w: dict) -> NamedArray:
    """Widen, apply GELU, and narrow."""
    return axn.dot(axn.nn.gelu(axn.dot(x, w["up"], axis="embed")), w["down"], axis="mlp")


@jax.checkpoint
def block(x: NamedArray, w: dict) -> NamedArray:
    """Apply one layer; `w` has its weights, without the layer axis."""
    w = axn.auto_sharded(w)  # gather what is stored in parts
    x = x + attention(rms_norm(x, w["attention_norm"]), w)
    x = x + mlp(rms_norm(x, w["mlp_norm"]), w)
    return axn.auto_sharded(x)


def logits(model: dict, tokens: NamedArray) -> NamedArray:
    """Return a score for each next byte: {batch, pos} to {batch, pos, vocab}."""
    table = axn.auto_sharded(model["table"])
    x = axn.auto_sharded(axn.take(table, "vocab", tokens))
    x = axn.fold(block, "layers")(x, model["blocks"])
    return axn.dot(rms_norm(x, axn.auto_sharded(model["norm"])), table, axis="embed")


def loss(model: dict, tokens: NamedArray, targets: NamedArray) -> jax.Array:
    """Return the mean cross entropy."""
    return axn.nn.cross_entropy_loss(logits(model, tokens), "vocab", targets).scalar()


# Training


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Make AdamW with a warm-up and a cosine."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, config.rate, config.steps // 10, config.steps)
    return optax.adamw(schedule, b2=0.95, weight_decay=0.1)


def start(config: Config, key: jax.Array) -> tuple:
    """Make the weights and the state of the optimiser."""
    model = init(config, key)
    return model, make_optimizer(config).init(model)


def step(config: Config, state: tuple, tokens: NamedArray, targets: NamedArray) -> tuple:
    """Take one step."""
    model, opt_state = state
    value, gradients = axn.value_and_grad(loss)(model, tokens, targets)
    updates, opt_state = make_optimizer(config).update(gradients, opt_state, model)
    return (optax.apply_updates(model, updates), opt_state), value


def batches(config: Config, text: bytes, seed: int):
    """Yield pieces of the text, and the same one byte later."""
    data, rng = np.frombuffer(text, np.uint8).astype(np.int32), np.random.default_rng(seed)
    while True:
        at = rng.integers(0, len(data) - config.pos, config.batch)
        pieces = data[at[:, None] + np.arange(config.pos + 1)]
        yield tuple(axn.named(part, ("batch", "pos")) for part in (pieces[:, :-1], pieces[:, 1:]))


def train(config: Config, text: bytes, layout: axn.Mappings = LAYOUT, seed: int = 0):
    """Train, and yield the model and the loss of each step."""
    first = axn.named_jit(functools.partial(start, config), out_axis_resources=layout.parameters)
    run = axn.named_jit(functools.partial(step, config), layout, donate_args=(True, False, False))
    state = first(jax.random.key(seed))
    for _, (tokens, targets) in zip(range(config.steps), batches(config, text, seed), strict=False):
        state, value = run(state, tokens, targets)
        yield state[0], value


# Writing


def write(config: Config, model: dict, prompt: bytes, count: int, layout: axn.Mappings, seed: int = 0) -> bytes:
    """Continue a text byte by byte, with the last `pos` bytes in sight."""

    def draw(model: dict, window: NamedArray, key: jax.Array) -> NamedArray:
        # Nothing is split but the weights: there is one row.
        scores = logits(model, window)["pos", window.axis_size("pos") - 1]
        return axn.random.categorical(key, scores, "vocab")

    run = axn.named_jit(draw, axn.Mappings(layout.parameters, {}))
    text = bytearray(prompt.rjust(config.pos))
    for key in jax.random.split(jax.random.key(seed), count):
        window = axn.named(np.frombuffer(bytes(text[-config.pos :]), np.uint8).astype(np.int32), "pos")
        text.append(int(run(model, window, key).scalar()))
    return bytes(text[-count:])


def main() -> None:
    """Train on a text, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, default=pathlib.Path(__file__), help="what to train on")
    parser.add_argument("--mesh", default=f"data={jax.device_count()},model=1", help="mesh axes with their sizes")
    parser.add_argument("--steps", type=int, default=Config.steps)
    given = parser.parse_args()
    config, text = Config(steps=given.steps), given.text.read_bytes()
    sizes = {name: int(size) for name, size in (part.split("=") for part in given.mesh.split(","))}
    with jax.set_mesh(jax.make_mesh(tuple(sizes.values()), tuple(sizes))):
        began = time.monotonic()
        for number, (model, value) in enumerate(train(config, text)):
            if number % 20 == 0:
                print(f"step {number:4d}  loss {float(value):.3f}  {time.monotonic() - began:.0f} s")
            if number == config.steps - 1:
                print(write(config, model, b"def ", 200, LAYOUT).decode(errors="replace"))


if __name__ == "__main__":
    main()
