"""Which mesh is current."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import threading

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from axonym.compat.haliax._mesh import current_mesh, entering_mesh

DEVICES = np.array(jax.devices())
ONE, TWO = Mesh(DEVICES.reshape(4, 2), ("data", "model")), Mesh(DEVICES, ("data",))


@pytest.mark.filterwarnings("ignore:.*context manager has been deprecated:DeprecationWarning")
def test_the_mesh_of_the_old_context_is_found_inside_and_outside_of_jit():
    assert current_mesh() is None
    for mesh in (ONE, TWO, ONE):
        with mesh:
            assert current_mesh() == mesh
            assert current_mesh(TWO) == TWO
            seen = []
            jax.make_jaxpr(lambda x, seen=seen: seen.append(current_mesh()) or x)(1.0)
            jax.vmap(lambda x, seen=seen: seen.append(current_mesh()) or x)(np.ones(2))
            thread = threading.Thread(target=lambda seen=seen: seen.append(current_mesh()))
            thread.start()
            thread.join()
            assert seen == [mesh, mesh, None]
            with entering_mesh():
                assert jax.sharding.get_mesh() == mesh
                with entering_mesh():
                    assert current_mesh() == mesh
            with jax.set_mesh(TWO), entering_mesh():
                assert current_mesh() == TWO
    assert current_mesh() is None
    with entering_mesh():
        assert jax.sharding.get_abstract_mesh().empty
