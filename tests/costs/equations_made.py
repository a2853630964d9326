"""Equations of small functions, on Explicit mesh axes that need no devices."""

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

SIZES = {"data": 4, "model": 2}
TYPED = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)


def array(shape, *spec, dtype=jnp.float32):
    """Describe an array that is laid out."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(TYPED, PartitionSpec(*spec)))


def program(fn, *args):
    """Trace a function of arrays."""
    with jax.sharding.use_abstract_mesh(TYPED):
        return jax.jit(fn).trace(*args).jaxpr.jaxpr


def equation(name, fn, *args):
    """Trace a function, and return its only equation of a kind."""
    (found,) = [one for one in program(fn, *args).eqns if one.primitive.name == name]
    return found
