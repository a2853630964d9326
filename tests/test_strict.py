"""Under JAX's strict settings no operation mixes dtypes or ranks by itself: names say what broadcasts."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn

Heads, Pos, Embed, Vocab, Mlp, Experts = axn.make_axes(heads=2, pos=4, embed=4, vocab=6, mlp=8, experts=4)
KEY = jax.random.key(0)
IDS = axn.named(jnp.array([0, 1, 1, 0]), "pos")


def attend(x: axn.NamedArray, implementation: str) -> axn.NamedArray:
    key = x.rename({"pos": "key"})
    return nn.dot_product_attention("pos", "key", "embed", x, key, key, mask=nn.causal(), implementation=implementation)


def made(x: axn.NamedArray, init: Callable[..., Any], *axes: Any, **options: Any) -> Any:
    """Make a layer with the dtype of an input, by one program."""

    @eqx.filter_jit
    def make() -> Any:
        return jax.tree.map(lambda leaf: leaf.astype(x.dtype), init(*axes, **options))

    return make()


def experts(x: axn.NamedArray, **options: Any) -> axn.NamedArray:
    return made(x, nn.MixtureOfExperts.init, Embed, Experts, Mlp, 2, key=KEY, **options)(x)[0]


ROWS: dict[str, Any] = {
    "attention": lambda x: attend(x, "plain"),
    "blockwise": lambda x: attend(x, "blockwise"),
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
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("row", ROWS)
def test_nothing_is_promoted_in_secret(row: str, dtype: Any) -> None:
    x = axn.random.normal(KEY, (Heads, Pos, Embed)).astype(dtype)
    expected = ROWS[row](x)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        found = ROWS[row](x)
    assert found.names == expected.names
    np.testing.assert_array_equal(found.array.astype(float), expected.array.astype(float))
