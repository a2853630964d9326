"""The GPT of `gpt.py` in plain JAX, on meshes whose axes are Explicit: the same weights, the same losses.

    python examples/plain/gpt_jax.py
    python examples/plain/gpt_jax.py --mesh data=4,model=2

The dimensions of an array have an order in place of names. So each weight has a spec, and so does each result that JAX
cannot derive.
"""

import argparse
import dataclasses
import math
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P, reshard

# Weights are stored in parts, also along `embed`. Those of the layers have the layer axis in front.
STORED = {
    "table": P("model", "data"),
    "blocks": {
        "attention_norm": P(None, "data"),
        "query": P(None, "data", "model", None),
        "key": P(None, "data", "model", None),
        "value": P(None, "data", "model", None),
        "out": P(None, "model", None, "data"),
        "mlp_norm": P(None, "data"),
        "up": P(None, "data", "model"),
        "down": P(None, "model", "data"),
    },
    "norm": P("data"),
}
BATCH = P("data", None)
ACTIVATION = P("data", None, None)


@dataclasses.dataclass(frozen=True)
class Config:
    """The sizes of all dimensions, and how to train."""

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


# The model


def init(config: Config, key: jax.Array) -> dict:
    """Draw the weights. Those of all layers are one array each, with the layers in front."""
    keys = iter(jax.random.split(key, 7))

    def weight(*shape: int, scale: float = 0.02) -> jax.Array:
        return scale * jax.random.normal(next(keys), shape)

    c, deep = config, 0.02 / math.sqrt(2 * config.layers)
    blocks = {
        "attention_norm": jnp.ones((c.layers, c.embed)),
        "query": weight(c.layers, c.embed, c.heads, c.head_dim),
        "key": weight(c.layers, c.embed, c.heads, c.head_dim),
        "value": weight(c.layers, c.embed, c.heads, c.head_dim),
        "out": weight(c.layers, c.heads, c.head_dim, c.embed, scale=deep),
        "mlp_norm": jnp.ones((c.layers, c.embed)),
        "up": weight(c.layers, c.embed, c.mlp),
        "down": weight(c.layers, c.mlp, c.embed, scale=deep),
    }
    return {"table": weight(c.vocab, c.embed), "blocks": blocks, "norm": jnp.ones(c.embed)}


def gather(weights, stored):
    """Gather weights over `data`; the layer axis is gone if there was one."""

    def one(array: jax.Array, spec: P) -> jax.Array:
        own = [None if axis == "data" else axis for axis in spec][-array.ndim :]
        return reshard(array, P(*own))

    return jax.tree.map(one, weights, stored)


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Divide by the root mean square of the last dimension, and scale."""
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def rotate(x: jax.Array) -> jax.Array:
    """Rotate pairs of elements of [batch, pos, heads, head_dim] by their positions."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] / 10000 ** (jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def attention(x: jax.Array, w: dict) -> jax.Array:
    """Let each position look at itself and at earlier ones."""
    query, key, value = (jnp.einsum("bpe,ehd->bphd", x, w[name]) for name in ("query", "key", "value"))
    query, key = rotate(query), rotate(key)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(query.shape[-1])
    visible = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf))
    seen = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
    return jnp.einsum("bphd,hde->bpe", seen, w["out"], out_sharding=ACTIVATION)


def mlp(x: jax.Array, w: dict) -> jax.Array:
    """Widen, apply GELU, and narrow."""
    return jnp.einsum("bpm,me->bpe", jax.nn.gelu(x @ w["up"]), w["down"], out_sharding=ACTIVATION)


@jax.checkpoint
def block(x: jax.Array, w: dict) -> tuple[jax.Array, None]:
    """Apply one layer; `w` has its weights, without the layer axis."""
    w = gather(w, STORED["blocks"])
    x = x + attention(rms_norm(x, w["attention_norm"]), w)
    return x + mlp(rms_norm(x, w["mlp_norm"]), w), None


def logits(model: dict, tokens: jax.Array) -> jax.Array:
    """Return a score for each next byte: [batch, pos] to [batch, pos, vocab]."""
    table = gather(model["table"], STORED["table"])
    x = table.at[tokens].get(out_sharding=ACTIVATION)
    x, _ = jax.lax.scan(block, x, model["blocks"])
    return jnp.einsum("bpe,ve->bpv", rms_norm(x, gather(model["norm"], STORED["norm"])), table)


def loss(model: dict, tokens: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the mean cross entropy."""
    scores = logits(model, tokens)
    is_target = targets[..., None] == jnp.arange(scores.shape[-1])
    right = jnp.where(is_target, scores, 0).sum(-1)  # a look-up along a split dimension raises
    return (jax.nn.logsumexp(scores, axis=-1) - right).mean()


# Training


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Make AdamW with a warm-up and a cosine."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, config.rate, config.steps // 10, config.steps)
    return optax.adamw(schedule, b2=0.95, weight_decay=0.1)


def step(config: Config, state: tuple, tokens: jax.Array, targets: jax.Array) -> tuple:
    """Take one step."""
    model, opt_state = state
    value, gradients = jax.value_and_grad(loss)(model, tokens, targets)
    updates, opt_state = make_optimizer(config).update(gradients, opt_state, model)
    return (optax.apply_updates(model, updates), opt_state), value


def batches(config: Config, text: bytes, seed: int):
    """Yield pieces of the text, and the same one byte later."""
    data, rng = np.frombuffer(text, np.uint8).astype(np.int32), np.random.default_rng(seed)
    while True:
        at = rng.integers(0, len(data) - config.pos, config.batch)
        pieces = data[at[:, None] + np.arange(config.pos + 1)]
        yield tuple(jax.device_put(part, BATCH) for part in (pieces[:, :-1], pieces[:, 1:]))


def train(config: Config, text: bytes, seed: int = 0):
    """Train, and yield the model and the loss of each step."""
    model = jax.jit(init, static_argnums=0, out_shardings=STORED)(config, jax.random.key(seed))
    # The state of the optimiser gets the types of the weights.
    state = model, jax.jit(make_optimizer(config).init)(model)
    run = jax.jit(step, static_argnums=0, donate_argnums=1)
    for _, (tokens, targets) in zip(range(config.steps), batches(config, text, seed), strict=False):
        state, value = run(config, state, tokens, targets)
        yield state[0], value


# Writing


def write(config: Config, model: dict, prompt: bytes, count: int, seed: int = 0) -> bytes:
    """Continue a text byte by byte, with the last `pos` bytes in sight."""

    @jax.jit
    def draw(model: dict, window: jax.Array, key: jax.Array) -> jax.Array:
        # One row for each device along `data`: the functions above want a batch that is split.
        scores = reshard(logits(model, window), P())
        return jax.random.categorical(key, scores[0, -1])

    rows = jax.sharding.get_mesh().shape["data"]
    text = bytearray(prompt.rjust(config.pos))
    for key in jax.random.split(jax.random.key(seed), count):
        window = np.frombuffer(bytes(text[-config.pos :]), np.uint8).astype(np.int32)
        text.append(int(draw(model, jax.device_put(np.tile(window, (rows, 1)), BATCH), key)))
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
                print(write(config, model, b"def ", 200).decode(errors="replace"))


if __name__ == "__main__":
    main()
