"""All layers and families are what the table says that their axes mean, under any layout."""

import contextlib

import jax
import optax
import pytest

import axonym as axn
from axonym import testing
from tests.nn.test_every_layer import ROWS
from tests.testing.meanings import FAMILIES, LAYERS, LAYOUTS, Meaning, even, with_loss


def check(meaning: Meaning) -> None:
    """Check the claims of a row, and that its exceptions are some."""
    f, args = meaning.make()
    found = testing.check(
        f,
        *args,
        independent=meaning.independent,
        causal=meaning.causal,
        equivariant=meaning.equivariant,
        invariant=meaning.invariant,
        declared=meaning.declared,
    )
    assert not found, str(found)
    declared = {claim.text for claim in found.claims if claim.result == "declared"}
    assert declared == meaning.declared.keys() - {"mean over: batch"}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", LAYERS | FAMILIES)
def test_axes_mean_what_is_declared(name: str) -> None:
    check((LAYERS | FAMILIES)[name])


def test_the_table_has_all_layers() -> None:
    assert LAYERS.keys() >= ROWS.keys()


def check_losses(meaning: Meaning) -> None:
    """Check that what a loss is a mean over is the batch, and that padding does not count."""
    f, args = meaning.make()
    may_differ = "mean over: batch" in meaning.declared
    with pytest.raises(testing.ClaimError) if may_differ else contextlib.nullcontext():
        testing.assert_mean_over(jax.tree_util.Partial(with_loss, f), "batch", *args)
    if meaning.padded is not None:
        f, args, real = meaning.padded()
        (axis,) = {*real.names} - {"batch"}
        testing.assert_ignores(f, axis, *args, where=real)


def check_layouts(meaning: Meaning, layout: str) -> None:
    """Check that values, gradients, updates and draws of a row are those of one device."""
    f, args = meaning.make()
    args = jax.tree.map(even, args, is_leaf=axn.is_named_array)
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    run = jax.tree_util.Partial(with_loss, f)
    testing.assert_same_layouts(run, LAYOUTS[layout], mesh, *args, optimizer=optax.adam(1e-2))


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", LAYERS | FAMILIES)
def test_losses_are_means_and_padding_does_not_count(name: str) -> None:
    check_losses((LAYERS | FAMILIES)[name])


@pytest.mark.sampled(60)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LAYERS | FAMILIES)
def test_layouts_change_nothing(name: str, layout: str) -> None:
    check_layouts((LAYERS | FAMILIES)[name], layout)
