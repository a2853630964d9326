"""What is printed about layouts, and what is wrong with modules."""

import axonym.compat.haliax  # noqa: F401 # isort: skip
import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax.debug import (
    ModuleProblems,
    describe_array,
    diagnose_common_issues,
    visualize_named_sharding,
    visualize_shardings,
)
from jax.sharding import NamedSharding, PartitionSpec as P

Batch, Embed = hax.make_axes(batch=8, embed=4)


def test_arrays_are_described_in_one_line():
    assert describe_array(hax.ones((Batch, Embed))) == "float32[batch=8, embed=4]"
    assert describe_array(jnp.ones((2, 3), jnp.int32)) == "int32[2, 3]"


def test_shardings_are_printed_by_name(auto_mesh, capsys):
    visualize_named_sharding((Batch, Embed), NamedSharding(auto_mesh, P(None, ("data", "model"))))
    visualize_named_sharding((Batch, Embed), NamedSharding(auto_mesh, P("data")))
    assert capsys.readouterr().out == "batch, embed->data+model\nbatch->data, embed\n"
    with hax.set_mesh(auto_mesh):
        x = hax.shard(hax.ones((Batch, Embed)), {"batch": "data"})
        visualize_shardings({"x": x, "raw": x.array, "host": np.ones(2), "no array": "text"})
        lines = sorted(capsys.readouterr().out.splitlines())
        assert lines[2] == "x: float32[batch=8, embed=4]: batch->data, embed"
        assert "PartitionSpec" in lines[1] or "P(" in lines[1]
        assert lines[0] == "host: float64[2]: on the host"

        @jax.jit
        def inside(x):
            visualize_shardings(x)
            return x

        inside(x).array.block_until_ready()
    assert capsys.readouterr().out == "float32[batch=8, embed=4]: batch->data, embed\n"


class Tied(eqx.Module):
    first: hnn.Linear
    second: list[hnn.Linear]
    table: jax.Array = eqx.field(static=True)


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_modules_are_looked_over():
    one = hnn.Linear.init(Batch, Embed, key=jax.random.PRNGKey(0))
    other = hnn.Linear.init(Batch, Embed, key=jax.random.PRNGKey(1))
    diagnose_common_issues(one)
    diagnose_common_issues(hnn.LayerNorm.init(Embed))
    diagnose_common_issues(Tied(one, [other], None))
    with pytest.raises(ModuleProblems, match=r"\.first\.weight, \.second\[0\]\.weight") as caught:
        diagnose_common_issues(Tied(one, [one, other], np.ones(2)))
    reused = caught.value.reused_arrays
    assert [paths for _, paths in reused] == [
        [".first.weight", ".second[0].weight"],
        [".first.bias", ".second[0].bias"],
    ]
    assert reused[0][0] is one.weight
    assert caught.value.static_arrays == [".table"]
    assert caught.value
    assert not ModuleProblems()
