"""The mesh of tests that hold whatever the types of its axes are."""

from collections.abc import Iterator

import jax
import pytest

import axonym as axn
from tests.partitioning.meshes import KINDS, make_mesh


@pytest.fixture(params=list(KINDS))
def mesh(request: pytest.FixtureRequest) -> Iterator[jax.sharding.Mesh]:
    chosen = make_mesh(request.param)
    with axn.set_mesh(chosen):
        yield chosen
