# %% [markdown]
# # Start from Hugging Face
#
# A folder of the Hub, read onto a mesh, tuned on a few conversations, and written back.
# Here the folder is a small model with random weights: nothing is downloaded.

# %%
import sys

sys.path.insert(0, "examples/lm")  # in a checkout of the project

import json
import tempfile
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
from layouts import make_mesh

import axonym as axn
from axonym.models import Decoder, DecoderConfig, load, save

folder = Path(tempfile.mkdtemp()) / "model"
config = DecoderConfig(
    vocab=256,
    layers=2,
    embed=64,
    mlp=128,
    heads=4,
    kv_heads=2,
    head_dim=16,
    positions=128,
)
model = Decoder.init(config, key=jax.random.key(0))
save(jax.tree.map(lambda leaf: 3 * leaf, model), folder, eos_token_id=0)

settings = json.loads((folder / "config.json").read_text())
print(settings["architectures"], settings["hidden_size"], settings["vocab_size"])

# %% [markdown]
# ## Onto a mesh
#
# Each device reads its part of each array. A dict says which axes are split.

# %%
mesh = make_mesh((4, 2))
stored = {"embed": "data", "kv_heads": "model", "mlp": "model"}
with axn.set_mesh(mesh):
    loaded = load(folder, mapping=stored)

axn.parameters.table(loaded)

# %% [markdown]
# ## Conversations
#
# The chat template of the folder writes them; only what the assistant says counts.

# %%
from axonym.models import Bytes, conversations, read_template

source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
source += "{% if add_generation_prompt %}<assistant>{% endif %}"
(folder / "chat_template.jinja").write_text(source)

words = {"cat": "meow", "dog": "woof", "cow": "moo", "duck": "quack"}
lines = []
for animal, sound in words.items():
    chat = [
        {"role": "user", "content": f"the {animal}?"},
        {"role": "assistant", "content": sound},
    ]
    lines.append(json.dumps({"messages": chat}))
(folder / "chats.jsonl").write_text("\n".join(lines))

tokens, counted = conversations(
    folder / "chats.jsonl", Bytes(), 40, read_template(folder)
)
for own, learned in zip(tokens, counted, strict=True):
    print(bytes(own.tolist()).rstrip(b"\0"), "->", bytes(own[learned].tolist()))

# %% [markdown]
# ## Tuning
#
# Thin matrices beside the weights learn, the weights stay.

# %%
from finetune import Options, main

options = Options(
    folder,
    folder / "chats.jsonl",
    folder / "tuned",
    rank=8,
    layers=("attention.query", "attention.value", "mlp.up", "mlp.down"),
    length=40,
    batch=8,
    steps=150,
    learning_rate=2e-2,
    strategy="fsdp+tp",
    mesh=(4, 2),
)
losses = main(options)

# %% [markdown]
# The sum of both is a model like the first one, which `transformers` loads, too.

# %%
from axonym.models import Sampling, TextGenerator

merged = load(folder / "tuned/merged")
prompts = [list(f"<user>the {animal}?\n<assistant>".encode()) for animal in words]
sampling = Sampling(new=8, temperature=0)
with axn.set_mesh(make_mesh((1, 1))):
    generator = TextGenerator(merged, Bytes(), sampling, {})
    said = [[] for _ in prompts]
    for parts in generator.stream(prompts):
        for own, part in zip(said, parts, strict=True):
            own += part
for animal, own in zip(words, said, strict=True):
    print(f"{animal}: {Bytes().decode(own).splitlines()[0]}")

# %% [markdown]
# ## What was learnt

# %%
before, after = (
    each.blocks.repeated.stacked[0].mlp.up.weight for each in (load(folder), merged)
)
change = (after - before)["layers", 0].rearrange(("embed", "mlp")).array

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
left.plot(losses)
left.set(xlabel="step", ylabel="loss (nats per token)")
right.plot(np.linalg.svd(change, compute_uv=False), ".-")
right.set(xlabel="singular value of the change", xlim=(0, 20))
