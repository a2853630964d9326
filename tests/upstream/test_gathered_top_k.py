"""XLA gathers a whole split operand to select its largest elements, where each device could select from its own.

The test holds on all versions so far. Where it begins to fail, `faults/gathered_top_k.py` can go.
"""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("spec", [PartitionSpec("x", None), PartitionSpec(None, "x")])
def test_largest_elements_along_a_split_axis_or_batch(kind: AxisType, spec: PartitionSpec) -> None:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(kind,))
    array = jax.device_put(jnp.ones((16, 4096)), NamedSharding(mesh, spec))
    with jax.set_mesh(mesh):
        top_k = jax.sharding.auto_axes(lambda x: jax.lax.top_k(x, 8), axes="x", out_sharding=PartitionSpec())
        call = top_k if kind is AxisType.Explicit else lambda x: jax.lax.top_k(x, 8)
        program = jax.jit(call).lower(array).compile().as_text() or ""
    assert "f32[16,4096]" in "".join(line for line in program.splitlines() if " all-gather(" in line)
