"""Dropout, whose `inference` is a leaf of the tree, so that it can be changed in a model."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer

import axonym as axn
from axonym import AxisSelection
from axonym.errors import message

from .._adapt import KindError, adapted
from ..state_dict import ModuleWithStateDictSerialization

__all__ = ["Dropout", "dropout"]


class MissingKeyError(KindError, RuntimeError):
    """A key is needed to drop elements, for which Haliax raises RuntimeError."""


class DtypeError(KindError, AssertionError):
    """Integers cannot be scaled, for which Haliax raises AssertionError."""


class Dropout(ModuleWithStateDictSerialization):
    """Set elements to zero at random and scale up the others; `broadcast_axes` may be names too.

    `inference` is a bool and a leaf of the tree, so a mask or a filtered model may have another value there. `jax.jit`
    traces it, but `named_jit` and `equinox.filter_jit` do not.
    """

    pdrop: float = eqx.field(static=True, default=0.5)
    broadcast_axes: AxisSelection | None = eqx.field(static=True, default=None)
    inference: bool = False

    def __check_init__(self) -> None:
        axn.nn.Dropout(self.pdrop, self.broadcast_axes)  # so that their types are known

    @property
    def is_active(self) -> bool:
        """Whether a call drops elements by default."""
        return not self.inference and self.pdrop > 0

    def __call__(
        self, x: Any, *, inference: bool | None = None, key: jax.Array | None = None
    ) -> Any:
        """Drop elements of `x`, unless `inference`, by default that of the field."""
        chosen = self.inference if inference is None else inference
        return dropout(x, self.pdrop, self.broadcast_axes, inference=chosen, key=key)


@adapted
def dropout(
    x: Any,
    pdrop: float,
    broadcast_axes: AxisSelection | None = None,
    *,
    inference: bool,
    key: jax.Array | None = None,
) -> Any:
    """Set elements to zero at random and scale up the others; `x` may be a plain array, and `inference` traced.

    Raises:
        MissingKeyError: if there are elements to drop and no key; dropping all needs none.
        DtypeError: if there are elements to drop and `x` is of integers.
    """
    if not axn.is_named_array(x):
        nameless = axn.NamedArray(jnp.asarray(x), ())
        return dropout(nameless, pdrop, broadcast_axes, inference=inference, key=key).array
    if isinstance(inference, Tracer):
        dropped = dropout(x, pdrop, broadcast_axes, inference=False, key=key)
        is_kept = axn.NamedArray(
            inference != 0, ()
        )  # an optimizer that was not told better has made it a float
        return axn.where(is_kept, x, dropped)
    if pdrop == 1 and not inference:
        return axn.zeros_like(x)
    if pdrop and not inference and key is None:
        hint = "pass key=..., or inference=True"
        raise MissingKeyError(
            message("dropout", f"dropping with probability {pdrop} needs a key", hint=hint)
        )
    if pdrop and not inference and not jnp.issubdtype(x.dtype, jnp.inexact):
        problem = f"the elements that are kept are scaled up, which {x.dtype} cannot represent"
        raise DtypeError(message("dropout", problem, hint="write x.astype(jnp.float32) first"))
    return axn.nn.dropout(x, pdrop, broadcast_axes, inference=inference, key=key)
