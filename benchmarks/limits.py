"""Compare what `axn.plan` finds with a small limit and with the default one, for random small steps.

    python benchmarks/limits.py                    all cases
    python benchmarks/limits.py --cases 0 7        some of them, by number
    python benchmarks/limits.py --limit 10         a smaller limit

The cases are drawn by number: decoders, perceptrons, mixtures of experts, convolutional networks and encoders with
several axes of data, of one sequence or many, on 2 to 4096 devices, which a mesh describes or only their number. All is
traced: no device needs to exist.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import perceptron
from cost import arguments, step  # which also finds examples/lm
from measure import table

import axonym as axn
import axonym.nn as nn
from axonym.models import Decoder, DecoderConfig, ExpertsConfig

CASES = 100
TARGETS = ("cpu", "v5e", "v5p", "v6e", "h100")
SMALL, DEFAULT = 20, 200


class Case(NamedTuple):
    """A step on some devices.

    Attributes:
        kind: what the step trains.
        fn: the step.
        args: its arguments, none of which exists.
        mesh: the sizes of a mesh, or a number of devices.
        target: the device.
        rows: the number of rows of data.
    """

    kind: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    mesh: Mapping[str, int] | int
    target: str
    rows: int


def draw_decoder(rng: random.Random, rows: int, experts: ExpertsConfig | None = None) -> tuple[Any, ...]:
    """Draw a decoder of two layers that gradient descent or AdamW trains, and a batch of tokens."""
    heads = 2 ** rng.randrange(2, 6)
    head_dim = rng.choice([16, 64, 128])
    config = DecoderConfig(
        vocab=rng.choice([512, 32000, 50257]),
        layers=2,
        embed=heads * head_dim,
        mlp=rng.choice([2, 3, 4]) * heads * head_dim,
        heads=heads,
        kv_heads=max(1, heads // rng.choice([1, 4, 8])),
        head_dim=head_dim,
        positions=2 ** rng.randrange(6, 13),
        experts=experts,
    )
    model, state, tokens = arguments(config, rows)
    if rng.random() < 0.75:
        return descend, (model, tokens)
    return step, (model, state, tokens)


def draw_experts(rng: random.Random, rows: int) -> tuple[Any, ...]:
    """Draw a decoder whose perceptrons are mixtures of experts."""
    return draw_decoder(rng, rows, ExpertsConfig(2 ** rng.randrange(2, 6), 2, 64 * 2 ** rng.randrange(1, 6)))


def draw_perceptron(rng: random.Random, rows: int) -> tuple[Any, ...]:
    """Draw a stack of perceptrons that gradient descent trains, and its inputs."""
    embed = 2 ** rng.randrange(6, 14)
    sizes = perceptron.Sizes(2, embed, rng.choice([2, 3, 4]) * embed, 2 ** rng.randrange(5, 12), rows)
    stack = jax.eval_shape(lambda: perceptron.init(sizes, np.float32, key=jax.random.key(0)))
    return perceptron.step, (stack, jax.eval_shape(lambda: axn.zeros(sizes.Input)))


class Residual(eqx.Module):
    """A convolution beside a residual connection."""

    conv: nn.Conv

    def __call__(self, x: axn.NamedArray) -> axn.NamedArray:
        """Apply the block."""
        return x + nn.relu(self.conv(x)).rename({"out": "features"})


class Image(eqx.Module):
    """A convolution, blocks of convolutions, and a classifier."""

    first: nn.Conv
    blocks: nn.Stacked[Residual]
    last: nn.Linear

    def __call__(self, x: axn.NamedArray) -> axn.NamedArray:
        """Return the scores of classes."""
        return self.last(self.blocks.fold(self.first(x)).mean(("height", "width")))


class Encoder(eqx.Module):
    """Blocks of attention without a mask, and a classifier of each position."""

    blocks: nn.Stacked[nn.TransformerBlock]
    last: nn.Linear

    def __call__(self, x: axn.NamedArray) -> axn.NamedArray:
        """Return the scores of classes."""
        return self.last(self.blocks.fold(x))


def descend(model: Any, x: axn.NamedArray) -> Any:
    """Take a step of gradient descent on the loss of tokens, or on the mean square of the result."""

    def loss(model: Any) -> jax.Array:
        return (model.loss(x) if isinstance(model, Decoder) else axn.square(model(x)).mean()).scalar()

    value, gradients = jax.value_and_grad(loss)(model)
    return jax.tree.map(lambda weight, change: weight - 1e-3 * change, model, gradients), value


def draw_image(rng: random.Random, rows: int) -> tuple[Any, ...]:
    """Draw a convolutional network, and images."""
    size, features = 2 ** rng.randrange(4, 9), 2 ** rng.randrange(5, 10)
    Channels, Features, Classes = axn.make_axes(channels=4, features=features, classes=rng.choice([10, 1000, 1024]))
    spatial, key = ("height", "width"), jax.random.key(0)

    def make() -> Image:
        def init(*, key: jax.Array) -> Residual:
            return Residual(nn.Conv.init(spatial, Features, Features.alias("out"), 3, padding=1, key=key))

        first = nn.Conv.init(spatial, Channels, Features, 3, padding=1, key=key)
        blocks = nn.Stacked.init(axn.Axis("layers", 2), init)(key=key)
        return Image(first, blocks, nn.Linear.init(Features, Classes, key=key))

    x = axn.make_axes(batch=rows, height=size, width=size, channels=4)
    return descend, (jax.eval_shape(make), jax.eval_shape(lambda: axn.zeros(x)))


def draw_encoder(rng: random.Random, rows: int) -> tuple[Any, ...]:
    """Draw an encoder that reads several frames of each example."""
    heads, head_dim = 2 ** rng.randrange(1, 5), rng.choice([16, 64])
    Embed, Heads, HeadDim = axn.make_axes(embed=heads * head_dim, heads=heads, head_dim=head_dim)
    Mlp, Classes, key = Embed.resize(4 * Embed.size).alias("mlp"), axn.Axis("classes", 16), jax.random.key(0)

    def make() -> Encoder:
        blocks = nn.Stacked.init(axn.Axis("layers", 2), nn.TransformerBlock)(Embed, Heads, HeadDim, Mlp, key=key)
        return Encoder(blocks, nn.Linear.init(Embed, Classes, key=key))

    frames, positions = 2 ** rng.randrange(1, 7), 2 ** rng.randrange(4, 10)
    x = axn.make_axes(batch=rows, frames=frames, pos=positions, embed=Embed.size)
    return descend, (jax.eval_shape(make), jax.eval_shape(lambda: axn.zeros(x)))


DRAWN = {
    "decoder": draw_decoder,
    "perceptron": draw_perceptron,
    "experts": draw_experts,
    "images": draw_image,
    "encoder": draw_encoder,
}


def draw_case(number: int) -> Case:
    """Draw the case with a number."""
    rng = random.Random(number)
    kind = list(DRAWN)[number % len(DRAWN)]
    devices = 2 ** rng.randrange(1, 13)
    mesh: Mapping[str, int] | int = devices
    if axes := rng.choice([0, 0, 1, 2, 3]):
        # The devices are divided among the mesh axes, by turns that may leave one of them a single device.
        sizes = [1] * axes
        for _ in range(devices.bit_length() - 1):
            sizes[rng.randrange(axes)] *= 2
        mesh = dict(zip(("data", "model", "third"), sizes, strict=False))
    rows = rng.choice([1, 2, devices // 2, devices, devices, 4 * devices])
    fn, args = DRAWN[kind](rng, rows)
    return Case(kind, fn, args, mesh, rng.choice(TARGETS), rows)


def make_donating(fn: Any) -> Any:
    """Return a step that donates what it replaces."""
    return axn.named_jit(fn, {}, donate_args=(True,))


def compare(number: int, limit: int) -> Iterator[dict[str, str]]:
    """Yield the row of a case."""
    case = draw_case(number)
    found: dict[int, Any] = {}
    seconds: dict[int, float] = {}
    for own in (limit, DEFAULT):
        start = time.process_time()
        found[own] = axn.plan(case.fn, case.mesh, *case.args, target=case.target, limit=own, verify=0)
        seconds[own] = time.process_time() - start
    small, large = found[limit].best, found[DEFAULT].best
    mesh = case.mesh if isinstance(case.mesh, int) else " x ".join(map(str, case.mesh.values()))
    yield {
        "case": str(number),
        "step": f"{case.kind}, {case.rows} rows",
        "devices": f"{mesh} {case.target}",
        f"ms at {limit}": f"{1e3 * small.cost.time.compared:.4g}",
        f"ms at {DEFAULT}": f"{1e3 * large.cost.time.compared:.4g}",
        "slower by": f"{100 * (small.cost.time.compared / large.cost.time.compared - 1):.1f} %",
        "fits": f"{small.fits}, {large.fits}" if not (small.fits and large.fits) else "yes",
        "processor": f"{seconds[limit]:.0f} s, {seconds[DEFAULT]:.0f} s",
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", type=int, default=list(range(CASES)))
    parser.add_argument("--limit", type=int, default=SMALL)
    options = parser.parse_args()
    print(table([row for number in options.cases for row in compare(number, options.limit)]))


if __name__ == "__main__":
    main()
