"""Check and time on an NVIDIA GPU what the CPU cannot show: cuDNN attention, half precision, GPT-2 of 124M parameters.

    python benchmarks/gpu.py            all sections
    python benchmarks/gpu.py --small    a tiny model, to try the script

The reference of attention is NumPy in float64. Both sides of a timing take turns in one process.
"""

import argparse
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import raw_gpt2 as raw
from gpt2 import Gpt2
from measure import interleaved, median_ratio, ratio_of_minima, table
from train_step import State, config, same_weights

import axonym as axn
from axonym import NamedArray, nn

# Dense bfloat16 operations per second, from the data sheets.
PEAK = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12}
QUERY_NAMES = ("batch", "heads", "group", "pos", "head_dim")
KEY_NAMES = ("batch", "heads", "pos.key", "head_dim")
Attend = Callable[..., NamedArray]


def attention_in_numpy(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, cotangent: np.ndarray, seen: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return attention and its gradients by the textbook, in float64."""
    scale = q.shape[-1] ** -0.5
    scores = np.einsum("bhgqd,bhkd->bhgqk", q, k) * scale
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = np.einsum("bhgqk,bhkd->bhgqd", weights, v)
    by_weights = np.einsum("bhgqd,bhkd->bhgqk", cotangent, v)
    inner = (by_weights * weights).sum(-1, keepdims=True)
    by_scores = weights * (by_weights - inner) * scale
    by_q = np.einsum("bhgqk,bhkd->bhgqd", by_scores, k)
    by_k = np.einsum("bhgqk,bhgqd->bhkd", by_scores, q)
    by_v = np.einsum("bhgqk,bhgqd->bhkd", weights, cotangent)
    return out, by_q, by_k, by_v


def relative_error(found: Any, expected: np.ndarray) -> float:
    difference = np.asarray(found, np.float64) - expected
    return float(np.linalg.norm(difference) / np.linalg.norm(expected))


def attention_errors(positions: int) -> list[dict[str, str]]:
    """Compare implementations with the textbook, for masks and dtypes that cuDNN knows."""
    Sizes = axn.make_axes(batch=2, heads=4, group=2, pos=positions, head_dim=64)
    shape = [axis.size for axis in Sizes]
    rng = np.random.default_rng(0)
    queries, cotangent = rng.normal(size=shape), rng.normal(size=shape)
    keys, values = (rng.normal(size=[shape[0], shape[1], *shape[3:]]) for _ in range(2))
    at = np.arange(positions)
    causal = at[:, None] >= at
    masks = {
        "all": (None, np.ones_like(causal)),
        "causal": (nn.causal(), causal),
        "causal, window 100": (nn.causal() & nn.window(100), causal & (at[:, None] - at < 100)),
    }
    rows = []
    for dtype in (jnp.bfloat16, jnp.float16):
        half = [np.asarray(jnp.asarray(x, dtype), np.float64) for x in (queries, keys, values, cotangent)]
        named = [
            axn.named(jnp.asarray(x, dtype), names)
            for x, names in zip(half, (QUERY_NAMES, KEY_NAMES, KEY_NAMES, QUERY_NAMES), strict=True)
        ]
        for label, (mask, seen) in masks.items():
            expected = attention_in_numpy(*half, seen)
            for way in ("default", "cudnn", "plain", "blockwise"):
                found = _value_and_gradients(way, mask, named)
                errors = [relative_error(x, y) for x, y in zip(found, expected, strict=True)]
                row = {"dtype": jnp.dtype(dtype).name, "mask": label, "implementation": way}
                parts = zip(("output", "d query", "d key", "d value"), errors, strict=True)
                rows.append(row | {part: f"{error:.1e}" for part, error in parts})
    return rows


def _value_and_gradients(way: str, mask: Any, operands: list[NamedArray]) -> list[jax.Array]:
    implementation = None if way == "default" else way

    @jax.jit
    def run(q: NamedArray, k: NamedArray, v: NamedArray, cotangent: NamedArray) -> Any:
        def attend(q: NamedArray, k: NamedArray, v: NamedArray) -> NamedArray:
            options: Any = {"mask": mask, "implementation": implementation}
            out = nn.dot_product_attention("pos", "pos.key", "head_dim", q, k, v, **options)
            return out.rearrange(QUERY_NAMES)

        out, pull = jax.vjp(attend, q, k, v)
        return out, *pull(cotangent)

    out, by_q, by_k, by_v = run(*operands)
    return [out.array, by_q.array, by_k.array, by_v.array]


def attention_times(lengths: tuple[int, ...], rounds: int) -> list[dict[str, str]]:
    """Time value and gradients of named attention against `jax.nn.dot_product_attention` with cuDNN."""

    def square(attend: Callable[..., jax.Array]) -> Callable[..., Any]:
        return jax.jit(jax.grad(lambda *x: jnp.square(attend(*x).astype(jnp.float32)).sum(), (0, 1, 2)))

    def by_hand(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")

    def by_name(way: str | None) -> Callable[..., jax.Array]:
        names = ("batch", "pos", "heads", "head_dim")

        def attend(*operands: jax.Array) -> jax.Array:
            q, k, v = (NamedArray(x, names) for x in operands)
            k, v = (x.rename({"pos": "pos.key"}) for x in (k, v))
            options: Any = {"mask": nn.causal(), "implementation": way}
            return nn.dot_product_attention("pos", "pos.key", "head_dim", q, k, v, **options).array

        return attend

    rows = []
    for length in lengths:
        shape = (max(1, 16384 // length), length, 12, 64)
        operands = [jax.random.normal(key, shape, jnp.bfloat16) for key in jax.random.split(jax.random.key(0), 3)]
        ways = {"cuDNN by hand": by_hand, "default": by_name(None), "plain": by_name("plain")}
        if length > 4096:
            del ways["plain"]  # its scores would not fit
        calls = {name: functools.partial(square(way), *operands) for name, way in ways.items()}
        timed = interleaved(calls, rounds=rounds, calls=5)
        # Two products forward, five backward, over half of the pairs of positions.
        operations = 7 * 2 * shape[0] * shape[2] * length**2 * shape[3] / 2
        rows.extend(
            {
                "positions": str(length),
                "attention": name,
                "ms": f"{timed[name].minimum * 1e3:.3f}",
                "to cuDNN by hand, minima": f"{ratio_of_minima(timed[name], timed['cuDNN by hand']):.3f}",
                "median": f"{median_ratio(timed[name], timed['cuDNN by hand']):.3f}",
                "TFLOP/s": f"{operations / timed[name].minimum / 1e12:.0f}",
            }
            for name in calls
        )
    return rows


def named_step(optimizer: optax.GradientTransformation) -> Any:
    """Return Axonym's training step: parameters in float32, computation in bfloat16."""

    def loss_of(model: Gpt2, tokens: NamedArray) -> jax.Array:
        half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), model)
        return half.loss(tokens).scalar()

    def step(state: State, tokens: NamedArray) -> tuple[State, jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(state.model, tokens)
        updates, moments = optimizer.update(grads, state.optimizer, state.model)
        return State(optax.apply_updates(state.model, updates), moments), loss

    return axn.named_jit(step, donate_args=(True,))


def chained(step: Callable[..., Any], state: Any, tokens: Any) -> Callable[[], jax.Array]:
    """Return a call that takes a step from where the last one ended, and returns the loss."""
    kept = [state]

    def call() -> jax.Array:
        kept[0], loss = step(kept[0], tokens)
        return loss

    return call


def train_steps(sizes: raw.GPT2Config, batch: int, rounds: int) -> list[dict[str, str]]:
    """Time a training step in bfloat16 against plain JAX, with plain attention and with cuDNN's."""
    optimizer = optax.adamw(1e-3)
    shape = (batch, sizes.positions + 1)
    tokens = jax.random.randint(jax.random.key(2), shape, 0, sizes.vocab)
    params = raw.init(jax.random.key(0), sizes)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))

    def plain(*, fused: bool, remat: Any) -> Callable[[], jax.Array]:
        run = raw.train_step(sizes, optimizer, compute_dtype=jnp.bfloat16, fused=fused, remat=remat)

        def step(state: Any, tokens: jax.Array) -> Any:
            params, moments, loss = run(*state, tokens)
            return (params, moments), loss

        own = jax.tree.map(jnp.copy, params)
        return chained(jax.jit(step, donate_argnums=0), (own, optimizer.init(own)), tokens)

    def named(*, checkpointing: bool) -> Callable[[], jax.Array]:
        template = Gpt2.init(config(sizes, checkpointing=checkpointing), key=jax.random.key(1))
        model = same_weights(jax.tree.map(jnp.copy, params), template)
        state = State(model, optimizer.init(model))
        return chained(named_step(optimizer), state, NamedArray(tokens, ("batch", "pos")))

    on_gpu = jax.default_backend() == "gpu"
    keep_nothing = jax.checkpoint_policies.nothing_saveable
    candidates = {
        "plain JAX, cuDNN attention" if on_gpu else "plain JAX": plain(fused=on_gpu, remat=None),
        "plain JAX, plain attention": plain(fused=False, remat=None),
        "Axonym": named(checkpointing=False),
        "plain JAX, layers recomputed": plain(fused=on_gpu, remat=keep_nothing),
        "Axonym, layers recomputed": named(checkpointing=True),
    }
    losses = {name: [float(call()) for _ in range(3)] for name, call in candidates.items()}
    timed = interleaved(candidates, rounds=rounds, calls=3)
    first = timed[next(iter(candidates))]
    # Six per parameter and token, and twelve per layer for scores and their sum, halved by the causal mask.
    length = sizes.positions
    per_token = 6 * count + 12 * sizes.layers * sizes.embed * length / 2
    peak = PEAK.get(jax.devices()[0].device_kind)
    rows = []
    for name in candidates:
        rate = batch * length / timed[name].minimum
        rows.append(
            {
                "step": name,
                "ms": f"{timed[name].minimum * 1e3:.1f}",
                "to the first, minima": f"{ratio_of_minima(timed[name], first):.3f}",
                "median": f"{median_ratio(timed[name], first):.3f}",
                "tokens/s": f"{rate:,.0f}",
                "utilisation": "" if peak is None else f"{rate * per_token / peak:.1%}",
                "third loss": f"{losses[name][2]:.4f}",
            }
        )
    return rows


def main() -> None:
    """Run all sections."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tiny model and few rounds")
    small = parser.parse_args().small
    print(f"jax {jax.__version__}, Equinox {eqx.__version__}, {jax.devices()[0].device_kind}\n")
    on_gpu = jax.default_backend() == "gpu"
    if on_gpu:
        print(table(attention_errors(256 if small else 1024)), "\n")
        print(table(attention_times((1024,) if small else (1024, 4096, 16384), 3 if small else 20)), "\n")
    sizes = (
        raw.GPT2Config(vocab=256, layers=2, embed=64, heads=2, positions=64) if small else raw.GPT2Config(vocab=50304)
    )
    print(table(train_steps(sizes, 4 if small else 16, 2 if small else 12)))


if __name__ == "__main__":
    main()
