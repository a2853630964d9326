"""Token by token through a cache."""

import pytest

import axonym as axn
from axonym import nn
from axonym.errors import OperandError
from axonym.testing import ClaimError, assert_causal
from tests.nn.layouts import draw, fails, made

B, P, E, H, D = axn.make_axes(batch=2, pos=5, embed=8, heads=2, head_dim=4)
KEYS = axn.Axis("pos.key", 8)


@pytest.fixture(scope="module")
def attention():
    return made(lambda *, key: nn.Attention.init(E, H, D, key=key))


def empty():
    return nn.KVCache.init("pos.key", (B, KEYS, H, D), lengths=B)


def extend(attention, skip=0):
    def step(cache, x):
        y, cache = attention.extend(x, cache)
        return cache, y

    return step


def test_the_cache_of_attention_equals_the_whole(attention):
    whole = lambda x: attention(x, nn.causal())  # noqa: E731
    assert_causal(whole, P, draw(B, P, E), step=extend(attention), cache=empty())


def test_a_cache_that_starts_with_something_is_found(attention):
    used = attention.extend(draw(B, E, seed=3), empty())[1]
    with pytest.raises(ClaimError) as error:
        assert_causal(lambda x: attention(x, nn.causal()), P, draw(B, P, E), step=extend(attention), cache=used)
    assert str(error.value).splitlines()[0] == (
        "assert_causal: through the cache, pos=0 gives another result than in the whole"
    )
    assert dict(error.value.target) == {"pos": 0}


def test_a_step_returns_a_cache_and_a_result():
    fails(
        OperandError,
        "assert_causal: step must return a pair: the next cache, and the result",
        lambda: assert_causal(lambda x: x, P, draw(B, P), step=lambda cache, x: x, cache=None),
    )
