"""JAX's strict settings: nothing mixes dtypes or ranks, moves arrays to the device or uses a key twice by itself."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn, quant
from tests.nn import test_every_layer as layers

pytestmark = pytest.mark.sampled

Heads, Pos, Embed, Vocab, Mlp, Experts = axn.make_axes(heads=2, pos=4, embed=4, vocab=6, mlp=8, experts=4)
KEY = jax.random.key(0)
IDS = axn.named(jnp.array([0, 1, 1, 0]), "pos")


def attend(x: axn.NamedArray, implementation: str, **options: Any) -> axn.NamedArray:
    key = x.rename({"pos": "key"})
    options |= {"mask": nn.causal(), "implementation": implementation}
    return nn.dot_product_attention("pos", "key", "embed", x, key, key, **options)


def made(x: axn.NamedArray, init: Callable[..., Any], *axes: Any, **options: Any) -> Any:
    """Make a layer with the dtype of an input, by one program."""

    @eqx.filter_jit
    def make() -> Any:
        return jax.tree.map(lambda leaf: leaf.astype(x.dtype), init(*axes, **options))

    return make()


def experts(x: axn.NamedArray, **options: Any) -> axn.NamedArray:
    return made(x, nn.MixtureOfExperts.init, Embed, Experts, Mlp, 2, key=KEY, **options)(x)[0]


def merged(x: axn.NamedArray) -> axn.NamedArray:
    adapted = made(x, lambda: nn.add_lora(nn.Linear.init(Embed, Mlp, key=KEY), 2, key=KEY))
    return nn.merge_lora(adapted)(x)


def sampled(x: axn.NamedArray) -> axn.NamedArray:
    likely = nn.keep_min_p(nn.keep_top_p(nn.keep_top_k(x, Embed, 3), Embed, 0.9), Embed, 0.1)
    return nn.sample(nn.penalize_repetition(likely, x > 0, 1.5), Embed, jnp.float32(0.5), key=KEY)


def quantised(x: axn.NamedArray, make: Callable[[], Any]) -> axn.NamedArray:
    def init() -> Any:
        mlp = nn.MLP.init(Embed, Embed, Mlp, 1, key=KEY)
        return quant.quantize_linear_layers(mlp, quant.QuantizationConfig(make))

    return made(x, init)(x)


PRODUCTS: dict[str, Callable[[], Any]] = {
    "int8": quant.Int8DotGeneral,
    "fp8": lambda: quant.Fp8DotGeneral.init(4),
    "fp8 with current scaling": quant.Fp8CurrentDotGeneral,
}
ROWS: dict[str, Any] = {
    "attention": lambda x: attend(x, "plain"),
    "blockwise": lambda x: attend(x, "blockwise"),
    "dropped": lambda x: attend(x, "plain", dropout=0.5, key=KEY),
    "gradient": lambda x: jax.grad(lambda x: attend(x, "plain").astype(jnp.float32).sum().scalar())(x),
    "KVCache": lambda x: nn.KVCache.init("key", (Heads, axn.Axis("key", 8), Embed), dtype=x.dtype).attend(
        "pos", "embed", x, x, x
    )[0],
    "cross entropy": lambda x: nn.cross_entropy_loss(x, Embed, IDS, z_loss=0.1, label_smoothing=0.1),
    "chunked": lambda x: nn.chunked_cross_entropy_loss(x, axn.ones((Vocab, Embed), dtype=x.dtype), Embed, Vocab, IDS),
    "binary": lambda x: nn.binary_cross_entropy_loss(x, IDS == 1),
    "LayerNorm": lambda x: made(x, nn.LayerNorm.init, Embed)(x),
    "RmsNorm": lambda x: made(x, nn.RmsNorm.init, Embed)(x),
    "MLP": lambda x: made(x, nn.GatedMLP.init, Embed, Embed, Mlp, key=KEY)(x),
    "LoRA": merged,
    "sample": sampled,
    "MixtureOfExperts": lambda x: experts(x, use_bias=True),
    "with a capacity": lambda x: experts(x, capacity_factor=1.25, gated=False),
    "Conv": lambda x: made(x, nn.Conv.init, "pos", Embed, Vocab, 3, padding=1, key=KEY)(x),
    "mean_pool": lambda x: nn.mean_pool(axn.Axis("pos", 2), x),
    "rotary": lambda x: nn.rotary(x, Pos, Embed),
    "positions": lambda x: nn.sinusoidal_positions(Pos, Embed),
    "alibi": lambda x: nn.alibi_attention_bias(Heads, axn.arange(Pos)),
    "causal mask": lambda x: nn.causal_mask(Pos, axn.Axis("key", 4)),
    "outer": lambda x: axn.linalg.outer(x["heads", 0, "pos", 0], x["heads", 0, "embed", 0]),
    "segment mean": lambda x: axn.segment_mean(x, IDS, axn.Axis("segment", 2)),
    "median": lambda x: axn.median(x, "embed"),
    "DiagonalSSM": lambda x: made(x, nn.DiagonalSSM.init, "pos", Embed, Mlp, key=KEY)(x)[0],
    **{name: lambda x, make=make: quantised(x, make) for name, make in PRODUCTS.items()},
    "gradient of int8": lambda x: jax.grad(
        lambda x: quantised(x, quant.Int8DotGeneral).astype(jnp.float32).sum().scalar()
    )(x),
    "stochastic_round": lambda x: quant.stochastic_round(x.astype(jnp.float32), jnp.float16, key=KEY),
    "piecewise": lambda x: (
        axn.piecewise(axn.arange(Pos), [IDS == 1], [2.5, 1]) + 0 * x["heads", 0, "embed", 0].astype(int)
    ),
    "histogram of masks": lambda x: axn.histogram(x > 0, axn.Axis("bin", 2), range=(0, 1))[0],
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("row", ROWS)
def test_nothing_is_promoted_in_secret(row: str, dtype: Any) -> None:
    x = axn.random.normal(KEY, (Heads, Pos, Embed)).astype(dtype)
    # One program for each setting, which is part of JAX's key.
    run = jax.jit(ROWS[row])
    expected = run(x)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        found = run(x)
    assert found.names == expected.names
    np.testing.assert_array_equal(found.array.astype(float), expected.array.astype(float))


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> jax.Array:
    """Make a key that nothing has used, also for the rows of layers."""
    fresh = jax.random.key(1)
    monkeypatch.setattr(layers, "KEY", fresh)
    return fresh


@pytest.mark.parametrize("name", layers.ROWS)
def test_a_layer_moves_nothing_and_uses_no_key_twice(name: str, key: jax.Array) -> None:
    row = layers.ROWS[name]
    layer, x = jax.device_put((row.layer(), row.input(layers.B, layers.S)))
    with jax.transfer_guard("disallow"), jax.debug_key_reuse(True):
        row.call(layer, x)


OTHERS: dict[str, Callable[[axn.NamedArray, jax.Array], Any]] = {
    "stochastic_round": lambda x, key: quant.stochastic_round(x, jnp.bfloat16, key=key),
    "stochastic_round of an array": lambda x, key: quant.stochastic_round(x.array, jnp.bfloat16, key=key),
    "attention": lambda x, key: attend(x, "plain"),
    "blockwise": lambda x, key: attend(x, "blockwise"),
    "rotary": lambda x, key: nn.rotary(x, "pos", "embed"),
    "sinusoidal_positions": lambda x, key: nn.sinusoidal_positions(Pos, Embed),
    "alibi": lambda x, key: nn.alibi_attention_bias(Heads, Pos),
    "mean_pool": lambda x, key: nn.mean_pool(axn.Axis("pos", 2), x, padding="SAME"),
    "binary": lambda x, key: nn.binary_cross_entropy_loss(x, x),
    "leaky_relu": lambda x, key: nn.leaky_relu(x),
    "standardize": lambda x, key: axn.standardize(x, "embed"),
    "dropout": lambda x, key: nn.dropout(x, 0.5, key=key),
    "an index": lambda x, key: x["pos", 1],
    "numbers": lambda x, key: axn.where(x > 0, 1 - 2.0 * x, np.float32(3)).clip(0.0, 1.0),
    "zeros": lambda x, key: (axn.zeros((Pos, Embed)), axn.zeros_like(x), axn.full(Pos, 3.0)),
    "an MLP": lambda x, key: nn.MLP.init(Embed, Embed, Mlp, 1, key=key),
    "an SSM": lambda x, key: nn.DiagonalSSM.init("pos", Embed, Mlp, key=key),
    "a cell": lambda x, key: nn.GRUCell.init(Embed, Mlp, key=key),
    "blocks": lambda x, key: nn.BlockSeq.init(axn.Axis("layers", 2), nn.Linear)(Embed, Mlp, key=key),
    "a history": lambda x, key: quant.Fp8DotGeneral.init(4),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_rest_moves_nothing_and_uses_no_key_twice(name: str, key: jax.Array) -> None:
    x = jax.device_put(layers.draw(Heads, Pos, Embed))
    with jax.transfer_guard("disallow"), jax.debug_key_reuse(True):
        OTHERS[name](x, key)


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_quantised_layer_moves_nothing(name: str) -> None:
    x = jax.device_put(layers.draw(Pos, Embed))
    mlp = layers.drawn(lambda: nn.MLP.init(Embed, Embed, Mlp, 1, key=KEY))
    mlp = quant.quantize_linear_layers(mlp, quant.QuantizationConfig(PRODUCTS[name]))
    with jax.transfer_guard("disallow"):
        mlp(x)


def test_an_array_that_the_caller_moves_is_still_caught() -> None:
    x = axn.ones(Pos)
    with jax.transfer_guard("disallow"), pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device"):
        axn.add(x, axn.NamedArray(np.ones(4, np.float32), "pos"))
