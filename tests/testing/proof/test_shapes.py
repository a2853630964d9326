"""Elements that move: the axis goes with them."""

import jax.numpy as jnp
import pytest

import axonym as axn
from axonym.testing.proof.claims import Claim, prove

T, E = axn.make_axes(time=6, embed=4)
X = axn.ones((T, E), jnp.float32)
INDEPENDENT, CAUSAL = Claim("independent", "time"), Claim("causal", "time")
MOVES = {
    "split and merged": lambda x: x.rearrange("(a b) embed -> a b embed", a=2).rearrange(
        "a b embed -> (time: a b) embed"
    ),
    "transposed": lambda x: x.rearrange(("embed", "time")),
    "joined along another axis": lambda x: axn.concatenate("embed", [x, x]),
    "padded along another axis": lambda x: axn.pad(x, {"embed": (1, 2)}),
}


@pytest.mark.parametrize("fn", MOVES.values(), ids=MOVES)
def test_positions_stay_apart(fn) -> None:
    assert prove(fn, [X], INDEPENDENT)


def test_a_shift_looks_back_and_its_inverse_ahead() -> None:
    back = lambda x: axn.concatenate("time", [axn.zeros((T.resize(1), E)), x["time", :-1]])  # noqa: E731
    ahead = lambda x: axn.concatenate("time", [x["time", 1:], axn.zeros((T.resize(1), E))])  # noqa: E731
    assert prove(back, [X], CAUSAL)
    assert not prove(back, [X], INDEPENDENT)
    assert not prove(ahead, [X], CAUSAL)
    assert not prove(lambda x: x["time", ::-1], [X], CAUSAL)
