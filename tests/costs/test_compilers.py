"""What compilers do is what they do: the program for CPU, and what is traced for others."""

import jax.numpy as jnp

import axonym as axn
from axonym.costs.compilers import compiler_of

Batch, Embed, Mlp = axn.make_axes(batch=8, embed=16, mlp=32)


def summed(x, w):
    # Each device uses a part of the sum.
    return axn.shard(axn.dot(x, w, axis="mlp"), {"embed": "model"})


def sums(**options):
    """Return the collectives that sum."""
    arrays = axn.NamedArray(jnp.ones((8, 32)), (Batch, Mlp)), axn.NamedArray(jnp.ones((32, 16)), (Mlp, Embed))
    report = axn.cost(summed, {"mlp": "model"}, {"model": 4}, *arrays, **options)
    return {one.kind for one in report.communication} & {"all-reduce", "reduce-scatter"}


def test_the_compiler_for_cpu_scatters_no_sum():
    assert not compiler_of("cpu").scatters
    assert sums(target="cpu") == {"all-reduce"}
    assert sums(target="cpu", depth="traced") == {"all-reduce"}


def test_those_for_accelerators_do():
    assert compiler_of("tpu") == compiler_of("cuda")
    assert compiler_of("tpu").scatters
    assert sums(target="v5e", depth="traced") == {"reduce-scatter"}
