"""Operands of products on Auto mesh axes are gathered as the compiler gathers them."""

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
