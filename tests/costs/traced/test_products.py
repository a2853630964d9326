"""Operands of products are gathered as the compiler gathers them."""

import jax
import optax
import pytest

import axonym as axn

X = axn.ones(axn.make_axes(rows=16, columns=32))


@pytest.mark.parametrize(
    ("product", "mapping", "expected"),
    [
        (lambda x: x @ x.T, {"rows": "data"}, {"all-gather": 16 * 32 * 4 * 3 / 4}),
        (lambda x: x @ x.T @ x, {"rows": "data"}, {"all-gather": 2 * 16 * 32 * 4 * 3 / 4}),
        (lambda x: x @ x.T, {"columns": "data"}, {"all-reduce": 2 * 16 * 16 * 4 * 3 / 4}),
    ],
)
def test_operands_that_share_a_mesh_axis_are_gathered(product, mapping, expected):
    """The second of two dimensions of a product that one mesh axis divides; a sum over it needs no gather."""
    tx = axn.optim.on_auto_axes(optax.stateless(lambda x, _: product(x)))

    def norm(x):
        return tx.update(x.array, optax.EmptyState())[0]

    for depth in ("traced", "compiled"):
        sent = {}
        for one in axn.cost(norm, mapping, {"data": 4}, X, depth=depth).communication:
            sent[one.kind] = sent.get(one.kind, 0) + one.sent
        assert sent == expected, depth


def test_where_positions_and_features_share_a_mesh_axis_the_gradient_of_the_result_is_gathered():
    Positions, Wide = axn.make_axes(**{"sequence.pos": 16, "mlp": 96})
    Embed = axn.Axis("embed", 8)
    x, up, down = axn.ones((Positions, Embed)), axn.ones((Embed, Wide)), axn.ones((Wide, Embed))

    def loss(weights, x):
        hidden = axn.tanh(axn.dot(x, weights[0], axis="embed"))
        return axn.square(x + axn.dot(hidden, weights[1], axis="mlp")).sum().scalar()

    sent = []
    for depth in ("traced", "compiled"):
        mapping = {"sequence": "model", "mlp": "model"}
        cost = axn.cost(jax.grad(loss), mapping, {"model": 4}, (up, down), x, depth=depth)
        several = [one for one in cost.communication if one.mesh_axes == ("model",)]
        sent.append(
            {kind: sum(one.sent for one in several if one.kind == kind) for kind in ("all-gather", "all-to-all")}
        )
    # Two gradients of weights and that of the hidden layer read it; and the input is gathered.
    assert sent[0] == sent[1] == {"all-gather": 2 * 3 * 16 // 4 * 8 * 4, "all-to-all": 0}
