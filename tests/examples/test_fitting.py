"""Each family of the language model and each model of the gallery has a layout that fits, on 2 to 256 devices."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import diffusion
import jax
import jax.numpy as jnp
import mixture_of_experts
import numpy as np
import pytest
import vit
import weather
from layouts import HEADS, AxisTypes, layout_of, make_mesh
from measure import collectives

import axonym as axn
from axonym.models import Decoder, DecoderConfig, ExpertsConfig, read_config
from axonym.partitioning import fit_mapping
from tests.models.test_families import PUBLISHED
from tests.nn.test_every_layer import ROWS
from tests.sample import SEED

DEVICES = (2, 4, 6, 8, 12, 16, 24, 32, 64, 96, 128, 256)
GALLERY: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "vit": (vit.VisionTransformer.init, vit.STORED, vit.COMPUTED),
    "diffusion": (diffusion.UNet.init, diffusion.STORED, diffusion.COMPUTED),
    "weather": (weather.Forecast.init, weather.STORED, weather.COMPUTED),
    "mixture_of_experts": (mixture_of_experts.Decoder.init, mixture_of_experts.STORED, mixture_of_experts.COMPUTED),
}
# Sizes that few meshes divide.
ODD = DecoderConfig(vocab=50, layers=3, embed=36, mlp=20, heads=6, kv_heads=2, head_dim=4, positions=12)
MIXTURE = dataclasses.replace(ODD, experts=ExpertsConfig(6, 2, 20))
Batch, Pos, Vocab = axn.make_axes(batch=6, pos=12, vocab=50)


def meshes(*kinds: str) -> Iterator[dict[str, int]]:
    """Yield meshes of up to three axes."""
    for count in DEVICES:
        yield {"data": count}
        yield {"model": count}
        for part in (2, 3, 8):
            if count % part == 0:
                yield {"data": count // part, "model": part}
            for kind in kinds:
                if count % (part * part) == 0:
                    yield {"data": count // part**2, kind: part, "model": part}


def count_bytes(model: Any, mappings: axn.Mappings, mesh: Mapping[str, int]) -> int:
    """Count the bytes on each device if an axis has as many parts as its sizes and the mesh axes of its entry allow."""
    leaves = jax.tree.leaves(model, is_leaf=axn.is_named_array)
    common: dict[str, int] = {}
    for axis in itertools.chain.from_iterable(leaf.axes for leaf in leaves):
        common[axis.name] = math.gcd(common.get(axis.name, 0), axis.size)
    held = 0
    for leaf in leaves:
        entries = mappings.of(leaf.names)
        ways = {name: math.prod(mesh[one] for one in entries.get(name, ())) for name in leaf.names}
        parts = math.prod(math.gcd(common[name], count) for name, count in ways.items())
        held += leaf.array.size // parts * leaf.dtype.itemsize
    return held


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*PUBLISHED, *GALLERY])
def test_each_model_has_a_layout_on_any_number_of_devices(name: str) -> None:
    if name in GALLERY:
        init, *entries = GALLERY[name]
        model = jax.eval_shape(init, jax.random.key(0))
        asked = [(sizes, axn.Mappings(*entries)) for sizes in meshes("slice") if len(sizes) > 1]
    else:
        config, asked = read_config(PUBLISHED[name][1]), []
        model = jax.eval_shape(lambda key: Decoder.init(config, key=key), jax.random.key(0))
        for sizes in meshes("stage", "context", *(["expert"] if config.experts else [])):
            layout = layout_of(sizes, fsdp="data" in sizes)
            asked.append((sizes, axn.Mappings(layout.parameters, layout.compute)))
    for sizes, mappings in asked:
        fitted = fit_mapping(model, mappings, sizes, limit_bytes=count_bytes(model, mappings, sizes))
        assert fitted.mesh.size == math.prod(sizes.values())


@pytest.mark.sampled
@pytest.mark.parametrize("name", ROWS)
def test_each_layer_has_a_layout_on_any_number_of_devices(name: str, pytestconfig: pytest.Config) -> None:
    row = ROWS[name]
    layer, x = jax.eval_shape(lambda: (row.make(), row.input(Batch, axn.Axis("seq", 2))))
    leaves = jax.tree.leaves((layer, x), is_leaf=axn.is_named_array)
    named = {axis for leaf in leaves if axn.is_named_array(leaf) for axis in leaf.names}
    # Layers are split by pipelines alone, which say how.
    inner = sorted(named - {"batch", "layers"})
    asked = {"batch": "data", **dict(zip(inner, ("model", "context"), strict=False))}
    every = list(meshes("context"))
    for sizes in every if pytestconfig.getoption("--all-rows") else every[SEED % 3 :: 3]:
        own = {axis: entry for axis, entry in asked.items() if entry in sizes}
        fitted = fit_mapping(row.call, own, sizes, layer, x, limit_bytes=2**30)
        assert fitted.mesh.size == math.prod(sizes.values())
        assert not fitted.report.errors


def step(model: Decoder, tokens: axn.NamedArray, targets: axn.NamedArray) -> Any:
    def loss(model: Decoder) -> jax.Array:
        x, routing = model.hidden(tokens)
        balance = 0.0 if routing is None else routing.load_balance.mean().scalar()
        return model.cross_entropy(x, targets).scalar() + balance

    return jax.value_and_grad(loss)(model)


@pytest.mark.sampled
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_step_of_each_family_fits(name: str) -> None:
    config = read_config(PUBLISHED[name][1])
    model = jax.eval_shape(lambda key: Decoder.init(config, key=key), jax.random.key(0))
    tokens = axn.NamedArray(jax.ShapeDtypeStruct((12, 1020), jnp.int32), ("batch", "pos"))
    for sizes in ({"data": 24, "model": 4}, {"data": 8, "context": 8, "model": 4}):
        layout = layout_of(sizes, fsdp=True)
        fitted = fit_mapping(step, axn.Mappings(layout.parameters, layout.compute), sizes, model, tokens, tokens)
        changed = {change.name: change.fitted_ways for change in fitted.changes}
        assert changed["batch"] == math.gcd(12, sizes["data"])
        assert not fitted.report.errors


@functools.cache
def alone(config: DecoderConfig) -> Any:
    return jax.device_get(jax.jit(step)(*numbers(config)))


@functools.cache
def numbers(config: DecoderConfig) -> tuple[Decoder, axn.NamedArray, axn.NamedArray]:
    model = Decoder.init(config, key=jax.random.key(0))
    tokens = np.random.default_rng(0).integers(0, Vocab.size, (2, Batch.size, Pos.size))
    return model, axn.named(tokens[0], (Batch, Pos)), axn.named(tokens[1], (Batch, Pos))


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (ODD, {"data": 4, "model": 2}),
        (ODD, {"data": 1, "model": 8}),
        (ODD.as_gpt2(), {"data": 2, "context": 2, "model": 2}),
        (ODD, {"context": 8}),
        (MIXTURE, {"data": 2, "expert": 4}),
        (MIXTURE, {"expert": 4, "model": 2}),
    ],
)
def test_numbers_are_those_of_one_device(config: DecoderConfig, sizes: dict[str, int], kind: AxisTypes) -> None:
    check_numbers(config, sizes, kind)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("sizes", [{"data": 4, "model": 2}, {"model": 8}], ids=str)
@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers_of_each_family_are_those_of_one_device(name: str, sizes: dict[str, int], kind: AxisTypes) -> None:
    """Four devices do not divide the rows, and eight neither the heads nor the width."""
    check_numbers(shrink(read_config(PUBLISHED[name][1])), sizes, kind)


def check_numbers(config: DecoderConfig, sizes: dict[str, int], kind: AxisTypes) -> None:
    """Compare a loss and its gradients under the fitted mapping with those of one device."""
    layout, given = layout_of(sizes, fsdp="data" in sizes), numbers(config)
    mappings = axn.Mappings(layout.parameters, layout.compute)
    fitted = fit_mapping(step, mappings, make_mesh(sizes, kind), *given)
    with axn.set_mesh(fitted.mesh):
        found = axn.named_jit(step, fitted.mapping)(*axn.shard(given, fitted.mapping))
    for x, y in zip(jax.tree.leaves(jax.device_get(found)), jax.tree.leaves(alone(config)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_eight_devices_share_the_cache_of_two_key_heads(kind: AxisTypes) -> None:
    config = dataclasses.replace(ODD, vocab=64, embed=32, mlp=64, heads=16, kv_heads=2, head_dim=8)
    model = Decoder.init(config, key=jax.random.key(0))
    given = model, model.cache(64, axn.Axis("batch", 2)), axn.zeros(axn.Axis("batch", 2), dtype=jnp.int32)

    def decode(model: Decoder, cache: Any, token: axn.NamedArray) -> Any:
        return model.extend(cache, token)

    both = dict.fromkeys(HEADS, ("data", "model"))
    fitted = fit_mapping(decode, both, make_mesh((2, 4), kind), *given)
    assert (fitted.mapping["kv_heads"], fitted.mapping["group"]) == (("data",), ("model",))
    with axn.set_mesh(fitted.mesh):
        placed = axn.shard(given, fitted.mapping)
        run = axn.named_jit(decode, fitted.mapping)
        sent = collectives(run.lower(*placed).compile(), unknown_trip_count=1)
        cache, scores = run(*placed)
    one_head = (given[1].key.array.nbytes + given[1].value.array.nbytes) / 2
    for each in (placed[1], cache):
        held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(each))
        assert held <= 1.05 * one_head
    # The cache stays where it is: devices add what heads and the perceptron give, and send nothing else.
    assert {one.kind for one in sent} == {"all-reduce"}
    assert max(one.bytes for one in sent) < one_head / 16
    expected = jax.jit(decode)(*given)[1]
    np.testing.assert_allclose(jax.device_get(scores.array), expected.array, rtol=1e-5, atol=1e-6)


def shrink(config: DecoderConfig) -> DecoderConfig:
    """Return a family with sizes that few meshes divide."""
    kv_heads = 6 if config.kv_heads == config.heads else 2
    mixture = config.experts and dataclasses.replace(
        config.experts, count=6, chosen=2, mlp=20, shared=config.experts.shared and 20
    )
    own = dataclasses.replace(ODD, kv_heads=kv_heads, layers=len(config.pattern))
    sizes = {name: getattr(own, name) for name in ("vocab", "layers", "embed", "mlp", "heads", "kv_heads", "positions")}
    return dataclasses.replace(config, **sizes, head_dim=4, experts=mixture, window=config.window and 8)
