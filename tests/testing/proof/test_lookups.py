"""Positions that are computed, and random numbers."""

import jax

import axonym as axn
from axonym.testing.proof.claims import Claim, prove

T, E, V = axn.make_axes(time=5, embed=3, vocab=7)
X, IDS, TABLE = axn.ones((T, E)), axn.zeros(T, "int32"), axn.ones((V, E))
INDEPENDENT = Claim("independent", "time")


def test_each_position_looks_a_table_up_for_itself() -> None:
    look = lambda table, ids: axn.take(table, V, ids)  # noqa: E731
    assert prove(look, [TABLE, IDS], INDEPENDENT)
    # The rows that are looked up are those of any position.
    assert not prove(
        lambda x, ids: axn.take(x, T, ids), [X, axn.zeros(V, "int32")], Claim("causal", "time", ("vocab",))
    )


def test_elements_that_are_written_at_computed_positions_mix_them() -> None:
    assert not prove(lambda x, ids: x.at[{"time": ids.rename({"time": "row"})}].set(0.0), [X, IDS], INDEPENDENT)


def test_random_numbers_depend_on_their_key_alone() -> None:
    noisy = lambda x, key: x + axn.random.normal(key, (T, E))  # noqa: E731
    assert prove(noisy, [X, jax.random.key(0)], INDEPENDENT)
    assert not prove(noisy, [X, jax.random.key(0)], Claim("equivariant", "time"))
