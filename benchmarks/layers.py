"""Compare layers, in value and gradient, with the same written by hand in plain JAX.

    python benchmarks/layers.py            the table
    python benchmarks/layers.py --fast     fewer rounds
    python benchmarks/layers.py Linear     only the rows whose name begins so

Each row is a layer by name, and one or two plain functions of the same arrays: as it is usually written, and, where
the layer keeps less for its backward pass than that, or computes more (losses of a router, a check of targets), what
does the same. Compared are the largest difference of gradients relative to the largest gradient, the time of the
compiled value and gradients (ratio of minima and median ratio of interleaved runs), the temporary memory, and the
number of equations of the jaxpr.
"""

import argparse
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from measure import interleaved, median_ratio, ratio_of_minima, table

import axonym as axn
from axonym import NamedArray, nn

Batch, Pos, Embed, Mlp, Vocab, Layers = axn.make_axes(batch=8, pos=128, embed=256, mlp=1024, vocab=8192, layers=4)
Height, Width, Channels, Features = axn.make_axes(height=32, width=32, channels=32, features=64)
Heads, HeadDim, Experts = axn.make_axes(heads=8, head_dim=64, experts=8)
IMAGES = (Batch, Height, Width, Channels)


@dataclasses.dataclass(frozen=True)
class Row:
    """A layer and its likes.

    Attributes:
        model: what is differentiated by, beside the input; its arrays are given to the plain functions in this order.
        apply: (model, x) to a result.
        plain: (arrays of the model, array of x) to an array, as it is usually written.
        same: what recomputes, and returns or checks, the same.
        axes: those of the input.
    """

    model: Any
    apply: Callable[[Any, NamedArray], NamedArray]
    plain: Callable[..., jax.Array]
    same: Callable[..., jax.Array] | None = None
    axes: tuple[axn.Axis, ...] = (Batch, Pos, Embed)


def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * weight + bias


def rms_norm(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * weight + bias


def mlp(gelu: Callable[[jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    return lambda p, x: gelu(x @ p[0] + p[1]) @ p[2] + p[3]


@jax.custom_jvp
def softmax_from_result(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x)


@softmax_from_result.defjvp
def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    y = softmax_from_result(*primals)
    product = y * tangents[0]
    return y, product - y * product.sum(-1, keepdims=True)


def dropout(key: jax.Array) -> Callable[..., jax.Array]:
    return lambda p, x: jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)


def losses_of(logits: jax.Array, targets: jax.Array) -> jax.Array:
    picked = jnp.where(lax.broadcasted_iota(int, logits.shape, 2) == targets[..., None], logits, 0).sum(-1)
    return jax.nn.logsumexp(logits, -1) - picked


def checked(losses: jax.Array, targets: jax.Array, classes: int) -> jax.Array:
    """Make losses of targets that are no class NaN."""
    return jnp.where((targets >= 0) & (targets < classes), losses, jnp.nan)


def chunked(targets: jax.Array, chunks: int) -> Callable[..., jax.Array]:
    """Return the mean cross entropy, checked, in a loop over blocks of tokens."""

    def losses(p: Any, x: jax.Array) -> jax.Array:
        @jax.checkpoint
        def part(total: jax.Array, each: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            x, targets = each
            losses = losses_of(x @ p[0].T, targets)
            return total + checked(losses, targets, p[0].shape[0]).sum(), None

        tokens = x.reshape(chunks, 1, -1, x.shape[-1]), targets.reshape(chunks, 1, -1)
        return lax.scan(part, jnp.zeros(()), tokens)[0] / targets.size

    return losses


def chunked_by_classes(targets: jax.Array, chunks: int, *, check: bool) -> Callable[..., jax.Array]:
    """Return the mean cross entropy in a loop over blocks of classes."""

    def losses(p: Any, x: jax.Array) -> jax.Array:
        @jax.checkpoint
        def part(each: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
            weight, start = each
            logits = x @ weight.T
            largest = lax.stop_gradient(logits.max(-1))
            classes = start + jnp.arange(weight.shape[0])
            picked = jnp.where(targets[..., None] == classes, logits, 0).sum(-1)
            return largest, jnp.exp(logits - largest[..., None]).sum(-1), picked

        blocks = p[0].reshape(chunks, -1, p[0].shape[-1])
        largest, sums, picked = lax.map(part, (blocks, jnp.arange(chunks) * blocks.shape[1]))
        top = largest.max(0)
        losses = jnp.log((sums * jnp.exp(largest - top)).sum(0)) + top - picked.sum(0)
        return (checked(losses, targets, p[0].shape[0]) if check else losses).mean()

    return losses


def gated(silu: Callable[[jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    return lambda p, x: (silu(x @ p[0]) * (x @ p[1])) @ p[2]


def conv(p: Any, x: jax.Array) -> jax.Array:
    ones, same = (1, 1), [(1, 1), (1, 1)]
    return lax.conv_general_dilated(x, p[0], ones, same, dimension_numbers=("NHWC", "OIHW", "NHWC")) + p[1]


def group_norm(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    parts = x.reshape(*x.shape[:-1], 4, -1)
    parts = parts - parts.mean((1, 2, 4), keepdims=True)
    parts = parts * lax.rsqrt(jnp.square(parts).mean((1, 2, 4), keepdims=True) + 1e-5)
    return parts.reshape(x.shape) * weight + bias


def lstm(p: Any, x: jax.Array) -> jax.Array:
    """Run an LSTM whose product with the input is one product for all positions."""
    projected = jnp.moveaxis(jnp.einsum("bte,egh->btgh", x, p[0]) + p[1], 1, 0)

    def step(state: tuple[jax.Array, jax.Array], projected: jax.Array) -> Any:
        h, c = state
        gates = projected + jnp.einsum("bh,hgk->bgk", h, p[2])
        i, f, g, o = (gates[:, at] for at in range(4))
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((x.shape[0], p[2].shape[0]))
    return lax.scan(step, (zeros, zeros), projected)[1]


def state_space(p: Any, x: jax.Array) -> jax.Array:
    """Run a complex diagonal recurrence in parallel."""
    log_rate, log_phase, log_gain, into, out, skip = p
    size, phase = jnp.exp(-jnp.exp(log_rate)), jnp.exp(log_phase)
    decay = lax.complex(size * jnp.cos(phase), size * jnp.sin(phase))
    drive = lax.complex(x @ into[:, 0], x @ into[:, 1]) * jnp.exp(log_gain)
    after = lambda one, two: (one[0] * two[0], two[0] * one[1] + two[1])  # noqa: E731
    decays = jnp.broadcast_to(decay, (1, *drive.shape[1:]))
    states = lax.associative_scan(after, (decays, drive), axis=1)[1]
    return states.real @ out[0] + states.imag @ out[1] + x * skip


def rotary(p: Any, x: jax.Array) -> jax.Array:
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    one, two = x[..., :half], x[..., half:]
    return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1)


def experts(silu: Callable[[jax.Array], jax.Array], p: Any, x: jax.Array, *, losses: bool) -> tuple[jax.Array, Any]:
    """Sort choices by expert, as a mixture without capacity is usually written; a router that is trained has losses."""
    router, gate, up, down = p
    tokens = x.reshape(-1, x.shape[-1])
    scores = tokens @ router
    probabilities = jax.nn.softmax(scores)
    weights, chosen = lax.top_k(probabilities, 2)
    ids = chosen.reshape(-1)
    order, sizes = jnp.argsort(ids), jnp.bincount(ids, length=router.shape[1])
    rows = tokens[order // 2]
    hidden = silu(lax.ragged_dot(rows, gate, sizes)) * lax.ragged_dot(rows, up, sizes)
    results = lax.ragged_dot(hidden, down, sizes)[jnp.argsort(order)].reshape(*chosen.shape, -1)
    weights = weights / weights.sum(-1, keepdims=True)
    y = jnp.einsum("tke,tk->te", results, weights).reshape(x.shape)
    if not losses:
        return y, None
    load = sizes / ids.size
    balance = jnp.dot(load, probabilities.mean(0)) * sizes.size
    return y, (balance, jnp.square(jax.nn.logsumexp(scores, -1)).mean(), load)


def other_rows() -> dict[str, Callable[[], Row]]:
    """Return what is compared beside the parts of a plain transformer."""
    key = jax.random.key(0)
    call = lambda layer, x: layer(x)  # noqa: E731
    return {
        "GatedMLP, silu": lambda: Row(
            nn.GatedMLP.init(Embed, Embed, Mlp, nn.silu, key=key, use_bias=False),
            call,
            gated(jax.nn.silu),
            gated(jax.checkpoint(jax.nn.silu)),
        ),
        "Conv": lambda: Row(
            nn.Conv.init(("height", "width"), Channels, Features, 3, padding=1, key=key), call, conv, axes=IMAGES
        ),
        "GroupNorm": lambda: Row(
            nn.GroupNorm.init(Channels, 4, ("height", "width")),
            call,
            lambda p, x: group_norm(x, *p),
            lambda p, x: jax.checkpoint(group_norm)(x, *p),
            IMAGES,
        ),
        "Recurrent, LSTM": lambda: Row(
            nn.Recurrent(nn.LSTMCell.init(Embed, axn.Axis("hidden", 256), key=key), Pos), lambda r, x: r(x)[0], lstm
        ),
        "DiagonalSSM": lambda: Row(
            nn.DiagonalSSM.init(Pos, Embed, axn.Axis("state", 128), key=key), lambda s, x: s(x)[0], state_space
        ),
        "rotary": lambda: Row((), lambda _, x: nn.rotary(x, Pos, HeadDim), rotary, axes=(Batch, Pos, Heads, HeadDim)),
        "MixtureOfExperts": lambda: Row(
            nn.MixtureOfExperts.init(Embed, Experts, 256, 2, key=key),
            lambda m, x: m(x)[0],
            lambda p, x: experts(jax.nn.silu, p, x, losses=False)[0],
            lambda p, x: experts(jax.checkpoint(jax.nn.silu), p, x, losses=True)[0],
        ),
    }


def rows() -> dict[str, Callable[[], Row]]:
    """Return what is compared; add a line for a layer."""
    key, other = jax.random.split(jax.random.key(0))
    linear = nn.Linear.init(Embed, Mlp, key=key)
    perceptron = nn.MLP.init(Embed, Embed, Mlp, 1, nn.gelu, key=key)
    stack = nn.Stacked.init(Layers, nn.MLP)(Embed, Embed, Mlp, 1, nn.gelu, key=key)
    table_ = nn.Embedding.init(Vocab, Embed, key=key)
    tokens = axn.random.randint(other, (Batch, Pos), 0, Vocab.size)
    call = lambda layer, x: layer(x)  # noqa: E731
    gelu = jax.checkpoint(jax.nn.gelu)
    by_scan = lambda gelu: lambda p, x: lax.scan(lambda x, p: (x + mlp(gelu)(p, x), None), x, p)[0]  # noqa: E731
    fold = lambda stack, x: stack.fold_via(lambda layer, x: x + layer(x))(x)  # noqa: E731
    of_logits = lambda _, x: nn.cross_entropy_loss(x, Vocab, tokens)  # noqa: E731
    of_chunks = lambda e, x: nn.chunked_cross_entropy_loss(x, e.weight, Embed, Vocab, tokens, block_size=1024)  # noqa: E731
    by_hand = lambda p, x: losses_of(x, tokens.array).mean()  # noqa: E731
    return {
        "Linear": lambda: Row(linear, call, lambda p, x: x @ p[0] + p[1]),
        "Embedding": lambda: Row(table_, lambda e, x: e(tokens) * x, lambda p, x: p[0][tokens.array] * x),
        "LayerNorm": lambda: Row(
            nn.LayerNorm.init(Embed),
            call,
            lambda p, x: layer_norm(x, *p),
            lambda p, x: jax.checkpoint(layer_norm)(x, *p),
        ),
        "RmsNorm": lambda: Row(
            nn.RmsNorm.init(Embed), call, lambda p, x: rms_norm(x, *p), lambda p, x: jax.checkpoint(rms_norm)(x, *p)
        ),
        "gelu": lambda: Row((), lambda _, x: nn.gelu(x), lambda p, x: jax.nn.gelu(x), lambda p, x: gelu(x)),
        "softmax": lambda: Row(
            (),
            lambda _, x: axn.softmax(x, "embed"),
            lambda p, x: jax.nn.softmax(x),
            lambda p, x: softmax_from_result(x),
        ),
        "MLP, gelu": lambda: Row(perceptron, call, mlp(jax.nn.gelu), mlp(gelu)),
        "Dropout": lambda: Row((), lambda _, x: nn.Dropout(0.1)(x, key=key), dropout(key)),
        "cross entropy": lambda: Row((), of_logits, by_hand, jax.checkpoint(by_hand), (Batch, Pos, Vocab)),
        "chunked cross entropy": lambda: Row(
            table_, of_chunks, lambda p, x: losses_of(x @ p[0].T, tokens.array).mean(), chunked(tokens.array, 8)
        ),
        "chunked cross entropy, by classes": lambda: Row(
            table_,
            of_chunks,
            chunked_by_classes(tokens.array, 8, check=False),
            chunked_by_classes(tokens.array, 8, check=True),
        ),
        "Stacked, fold": lambda: Row(stack, fold, by_scan(jax.nn.gelu), by_scan(gelu)),
        **other_rows(),
    }


def equations(jaxpr: Any) -> int:
    """Count the equations of a jaxpr and of all within it; a call counts by what it calls."""
    inner = [getattr(p, "jaxpr", p) for eqn in jaxpr.eqns for p in eqn.params.values()]
    nested = sum(equations(part) for part in inner if hasattr(part, "eqns"))
    return nested + sum(eqn.primitive.name not in ("jit", "pjit", "custom_jvp_call") for eqn in jaxpr.eqns)


def compare(row: Row, rounds: int) -> list[dict[str, str]]:
    """Measure one row against each plain function."""
    x = axn.random.normal(jax.random.key(2), row.axes)
    arrays = jax.tree.leaves(row.model)

    def named(model: Any, x: NamedArray) -> jax.Array:
        return axn.sin(row.apply(model, x)).sum().scalar()

    ours = jax.jit(jax.value_and_grad(named, (0, 1)))
    lines = []
    for title, plain in (("usual", row.plain), ("does the same", row.same)):
        if plain is None:
            continue
        by_hand = jax.jit(jax.value_and_grad(lambda p, x, plain=plain: jnp.sin(plain(p, x)).sum(), (0, 1)))
        ways = {"ours": (ours, (row.model, x)), "theirs": (by_hand, (arrays, x.array))}
        counts = {way: equations(jax.make_jaxpr(fn)(*args).jaxpr) for way, (fn, args) in ways.items()}
        compiled = {way: fn.lower(*args).compile() for way, (fn, args) in ways.items()}
        memory = {way: program.memory_analysis().temp_size_in_bytes for way, program in compiled.items()}
        results = [jax.tree.leaves(compiled[way](*args)[1]) for way, (_, args) in ways.items()]
        error = max(
            float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(*results, strict=True) if np.abs(b).max()
        )
        calls = {way: functools.partial(compiled[way], *args) for way, (_, args) in ways.items()}
        timed = interleaved(calls, rounds=rounds, calls=3)
        lines.append(
            {
                "by hand": title,
                "gradients differ by": f"{error:.0e}",
                "ms": f"{timed['ours'].minimum * 1e3:.2f}",
                "ratio of minima": f"{ratio_of_minima(timed['ours'], timed['theirs']):.2f}",
                "median ratio": f"{median_ratio(timed['ours'], timed['theirs']):.2f}",
                "MB temporary": f"{memory['ours'] / 1e6:.1f}",
                "ratio": f"{memory['ours'] / memory['theirs']:.2f}" if memory["theirs"] else "",
                "equations": f"{counts['ours']} / {counts['theirs']}",
            }
        )
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="how the rows to run begin; by default all")
    parser.add_argument("--fast", action="store_true", help="fewer rounds")
    options = parser.parse_args()
    rounds = 7 if options.fast else 31
    print(f"jax {jax.__version__} on {jax.default_backend()}\n")
    chosen = {name: row for name, row in rows().items() if not options.names or name.startswith(tuple(options.names))}
    print(table([{"layer": name, **line} for name, row in chosen.items() for line in compare(row(), rounds)]))


if __name__ == "__main__":
    main()
