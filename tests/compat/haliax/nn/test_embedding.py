"""`Embedding`, against jax.random and numpy's indexing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym.compat.haliax  # noqa: F401

# isort: split
import haliax as hax
import haliax.nn as hnn
from haliax.nn.mup import EmbeddingMup, EmbeddingStandardParam, ReparamEnabled
from haliax.state_dict import from_state_dict, to_state_dict

from tests.compat.haliax.nn.arrays import draw, same, same_trees, zeros_like

Batch, Pos, Vocab, Embed, Heads, Head = hax.make_axes(batch=2, pos=3, vocab=7, embed=4, heads=2, head=5)
KEY = jax.random.PRNGKey(0)
IDS = hax.named(jnp.array([[0, 6, 2], [3, 3, 5]]), (Batch, Pos))


@pytest.mark.parametrize(
    ("options", "std"),
    [
        ({}, 1 / 4),
        ({"init_scale": 2.0}, 1 / 2),
        ({"initializer_range": 0.02}, 0.02 / 4),
        ({"initializer_range": 0.02, "init_scale": 3.0}, 0.02 / 4),
        ({"initializer_range": 0.02, "reparam_cls": EmbeddingMup}, 0.02),
        ({"reparam_cls": EmbeddingMup, "init_scale": 0.5}, 0.5),
    ],
)
def test_values_of_the_table(options, std):
    table = hnn.Embedding.init(Vocab, Embed, key=KEY, **options)
    same(table.weight, (Vocab, Embed), np.asarray(jax.random.truncated_normal(KEY, -3, 3, (7, 4))) * std)
    assert (table.Vocab, table.Embed) == (Vocab, Embed)
    same_trees(hnn.Embedding(Vocab, Embed, key=KEY, **options), table)
    same_trees(hnn.Embedding(Vocab=Vocab, Embed=Embed, key=KEY, **options), table)


@pytest.mark.parametrize("axes", [Embed, (Heads, Head)])
def test_embed_and_unembed(axes):
    own = axes if isinstance(axes, tuple) else (axes,)
    table = hnn.Embedding(draw(Vocab, *own), Vocab, axes)
    assert table.Embed == axes
    same(table(IDS, key=KEY), (Batch, Pos, *own), np.asarray(table.weight.array)[np.asarray(IDS.array)])
    same(table.embed(IDS["batch", 0, "pos", 1]), own, np.asarray(table.weight.array)[6])
    x = table(IDS)
    flat, vectors = np.asarray(table.weight.array).reshape(7, -1), np.asarray(x.array).reshape(2, 3, -1)
    same(table.unembed(x), (Batch, Pos, Vocab), np.einsum("bpe,ve->bpv", vectors, flat))
    assert jax.jit(lambda table, ids: table(ids))(table, IDS).axes == (Batch, Pos, *own)


def test_numbers_out_of_range_and_along_the_vocabulary():
    table = hnn.Embedding.init(Vocab, Embed, key=KEY)
    assert np.isnan(np.asarray(table(hax.named(jnp.array([7]), "pos")).array)).all()
    same(table(hax.arange(Vocab)), (Vocab, Embed), table.weight.array)
    assert table(IDS.astype(jnp.uint8)).axes == (Batch, Pos, Embed)


def test_fields_and_trees():
    made = hnn.Embedding.init(Vocab, Embed, key=KEY)
    assert [field.name for field in dataclasses.fields(made)] == ["weight", "Vocab", "Embed", "_reparam_cls"]
    same_trees(hnn.Embedding(made.weight, Vocab, Embed), made)
    same(dataclasses.replace(made, weight=made.weight * 2)(IDS), (Batch, Pos, Embed), 2 * np.asarray(made(IDS).array))
    state = to_state_dict(made, "wte")
    assert list(state) == ["wte.weight"]
    same_trees(from_state_dict(zeros_like(made), state, "wte"), made)


def test_reparam():
    table = hnn.Embedding.init(Vocab, Embed, key=KEY, reparam_cls=EmbeddingMup)
    assert isinstance(table, ReparamEnabled)
    assert isinstance(table.reparam, EmbeddingMup)
    assert (table.reparam.Embed, table.reparam.Vocab) == (Embed, Vocab)
    assert (table.reparam.active_scale, table.reparam.lr_scale, table.reparam.unembed_active_scale) == (1, 1, 0.25)
    same(
        table.unembed(table(IDS)),
        (Batch, Pos, Vocab),
        np.asarray(table(IDS).array) @ np.asarray(table.weight.array).T / 4,
    )
    assert isinstance(hnn.Embedding.init(Vocab, Embed, key=KEY).reparam, EmbeddingStandardParam)


@pytest.mark.parametrize("key", [None, KEY])
def test_another_number_of_rows(key):
    table = hnn.Embedding.init(Vocab, Embed, key=KEY, reparam_cls=EmbeddingMup)
    larger = table.resize_embeddings(9, key=key)
    assert type(larger) is hnn.Embedding
    assert larger.Vocab == Vocab.resize(9)
    assert larger._reparam_cls is EmbeddingMup
    assert larger.weight.axes == (Vocab.resize(9), Embed)
    assert np.isfinite(np.asarray(larger.weight.array)).all()
    np.testing.assert_allclose(np.asarray(larger.weight.array)[:7], table.weight.array)
    same(table.resize_embeddings(5, key).weight, (Vocab.resize(5), Embed), np.asarray(table.weight.array)[:5])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda table: table(hax.ones(Pos)), TypeError, "integer dtype"),
        (lambda table: table(jnp.array([1])), TypeError, "Embedding"),
        (lambda table: table(hax.arange(Embed)), ValueError, "already has axis 'embed'"),
        (lambda table: table.unembed(hax.ones(Pos)), ValueError, "lacks axis 'embed'"),
        (lambda table: table.unembed(hax.ones((Vocab, Embed))), ValueError, "already has axis 'vocab'"),
        (lambda table: hnn.Embedding.init(Vocab, (Vocab, Embed), key=KEY), ValueError, "vocab"),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call(hnn.Embedding.init(Vocab, Embed, key=KEY))
