"""Rows of a table are sent where they are stored in parts, as the compiler does it."""

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
import axonym.nn as nn

Vocab, Embed = axn.make_axes(vocab=64, embed=16)


def loss(table, tokens):
    return (table(tokens) ** 2).sum().scalar()


def sent(tokens, depth, fn=loss):
    """Return the collectives of a step with a table that is stored in parts of rows."""
    table = nn.Embedding.init(Vocab, Embed, key=jax.random.key(0))
    ids = axn.zeros(axn.make_axes(batch=8, pos=tokens // 8), dtype=jnp.int32)
    fsdp = axn.Mappings({"embed": "data"}, {"batch": "data"})
    report = axn.cost(axn.named_jit(jax.grad(fn), {}), fsdp, {"data": 4}, table, ids, depth=depth)
    found = {}
    for one in report.communication:
        found[one.kind] = found.get(one.kind, 0) + one.sent
    return found


@pytest.mark.parametrize("tokens", [64, 512])
def test_fewer_rows_than_a_table_has_are_sent_and_else_the_table(tokens):
    expected = {"all-gather": 3 * 64 * 4 * 4, "all-reduce": 2 * 3 * 64 * 4 * 4}
    if tokens == 64:
        # Ids, and parts of rows there and back.
        expected = {"all-gather": 3 * 16 * 4, "all-to-all": 2 * 3 * 64 * 4}
    assert sent(tokens, "traced") == sent(tokens, "compiled") == expected


def test_the_gradient_of_a_table_whose_rows_are_divided_is_summed_in_parts():
    table = nn.Embedding.init(Vocab, Embed, key=jax.random.key(0))
    ids = axn.zeros(axn.make_axes(batch=8, pos=4), dtype=jnp.int32)
    mapping = {"batch": "data", "vocab": "model"}
    for depth in ("traced", "compiled"):
        report = axn.cost(jax.grad(loss), mapping, {"data": 4, "model": 2}, table, ids, depth=depth)
        summed = {one.axis: one.nbytes for one in report.communication}
        assert summed == {"vocab": 2 * 4 * 16 * 4, "batch": 64 // 2 * 16 * 4}
