# %% [markdown]
# # Train your own
#
# The parts of `examples/lm`, one by one: rows of documents, a training run, a look at
# what it costs, and text of the model. `train.py` does all of it by one command, see
# [Train your own](../guides/train-your-own.md).

# %%
import sys

sys.path.insert(0, "examples/lm")  # in a checkout of the project

import jax
import matplotlib.pyplot as plt
import numpy as np

# %% [markdown]
# ## Rows of documents
#
# Documents are packed side by side. Each position knows which document of the row it
# belongs to, and sees that one alone.
# %%
from rows import Packed, ahead, batch_of
from texts import load_text

import axonym as axn
import axonym.nn as nn

text = load_text()  # Python's standard library; a zero byte ends each file
poem = np.frombuffer(
    b"Tyger Tyger,\0burning bright,\0In the forests\0of the night\0", np.uint8
)
batch = batch_of(Packed(poem, length=30, seed=0, end=0), step=0, batch=2).part(0)

rows = zip(batch.tokens.tolist(), batch.documents.tolist(), strict=True)
for tokens, documents in rows:
    print(bytes(tokens).replace(b"\0", b"|").decode())
    print("".join("." if number < 0 else str(number) for number in documents))

# %%
Pos, Key = axn.Axis("pos", 30), axn.Axis("pos.key", 30)
seen = (nn.causal() & nn.segments(batch.documents)).materialize(Pos, Key)

figure, both = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
for axes, row in zip(both, seen.unbind("batch"), strict=True):
    axes.imshow(row.rearrange(("pos", "pos.key")).array, cmap="Blues")
    axes.set(xlabel="pos.key", ylabel="pos")

# %% [markdown]
# ## A model and its run
#
# A recipe has the numbers of a run, a trainer its compiled functions. The strategy is a
# pair of dicts: one for stored parameters, and one for the computation.

# %%
from costs import plan, train_flops
from layouts import abstract_mesh, make_mesh
from trainer import Recipe, Trainer

from axonym.models import DecoderConfig

config = DecoderConfig(
    vocab=256,
    layers=3,
    embed=96,
    mlp=256,
    heads=4,
    kv_heads=4,
    head_dim=24,
    positions=96,
)
recipe = Recipe(strategy="fsdp+tp", steps=120, microbatches=1, learning_rate=6e-3)
trainer = Trainer(recipe, config)

# Layouts and memory, on more devices than there are.
print(plan(trainer, abstract_mesh((16, 2)), batch=16, length=96))

# %% [markdown]
# The rows of a step follow from the number of the step, so a thread may draw them ahead.

# %%
source = Packed(text, length=96, seed=0, end=0)
mesh = make_mesh((4, 2))


def draw(step):
    return trainer.place(batch_of(source, step, batch=16), mesh)


losses = []
with axn.set_mesh(mesh):
    state = trainer.init(jax.random.key(0))
    for step, batch in enumerate(ahead(draw, range(recipe.steps))):
        state, metrics = trainer.step(state, batch, jax.random.key(step))
        losses.append(float(metrics.loss))

print(f"loss {losses[0]:.2f} -> {np.mean(losses[-20:]):.2f} nats per byte")
print(f"{train_flops(config, 96) / 1e6:.0f} MFLOP for a byte")

# %% [markdown]
# ## Where a number went wrong
#
# A step whose numbers are not finite runs again, operation by operation.

# %%
import equinox as eqx
from faults import first_fault

weight = state.model.blocks.repeated.stacked[0].mlp.up.weight
spoilt = eqx.tree_at(
    lambda model: model.blocks.repeated.stacked[0].mlp.up.weight,
    state.model,
    weight.at[{"layers": 1, "mlp": slice(40, 43)}].set(3e38),
)
with axn.set_mesh(mesh):
    print(first_fault(trainer, spoilt, batch, jax.random.key(0)))

# %% [markdown]
# ## Text, and the curve

# %%
from axonym.models import Bytes, Sampling, TextGenerator

options = Sampling(new=72, temperature=0.6)
layout = {**trainer.mappings[1], "batch": None}
prompt = list(b"    def __init__(self, ")[:64]
with axn.set_mesh(mesh):
    parts = TextGenerator(state.model, Bytes(), options, layout).stream([prompt])
    written = [token for part in parts for token in part[0]]
print(Bytes().decode(prompt + written))

# %%
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
axes.plot(losses)
axes.set(xlabel="step", ylabel="loss (nats per byte)")
