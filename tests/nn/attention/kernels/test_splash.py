"""What the splash kernel is asked to do, and what it refuses."""

import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError
from tests.nn.attending import by_hand, with_gradients
from tests.nn.layouts import draw

B, H, G, Q, D = axn.make_axes(batch=2, heads=2, group=2, pos=256, head_dim=8)
K = Q.alias("key_pos")


def test_positions_in_any_order_are_refused():
    """The kernel counts positions along the axes, and would give other numbers without a word."""
    q, k = draw(Q, D), draw(K, D, seed=1)
    mask = nn.causal().at(nn.zigzag(axn.arange(Q), Q, 2))
    with pytest.raises(ArgumentError) as caught:
        nn.dot_product_attention(Q, K, D, q, k, k, mask, implementation="splash")
    assert str(caught.value) == (
        "dot_product_attention: implementation 'splash' does not support this: it supports only causal masks, "
        'windows and segments, combined by &\n  hint: "plain" and "blockwise" do'
    )


@pytest.mark.parametrize("axes", [(H, G), (G, B), ()], ids=["heads", "group and batch", "one number"])
def test_sinks_and_their_gradients(axes):
    q, k, v = draw(B, H, G, Q, D), draw(B, H, K, D, seed=1), draw(B, H, K, D, seed=2)
    sinks = draw(*axes, seed=3) if axes else axn.named(jnp.asarray(0.5), ())

    def ours(q, k, v, sinks):
        options = {"mask": nn.causal() & nn.window(40), "soft_cap": 2.0, "sinks": sinks}
        return nn.dot_product_attention(Q, K, D, q, k, v, **options, implementation="splash")

    def theirs(q, k, v, sinks, xp=jnp):
        # Of each sequence, head and group.
        all_ = xp.broadcast_to(sinks.T[:, None] if axes == (G, B) else sinks, (2, 2, 2))
        distance = np.arange(256)[:, None] - np.arange(256)
        return by_hand(q, k, v, (distance >= 0) & (distance < 40), sinks=all_, cap=2.0, xp=xp)

    given = q, k, v, sinks
    out, gradients = with_gradients(ours)(*given)
    expected, others = with_gradients(theirs)(*(x.array for x in given))
    np.testing.assert_allclose(out.array, expected, rtol=1e-4, atol=1e-5)
    for mine, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(mine.array, other, rtol=1e-3, atol=5e-5)


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_sinks_of_heads_on_several_devices(kind, request):
    q, k, v, sinks = draw(B, H, Q, D), draw(B, H, K, D, seed=1), draw(B, H, K, D, seed=2), draw(H, seed=3)
    run = lambda *x: nn.dot_product_attention(Q, K, D, *x[:3], sinks=x[3], implementation="splash")  # noqa: E731
    expected, others = with_gradients(run)(q, k, v, sinks)
    mapping = {"heads": "model"}
    with axn.set_mesh(request.getfixturevalue(kind)), axn.axis_mapping(mapping):
        out, gradients = with_gradients(run)(*axn.shard((q, k, v, sinks)))
    np.testing.assert_allclose(out.array, expected.array, rtol=1e-5, atol=1e-6)
    for mine, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(mine.array, other.array, rtol=1e-4, atol=1e-5)
