"""What compilers do is what they do: the program for CPU, and what is traced for others."""

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym.costs.traced.compilers import find_compiler

Batch, Embed, Mlp = axn.make_axes(batch=8, embed=16, mlp=32)


def summed(x, w):
    # Each device uses a part of the sum.
    return axn.shard(axn.dot(x, w, axis="mlp"), {"embed": "model"})


def sums(embed=512, **options):
    """Return the collectives that sum."""
    arrays = axn.zeros((Batch, Mlp)), axn.zeros((Mlp, Embed.resize(embed)))
    report = axn.cost(summed, {"mlp": "model"}, {"model": 4}, *arrays, **options)
    return {one.kind for one in report.communication} & {"all-reduce", "reduce-scatter"}


def test_the_compiler_for_cpu_scatters_no_sum():
    assert not find_compiler("cpu").scatters
    assert sums(target="cpu") == {"all-reduce"}
    assert sums(target="cpu", depth="traced") == {"all-reduce"}


def test_those_for_accelerators_do():
    assert find_compiler("tpu").scatters
    assert find_compiler("cuda").scatters
    assert sums(target="v5e", depth="traced") == {"reduce-scatter"}


def test_the_one_for_tpu_scatters_whole_tiles():
    # Of 512 columns, each of four devices gets 128; of 16, it would get a part of a tile.
    assert sums(target="v5e", depth="traced", embed=16) == {"all-reduce"}
    assert sums(target="h100", depth="traced", embed=16) == {"reduce-scatter"}


def test_the_one_for_tpu_gathers_what_products_round():
    assert [find_compiler(platform).rounds for platform in ("cpu", "cuda", "tpu")] == [False, False, True]
    arrays = axn.NamedArray(jnp.ones((8, 32)), (Batch, Mlp)), axn.NamedArray(jnp.ones((32, 16)), (Mlp, Embed))
    stored = axn.Mappings({"mlp": "data"}, {"batch": "data"})

    def product(x, w):
        return axn.dot(x, axn.auto_sharded(w), axis="mlp")

    for target, dtype in (("h100", "f32"), ("v5e", "bf16")):
        report = axn.cost(axn.named_jit(product, stored), stored, {"data": 4}, *arrays, target=target, depth="traced")
        assert [one.dtype for one in report.communication] == [dtype]


@pytest.mark.parametrize(
    ("size", "terms", "kind", "share"),
    [
        (128, 2048, "reduce-scatter", 3),
        (1024, 1024, "reduce-scatter", 3),
        (1024, 2048, "collective-permute", 5),
    ],
)
def test_the_one_for_tpu_sends_parts_of_large_products_around(size, terms, kind, share):
    """Both ways, of four devices: five parts of a quarter each, where a ring sends three."""
    Many, Rows, Wide = axn.make_axes(batch=4 * terms, rows=1024, wide=size)
    arrays = axn.zeros((Many, Rows)), axn.zeros((Many, Wide))

    def product(x, y):
        return axn.shard(axn.dot(x, y, axis="batch"), {"rows": "data"})

    report = axn.cost(product, {"batch": "data"}, {"data": 4}, *arrays, target="v5e", depth="traced")
    # The result is whole.
    gathered = ("all-gather", 3 * 1024 * size)
    assert [(one.kind, one.sent) for one in report.communication] == [(kind, share * 1024 * size), gathered]


@pytest.mark.parametrize(("devices", "kind"), [(32, "collective-permute"), (64, "reduce-scatter")])
def test_the_one_for_tpu_sends_no_parts_through_large_slices(devices, kind):
    """As libtpu does for slices of v5e, v5p and v6e: permutes in those of 16 and 32 chips, sums in larger ones."""
    Many, Rows, Wide = axn.make_axes(batch=2048 * devices, rows=2048, wide=2048)
    arrays = (jax.ShapeDtypeStruct((Many.size, 2048), jnp.float32) for _ in range(2))
    x, y = (axn.NamedArray(array, (Many, axis)) for array, axis in zip(arrays, (Rows, Wide), strict=True))

    def product(x, y):
        return axn.shard(axn.dot(x, y, axis="batch"), {"rows": "data"})

    report = axn.cost(product, {"batch": "data"}, {"data": devices}, x, y, target="v5p", depth="traced")
    assert {one.kind for one in report.communication} == {kind, "all-gather"}
