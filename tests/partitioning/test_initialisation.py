"""Random arrays and parameters are made in place: each device draws its part alone, with the values of the whole."""

import jax
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.random import draw
from benchmarks.measure import collectives

pytestmark = pytest.mark.sampled

A, B, LAYERS = axn.make_axes(a=256, b=128, layers=4)
BOTH, ONE = {"a": "data", "b": "model"}, {"b": ("model", "data")}
SAMPLERS = {
    "normal": lambda key: axn.random.normal(key, (A, B)),
    "uniform": lambda key: axn.random.uniform(key, (A, B), minval=-1, maxval=2.0),
    "truncated_normal": lambda key: axn.random.truncated_normal(key, (A, B), -3.0, 3.0),
}
MODULES = {
    "Linear": lambda key: nn.Linear.init(A, B, key=key, use_bias=False),
    "Stacked": lambda key: nn.Stacked.init(LAYERS, nn.Linear)(A, B, key=key, use_bias=False),
}


@pytest.fixture(params=["auto", "explicit"])
def mesh(request):
    """Two kinds of eight devices."""
    return request.getfixturevalue(f"{request.param}_mesh")


def arrays(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def check_values(made, alone):
    """Compare to a few units in the last place: the tests' programs round the inverse of erf by the shape of a loop."""
    for leaf, expected in zip(arrays(made), arrays(alone), strict=True):
        np.testing.assert_array_max_ulp(leaf, expected, maxulp=4)


def check_program(compiled, whole):
    """One device of eight does an eighth of the work in an eighth of the memory, and talks to no other."""
    memory, full = compiled.memory_analysis(), whole.memory_analysis()
    assert collectives(compiled) == []
    assert memory.output_size_in_bytes * 8 == full.output_size_in_bytes
    assert memory.temp_size_in_bytes < full.temp_size_in_bytes / 7
    assert memory.temp_size_in_bytes < full.output_size_in_bytes / 2
    assert compiled.cost_analysis()["flops"] < whole.cost_analysis()["flops"] / 7.9


@pytest.mark.parametrize(
    ("name", "mapping"),
    [(name, mapping) for name in SAMPLERS for mapping in (BOTH, ONE)] + [(name, BOTH) for name in MODULES],
    ids=str,
)
def test_named_jit_makes_parts(mesh, mapping, name):
    make = {**SAMPLERS, **MODULES}[name]
    key = jax.random.key(0)
    alone = make(key)
    with axn.set_mesh(mesh):
        init = axn.named_jit(make, axis_resources=mapping)
        made = init(key)
        check_program(init.lower(key).compile(), axn.named_jit(make).lower(key).compile())
    check_values(made, alone)
    for leaf in jax.tree.leaves(made):
        assert leaf.addressable_shards[0].data.size * 8 == leaf.size


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_draw_outside_of_jit_makes_parts(mesh, name, monkeypatch):
    calls = []

    def kept(*args, compiled=draw._compile, **options):
        program = compiled(*args, **options)

        def call(*operands):
            calls.append((program, operands))
            return program(*operands)

        return call

    monkeypatch.setattr(draw, "_compile", kept)
    key = jax.random.key(0)
    alone = SAMPLERS[name](key)
    assert calls == []
    with axn.set_mesh(mesh), axn.axis_mapping(BOTH):
        made = SAMPLERS[name](key)
        ((program, operands),) = calls
        compiled = program.lower(*operands).compile()
    with axn.set_mesh(mesh), axn.axis_mapping({}):
        check_program(compiled, program.lower(*operands).compile())
    check_values(made, alone)
    assert made.array.addressable_shards[0].data.size * 8 == made.array.size


def test_a_draw_outside_of_jit_keeps_kinds_of_numbers_apart(mesh):
    key = jax.random.key(0)
    with axn.set_mesh(mesh), axn.axis_mapping({"a": "data"}):
        drawn = [axn.random.randint(key, A, 0, high) for high in (2, 3, np.int32(3), axn.named(3, ()))]
        assert axn.random.bernoulli(key, A, 1.0).all().item()
        with pytest.raises(TypeError, match="floating dtype, got int32"):
            axn.random.bernoulli(key, A, 1)
    for made, high in zip(drawn, (2, 3, 3, 3), strict=True):
        np.testing.assert_array_equal(made.array, jax.random.randint(key, (A.size,), 0, high))
