"""Copies of a cache are counted in the text of compiled programs: those of the decoder have none."""

import jax
import jax.numpy as jnp
import pytest
from all import of_caches
from jax import lax
from lm_cache import TINY, Programs, copies, sent


def test_the_decoder_copies_no_cache() -> None:
    found = list(of_caches())
    assert len(found) == 6
    assert all(row.is_met for row in found), found


@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_a_cache_that_a_loop_takes_apart_is_copied() -> None:
    """Plain JAX that scans over the caches of layers puts each back into another array."""
    programs = Programs(TINY, batch=2, places=320)
    text = programs.step_by_hand()
    assert copies(text, programs.elements * TINY.layers) >= 2
    assert copies(text, programs.elements, of_loops=True) >= 2 * TINY.layers


def test_what_is_counted() -> None:
    x = jnp.zeros((6, 50, 7))

    def text(function, *args):
        return jax.jit(function, donate_argnums=0).lower(*args).compile().as_text()

    def write(x, i):
        return lax.dynamic_update_slice(x, jnp.ones((6, 1, 7)), (0, i, 0))

    def both(x, i):
        return write(x, i), write(x, i + 1)

    def turned(x, i):
        return write(x, i), jnp.swapaxes(x, 0, 1)

    assert copies(text(write, x, 3), x.size) == 0
    assert copies(text(both, x, 3), x.size) >= 1
    assert copies(text(turned, x, 3), x.size) >= 1
    assert copies(text(lambda x: x * 2, x), x.size) == 0


def test_collectives_are_counted_by_what_they_send(auto_mesh: jax.sharding.Mesh) -> None:
    def on(axis: str | None) -> jax.sharding.NamedSharding:
        return jax.sharding.NamedSharding(auto_mesh, jax.sharding.PartitionSpec(axis))

    def text(wanted: str | None) -> str:
        compiled = jax.jit(lambda x: x * 2, in_shardings=on("data"), out_shardings=on(wanted))
        return compiled.lower(jax.ShapeDtypeStruct((8, 4), jnp.float32)).compile().as_text()

    assert sent(text("data"), 1) == 0
    assert sent(text(None), 32) == 1
    assert sent(text(None), 33) == 0
