"""The aliases of `haliax.types`."""

import typing

import jax
import numpy as np
import pytest

import axonym.compat.haliax  # noqa: F401

# isort: split
import haliax.types


def test_aliases():
    assert haliax.types.DType is np.dtype
    assert haliax.types.DTypeLike is jax.typing.DTypeLike
    assert haliax.types.PrecisionLike is jax.lax.PrecisionLike
    assert typing.get_args(haliax.types.GatherScatterModeStr) == ("promise_in_bounds", "clip", "drop", "fill")


@pytest.mark.parametrize("name", ["IntScalar", "Scalar"])
def test_scalars(name):
    assert isinstance(3, getattr(haliax.types, name))


def test_filters():
    assert bool in typing.get_args(haliax.types.FilterSpec)
    assert hasattr(haliax.types, "FilterTree")
