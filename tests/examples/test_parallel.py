"""Each technique of examples/parallel against the same computation in plain JAX on one device."""

import itertools
import re
from collections import Counter
from types import ModuleType

import collective_matmul
import data_parallel
import fsdp
import fsdp_tensor_parallel
import jax
import jax.numpy as jnp
import matmul
import network
import numpy as np
import pipeline
import pytest
import tensor_parallel
from jax.sharding import AxisType

import axonym as axn
from axonym import NamedArray
from benchmarks import measure

MODES = pytest.mark.parametrize("mode", [AxisType.Auto, AxisType.Explicit])
SIZES = [16, 32, 32, 32, 8]


def mesh(mode: AxisType, **sizes: int) -> jax.sharding.Mesh:
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(mode,) * len(sizes))


def is_named(x):
    return isinstance(x, NamedArray)


def plain(tree):
    return jax.tree.map(lambda x: np.asarray(x.array if is_named(x) else x), tree, is_leaf=is_named)


def laid_out(tree, layout):
    """Put arrays where a program stores them, so that what it does with them is all that is compiled."""
    both = layout if isinstance(layout, axn.Mappings) else axn.Mappings(layout)
    return jax.tree.map(lambda x: axn.shard(x, both.of(x.names), strict=False), tree, is_leaf=is_named)


def draw(seed: int, **sizes: int) -> NamedArray:
    values = 0.3 * np.random.default_rng(seed).normal(size=tuple(sizes.values())).astype(np.float32)
    return NamedArray(jnp.asarray(values), tuple(sizes))


def collectives(compiled: jax.stages.Compiled, mesh_axes: dict[int, str]) -> Counter[tuple[str, str]]:
    """Count the collectives of a program by kind and by the mesh axis that has as many devices as they connect."""
    found = Counter[tuple[str, str]]()
    for one in measure.collectives(compiled):
        # A permutation has pairs and no groups.
        found[one.kind, "" if one.kind == "collective-permute" else mesh_axes[one.group]] += one.count
    return found


def close(got, expected) -> None:
    assert jax.tree.structure(plain(got)) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(plain(got)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def same_layout(got, given) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(given), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


# Products


def multiplied(product, x, weight, cotangent, layout):
    """Compile a product with its gradients; check them, and return the program."""

    def both(x, weight, cotangent):
        y, pull = jax.vjp(product, x, weight)
        return y, pull(cotangent)

    x, weight = laid_out((x, weight), layout)
    compiled = jax.jit(both).lower(x, weight, cotangent).compile()
    y, gradients = compiled(x, weight, cotangent)
    a, b, c = map(plain, (x, weight, cotangent))
    close((y, gradients), (a @ b, (c @ b.T, a.T @ c)))
    same_layout((y, gradients), (cotangent, (x, weight)))
    return compiled


def operands(side: str):
    Inner, Outer = ("embed", "mlp") if side == "gathered" else ("mlp", "embed")
    sizes = {"embed": 16, "mlp": 32}
    x = draw(0, batch=8, **{Inner: sizes[Inner]})
    weight = draw(1, **{Inner: sizes[Inner], Outer: sizes[Outer]})
    return x, weight, draw(2, batch=8, **{Outer: sizes[Outer]})


PRODUCTS = {
    "gathered": {("all-gather", "model"): 1, ("reduce-scatter", "model"): 1, ("all-reduce", "data"): 1},
    "summed": {("all-reduce", "model"): 1, ("all-reduce", "data"): 1},
    "scattered": {("reduce-scatter", "model"): 1, ("all-gather", "model"): 1, ("all-reduce", "data"): 1},
}


@pytest.mark.sampled
@MODES
@pytest.mark.parametrize("name", PRODUCTS)
def test_matmul(name: str, mode: AxisType) -> None:
    with axn.set_mesh(mesh(mode, data=2, model=4)):
        x, weight, cotangent = operands(name)
        cotangent = laid_out(cotangent, {"batch": "data"} if name == "summed" else matmul.LAYOUT)
        compiled = multiplied(getattr(matmul, name), x, weight, cotangent, matmul.LAYOUT)
    assert collectives(compiled, {2: "data", 4: "model"}) == PRODUCTS[name]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("mode", "unroll"),
    [(AxisType.Auto, True), (AxisType.Auto, False), (AxisType.Explicit, False)],
    ids=["written out", "loop", "loop, explicit"],
)
@pytest.mark.parametrize("ways", [(1,), (1, -1)], ids=["one way", "both ways"])
@pytest.mark.parametrize("side", ["gathered", "scattered"])
def test_collective_matmul(side: str, ways: tuple[int, ...], unroll: bool, mode: AxisType) -> None:
    def product(x, weight):
        return getattr(collective_matmul, side)(x, weight, ways, unroll)

    with axn.set_mesh(mesh(mode, data=2, model=4)):
        x, weight, cotangent = operands(side)
        compiled = multiplied(product, x, weight, laid_out(cotangent, matmul.LAYOUT), matmul.LAYOUT)
    # Three moves forth and three back for each way, and the gradient of the weight is added up over the batch once.
    expected = {("collective-permute", ""): 6 * len(ways), ("all-reduce", "data"): 1}
    assert collectives(compiled, {2: "data", 4: "model"}) == expected
    assert (" while(" in (compiled.as_text() or "")) != unroll


@pytest.mark.parametrize("side", ["gathered", "scattered"])
def test_half_blocks_go_both_ways(side: str) -> None:
    with axn.set_mesh(mesh(AxisType.Auto, data=2, model=4)):
        x, weight, _ = laid_out(operands(side), matmul.LAYOUT)
        texts = [
            jax.jit(lambda x, weight, ways=ways: getattr(collective_matmul, side)(x, weight, ways)).lower(x, weight)
            for ways in [(1,), (1, -1)]
        ]
    up, down = "{{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}", "{{0,3},{1,0},{2,1},{3,2},{4,7},{5,4},{6,5},{7,6}}"
    one, both = (text.compile().as_text() or "" for text in texts)
    assert (one.count(up), one.count(down), both.count(up), both.count(down)) == (3, 0, 3, 3)


# Networks


def reference(layers, x, target):
    for weight, bias in layers[:-1]:
        x = jnp.maximum(x @ weight + bias, 0)
    weight, bias = layers[-1]
    return jnp.mean(jnp.sum((x @ weight + bias - target) ** 2, axis=-1))


def make_network():
    seeds = itertools.count()
    layers = [
        (draw(next(seeds), **{"features": n, "features.out": m}), draw(next(seeds), features=m))
        for n, m in itertools.pairwise(SIZES)
    ]
    return layers, draw(next(seeds), batch=16, features=SIZES[0]), draw(next(seeds), batch=16, features=SIZES[-1])


L = len(SIZES) - 1
NETWORKS = {
    # One all-reduce carries the loss and all gradients.
    "data_parallel": ({"data": 8}, {("all-reduce", "data"): 1}),
    # Weights and biases; then again the weights but for the first, as no gradient of the input is asked for.
    "fsdp": (
        {"data": 8},
        {("all-gather", "data"): 2 * L + L - 1, ("reduce-scatter", "data"): 2 * L, ("all-reduce", "data"): 1},
    ),
    "tensor_parallel": (
        {"model": 8},
        {("reduce-scatter", "model"): L, ("all-gather", "model"): L, ("all-reduce", "model"): 1},
    ),
    "fsdp_tensor_parallel": (
        {"data": 4, "model": 2},
        {
            ("all-gather", "data"): 2 * L + L - 1,
            ("reduce-scatter", "data"): 2 * L,
            ("all-reduce", "data"): 1,
            ("reduce-scatter", "model"): L,
            ("all-gather", "model"): L,
            ("all-reduce", "model"): 1,
        },
    ),
}
# XLA for CPU would merge a second gather with the first, after it has removed the barrier between them.
KEEP_BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}


@pytest.mark.sampled
@MODES
@pytest.mark.parametrize("program", [data_parallel, fsdp, tensor_parallel, fsdp_tensor_parallel])
def test_network(program: ModuleType, mode: AxisType) -> None:
    sizes, promised = NETWORKS[program.__name__]
    arguments = make_network()
    expected = jax.jit(jax.value_and_grad(reference))(*plain(arguments))
    with axn.set_mesh(mesh(mode, **sizes)):
        layers, x, target = laid_out(arguments, program.LAYOUT)
        traced = jax.jit(jax.value_and_grad(program.loss)).lower(layers, x, target)
        compiled = traced.compile(compiler_options=KEEP_BARRIERS)
        value, gradient = compiled(layers, x, target)
    close((value, gradient), plain(expected))
    same_layout(gradient, layers)
    assert collectives(compiled, {size: name for name, size in sizes.items()}) == promised


def test_fsdp_without_checkpoint_keeps_what_it_gathered() -> None:
    with axn.set_mesh(mesh(AxisType.Auto, data=8)):
        layers, x, target = laid_out(make_network(), fsdp.LAYOUT)

        @axn.shard_map(mapping=fsdp.LAYOUT)
        def loss(layers, x, target):
            return axn.pmean(network.loss(axn.all_gather(layers, "data"), x, target), "batch")

        program = jax.jit(jax.value_and_grad(loss)).lower(layers, x, target)
        compiled = program.compile(compiler_options=KEEP_BARRIERS)
    assert collectives(compiled, {8: "data"})["all-gather", "data"] == 2 * L


# Pipeline


def deep_reference(layers, x, target):
    (first, first_bias), (inner, biases), (last, last_bias) = layers
    x = jnp.maximum(x @ first + first_bias, 0)
    for weight, bias in zip(inner, biases, strict=True):
        x = jnp.maximum(x @ weight + bias, 0)
    return jnp.mean(jnp.sum((x @ last + last_bias - target) ** 2, axis=-1))


@MODES
def test_pipeline(mode: AxisType) -> None:
    stages, micro = 4, 12
    sizes = {"features": 32, "features.out": 32}
    weights = (
        (draw(0, **sizes | {"features": 16}), draw(1, features=32)),
        (draw(2, layer=8, **sizes), draw(3, layer=8, features=32)),
        (draw(4, **sizes | {"features.out": 8}), draw(5, features=8)),
    )
    layers = pipeline.Layers(*weights)
    x, target = draw(6, micro=micro, batch=2, features=16), draw(7, micro=micro, batch=2, features=8)
    expected = jax.jit(jax.value_and_grad(deep_reference))(*plain((layers, x, target)))
    with axn.set_mesh(mesh(mode, stage=stages)):
        arguments = laid_out((layers, x, target), pipeline.LAYOUT)
        compiled = jax.jit(jax.value_and_grad(pipeline.loss)).lower(*arguments).compile()
        value, gradient = compiled(*arguments)
    close((value, gradient), plain(expected))
    same_layout(gradient, arguments[0])
    # Forth and back, each step moves a microbatch and the queue. One all-reduce is for the loss and the outer layers.
    steps = micro + stages - 1
    assert collectives(compiled, {4: "stage"}) == {("collective-permute", ""): 4 * steps, ("all-reduce", "stage"): 1}


NETWORK = r"loss of one device (\d+\.\d{3})\d\d, of all \1\d\d; gradients differ by \de-0[5-7]\n"
MAINS = {
    matmul: r"(.* P\('data',.* equal to the product on one device: True\n){3}",
    collective_matmul: r"(\w+ +[12] ways: differs by \de-0[67] from one collective\n){4}",
    **dict.fromkeys([data_parallel, fsdp, tensor_parallel, fsdp_tensor_parallel], NETWORK),
    pipeline: r"loss of one device (\d+\.\d{3})\d\d, of the pipeline \1\d\d\n",
}


@pytest.mark.parametrize("program", MAINS)
def test_main(program: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    program.main()
    assert re.fullmatch(MAINS[program], capsys.readouterr().out)
