"""Masks, against loops over positions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisClashError, OperandError
from tests.nn.layouts import draw, fails, same

Q, K = axn.make_axes(pos=5, key_pos=7)
IDS = np.array([[0, 0, 1, 1, 1], [2, 2, 2, 2, 0]])
KEY_IDS = np.array([[0, 0, 0, 1, 1, 1, 1], [2, 0, 2, 2, 0, 0, 1]])
PADDING = np.array([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 1, 1, 1]], bool)
SEGMENTS = nn.segments(axn.named(IDS, ("batch", "pos")), axn.named(KEY_IDS, ("batch", "key_pos")))
PREFIX = np.array([2, 4])

# Each mask with its condition on batch, query and key, which count from the starts.
MASKS = {
    "all": (nn.AttentionMask(), lambda b, q, k: True),
    "causal": (nn.causal(), lambda b, q, k: k <= q),
    "window": (nn.window(2), lambda b, q, k: abs(q - k) < 2),
    "causal window": (nn.causal() & nn.window(3), lambda b, q, k: 0 <= q - k < 3),
    "two windows": (nn.window(4) & nn.window(2) & nn.causal(), lambda b, q, k: 0 <= q - k < 2),
    "prefix": (nn.prefix(3), lambda b, q, k: k < 3),
    "two prefixes": (nn.prefix(3) & nn.prefix(axn.named(PREFIX, "batch")), lambda b, q, k: k < min(3, PREFIX[b])),
    "prefix lm": (nn.causal() | nn.prefix(2), lambda b, q, k: k <= q or k < 2),
    "segments": (SEGMENTS, lambda b, q, k: IDS[b, q - 1] == KEY_IDS[b, k + 1]),
    "array": (
        nn.causal() & axn.named(PADDING, ("batch", "key_pos")),
        lambda b, q, k: k <= q and PADDING[b, k + 1],
    ),
    "all four": (
        nn.causal() & nn.window(3) & SEGMENTS | nn.prefix(axn.named(PREFIX, "batch")),
        lambda b, q, k: (0 <= q - k < 3 and IDS[b, q - 1] == KEY_IDS[b, k + 1]) or k < PREFIX[b],
    ),
    "and of ors": (
        (nn.causal() | nn.prefix(2)) & (nn.window(2) | axn.named(PADDING, ("batch", "key_pos"))),
        lambda b, q, k: (k <= q or k < 2) and (abs(q - k) < 2 or PADDING[b, k + 1]),
    ),
    "or with all": (nn.causal() | nn.AttentionMask(), lambda b, q, k: True),
}


@eqx.filter_jit
def materialized(masks):
    return [mask.materialize(Q, K, 1, -1) for mask in masks]


def test_masks_against_loops():
    for (name, (_, condition)), seen in zip(MASKS.items(), materialized([m for m, _ in MASKS.values()]), strict=True):
        expected = np.array(
            [[[bool(condition(b, q + 1, k - 1)) for k in range(7)] for q in range(5)] for b in range(2)]
        )
        full = seen.broadcast_axis(axn.Axis("batch", 2)).rearrange(("batch", "pos", "key_pos"))
        assert seen.dtype == bool
        assert np.array_equal(full.array, expected), name


def test_segments_of_keys_are_by_default_those_of_queries():
    P = Q.alias("key_pos")
    ids = axn.named(IDS, ("batch", "pos"))
    same(nn.segments(ids).materialize(Q, P), ("batch", "pos", "key_pos"), IDS[:, :, None] == IDS[:, None, :])


def test_structure_can_be_asked():
    mask = nn.causal() & nn.window(3) & SEGMENTS | nn.prefix(2)
    assert (mask.causal, mask.window, mask.prefix, mask.explicit) == (True, 3, None, None)
    assert mask.segment_ids[0][0].names == ("batch", "pos")
    assert len(mask.clauses) == 2
    (other,) = mask.alternatives
    assert (other.causal, other.window, other.prefix, other.segment_ids) == (False, None, 2, ())
    assert jax.tree.structure(nn.causal() & nn.window(3)) == jax.tree.structure(nn.window(3) & nn.causal())
    assert jax.tree.structure(nn.window(2)) != jax.tree.structure(nn.window(3))
    assert nn.AttentionMask.of(mask) is mask
    explicit = axn.named(PADDING, ("batch", "key_pos"))
    assert nn.AttentionMask.of(explicit).explicit is explicit


def test_arrays_of_other_axes_combine():
    padding, rows = axn.named(PADDING, ("batch", "key_pos")), axn.named([True, False, True, True, True], "pos")
    both = (nn.causal() & padding & rows).materialize(Q, K)
    same(both, ("batch", "pos", "key_pos"), np.tri(5, 7, dtype=bool) & PADDING[:, None] & rows.array[:, None])


def test_masks_pass_through_transformations():
    ids = axn.named(IDS, ("batch", "pos"))
    mask = nn.causal() & nn.segments(ids)
    P = Q.alias("key_pos")
    each = axn.vmap(lambda mask: mask.materialize(Q, P), "batch")(mask)
    same(each, ("batch", "pos", "key_pos"), mask.materialize(Q, P).array)


def test_arrays_combine_with_masks_on_either_side():
    QPos, KPos = axn.make_axes(pos=4, key_pos=4)
    some = axn.named(np.array([True, False, True, True]), "key_pos")
    for left, right in ((some & nn.causal(), nn.causal() & some), (some | nn.causal(), nn.causal() | some)):
        assert isinstance(left, nn.AttentionMask)
        assert axn.array_equal(left.materialize(QPos, KPos), right.materialize(QPos, KPos))


# errors
def test_errors():
    def fails(error, message, call):
        with pytest.raises(error) as caught:
            call()
        assert type(caught.value) is error
        assert str(caught.value) == message

    for function, call in (
        ("causal_mask", lambda: nn.causal_mask(Q, Q)),
        ("prefix_lm_mask", lambda: nn.prefix_lm_mask(Q, Q, 2)),
        ("materialize", lambda: nn.window(2).materialize(Q, Q)),
    ):
        fails(
            AxisClashError,
            f"{function}: the position axes of queries and keys are both named 'pos'\n"
            '  hint: give those of keys another name: KPos.derive("key")',
            call,
        )
    with pytest.raises(OperandError, match=r"^arange: axis 'pos' needs a size here"):
        nn.causal_mask("pos", K)
    fails(ArgumentError, "window: a window must have at least one position, not 0", lambda: nn.window(0))
    fails(ArgumentError, "window: size must be an int, not 2.5", lambda: nn.window(2.5))
    fails(
        OperandError,
        "segments: segment ids must be a NamedArray of integers, not float32",
        lambda: nn.segments(draw(Q)),
    )
    fails(
        OperandError,
        "segments: segment ids must be a NamedArray of integers, not ArrayImpl",
        lambda: nn.segments(axn.arange(Q), jnp.arange(7)),
    )
    fails(
        OperandError,
        "&: a mask must be an AttentionMask or a NamedArray of booleans, not an array of float32\n"
        "  hint: add numbers to the scores as a bias",
        lambda: nn.causal() & draw(K),
    )
    fails(
        OperandError,
        "&: a mask must be an AttentionMask or a NamedArray of booleans, not function\n"
        "  hint: call it, as in nn.causal()",
        lambda: nn.window(2) & nn.causal,
    )
    fails(
        OperandError,
        "|: a mask must be an AttentionMask or a NamedArray of booleans, not bool",
        lambda: nn.causal() | True,
    )
    fails(
        ArgumentError,
        "forgetful_causal_mask: mask_prob must be a probability from 0 to 1, not 1.5",
        lambda: nn.forgetful_causal_mask(K, 1.5, key=jax.random.key(0)),
    )
    fails(
        ArgumentError,
        "dropout_mask: dropout_rate must be a probability from 0 to 1, not -1",
        lambda: nn.dropout_mask(K, -1, key=jax.random.key(0)),
    )


def test_positions_of_their_own():
    """A mask at given positions is the mask in order, with rows and columns in the order of the positions."""
    order = np.random.default_rng(0).permutation(6)
    Six = axn.Axis("q", 6)
    mask = nn.causal() & nn.window(3) | nn.prefix(2)
    wanted = mask.materialize(Six, axn.Axis("k", 6)).array[order][:, order]
    positions = axn.named(order, "q")
    for at in (mask.at(positions), mask.at(positions, axn.named(order, "k")), nn.causal().at(positions) & nn.window(3)):
        if not at.alternatives:
            at = at | nn.prefix(2)
        np.testing.assert_array_equal(at.materialize(Six, axn.Axis("k", 6)).array, wanted)


def test_errors_of_positions():
    one, other = (axn.named(np.arange(6), "q") for _ in range(2))
    fails(
        OperandError,
        "&: the two masks have positions of their own\n"
        "  hint: give them once, to both together: (mask1 & mask2).at(positions)",
        lambda: nn.causal().at(one) & nn.window(3).at(other),
    )
    fails(
        OperandError,
        "at: positions must be a NamedArray of integers, not float32",
        lambda: nn.causal().at(axn.ones(axn.Axis("q", 6))),
    )
    q, k = axn.ones(axn.Axis("d", 2)), axn.ones(axn.make_axes(k=6, d=2))
    fails(
        OperandError,
        "at: positions of a query without an axis of positions cannot be reused for its keys\n"
        "  hint: pass key_positions=...",
        lambda: nn.dot_product_attention(None, "k", "d", q, k, k, nn.causal().at(axn.named(3, ()))),
    )
