"""Fields of modules with plain arrays that have named axes."""

import axonym.compat.haliax  # noqa: F401 # isort: skip
import dataclasses

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import pytest
from haliax.field import field
from haliax.partitioning import pspec_for
from jax.sharding import PartitionSpec as P


class Inner(eqx.Module):
    table: jax.Array = field(axis_names=("vocab", "embed"), metadata={"mine": 1})


class Outer(eqx.Module):
    layers: list[Inner]
    scale: jax.Array = hax.field(converter=jnp.asarray)
    rate: float = hax.field(static=True, default=0.5)


def test_a_field_is_that_of_equinox_and_knows_axes():
    assert field is hax.field
    outer = Outer([Inner(jnp.ones((4, 2)))], 3)
    assert isinstance(outer.scale, jax.Array)
    assert [x.shape for x in jax.tree.leaves(outer)] == [(4, 2), ()]
    (own,) = dataclasses.fields(Inner)
    assert (own.metadata["axis_names"], own.metadata["mine"]) == (("vocab", "embed"), 1)
    specs = pspec_for(outer, {"vocab": "model"}, preserve_existing_shardings=False)
    assert (specs.layers[0].table, specs.scale) == (P("model", None), P())


def test_a_static_field_has_no_axes():
    with pytest.raises(ValueError, match="static field"):
        field(static=True, axis_names=("embed",))
