"""Values that are current inside a block, here those of two features that only these tests have."""

import jax
import jax.numpy as jnp
import pytest

from axonym.current import features

COUNT: features.Feature[int] = features.Feature(0)
WORD: features.Feature[str | None] = features.Feature(None, depends_on_names=True)


def test_values_of_features_are_independent_and_end_with_their_blocks() -> None:
    with COUNT.using(1), WORD.using("outer"):
        with features.using({COUNT: 2, WORD: None}):
            assert (COUNT.get(), WORD.get()) == (2, None)
        assert (COUNT.get(), WORD.get()) == (1, "outer")
    assert (COUNT.get(), WORD.get()) == (0, None)


def test_a_function_is_traced_once_for_each_value() -> None:
    seen = []

    @jax.jit
    def run(x: jax.Array) -> jax.Array:
        seen.append(COUNT.get())
        return x

    for count in (0, 1, 0, 1):
        with COUNT.using(count):
            run(jnp.ones(2))
    # A later feature, at its default, does not change the key.
    features.Feature(None)
    run(jnp.ones(2))
    assert seen == [0, 1]


def test_a_trace_for_any_names_stops_where_names_matter() -> None:
    with COUNT.using(3), features.nameless():
        assert COUNT.get() == 3
    with WORD.using("here"), features.nameless(), pytest.raises(features.NamesMatter):
        COUNT.get()


def test_an_error_of_a_finaliser_is_raised_at_the_next_read() -> None:
    features.raise_at_next_read("a block was lost")
    with pytest.raises(ValueError, match="a block was lost"):
        COUNT.get()
    assert COUNT.get() == 0
