"""What a call of attention asks for: operands, masks, sinks and options that do not fit."""

import jax
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError, OperandError
from tests.nn.layouts import draw, fails

B, H, G, Q, K, D, F = axn.make_axes(batch=4, heads=2, group=3, pos=5, key_pos=7, head_dim=8, out=6)


def inputs(*extra):
    return draw(*extra, Q, D), draw(*extra, K, D, seed=1), draw(*extra, K, D, seed=2)


def attend(q, k, v, **options):
    return nn.dot_product_attention("pos", "key_pos", "head_dim", q, k, v, **options)


# errors
def test_operands_that_do_not_fit():
    q, k, v = inputs(B)
    fails(
        OperandError,
        "dot_product_attention: the first three arguments must be axes, not arrays\n"
        "  hint: dot_product_attention(QPos, KPos, HeadDim, query, keys, values): the positions of queries come first",
        lambda: nn.dot_product_attention("key_pos", "head_dim", q, k, v, nn.causal()),
    )
    fails(
        AxisClashError,
        "dot_product_attention: the query has axis 'pos', the positions of keys\n"
        "  query has: batch=4, pos=5, head_dim=8\n"
        '  hint: rename it on keys and values: keys.rename({"pos": "pos.key"})',
        lambda: nn.dot_product_attention("pos", "pos", "head_dim", q, q, q),
    )
    fails(
        AxisNotFoundError,
        "dot_product_attention: the query lacks axis 'headdim'\n"
        "  query has: batch=4, pos=5, head_dim=8\n"
        "  hint: did you mean 'head_dim'?",
        lambda: nn.dot_product_attention("pos", "key_pos", "headdim", q, k, v),
    )
    fails(
        AxisNotFoundError,
        "dot_product_attention: the keys lack axis 'key_pos'\n  keys have: batch=4, other=7, head_dim=8",
        lambda: attend(q, k.rename({"key_pos": "other"}), v),
    )
    fails(
        AxisNotFoundError,
        "dot_product_attention: the values lack axis 'key_pos'\n  values have: batch=4, other=7, head_dim=8",
        lambda: attend(q, k, v.rename({"key_pos": "other"})),
    )
    fails(
        AxisSizeError,
        "dot_product_attention: axis 'key_pos' was given with size 9, but the keys have size 7\n"
        "  keys have: batch=4, key_pos=7, head_dim=8",
        lambda: nn.dot_product_attention(Q, axn.Axis("key_pos", 9), D, q, k, v),
    )
    fails(
        AxisSizeError,
        "dot_product_attention: axis 'head_dim' was given with size 9, but the query has size 8\n"
        "  query has: batch=4, pos=5, head_dim=8",
        lambda: nn.dot_product_attention(Q, K, axn.Axis("head_dim", 9), q, k, v),
    )
    for given in ((q.array, k, v), (q, k.array, v), (q, k, v.array)):
        with pytest.raises(OperandError, match=r"^dot_product_attention: expected a NamedArray, got a plain array"):
            attend(*given)
    for what, x in (("keys", k), ("values", v)):
        given = {"keys": k, "values": v, what: x.rename({"batch": "pos"})}
        fails(
            AxisClashError,
            f"dot_product_attention: the {what} have axis 'pos', the positions of queries\n"
            f"  {what} have: pos=4, key_pos=7, head_dim=8",
            lambda given=given: attend(q, k=given["keys"], v=given["values"]),
        )


def test_masks_and_sinks_that_do_not_fit():
    q, k, v = inputs(B)
    for what, x in (("mask", axn.ones((H, K), dtype=bool)), ("bias", draw(H, K))):
        fails(
            AxisNotFoundError,
            f"dot_product_attention: the {what} must not have axis 'heads'\n"
            f"  {what} has: heads=2, key_pos=7\n"
            "  scores have: batch=4, pos=5, key_pos=7",
            lambda what=what, x=x: attend(q, k, v, **{what: x}),
        )
    fails(
        AxisNotFoundError,
        "dot_product_attention: the sink must not have axis 'keys'\n  sink has: keys=7\n  scores have: batch=4, pos=5",
        lambda: attend(q, k, v, sinks=draw(K.alias("keys"))),
    )
    for what in ("bias", "sinks"):
        for given, kind, names in ((1.0, "float", "()"), (np.ones(2), "a plain array", '("heads", ...)')):
            fails(
                OperandError,
                f"dot_product_attention: {what} must be a NamedArray, not {kind}\n"
                f"  hint: name it first: axn.named({what}, {names})",
                lambda what=what, given=given: attend(q, k, v, **{what: given}),
            )
    fails(
        OperandError,
        "dot_product_attention: a mask must be an AttentionMask or a NamedArray of booleans, not an array of float32\n"
        "  hint: add numbers to the scores as a bias",
        lambda: attend(q, k, v, mask=draw(Q, K)),
    )


def test_a_mask_of_padding_over_the_queries_is_told():
    q, k, v = inputs(B)
    with pytest.warns(UserWarning, match="^dot_product_attention: the mask has axis 'pos' of queries") as told:
        attend(q, k, v, mask=nn.causal() & draw(B, Q).astype(bool))
    assert str(told[0].message) == (
        "dot_product_attention: the mask has axis 'pos' of queries and not 'key_pos', so it hides whole queries\n"
        "  mask has: batch=4, pos=5\n"
        '  hint: to hide keys, rename it: mask.rename({"pos": "key_pos"})'
    )
    assert told[0].filename == __file__
    for meant in (draw(B, K), draw(B, Q, K), draw(B)):
        attend(q, k, v, mask=meant.astype(bool))
    attend(q, k, v, mask=nn.causal() | draw(B, Q).astype(bool))  # queries that see all


def test_options_that_make_no_sense():
    q, k, v = inputs(B)
    fails(
        OperandError,
        "dot_product_attention: dropout with probability 0.1 needs a key\n  hint: pass key=..., or inference=True",
        lambda: attend(q, k, v, dropout=0.1),
    )
    fails(
        ArgumentError,
        "dot_product_attention: dropout must be a probability from 0 to 1, not 1.5",
        lambda: attend(q, k, v, dropout=1.5, key=jax.random.key(0)),
    )
    fails(
        ArgumentError,
        "dot_product_attention: dropout must be a probability from 0 to 1, not 2",
        lambda: attend(q, k, v, dropout=2),
    )
    fails(
        ArgumentError,
        "dot_product_attention: block_size must be an int, not 2.5",
        lambda: attend(q, k, v, block_size=2.5),
    )
    fails(
        ArgumentError,
        "dot_product_attention: unknown implementation 3\n"
        "  known: 'plain', 'blockwise', 'xla', 'cudnn', 'splash', 'tokamax', 'ring', 'all-gather', 'all-to-all'",
        lambda: attend(q, k, v, implementation=3),
    )
    fails(
        ArgumentError,
        "dot_product_attention: unknown implementation 'blocks'\n"
        "  known: 'plain', 'blockwise', 'xla', 'cudnn', 'splash', 'tokamax', 'ring', 'all-gather', 'all-to-all'\n"
        "  hint: did you mean 'blockwise'?",
        lambda: attend(q, k, v, implementation="blocks"),
    )
    fails(
        OperandError,
        "dot_product_attention_weights: the mask must be a NamedArray of booleans, as the axis of query positions is "
        "not given here\n"
        "  hint: use mask.materialize(QPos, KPos)",
        lambda: nn.dot_product_attention_weights(D, K, q, k, mask=nn.causal()),
    )
