"""Claims about examples and positions: what they find, what they say, and what they take."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisNotFoundError, AxisSizeError
from axonym.testing import ClaimError, assert_causal, assert_independent
from tests.nn.layouts import draw, fails, made

B, P, E, M, V = axn.make_axes(batch=5, pos=7, embed=4, mlp=6, vocab=9)


def broken(check, *args, **options):
    with pytest.raises(ClaimError) as error:
        check(*args, **options)
    return error.value


def test_the_error_says_what_where_and_how_much():
    x = axn.named(
        np.eye(3, 4, -1, dtype=np.float32) + np.eye(3, 4, 1, dtype=np.float32), axn.make_axes(batch=3, embed=4)
    )
    error = broken(assert_independent, lambda x: x - x.max("batch"), "batch", x)
    assert (error.claim, error.axis, error.operation, error.layer) == ("independent", "batch", "reduce_max", "")
    assert dict(error.source) == {"batch": 1}
    assert dict(error.target) == {"batch": 0, "embed": 0}
    head, effect, place, hint = str(error).splitlines()
    assert head == "assert_independent: batch=0, embed=0 depends on batch=1"
    assert effect == f"  effect: {error.effect:.2g} of the largest number"
    assert place == f"  first appears: outside of layers, operation reduce_max, test_axes.py:{line_of('x.max')}"
    assert hint == (
        "  hint: usual causes: a norm, a softmax or a sum over the wrong axis; experts with a capacity that all "
        "examples share: MixtureOfExperts(tokens=...)"
    )


def line_of(text):
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize("pair", [(0, 3), (2, 4), (4, 0), (3, 1)])
def test_any_single_pair_of_examples_is_found(pair):
    """Only one example reads only one other one, whichever they are."""
    to, source = pair
    x = draw(B, E)
    error = broken(assert_independent, lambda x: x.at["batch", to].add(x["batch", source]), B, x)
    assert (error.source["batch"], error.target["batch"]) == (source, to)


@pytest.mark.parametrize("at", range(1, 7))
def test_any_single_look_at_the_next_position_is_found(at):
    error = broken(assert_causal, lambda x: x.at["pos", at - 1].add(x["pos", at]), P, draw(B, P))
    assert (error.source["pos"], error.target["pos"]) == (at, at - 1)


def test_what_is_read_from_is_found_without_any_sum():
    error = broken(assert_causal, lambda x: axn.roll(x, -2, "pos"), P, draw(B, P, E))
    assert (error.source["pos"], error.target["pos"]) == (2, 0)
    assert_causal(lambda x: axn.pad(x, {"pos": (1, 0)})["pos", :-1], P, draw(B, P, E))


class Straight(eqx.Module):
    """Right forward, and wrong backward."""

    weight: axn.NamedArray

    def __call__(self, x):
        @jax.custom_vjp
        def through(array):
            return array

        def back(_, g):
            return (g - g.mean(0),)

        through.defvjp(lambda array: (array, None), back)
        return axn.named(through((x * self.weight).array), x.axes)


def test_a_gradient_alone_may_mix_examples():
    error = broken(assert_independent, Straight(draw(E)), B, draw(B, E))
    assert "gradient" in str(error)
    assert error.parameter is not None


@pytest.mark.parametrize("is_old", [False, True])
def test_random_numbers_of_examples_are_their_own(is_old):
    x, key = draw(B, E), jax.random.PRNGKey(3) if is_old else jax.random.key(3)
    assert_independent(lambda x, key: nn.Dropout(0.5)(x, key=key), B, x, key)
    error = broken(assert_independent, lambda x, key: nn.Dropout(0.5, "batch")(x, key=key), B, x, key)
    assert str(error).splitlines()[0] == "assert_independent: batch=0 and batch=1 draw equal random numbers"


def test_random_numbers_that_two_examples_share_are_found_and_those_that_repeat_by_chance_are_not(auto_mesh):
    size = B.resize(4)
    x, key = draw(size, E), jax.random.key(3)

    def repeat(x, key):
        kept = axn.random.bernoulli(key, (B.resize(2), E), 0.5)
        return axn.where(axn.concatenate("batch", [kept, kept]), x, 0)

    error = broken(assert_independent, repeat, B, x, key)
    assert (error.source, error.target) == ({"batch": 0}, {"batch": 2})
    with axn.set_mesh(auto_mesh):
        # All devices draw by one key, within an operation that is one for the search.
        error = broken(
            assert_independent,
            axn.shard_map(lambda x, key: nn.Dropout(0.5)(x, key=key), {"batch": "data"}),
            B,
            draw(B.resize(8), E),
            key,
        )
    assert (error.source, error.target, error.operation) == ({"batch": 0}, {"batch": 2}, "shard_map")
    coin = lambda x, key: axn.random.bernoulli(key, x["embed", 0].axes, 0.9) & (x["embed", 0] < 9)  # noqa: E731
    assert_independent(coin, B, x, key)


class Model(eqx.Module):
    """A model with stacked blocks, one of which may be wrong."""

    embedding: nn.Embedding
    blocks: nn.Stacked

    def __call__(self, tokens):
        return self.blocks.fold(self.embedding(tokens))

    def score(self, tokens, real, scale):
        y = self(tokens)
        return {"scores": y * scale, "count": real.sum("pos")}


class Mixed(eqx.Module):
    """A block that mixes where a weight is not zero."""

    mlp: nn.MLP
    amount: axn.NamedArray
    is_open: bool = eqx.field(static=True)

    @staticmethod
    def init(is_open, *, key):
        return Mixed(nn.MLP.init(E, E, M, 1, key=key), axn.zeros(()), is_open)

    def __call__(self, x):
        others = x.mean("pos") if self.is_open else axn.cumsum(x, "pos")
        return x + self.mlp(x) + self.amount * others


def mixed(layer, is_open=True):
    """Make a model of which at most one layer adds the mean of all positions, or of those before."""

    def init(*, key):
        blocks = nn.Stacked.init(axn.Axis("layers", 3), Mixed)(is_open, key=key)
        return Model(nn.Embedding.init(V, E, key=key), blocks)

    amount = axn.named(np.arange(3, dtype=np.float32) == layer, "layers").astype(jnp.float32)
    return eqx.tree_at(lambda m: m.blocks.stacked.amount, made(init), amount)


TOKENS = axn.named(np.arange(35).reshape(5, 7) % 9, (B, P))


def test_a_layer_of_a_stack_is_found_by_its_turn():
    error = broken(assert_causal, mixed(1), P, TOKENS)
    assert (error.layer, error.operation) == ("blocks", "reduce_sum (turn 1 of its loop)")
    assert_causal(mixed(1, is_open=False), P, TOKENS)


def test_a_gate_that_is_still_closed_leaks_by_its_gradient():
    error = broken(assert_causal, mixed(None), P, TOKENS)
    assert (error.parameter, error.layer) == ("blocks.stacked.amount", "blocks.stacked")


def test_methods_jitted_functions_trees_and_static_arguments():
    model, real = mixed(1, is_open=False), TOKENS > 2
    assert_independent(model.score, B, TOKENS, real, 2.0)
    assert_independent(eqx.filter_jit(model.score), "batch", TOKENS, real, 2.0)
    assert_causal(lambda both, text: both["x"] * len(text), P, {"x": draw(B, P), "other": [1, None]}, "ab")
    assert_independent(axn.named_jit(model), B, TOKENS)
    wrong = mixed(2)
    # What a function holds by itself is not looked through for names, but layers of `axonym.nn` have theirs.
    error = broken(assert_causal, jax.jit(lambda tokens: wrong(tokens)), P, TOKENS)
    assert error.layer == "blocks"
    assert "result: scores" in str(broken(assert_causal, wrong.score, P, TOKENS, real, 2.0))


def test_other_names_of_positions():
    x = draw(B, P)
    assert_causal(lambda x: axn.cumsum(x, "pos").rename({"pos": "out"}), P, x, out="out")
    error = broken(assert_causal, lambda x: axn.flip(x, "pos").rename({"pos": "out"}), P, x, out="out")
    assert (dict(error.source), error.target["out"]) == ({"pos": 4}, 2)


def test_nan_is_equal_to_nan_and_to_nothing_else():
    x = draw(B, P).at["batch", 1].set(jnp.nan)
    assert_independent(lambda x: axn.cumsum(x, "pos"), B, x)
    # With the one NaN gone, others are numbers again.
    one = draw(B).at["batch", 0].set(jnp.nan)
    error = broken(assert_independent, lambda x: x + 0 * x.sum("batch"), B, one)
    assert (error.effect, dict(error.source)) == (float("inf"), {"batch": 0})
    assert "effect: NaN or infinity in one of both" in str(error)


def test_what_cannot_be_checked_is_refused():
    x = draw(B, E)
    fails(
        AxisNotFoundError,
        "assert_independent: no argument has axis 'bacth'\n  0 has batch, embed\n  hint: did you mean 'batch'?",
        lambda: assert_independent(lambda x: x, "bacth", x),
    )
    fails(
        AxisNotFoundError,
        "assert_causal: no result has axis 'batch'\n  the result has embed\n"
        "  hint: if it has another name there, say so: out=...",
        lambda: assert_causal(lambda x: x.sum("batch"), "batch", x),
    )
    fails(
        AxisSizeError,
        "assert_independent: axis 'one' has size 1, so that nothing can be compared along it\n"
        "  hint: take at least two",
        lambda: assert_independent(lambda x: x, "one", axn.zeros({"one": 1})),
    )
    fails(
        ArgumentError,
        "assert_independent: no argument with the axis can change: integers that are all equal have no range\n"
        "  arguments: 0\n  hint: give other values",
        lambda: assert_independent(lambda x: x, "batch", axn.zeros(B, dtype=jnp.int32)),
    )
