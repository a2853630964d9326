# %% [markdown]
# # A language model: trained, tuned, sampled
#
# A small decoder learns the bytes of Python's standard library, writes some, and is then
# tuned by low-rank matrices to SHOUT. Nothing is downloaded.

# %%
import sysconfig
from pathlib import Path

import equinox as eqx
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

import axonym as axn
import axonym.nn as nn

Batch, Pos, Vocab, Layers = axn.make_axes(batch=32, pos=64, vocab=128, layers=2)
Embed, Heads, HeadDim, Mlp = axn.make_axes(embed=96, heads=4, head_dim=24, mlp=256)
Window = Pos.resize(Pos.size + 1)

# %% [markdown]
# ## Text
#
# Bytes are tokens, so there is no tokenizer. The text has one axis, `byte`; an index with
# the axes `batch` and `pos` takes windows from it.

# %%
files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-m]*.py"))
content = b"\n".join(file.read_bytes() for file in files)


def as_text(content):
    return axn.named(
        np.minimum(np.frombuffer(content, np.uint8), 127).astype(np.int8), "byte"
    )


def windows(text, key):
    start = axn.random.randint(key, Batch, 0, text.size - Pos.size)
    return text["byte", start.broadcast_axis(Window) + axn.arange(Window)]


text = as_text(content)
windows(text, jax.random.key(0))

# %% [markdown]
# ## The model


# %%
class Block(eqx.Module):
    norm_1: nn.RmsNorm
    qkv: nn.Linear
    out: nn.Linear
    norm_2: nn.RmsNorm
    mlp: nn.GatedMLP

    @staticmethod
    def init(*, key):
        k_qkv, k_out, k_mlp = jax.random.split(key, 3)
        return Block(
            nn.RmsNorm.init(Embed),
            nn.Linear.init(Embed, (axn.Axis("qkv", 3), Heads, HeadDim), key=k_qkv),
            nn.Linear.init((Heads, HeadDim), Embed, key=k_out),
            nn.RmsNorm.init(Embed),
            nn.GatedMLP.init(Embed, Embed, Mlp, key=k_mlp),
        )

    def __call__(self, x, rotate):
        q, k, v = self.qkv(self.norm_1(x)).unbind("qkv")
        q, k = rotate(q), rotate(k).rename({"pos": "pos.key"})
        v, mask = v.rename({"pos": "pos.key"}), nn.causal()
        x = x + self.out(
            nn.dot_product_attention("pos", "pos.key", HeadDim, q, k, v, mask=mask)
        )
        return x + self.mlp(self.norm_2(x))


class Decoder(eqx.Module):
    embedding: nn.Embedding
    rope: nn.RotaryEmbedding
    blocks: nn.Stacked[Block]
    norm: nn.RmsNorm

    @staticmethod
    def init(*, key):
        k_embedding, k_blocks = jax.random.split(key)
        embedding = nn.Embedding.init(Vocab, Embed, key=k_embedding)
        blocks = nn.Stacked.init(Layers, Block)(key=k_blocks)
        rope = nn.RotaryEmbedding.init(HeadDim)
        return Decoder(embedding, rope, blocks, nn.RmsNorm.init(Embed))

    def __call__(self, tokens):
        rotate = self.rope.at(tokens.resolve_axis("pos"))
        x = self.blocks.fold(self.embedding(tokens), rotate)
        return self.embedding.unembed(self.norm(x))


# %% [markdown]
# ## Training
#
# `trained` and `frozen` are two parts of one model. For now all of it is trained.


# %%
def loss_fn(trained, frozen, tokens):
    scores = eqx.combine(trained, frozen)(tokens["pos", :-1])
    return nn.cross_entropy_loss(scores, Vocab, tokens["pos", 1:]).scalar()


def fit(trained, frozen, text, steps, rate, key):
    optimizer = optax.adamw(optax.cosine_onecycle_schedule(steps, rate))
    state, losses = optimizer.init(trained), []

    @axn.named_jit(donate_args=(True, True, False, False, False))
    def step(trained, state, frozen, text, key):
        tokens = windows(text, key)
        loss, gradients = jax.value_and_grad(loss_fn)(trained, frozen, tokens)
        updates, state = optimizer.update(gradients, state, trained)
        return optax.apply_updates(trained, updates), state, loss

    for own in jax.random.split(key, steps):
        trained, state, loss = step(trained, state, frozen, text, own)
        losses.append(float(loss))
    return trained, losses


model = Decoder.init(key=jax.random.key(0))
nothing = jax.tree.map(lambda _: None, model)
model, losses = fit(model, nothing, text, 200, 6e-3, jax.random.key(1))
print(f"loss {losses[0]:.2f} -> {np.mean(losses[-20:]):.2f} nats per byte")

# %% [markdown]
# ## Sampling
#
# A window of 64 bytes moves over what was written. (With a cache each byte costs one
# position instead of 64; see [a decoder](../guides/decoder.md#generate).)


# %%
@axn.named_jit
def write(model, prompt, keys, temperature):
    def extend(window, key):
        scores = model(window)["pos", -1] / temperature
        token = axn.random.categorical(key, scores, Vocab).astype(np.int8)
        return axn.concatenate(
            "pos", [window["pos", 1:], axn.stack("pos", [token])]
        ), token

    return axn.scan(extend, axn.Axis("new", 120))(prompt, keys)[1]


START = b"class Parser:\n    def __init__(self, name):\n        self."


def sample(model, temperature):
    prompt = as_text(START.rjust(Pos.size)).rename({"byte": "pos"})
    keys = jax.random.split(jax.random.key(2), 120)
    written = write(model, prompt, keys, jax.numpy.float32(temperature))
    return bytes(written.array.tolist()).decode()


for temperature in (0.5, 0.9):
    print(f"--- temperature {temperature}\n{sample(model, temperature)}")

# %% [markdown]
# ## Tuning
#
# `add_lora` adds thin matrices to the linear layers, and only these are trained: on the
# same text in capitals.

# %%
adapted = nn.add_lora(model, 8, key=jax.random.key(3))
thin, frozen = eqx.partition(adapted, nn.lora_filter(adapted))
thin, tuned = fit(
    thin, frozen, as_text(content.upper()), 100, 1e-2, jax.random.key(4)
)
loud = eqx.combine(thin, frozen)

count = sum(leaf.size for leaf in jax.tree.leaves(thin))
every = sum(leaf.size for leaf in jax.tree.leaves(model))
print(f"{count:,} numbers were trained, beside {every:,}")
print(f"loss {tuned[0]:.2f} -> {tuned[-1]:.2f}")
print(sample(loud, 0.5))

# %% [markdown]
# ## What it expects
#
# The loss of both runs, and the probabilities of the next byte, position by position.

# %%
line = as_text(
    b"    def __init__(self, name, value=None):\n        self.name"
).rename({"byte": "pos"})
chances = axn.softmax(axn.named_jit(Decoder.__call__)(model, line), Vocab)[
    "vocab", 32:
]
shown = chances.rearrange(("vocab", "pos")).array

figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 4), width_ratios=(2, 3), layout="constrained"
)
left.plot(losses, label="training")
left.plot(len(losses) + np.arange(len(tuned)), tuned, label="tuning")
left.set(xlabel="step", ylabel="loss (nats per byte)")
left.legend(framealpha=0)
right.imshow(shown**0.5, aspect="auto", cmap="magma", interpolation="nearest")
letters = [chr(byte) if byte > 32 else "·" for byte in line.tolist()]
right.set_xticks(range(len(letters)), letters, family="monospace", fontsize=6)
places = [ord(letter) - 32 for letter in "0A_aehlnst"]
right.set_yticks(places, list("0A_aehlnst"), family="monospace", fontsize=7)
right.set(xlabel="text so far", ylabel="next byte")
