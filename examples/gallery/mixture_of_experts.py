"""Train a language model with a mixture of experts on the bytes of Python's standard library.

    python mixture_of_experts.py                              one device, about a minute
    python mixture_of_experts.py --mesh data=4,model=2        eight devices, simulated where there are none

On a mesh, experts and batch share the axis data: each device has some of the experts, and tokens are sent to them.

References: Shazeer et al. (2017), Outrageously large neural networks; Fedus et al. (2021), Switch transformers.
"""

import sysconfig
from pathlib import Path

import equinox as eqx
import jax
import matplotlib.pyplot as plt
import numpy as np
import tyro
from training import make_mesh, train

import axonym as axn
import axonym.nn as nn
from axonym import NamedArray

PICTURE = Path(__file__).with_suffix(".png")

# The layout: how parameters and optimiser state are stored, and how the computation is split.
STORED = {"experts": "data", "heads": "model", "mlp": "model"}
COMPUTED = {"batch": "data", "experts": "data", "heads": "model", "mlp": "model"}

Pos, Vocab = axn.make_axes(pos=64, vocab=128)
Window = Pos.resize(Pos.size + 1)
Layers, Embed, Heads, HeadDim, Experts, Mlp = axn.make_axes(layers=2, embed=64, heads=4, head_dim=16, experts=8, mlp=64)

Routed = tuple[nn.Routing, NamedArray]  # statistics of the router, and the favourite expert of each token


class Block(eqx.Module):
    """Attention and a mixture of experts, each behind a norm and beside a residual connection."""

    norm_1: nn.RmsNorm
    qkv: nn.Linear
    out: nn.Linear
    norm_2: nn.RmsNorm
    experts: nn.MixtureOfExperts

    @staticmethod
    def init(*, key: jax.Array) -> "Block":
        k_qkv, k_out, k_experts = jax.random.split(key, 3)
        qkv = nn.Linear.init(Embed, (axn.Axis("qkv", 3), Heads, HeadDim), key=k_qkv, use_bias=False)
        out = nn.Linear.init((Heads, HeadDim), Embed, key=k_out, use_bias=False)
        experts = nn.MixtureOfExperts.init(
            Embed, Experts, Mlp, top_k=2, capacity_factor=1.5, tokens="pos", key=k_experts
        )
        return Block(nn.RmsNorm.init(Embed), qkv, out, nn.RmsNorm.init(Embed), experts)

    def __call__(self, x: NamedArray, rotate: nn.RotaryTable) -> tuple[NamedArray, Routed]:
        q, k, v = self.qkv(self.norm_1(x)).unbind("qkv")
        q, k, v = rotate(q), rotate(k).rename({"pos": "pos.key"}), v.rename({"pos": "pos.key"})
        x = x + self.out(nn.dot_product_attention("pos", "pos.key", "head_dim", q, k, v, mask=nn.causal()))
        y, routing = self.experts(self.norm_2(x))
        favourite = self.experts.router(self.norm_2(x)).argmax("experts.router")
        return x + y, (routing, favourite)


class Decoder(eqx.Module):
    """From tokens {pos, ...} to scores {pos, vocab, ...} of what follows, and what the router of each layer did."""

    embedding: nn.Embedding
    rope: nn.RotaryEmbedding
    blocks: nn.Stacked[Block]
    norm: nn.RmsNorm

    @staticmethod
    def init(key: jax.Array) -> "Decoder":
        k_embedding, k_blocks = jax.random.split(key)
        embedding = nn.Embedding.init(Vocab, Embed, key=k_embedding)
        blocks = nn.Stacked.init(Layers, Block)(key=k_blocks)
        return Decoder(embedding, nn.RotaryEmbedding.init(HeadDim), blocks, nn.RmsNorm.init(Embed))

    def __call__(self, tokens: NamedArray) -> tuple[NamedArray, Routed]:
        rotate = self.rope.at(tokens.resolve_axis("pos"))
        x, routed = self.blocks.scan(self.embedding(tokens), rotate)
        return self.embedding.unembed(self.norm(x)), routed


def load() -> tuple[NamedArray, NamedArray]:
    """Return text to train on and held-out text: bytes along one axis, those that are not ASCII as 127."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = [np.minimum(np.frombuffer(file.read_bytes(), np.uint8), 127).astype(np.int8) for file in files]
    held_out = [text for i, text in enumerate(texts) if i % 10 == 0]
    rest = [text for i, text in enumerate(texts) if i % 10]
    return axn.named(np.concatenate(rest), "byte"), axn.named(np.concatenate(held_out), "byte")


def windows(text: NamedArray, count: int, key: jax.Array) -> NamedArray:
    """Draw windows {batch, pos} of the text, with one byte more than the model sees."""
    start = axn.random.randint(key, axn.Axis("batch", count), 0, text.size - Pos.size)
    return text["byte", start.broadcast_axis(Window) + axn.arange(Window)]


def entropy(model: Decoder, tokens: NamedArray) -> tuple[NamedArray, Routed]:
    """Return the mean cross entropy of each token given those before it, and what the routers did."""
    scores, routed = model(tokens["pos", :-1])
    return nn.cross_entropy_loss(scores, Vocab, tokens["pos", 1:]), routed


def loss_fn(model: Decoder, text: NamedArray, key: jax.Array) -> jax.Array:
    """Return the loss of a batch, and a little for experts that are not used evenly."""
    loss, (routing, _) = entropy(model, windows(text, 32, key))
    return (loss + 0.01 * routing.load_balance.mean()).scalar()


def show(tokens: NamedArray, expert: NamedArray, losses: list[float], out: Path) -> None:
    """Save the curve of the loss, and tokens {batch, pos} in the colours of their experts."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4), width_ratios=(2, 3), layout="constrained")
    left.plot(losses)
    left.set(xlabel="step", ylabel="loss (nats per byte)", title="Mixture of experts")
    on_host = [np.asarray(x.rearrange(("batch", "pos")).array) for x in (tokens, expert)]
    for line, pos in np.ndindex(16, Pos.size):
        byte, own = (int(x[line, pos]) for x in on_host)
        shown = chr(byte) if 32 < byte < 127 else "·"
        right.text(pos, -line, shown, color=f"C{own}", family="monospace", fontsize=8)
    right.set(xlim=(0, Pos.size), ylim=(-16, 1), title="Held-out text in the colours of its experts")
    right.axis("off")
    figure.savefig(out, dpi=120)


def main(steps: int = 250, mesh: str = "data=1,model=1", seed: int = 0, out: Path = PICTURE) -> float:
    """Train, save a picture, and return the held-out loss in nats per byte."""
    text, held_out = load()
    k_train, k_windows = jax.random.split(jax.random.key(seed))
    options = {"stored": STORED, "computed": COMPUTED, "steps": steps, "learning_rate": 5e-3}
    with axn.set_mesh(make_mesh(mesh)):
        model, losses = train(Decoder.init, loss_fn, text, key=k_train, **options)
        tokens = windows(held_out, 256, k_windows)
        loss, (routing, expert) = axn.named_jit(entropy, COMPUTED)(model, tokens)
    print(f"load of the experts of each layer:\n{np.round(routing.load.rearrange(('layers', 'experts')).array, 2)}")
    print(f"held-out loss: {loss.item():.3f} nats per byte")
    show(tokens["pos", :-1], expert["layers", -1], losses, out)
    return loss.item()


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    tyro.cli(main, description=__doc__)
