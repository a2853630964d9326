# %% [markdown]
# # Find a leak
#
# A small language model that reads the future: its loss falls, its shapes are right,
# and its samples would be noise. Names say which axis is time, so a test finds it.

# %%
import equinox as eqx
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

import axonym as axn
import axonym.nn as nn

Batch, Pos, Embed, Heads, HeadDim, Vocab = axn.make_axes(
    batch=8, pos=12, embed=16, heads=2, head_dim=8, vocab=5
)

# %% [markdown]
# ## The model
#
# One block centres its input by the mean. Its author meant the mean of a token's
# features, and wrote the mean over positions.


# %%
class Centre(eqx.Module):
    axis: str = eqx.field(static=True)

    def __call__(self, x):
        return x - x.mean(self.axis)


class Model(eqx.Module):
    embedding: nn.Embedding
    blocks: list[nn.TransformerBlock]
    centre: Centre
    readout: nn.Linear

    @staticmethod
    def init(axis, *, key):
        keys = jax.random.split(key, 4)
        sizes = Embed, Heads, HeadDim, 32
        blocks = [nn.TransformerBlock.init(*sizes, key=one) for one in keys[:2]]
        embedding = nn.Embedding.init(Vocab, Embed, key=keys[2])
        readout = nn.Linear.init(Embed, Vocab, key=keys[3])
        return Model(embedding, blocks, Centre(axis), readout)

    def __call__(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = self.centre(block(x, nn.causal()))
        return self.readout(x)


# %% [markdown]
# ## The loss looks fine
#
# Tokens are drawn at random, so nobody can predict the next one, and the loss should
# stay at that of a guess, 1.61. The leaking model does better. On real text, this would
# look like a good model.


# %%
def loss(model, tokens):
    logits = model(tokens)["pos", :-1]
    return nn.cross_entropy_loss(logits, Vocab, tokens["pos", 1:]).mean().scalar()


optimizer = optax.adam(3e-3)


@jax.jit
def step(model, state, key):
    tokens = axn.random.randint(key, (Batch, Pos), 0, Vocab.size)
    value, gradients = eqx.filter_value_and_grad(loss)(model, tokens)
    updates, state = optimizer.update(gradients, state)
    return eqx.apply_updates(model, updates), state, value


losses = {}
for axis in ("embed", "pos"):
    model = Model.init(axis, key=jax.random.key(0))
    state, losses[axis] = optimizer.init(eqx.filter(model, eqx.is_array)), []
    for key in jax.random.split(jax.random.key(1), 60):
        model, state, value = step(model, state, key)
        losses[axis].append(float(value))
{axis: round(values[-1], 2) for axis, values in losses.items()}

# %% [markdown]
# ## The test
#
# `causal` claims that no position depends on later ones. The report has the positions,
# the layer and the operation. The repaired model is proven to be right.

# %%
tokens = axn.random.randint(jax.random.key(2), (Batch, Pos), 0, Vocab.size)
broken = Model.init("pos", key=jax.random.key(0))
found = axn.testing.check(broken, tokens, independent=Batch, causal=Pos)
print(found)

# %%
repaired = Model.init("embed", key=jax.random.key(0))
print(axn.testing.check(repaired, tokens, independent=Batch, causal=Pos))

# %% [markdown]
# ## Which layers differ
#
# `axn.debug.compare` shows both models side by side. The first block is the same, what
# follows it is not.

# %%
compared = axn.debug.compare(broken, repaired, tokens)
print(compared)

# %% [markdown]
# ## A picture of the leak
#
# We change one token after the other. Below the diagonal, a change reaches later positions.
# Above it, the future reaches the past.


# %%
def reached(model):
    rows = []
    for i in range(Pos.size):
        other = tokens.at["pos", i].set((tokens["pos", i] + 1) % Vocab.size)
        change = axn.abs(model(other) - model(tokens)).max((Batch, Vocab))
        rows.append(np.asarray(change.array))
    return np.stack(rows, 1)


fig, axes = plt.subplots(1, 2, figsize=(6, 3), sharey=True)
models = {"leaks": broken, "repaired": repaired}
for ax, (title, model) in zip(axes, models.items(), strict=True):
    ax.imshow(reached(model) > 1e-5)
    ax.set(title=title, xlabel="changed position")
axes[0].set_ylabel("position of the result")
