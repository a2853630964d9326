"""Draw the pictures of the documentation, with what users have: layouts and tables of Axonym, figures of matplotlib.

    python tools/pictures.py pictures.json        all, as HTML by name, for tools/site.py
    python tools/pictures.py docs/layouts.svg       the one of README, which is kept in the repository

Each function is a picture; a page asks for it by its name.
"""

import dataclasses
import html
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(ROOT / "examples/gallery")]

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
from matplotlib.figure import Figure
from notebook import DEVICES, STYLE, figure_svg
from vit import STORED, VisionTransformer

import axonym as axn
import axonym.nn as nn
from axonym.report.picture import ALONE, Picture
from axonym.report.show import ArrayLayout, Layouts
from benchmarks import measure

SIZES = {"data": 4, "model": 2}
MESH = jax.sharding.AbstractMesh(tuple(SIZES.values()), tuple(SIZES))
Batch, Embed, Mlp = axn.make_axes(batch=32, embed=64, mlp=256)
BOTH = ("data", "model")
# Those of docs/index.md: how parameters are stored, and how the computation is split.
LAYOUTS: dict[str, tuple[axn.ResourceMapping, axn.ResourceMapping]] = {
    "data parallel": ({}, {"batch": BOTH}),
    "fully sharded": ({"embed": BOTH}, {"batch": BOTH}),
    "tensor parallel": ({"mlp": "model"}, {"batch": "data", "mlp": "model"}),
}


def model(key: jax.Array) -> nn.MLP:
    """Make the model that is laid out."""
    return nn.MLP.init(Embed, Embed, Mlp, depth=1, activation=nn.gelu, use_bias=False, key=key)


def loss(model: nn.MLP, x: axn.NamedArray) -> jax.Array:
    """Return how far the model is from returning its input."""
    return ((model(x) - x) ** 2).mean().scalar()


def step(model: nn.MLP, x: axn.NamedArray) -> tuple[nn.MLP, jax.Array]:
    """Take a step of gradient descent."""
    value, gradients = jax.value_and_grad(loss)(model, x)
    return jax.tree.map(lambda p, g: p - 2 * g, model, gradients), value


def picture_of(stored: axn.ResourceMapping, computed: axn.ResourceMapping) -> Picture:
    """Draw the batch and both weights under two mappings."""
    x = axn.NamedArray(jax.ShapeDtypeStruct((32, 64), jnp.float32), (Batch, Embed))
    report = axn.check(
        step, axn.Mappings(stored, computed), MESH, jax.eval_shape(model, jax.random.key(0)), x, quiet=True
    )
    rows = {row.path: row for row in report.arguments}
    return drawn_as({"x": rows["x"], "up": rows["model.layers.0.weight"], "down": rows["model.layers.1.weight"]})


def drawn_as(rows: dict[str, ArrayLayout]) -> Picture:
    """Draw layouts under other titles."""
    return Layouts(tuple(dataclasses.replace(row, path=title) for title, row in rows.items())).picture()


def spelled(stored: axn.ResourceMapping, computed: axn.ResourceMapping) -> str:
    """Write two mappings."""
    return f"stored {stored}, computed {computed}".replace("'", '"')


def layouts_alone() -> str:
    """Draw a model under three mappings, one below the other, as a file."""
    found, top = [], 0.0
    for name, mappings in LAYOUTS.items():
        svg = picture_of(*mappings).svg()
        height = float(re.findall(r'viewBox="\S+ \S+ \S+ (\S+)"', svg)[0])
        caption = html.escape(f"{name}: {spelled(*mappings)}")
        found.append(f'<text y="{top + 14:g}" font-size="13" font-weight="bold">{caption}</text>')
        found.append(svg.replace("<svg ", f'<svg y="{top + 24:g}" height="{height:g}" ', 1))
        top += height + 48
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 764 {top:g}" width="764" fill="currentColor"'
            ' font-family="ui-sans-serif, system-ui, sans-serif" role="img"'
            f' aria-label="One model under three mappings, and the blocks of eight devices">{ALONE}',
            *found,
            "</svg>",
            "",
        ]
    )


def traffic(mappings: tuple[axn.ResourceMapping, axn.ResourceMapping]) -> str:
    """Compile a training step, and say what each device sends in it."""
    stored, computed = mappings
    kinds = (jax.sharding.AxisType.Auto,) * 2
    with axn.set_mesh(jax.make_mesh(tuple(SIZES.values()), tuple(SIZES), axis_types=kinds)):
        own = axn.named_jit(model, stored)(jax.random.key(0))
        x = axn.shard(axn.ones((Batch, Embed)), {"batch": computed["batch"]})
        compiled = axn.fsdp(step, stored, computed).lower(own, x).compile()
    sums = measure.totals(measure.collectives(compiled.as_text()))
    return ", ".join(f"{kind} {1000 * total.wire_megabytes:.0f} kB" for kind, total in sums.items())


def layouts() -> str:
    """Draw one model under three mappings, with what each device sends in a training step."""
    blocks = []
    for name, mappings in LAYOUTS.items():
        caption = html.escape(f"{name}: {spelled(*mappings)}")
        sent = f"A training step sends: {traffic(mappings)}."
        blocks.append(f"<p><strong>{caption}</strong><br>{sent}</p>\n{picture_of(*mappings).svg()}")
    return "\n".join(blocks)


def figure(columns: int, width: float = 7.5, height: float = 2.4) -> tuple[Figure, Any]:
    """Make a figure, and its axes side by side."""
    drawn = Figure(figsize=(width, height), layout="constrained")
    return drawn, drawn.subplots(1, columns)


def mesh() -> str:
    """Draw an array of two axes on a mesh of 4 x 2 devices, under four mappings."""
    x = {"x": axn.NamedArray(jax.ShapeDtypeStruct((8, 16), jnp.float32), axn.make_axes(batch=8, embed=16))}
    mappings = {}, {"batch": "data"}, {"embed": "model"}, {"batch": "data", "embed": "model"}
    return drawn_as({json.dumps(own): axn.partitioning.show(x, own, MESH).arrays[0] for own in mappings}).svg()


def masks() -> str:
    """Draw which keys a query sees."""
    Pos = axn.Axis("pos", 12)
    documents = axn.named([0] * 5 + [1] * 7, "pos")
    shown = {
        "causal()": nn.causal(),
        "causal() & window(4)": nn.causal() & nn.window(4),
        "causal() | prefix(4)": nn.causal() | nn.prefix(4),
        "causal() & segments(ids)": nn.causal() & nn.segments(documents),
    }
    drawn, axes = figure(len(shown), 9.5, 2.6)
    for one, (title, mask) in zip(axes, shown.items(), strict=True):
        seen = mask.materialize(Pos, Pos.derive("key"))
        one.imshow(seen.array, cmap="Blues", vmin=-0.4, vmax=1.4, interpolation="none")
        one.set(title=title, xlabel="pos.key", ylabel="pos", xticks=[], yticks=[])
        one.title.set_fontsize(9)
    return figure_svg(drawn)


def turns(order: np.ndarray, ways: int) -> Figure:
    """Draw, for each turn of a ring, what the devices compute: queries down, keys across, hidden scores white."""
    drawn, axes = figure(ways, 9.5, 2.9)
    parts = order.reshape(ways, -1)
    size = parts.shape[1]
    for turn, one in enumerate(axes):
        field = np.full((order.size, order.size), np.nan)
        for device, queries in enumerate(parts):
            source = (device - turn) % ways
            seen = queries[:, None] >= parts[source]
            rows, columns = (slice(at * size, (at + 1) * size) for at in (device, source))
            field[rows, columns] = np.where(seen, device, np.nan)
        one.imshow(field, cmap="viridis", vmin=-0.5, vmax=ways, interpolation="none")
        for at in range(size, order.size, size):
            one.axhline(at - 0.5, color="gray", linewidth=0.5)
            one.axvline(at - 0.5, color="gray", linewidth=0.5)
        places = [size * at + size / 2 - 0.5 for at in range(ways)]
        one.set(title=f"turn {turn}", xlabel="keys", xticks=places, xticklabels=range(ways), yticks=[])
        one.title.set_fontsize(9)
    axes[0].set(yticks=places, yticklabels=[f"device {at}" for at in range(ways)])
    return drawn


def ring() -> str:
    """Draw the turns of a ring, with positions in order."""
    return figure_svg(turns(np.arange(16), 4))


def zigzag() -> str:
    """Draw the turns of a ring, with positions in zig-zag order."""
    return figure_svg(turns(np.asarray(nn.zigzag(axn.arange(axn.Axis("pos", 16)), "pos", 4).array), 4))


def scores() -> str:
    """Draw the attention weights of one head: queries along pos, keys along pos.key."""
    Pos, HeadDim = axn.make_axes(pos=24, head_dim=16)
    PosKey = Pos.derive("key")
    rope = nn.RotaryEmbedding.init(HeadDim).at(Pos)
    q = rope(axn.ones((Pos, HeadDim)))
    k = q.rename({Pos: PosKey})
    weights = nn.dot_product_attention_weights(HeadDim, PosKey, q, k, mask=nn.causal().materialize(Pos, PosKey))
    drawn, one = figure(1, 4.2, 3.2)
    image = one.imshow(weights.rearrange((Pos, PosKey)).array, cmap="viridis", interpolation="none")
    one.set(xlabel="pos.key: which key", ylabel="pos: whose query")
    drawn.colorbar(image, label="weight")
    return figure_svg(drawn)


def schedules() -> str:
    """Draw learning rates of Optax over a run of 1000 steps."""
    shown = {
        "warmup_cosine_decay_schedule": optax.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 1000, 1e-4),
        "cosine_onecycle_schedule": optax.cosine_onecycle_schedule(1000, 1e-3),
        "warmup_exponential_decay_schedule": optax.warmup_exponential_decay_schedule(0.0, 1e-3, 100, 300, 0.4),
    }
    drawn, one = figure(1, 7, 2.8)
    steps = jnp.arange(1000)
    for title, schedule in shown.items():
        one.plot(steps, jax.vmap(schedule)(steps), label=title)
    one.set(xlabel="step", ylabel="learning rate")
    one.legend(fontsize=8, framealpha=0)
    return figure_svg(drawn)


def losses() -> str:
    """Draw the same run under three mappings: three curves, one on the other."""
    drawn, one = figure(1, 7, 2.8)
    with axn.set_mesh(jax.make_mesh(tuple(SIZES.values()), tuple(SIZES))):
        for width, (name, (stored, computed)) in zip((7, 4, 1.5), LAYOUTS.items(), strict=True):
            own = axn.named_jit(model, stored)(jax.random.key(0))
            x = axn.random.normal(jax.random.key(1), (Batch, Embed))
            run, found = axn.fsdp(step, stored, computed), []
            for _ in range(40):
                own, value = run(own, x)
                found.append(float(value))
            one.plot(found, linewidth=width, label=name, alpha=0.8)
    one.set(xlabel="step", ylabel="loss", yscale="log")
    one.legend(framealpha=0)
    return figure_svg(drawn)


def optimizers() -> str:
    """Draw the losses of AdamW and Muon in the run of README: the mean of some seeds, and how far they are apart."""
    lines = (ROOT / "benchmarks/lm_optimizers.jsonl").read_text().splitlines()
    runs = [json.loads(line) for line in lines]
    steps = max(run["steps"] for run in runs)
    drawn, one = figure(1, 7, 2.8)
    for name, title in (("adamw", "AdamW"), ("muon", "Muon")):
        found = np.array([run["losses"] for run in runs if (run["optimizer"], run["steps"]) == (name, steps)])
        (line,) = one.plot(found.mean(0), label=title)
        one.fill_between(range(steps), found.min(0), found.max(0), alpha=0.3, color=line.get_color(), linewidth=0)
    one.set(xlabel="step", ylabel="loss (nats per byte)")
    one.legend(framealpha=0)
    return figure_svg(drawn)


def check() -> str:
    """Show the report of `axn.check`, as notebooks show it."""
    Vocab = axn.Axis("vocab", 50257)

    def init(key: jax.Array) -> Any:
        return {"table": nn.Embedding.init(Vocab, Embed, key=key), "mlp": model(key)}

    return axn.check(
        init, {"vocab": "model", "mlp": "model"}, {"data": 64, "model": 8}, jax.random.key(0), quiet=True
    )._repr_html_()


def small() -> str:
    """Draw the model of the guide to checking layouts."""
    In, Hidden = axn.make_axes(embed=1024, mlp=4096)
    own = jax.eval_shape(lambda key: nn.MLP.init(In, In, Hidden, 1, key=key), jax.random.key(0))
    return axn.partitioning.show(own, {"embed": "data", "mlp": "model"}, MESH).picture().svg()


def cost() -> str:
    """Draw what the model costs under the last of these mappings."""
    own = jax.eval_shape(model, jax.random.key(0))
    x = axn.NamedArray(jax.ShapeDtypeStruct((32, 64), jnp.float32), (Batch, Embed))
    both = axn.Mappings({"embed": "data", "mlp": "model"}, {"batch": "data", "mlp": "model"})
    return axn.cost(step, both, SIZES, own, x, target="v5e").picture().svg()


def sizes() -> str:
    """Draw how large the results of layers are while a model of docs/guides/whole-models.md learns."""
    blocks = nn.Stacked.init(axn.Axis("layers", 4), lambda *, key: nn.MLP.init(Embed, Embed, Mlp, 1, key=key))
    own = blocks(key=jax.random.split(jax.random.key(0), 4))
    x = axn.random.normal(jax.random.key(1), (Batch, Embed))

    @jax.jit
    @axn.debug.watch
    def step(model: nn.Stacked[nn.MLP]) -> nn.Stacked[nn.MLP]:
        gradients = jax.grad(lambda model: axn.square(model.fold(x) - x).mean().scalar())(model)
        return jax.tree.map(lambda p, g: p - 2 * g, model, gradients)

    seen = []
    for _ in range(7):
        own, one = step(own)
        seen.append(one)
    return jax.tree.map(lambda *x: axn.stack("step", x), *seen, is_leaf=axn.is_named_array).picture().svg()


def vit() -> str:
    """Draw a block of the vision transformer of the gallery."""
    own = jax.eval_shape(VisionTransformer.init, jax.random.key(0))
    return axn.partitioning.show(own.blocks.stacked, STORED, MESH).picture().svg()


def treescope() -> str:
    """Show a layer as treescope does."""
    import treescope as library

    layer = nn.Linear.init(Embed.resize(12), Mlp.resize(24), key=jax.random.key(0))
    with library.active_autovisualizer.set_scoped(library.ArrayAutovisualizer()):
        content = library.render_to_html(layer)
    return f'<iframe title="A layer in treescope" class="treescope" srcdoc="{html.escape(content)}"></iframe>'


def pipeline() -> str:
    """Draw the schedule of the pipeline of the guide."""
    return axn.partitioning.schedule(stages=4, microbatches=8).svg()


def streamed() -> str:
    """Draw the schedule in which stages also work backward."""
    return axn.partitioning.schedule(stages=4, microbatches=8, backward=True).svg()


def circular() -> str:
    """Draw the schedule in which microbatches pass all stages twice."""
    return axn.partitioning.schedule(stages=4, microbatches=8, rounds=2).svg()


def experts() -> str:
    """Draw where tokens are, in the colours of their experts: at home, and with the experts of four devices."""
    chosen = np.random.default_rng(3).permutation(np.repeat(np.arange(8), 4)).reshape(4, 8)
    drawn, (left, right) = figure(2, 7.5, 2.2)
    titles = "tokens of a device, by expert", "after the all-to-all: rows of its experts"
    arrived = np.sort(chosen.ravel()).reshape(4, 8)
    for one, rows, title in zip((left, right), (chosen, arrived), titles, strict=True):
        one.imshow(rows, cmap="Paired", vmin=0, vmax=11, aspect="auto", interpolation="none")
        for device, row in np.ndindex(rows.shape):
            one.text(row, device, str(rows[device, row]), ha="center", va="center", fontsize=8, color="black")
        one.set(xticks=[], yticks=range(4), ylabel="device")
        one.set_title(title, fontsize=9)
    return figure_svg(drawn)


PICTURES: list[Callable[[], str]] = [
    layouts,
    mesh,
    masks,
    scores,
    schedules,
    losses,
    optimizers,
    ring,
    zigzag,
    check,
    small,
    cost,
    sizes,
    vit,
    treescope,
    pipeline,
    streamed,
    circular,
    experts,
]


def main(target: Path) -> None:
    """Write one file."""
    mpl.rcParams.update(STYLE)
    if target.suffix == ".svg":
        target.write_text(layouts_alone(), encoding="utf-8")
    else:
        target.write_text(json.dumps({draw.__name__: draw() for draw in PICTURES}), encoding="utf-8")


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}"
    main(Path(sys.argv[1]))
