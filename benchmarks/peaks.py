"""Compare traced peaks of memory with those of compiled programs: decoding, training, convolutions, scans, tables.

    python benchmarks/peaks.py                       small programs on 8 simulated CPU devices
    python benchmarks/peaks.py --target v5e          larger ones on 8 v5e; needs libtpu, no TPU
    python benchmarks/peaks.py --cases decode train  those whose name begins so
    python benchmarks/peaks.py --saved numbers.json  compiled numbers that the file has are not counted again

Numbers are for one device. Temporaries are what a program needs in addition to its arguments and results. The compiler
for CPU copies donated arrays, computes halves in float32 and fuses less, so its programs need more.
"""

import argparse
import functools
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from llama import Sizes, make_arguments, make_step
from measure import table

import axonym as axn
import axonym.nn as nn
from axonym import Axis, NamedArray
from axonym.models import Decoder, DecoderConfig

FSDP = axn.Mappings({"embed": "data"}, {"batch": "data"})
DP = axn.Mappings({}, {"batch": "data"})
HEADS = {"kv_heads": "model", "mlp": "model", "vocab": "model"}
TENSOR = axn.Mappings(HEADS, {"batch": "data", **HEADS})
WHOLE, SPLIT = {"data": 8}, {"data": 2, "model": 4}
NOTHING = axn.ScanCheckpointPolicy()
ADAM = optax.adam(1e-3)


class Case(NamedTuple):
    """A program.

    Attributes:
        fn: the function.
        mappings: how parameters and computation are divided.
        mesh: the sizes of mesh axes.
        args: its arguments, which do not exist.
        donated: which arguments are donated.
    """

    fn: Callable[..., Any]
    mappings: axn.Mappings
    mesh: dict[str, int]
    args: tuple[Any, ...]
    donated: tuple[bool, ...]

    def count(self, target: str, depth: Any) -> Any:
        """Return the cost."""
        fn = axn.named_jit(self.fn, self.mappings, donate_args=self.donated, strict=False)
        mesh: Any = self.mesh
        if target == "cpu":
            kinds = (jax.sharding.AxisType.Auto,) * len(mesh)
            mesh = jax.make_mesh(tuple(mesh.values()), tuple(mesh), axis_types=kinds)
        return axn.cost(fn, self.mappings, mesh, *self.args, target=target, depth=depth)


def shapes(axes: dict[str, int], dtype: Any = jnp.float32) -> NamedArray:
    """Describe an array."""
    return NamedArray(jax.ShapeDtypeStruct(tuple(axes.values()), dtype), tuple(axes))


def make(init: Callable[..., Any], dtype: Any = jnp.float32) -> Any:
    """Describe a model."""

    def cast(key: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: leaf.astype(dtype), init(key=key))

    return jax.eval_shape(cast, jax.random.key(0))


def make_training(loss: Callable[..., Any], model: Any, *data: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a step of Adam and its arguments."""

    def step(model: Any, state: Any, *data: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(model, *data)
        updates, state = ADAM.update(gradients, state, model)
        return optax.apply_updates(model, updates), state, value

    return step, (model, jax.eval_shape(ADAM.init, model), *data)


def list_cases(large: bool) -> Iterable[tuple[str, Callable[[], Case]]]:
    """Yield the programs, each by its name and a function that makes it."""
    yield from list_decoding(large)
    yield from list_training(large)
    yield from list_others(large)


def choose_decoder(large: bool) -> DecoderConfig:
    """Return the sizes of a decoder."""
    if large:
        return DecoderConfig(vocab=32768, layers=8, embed=2048, mlp=5632, heads=16, kv_heads=8, head_dim=128)
    return DecoderConfig(vocab=512, layers=4, embed=128, mlp=384, heads=8, kv_heads=4, head_dim=16, positions=256)


def list_decoding(large: bool) -> Iterable[tuple[str, Callable[[], Case]]]:
    """Yield programs that keep caches."""
    sizes = choose_decoder(large)
    rows, places = (64, 4096) if large else (16, 256)
    dtype = jnp.bfloat16
    batch = {"batch": rows}

    def decoder(fn: Callable[..., Any], donated: bool, tokens: NamedArray) -> Case:
        model = make(functools.partial(Decoder.init, sizes), dtype)
        cache = jax.eval_shape(lambda model: model.cache(places, Axis("batch", rows)), model)
        return Case(fn, TENSOR, SPLIT, (model, cache, tokens), (False, donated, False))

    def extend(model: Any, cache: Any, tokens: NamedArray) -> Any:
        return model.extend(cache, tokens)

    def generate(model: Any, cache: Any, tokens: NamedArray) -> Any:
        out = nn.generate(model.extend, cache, tokens, Axis("new", 32))
        return out.tokens, out.cache

    one, prompt = shapes(batch, jnp.int32), shapes({**batch, "pos": places // 4}, jnp.int32)
    yield "decode a token", lambda: decoder(extend, True, one)
    yield "decode a token, not donated", lambda: decoder(extend, False, one)
    yield "decode 32 tokens", lambda: decoder(generate, True, shapes({**batch, "pos": 1}, jnp.int32))
    yield "prefill", lambda: decoder(extend, True, prompt)

    # By hand: caches that layers read as slices of a scan, and return in slices.
    layers, width = (8, 2048) if large else (4, 64)
    weights = shapes({"layers": layers, "embed": width, "mlp": width}, dtype)
    caches = shapes({"layers": layers, "batch": rows, "places": places, "embed": width // 4}, dtype)

    def attend(x: NamedArray, w: NamedArray, cache: NamedArray, at: jax.Array) -> tuple[NamedArray, NamedArray]:
        y = axn.dot(x, w, axis="embed").rename({"mlp": "embed"})
        query = y["embed", : width // 4]
        cache = cache.at["places", at].set(query)
        found = axn.dot(axn.softmax(axn.dot(cache, query, axis="embed"), "places"), cache, axis="places")
        return x + axn.concatenate("embed", [found] * 4), cache

    def sliced(weights: NamedArray, caches: NamedArray, x: NamedArray, at: jax.Array) -> Any:
        def layer(x: NamedArray, own: Any) -> Any:
            return attend(x, *own, at)

        return axn.scan(layer, "layers")(x, (weights, caches))

    def carried(weights: NamedArray, caches: NamedArray, x: NamedArray, at: jax.Array) -> Any:
        def layer(carry: Any, own: Any) -> Any:
            w, i = own
            x, caches = carry
            x, cache = attend(x, w, caches["layers", i], at)
            return x, caches.at["layers", i].set(cache)

        return axn.fold(layer, "layers")((x, caches), (weights, axn.arange(weights.resolve_axis("layers"))))

    given = weights, caches, shapes({"batch": rows, "embed": width}, dtype), jax.ShapeDtypeStruct((), jnp.int32)
    donated = False, True, False, False
    yield "decode by hand, sliced", lambda: Case(sliced, DP, WHOLE, given, donated)
    yield "decode by hand, carried", lambda: Case(carried, DP, WHOLE, given, donated)


def list_training(large: bool) -> Iterable[tuple[str, Callable[[], Case]]]:
    """Yield training steps of decoders."""
    sizes = Sizes(layers=4, embed=64, mlp=192, heads=8, kv_heads=4, vocab=512, head_dim=16)
    if large:
        sizes = Sizes(layers=4, embed=2048, mlp=5632, heads=16, kv_heads=8, vocab=32768)
    rows, positions = (16, 2048) if large else (16, 128)
    both = True, True, False

    def llama(mappings: Any, mesh: Any, kept: Any, donated: Any = both, sizes: Sizes = sizes, **options: Any) -> Case:
        args = make_arguments(sizes, kept, rows, positions)
        step = make_step(is_whole=False, **options)
        return Case(step.__wrapped__, mappings, mesh, args, donated)

    yield "train FSDP, remat", lambda: llama(FSDP, WHOLE, NOTHING)
    yield "train FSDP, remat, not donated", lambda: llama(FSDP, WHOLE, NOTHING, (False, False, False))
    yield "train DP, remat", lambda: llama(DP, WHOLE, NOTHING)
    yield "train TP, remat", lambda: llama(TENSOR, SPLIT, NOTHING)
    yield "train FSDP, all kept", lambda: llama(FSDP, WHOLE, axn.ScanCheckpointPolicy(disable=True))
    yield "train FSDP, 2 parts", lambda: llama(FSDP, WHOLE, NOTHING, parts=2)
    mixture = Sizes(**{**vars(sizes), "experts": 8, "mlp": sizes.mlp // 4})
    experts = axn.Mappings({"experts": "data"}, {"batch": "data", "experts": "data"})
    yield "train experts", lambda: llama(experts, WHOLE, NOTHING, sizes=mixture)
    yield "train LoRA", lambda: make_lora(choose_decoder(large), rows)
    yield "train pipeline", lambda: make_pipeline(sizes, rows, positions)


def make_lora(sizes: DecoderConfig, rows: int) -> Case:
    """Train small matrices beside frozen ones, in bfloat16."""

    def init(key: jax.Array) -> Any:
        return nn.add_lora(Decoder.init(sizes, key=key), 16, key=key)

    model = make(init, jnp.bfloat16)
    trained, frozen = eqx.partition(model, nn.lora_filter(model))
    tokens = shapes({"batch": rows, "pos": sizes.positions + 1}, jnp.int32)

    def loss(trained: Any, frozen: Any, tokens: NamedArray) -> jax.Array:
        return eqx.combine(trained, frozen).loss(tokens).scalar()

    step, args = make_training(loss, trained, frozen, tokens)
    return Case(step, FSDP, WHOLE, args, (True, True, False, False))


def make_pipeline(sizes: Sizes, rows: int, positions: int) -> Case:
    """Train layers in four stages."""
    mappings = axn.Mappings({"layers": "stage"}, {"batch": "data", "layers": "stage"})
    args = make_arguments(sizes, NOTHING, rows, positions)
    step = make_step(is_whole=False).__wrapped__

    def piped(*given: Any) -> Any:
        with axn.pipelined("batch", 4):
            return step(*given)

    return Case(piped, mappings, {"stage": 4, "data": 2}, args, (True, True, False))


class Residual(eqx.Module):
    """Two convolutions beside a residual connection."""

    norm: nn.GroupNorm
    first: nn.Conv
    second: nn.Conv

    def __call__(self, x: NamedArray) -> NamedArray:
        return x + self.second(nn.silu(self.first(nn.silu(self.norm(x)))))


class Images(eqx.Module):
    """Convolutions of images."""

    first: nn.Conv
    blocks: tuple[Residual, ...]
    last: nn.Conv

    @staticmethod
    def init(width: int, *, key: jax.Array) -> "Images":
        Colours, Channels, Hidden = axn.make_axes(colours=3, channels=width, hidden=width)
        conv = functools.partial(nn.Conv.init, ("height", "width"), kernel_size=3, padding=1, key=key)
        norm = nn.GroupNorm.init(Channels, 8, ("height", "width"))
        block = Residual(norm, conv(Channels, Hidden), conv(Hidden, Channels))
        return Images(conv(Colours, Channels), (block,) * 4, conv(Channels, Colours))

    def __call__(self, x: NamedArray) -> NamedArray:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def list_others(large: bool) -> Iterable[tuple[str, Callable[[], Case]]]:
    """Yield training steps of other models."""
    width, side, rows = (128, 64, 64) if large else (16, 16, 16)
    donated = True, True, False

    def images(loss: Any) -> Case:
        model = make(functools.partial(Images.init, width))
        x = shapes({"batch": rows, "height": side, "width": side, "colours": 3})
        step, args = make_training(loss, model, x)
        return Case(step, DP, WHOLE, args, donated)

    def classify(model: Images, x: NamedArray) -> jax.Array:
        found = model(x).mean(("height", "width"))
        return axn.square(found).mean().scalar()

    def denoise(model: Images, x: NamedArray) -> jax.Array:
        half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), model)
        noise = axn.random.normal(jax.random.key(0), x.axes)
        level = axn.random.uniform(jax.random.key(1), x.resolve_axis("batch"))
        found = half((axn.sqrt(1 - level) * x + axn.sqrt(level) * noise).astype(jnp.bfloat16))
        return axn.square(found.astype(jnp.float32) - noise).mean().scalar()

    yield "train convolutions", lambda: images(classify)
    yield "train diffusion", lambda: images(denoise)

    steps, hidden = (1024, 1024) if large else (64, 32)

    def recurrent(loss: Any) -> Case:
        model = make(functools.partial(nn.LSTMCell.init, Axis("embed", hidden), Axis("hidden", hidden)))
        x = shapes({"batch": 8 * 16, "time": steps, "embed": hidden})
        step, args = make_training(loss, model, x)
        return Case(step, DP, WHOLE, args, donated)

    def unroll(cell: Any, x: NamedArray) -> jax.Array:
        outputs, _ = nn.Recurrent(cell, "time")(x)
        return axn.square(outputs).mean().scalar()

    def gate(model: Any, x: NamedArray) -> jax.Array:
        y = axn.dot(x, model, axis="embed").rename({"hidden": "embed"})

        def combine(one: Any, other: Any) -> Any:
            return one[0] * other[0], one[1] * other[0] + other[1]

        gates, inputs = jax.nn.sigmoid(y.array), x.array
        _, found = jax.lax.associative_scan(combine, (gates, inputs), axis=x.names.index("time"))
        return jnp.square(found).mean()

    def scanned() -> Case:
        x = shapes({"batch": 8 * 4, "time": steps, "embed": hidden})
        step, args = make_training(gate, shapes({"embed": hidden, "hidden": hidden}), x)
        return Case(step, DP, WHOLE, args, donated)

    yield "train LSTM", lambda: recurrent(unroll)
    yield "train associative scan", scanned

    entries, count, size = (2**17, 8, 128) if large else (2**9, 4, 16)

    def look_up(model: Any, ids: NamedArray) -> jax.Array:
        tables, mlp = model
        found = axn.vmap(lambda t, i: t.take("entries", i), "tables")(tables, ids)
        return axn.square(mlp(found.flatten_axes(("tables", "embed"), "features"))).mean().scalar()

    def tables() -> Case:
        mlp = make(lambda key: nn.MLP.init(Axis("features", count * size), Axis("out", 1), 1024, 2, nn.relu, key=key))
        stored = shapes({"tables": count, "entries": entries, "embed": size})
        ids = shapes({"tables": count, "batch": 2**15 if large else 256}, jnp.int32)
        step, args = make_training(look_up, (stored, mlp), ids)
        return Case(step, axn.Mappings({"entries": "data"}, {"batch": "data"}), WHOLE, args, donated)

    yield "train tables", tables


def describe(memory: Any) -> dict[str, int]:
    """Return the numbers that are compared."""
    return {name: getattr(memory, name) for name in ("arguments", "results", "donated", "temporary", "peak")}


def write(name: str, traced: dict[str, int], compiled: dict[str, int]) -> dict[str, str]:
    """Return a line of the table."""

    def mega(number: int) -> str:
        return f"{number / 1e6:,.4g}"

    def divide(one: int, other: int) -> str:
        return f"{one / other:.2f}" if other else ""

    row = {"program": name, "arguments, MB": mega(traced["arguments"])}
    for what in ("temporary", "peak"):
        row[f"{what}, traced"], row[f"{what}, compiled"] = mega(traced[what]), mega(compiled[what])
        row[f"{what}, ratio"] = divide(traced[what], compiled[what])
    return row


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cpu", help="cpu, or a TPU whose compiler is installed")
    parser.add_argument("--cases", nargs="+", default=[""], help="how their names begin")
    parser.add_argument("--saved", type=Path, help="a file for the numbers of compiled programs")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    saved: dict[str, dict[str, int]] = {}
    if options.saved and options.saved.exists():
        saved = json.loads(options.saved.read_text())
    rows: list[dict[str, str]] = []
    for name, case in list_cases(large=options.target != "cpu"):
        if not name.startswith(tuple(options.cases)):
            continue
        key = f"{options.target}: {name}"
        traced = describe(case().count(options.target, "traced").memory)
        if key not in saved:
            start = time.perf_counter()
            cost = case().count(options.target, "compiled")
            if options.target != "cpu" and not cost.is_scheduled:
                raise SystemExit(f"without libtpu, the program is one for {cost.compiler}: pip install libtpu")
            saved[key] = describe(cost.memory)
            if options.saved:
                options.saved.write_text(json.dumps(saved, indent=1))
            print(f"{name}: compiled in {time.perf_counter() - start:.0f} s", flush=True)
        rows.append(write(name, traced, saved[key]))
    print(f"\njax {jax.__version__}, {options.target}\n")
    print(table(rows))


if __name__ == "__main__":
    main()
