"""What people make mistakes with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn

pytest.register_assert_rewrite("tests.mistakes.answers")

Batch, Pos, Embed, Mlp = axn.make_axes(batch=8, pos=4, embed=16, mlp=32)


@pytest.fixture(scope="session")
def x() -> axn.NamedArray:
    return axn.named(jnp.asarray(np.linspace(-1, 1, 512, dtype=np.float32).reshape(8, 4, 16)), (Batch, Pos, Embed))


@pytest.fixture(scope="session")
def key() -> jax.Array:
    return jax.random.key(0)


@pytest.fixture(params=["auto_mesh", "explicit_mesh"])
def mesh(request: pytest.FixtureRequest) -> jax.sharding.Mesh:
    """4 x 2 devices (data, model), with Auto and with Explicit axes: an answer is the same on both."""
    chosen: jax.sharding.Mesh = request.getfixturevalue(request.param)
    return chosen
