"""The stages of `named_jit` ahead of a call, against `jax.jit` and the call itself."""

import copy

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P
from measure import equations

import axonym as axn
import axonym.nn as nn
from axonym.errors import ArgumentError, OperandError
from tests.partitioning.meshes import draw

B, E = axn.make_axes(batch=8, embed=4)


class Scaled(eqx.Module):
    w: axn.NamedArray
    by: float
    power: int = eqx.field(static=True, default=1)

    def __call__(self, x):
        return axn.dot(x, self.w, axis=E) * self.by**self.power


SCALED = Scaled(draw(E), 2.0)
SHAPE = axn.NamedArray(jax.ShapeDtypeStruct((8, 4), np.float32), (B, E))


@pytest.mark.parametrize(
    ("fn", "lowered", "called"),
    [
        (lambda x: x * 2, (draw(B, E),), (draw(B, E, seed=1),)),
        (lambda x: x * 2, (SHAPE,), (draw(B, E),)),
        (lambda x: x.array, (SHAPE,), (axn.NamedArray(np.ones((8, 4), np.float32), (B, E)),)),
        (lambda x, k: (x * k).sum("embed"), (SHAPE, 2.0), (draw(B, E), 2.0)),
        (lambda m, x: {"y": [m(x)], "m": m, "act": jnp.tanh}, (SCALED, SHAPE), (SCALED, draw(B, E))),
        (SCALED, (SHAPE,), (draw(B, E),)),
        (lambda: axn.ones(B), (), ()),
    ],
    ids=["array", "shape", "numpy", "static", "tree", "module", "nothing"],
)
@pytest.mark.parametrize("way", ["lower", "trace"])
def test_what_was_compiled_is_called_like_the_function(fn, lowered, called, way):
    jitted = axn.named_jit(fn)
    stage = jitted.lower(*lowered) if way == "lower" else jitted.trace(*lowered).lower()
    compiled = stage.compile()
    expected = fn(*called)
    for _ in range(2):
        got = compiled(*called)
        assert jax.tree.structure(got) == jax.tree.structure(expected)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            if eqx.is_array(other):
                np.testing.assert_allclose(one, other, rtol=1e-6)
            else:
                assert one is other


def test_keywords_donation_and_layouts(auto_mesh):
    with axn.set_mesh(auto_mesh):
        x = axn.shard(draw(B, E), {"batch": "data"})
        f = axn.named_jit(lambda state, *, step: state * step, {"batch": "data"}, donate_args=(True,))
        compiled = f.lower(x, step=jnp.float32(1)).compile()
        y = compiled(x, step=jnp.float32(3))
        assert x.array.is_deleted()
        np.testing.assert_allclose(y.array, 3 * draw(B, E).array, rtol=1e-6)
        assert y.sharding.is_equivalent_to(NamedSharding(auto_mesh, P("data")), 2)
        assert compiled(y, step=jnp.float32(2)).axes == (B, E)


def test_a_result_goes_back_in():
    module = nn.MLP.init(E, E, 8, 2, key=jax.random.key(0))
    f = axn.named_jit(lambda m: jax.tree.map(lambda x: x + 1, m))
    compiled = f.lower(module).compile()
    for got, x in zip(jax.tree.leaves(compiled(compiled(module))), jax.tree.leaves(module), strict=True):
        np.testing.assert_allclose(got, x + 2, rtol=1e-6)


def test_all_else_of_the_stages_is_there():
    f = axn.named_jit(lambda x, k: x * k)
    raw = jax.jit(lambda kept: [kept * 2.0])
    ours, theirs = f.trace(draw(B, E), 2.0), raw.trace(draw(B, E).array)
    assert len(list(equations(ours.jaxpr.jaxpr))) == len(list(equations(theirs.jaxpr.jaxpr)))
    assert ours.in_tree == theirs.in_tree
    ours, theirs = ours.lower(lowering_platforms=("cpu",)), theirs.lower(lowering_platforms=("cpu",))
    assert ours.in_avals == theirs.in_avals
    assert "stablehlo.multiply" in ours.as_text()
    assert ours.cost_analysis() == theirs.cost_analysis()
    options = {"xla_embed_ir_in_executable": True}
    ours, theirs = ours.compile(compiler_options=options), theirs.compile(compiler_options=options)
    assert isinstance(ours, jax.stages.Compiled)
    assert ours.in_avals == theirs.in_avals
    assert ours.cost_analysis() == theirs.cost_analysis()
    assert ours.memory_analysis().argument_size_in_bytes == theirs.memory_analysis().argument_size_in_bytes == 128
    assert ours.args_info == theirs.args_info
    assert ours.input_shardings == theirs.input_shardings
    assert "HloModule" in ours.as_text()
    assert copy.copy(ours)(draw(B, E), 2.0).axes == (B, E)
    with pytest.raises(AttributeError, match="no_such_thing"):
        ours.no_such_thing  # noqa: B018


def test_jax_export_of_a_jit_around_it():
    f = axn.named_jit(lambda x: (x * 2).sum("embed"))
    exported = jax.export.export(jax.jit(f))(draw(B, E))
    np.testing.assert_allclose(exported.call(draw(B, E)).array, 2 * draw(B, E).array.sum(1), rtol=1e-5)


def test_jax_export_of_the_function_itself_is_refused():
    f = axn.named_jit(lambda x: x * 2)
    told = (
        "\n  options: lowering_platforms\n"
        "  hint: for jax.export, wrap the function in jax.jit: jax.export.export(jax.jit(f))"
    )
    with pytest.raises(ArgumentError) as error:
        jax.export.export(f)(draw(B, E))
    assert str(error.value).endswith(told)
    with pytest.raises(ArgumentError) as error:
        f.trace(draw(B, E)).lower(platforms=("cpu",))
    assert str(error.value) == f"named_jit: a traced function cannot be lowered with the option 'platforms'{told}"


HINT = "\n  hint: call the function itself, which compiles for each structure and all static data"


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda f, x, m: f(x, 3.0, m=m), "k is 3.0; when the function was compiled, it was 2.0"),
        (lambda f, x, m: f(x, 2, m=m), "k is 2; when the function was compiled, it was 2.0"),
        (lambda f, x, m: f(x, m=m), "k is not there; when the function was compiled, it was 2.0"),
        (lambda f, x, m: f(x, 2.0, 3, m=m), "args[2] is 3; when the function was compiled, it was not there"),
        (
            lambda f, x, m: f(x.rearrange((E, B)), 2.0, m=m),
            "x is an array with the axes embed, batch; when the function was compiled, it was an array with the axes "
            "batch, embed",
        ),
        (
            lambda f, x, m: f(x.array, 2.0, m=m),
            "x is an array; when the function was compiled, it was an array with the axes batch, embed",
        ),
        (
            lambda f, x, m: f(x, 2.0, m=Scaled(m.w.sum(), m.by)),
            "m.w is an array without axes; when the function was compiled, it was an array with the axes embed",
        ),
        (
            lambda f, x, m: f(x, 2.0, m=Scaled(m.w, m.by, power=3)),
            "the structure of the arguments is not the one that the function was compiled for",
        ),
        (
            lambda f, x, m: f(x, k=2.0, m=m),
            "the structure of the arguments is not the one that the function was compiled for",
        ),
    ],
)
def test_other_arguments_are_refused(call, problem):
    def f(x, k, *, m):
        return m(x) * k

    x = draw(B, E)
    compiled = axn.named_jit(f).lower(x, 2.0, m=SCALED).compile()
    with pytest.raises(OperandError) as error:
        call(compiled, x, SCALED)
    assert str(error.value) == f"named_jit: {problem}{HINT}"


def test_other_sizes_are_refused_by_jax():
    compiled = axn.named_jit(lambda x: x * 2).lower(draw(B, E)).compile()
    with pytest.raises(TypeError, match=r"'x' compiled with float32\[8,4\] and called with float32\[3,4\]"):
        compiled(draw(axn.Axis("batch", 3), E))
