"""Where numbers first go wrong: operations, layers, coordinates by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import debug, nn
from axonym.errors import ArgumentError
from tests.nn.layouts import draw, fails, made

B, S, E, M, L = axn.make_axes(batch=8, pos=6, embed=8, mlp=12, layers=4)
X = axn.abs(draw(B, S, E)) + 1
BAD = X.at[{"batch": 5, "pos": 3}].set(-1)


def told(f, *args, **options):
    """Return the text without the line of the source."""
    fault = debug.locate(f, *args, **options)
    return None if fault is None else [*map(str.strip, str(fault).splitlines())]


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_the_operation_and_the_place_are_those_on_devices(kind):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(getattr(jax.sharding.AxisType, kind),) * 2)
    summed = axn.shard_map(lambda x: axn.psum(axn.log(x).sum("batch"), "data"), {"batch": "data"}, check=False)
    compiled = axn.named_jit(lambda x: axn.sqrt(2 * x).mean(), {"batch": "data"})
    # With types that say what varies, and one example on each device.
    spread = axn.shard_map(lambda x: axn.pmean(axn.log(x).mean(), "batch"), {"batch": ("data", "model")})
    with axn.set_mesh(mesh):
        for f, operation, low in ((summed, "log", -1), (compiled, "sqrt", -2), (spread, "log", -1)):
            first, second, third = told(f, BAD)
            assert first == "locate: NaN at batch=5, pos=3, all of embed"
            assert second.startswith(f"first appears: outside of layers, operation {operation}, test_faults.py:")
            assert third.startswith(f"operands: float32 from {low} to ")
        assert debug.locate(summed, X) is None
        root = axn.shard_map(lambda x: axn.psum(axn.sqrt(x).sum(), "batch"), {"batch": "data"})
        fault = debug.locate(root, X.at["batch", 1].set(0))
        assert (fault.phase, fault.operation, fault.at["batch"]) == ("derivative", "div", (1,))
        assert str(fault).splitlines()[2] == "  all results are finite: it harms only the gradient"


def test_a_layer_of_a_stack_is_told_also_in_a_pipeline():
    blocks = nn.Stacked.init(L, nn.MLP)(E, E, M, 1, key=jax.random.split(jax.random.key(0), 4))
    x = draw(B, E)
    blocks = jax.tree.map(
        lambda w: w.at["layers", 2].multiply(1e15) if w.ndim == 3 else w, blocks, is_leaf=axn.is_named_array
    )
    fault = debug.locate(lambda blocks, x: blocks.fold(x).sum(), blocks, x.at["batch", 5].multiply(1e10))
    # Two infinities in a sum of products may cancel each other, which depends on the order of additions.
    assert fault.kind in ("NaN", "infinity")
    assert (fault.layer, fault.operation, fault.turns) == ("layers.1", "dot_general", (2,))
    assert fault.at["batch"] == (5,)
    mesh = jax.make_mesh((2, 4), ("data", "stage"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with axn.set_mesh(mesh), axn.axis_mapping({"layers": "stage", "batch": "data"}), axn.pipelined("batch", 4):
        fault = debug.locate(lambda blocks, x: blocks.fold(x).sum(), blocks, x.at["batch", 5].multiply(1e10))
    # In a tick, stages work on different layers: which of them it is, an axis says.
    assert (fault.layer, fault.operation, fault.at["layers"]) == ("layers.1", "dot_general", (2,))


def test_a_gradient_alone_is_looked_at():
    zeros = X.at["batch", 1].set(0)
    # The root has no derivative at zero, and its value is fine.
    lines = told(lambda x: axn.where(x > 0, axn.log(axn.where(x > 0, x, 1)), 0).sum(), zeros)
    assert lines is None
    lines = told(lambda x: axn.where(x > 0, axn.log(x), 0).sum(), zeros)
    assert lines[0] == "locate: NaN at batch=1, all of pos, all of embed"
    assert lines[1].startswith("first appears: outside of layers, operation div, test_faults.py:")
    assert lines[2] == "in the backward pass: it is a gradient"
    assert lines[3].startswith("operands: float32 from 0 to 1; float32 from 0 to ")
    grads = jax.grad(lambda x: axn.sqrt(axn.square(x).sum("embed")).mean().scalar())
    fault = debug.locate(grads, zeros)
    assert (fault.operation, fault.at) == ("div", {"batch": (1,), "pos": (0, 1, 2, 3, 4, 5)})


def test_branches_and_loops_are_followed():
    def f(x):
        y = jax.lax.cond(x[0] > 0, lambda x: jnp.log(x - 2), lambda x: x, x)
        return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sqrt(c[1])), (0, y))[1]

    assert debug.locate(f, jnp.arange(4.0) + 3) is None
    fault = debug.locate(f, jnp.arange(4.0) + 1)
    assert (fault.kind, fault.operation, fault.at) == ("NaN", "log", {"dimension 0": (0, 1)})
    fault = debug.locate(lambda x: jax.lax.fori_loop(0, 3, lambda i, x: jnp.sqrt(x) - 1, x), jnp.arange(4.0) + 1)
    assert (fault.operation, fault.turns, fault.at) == ("sqrt", (2,), {"dimension 0": (0, 1, 2)})


def test_only_what_spoils_a_result_counts():
    zeros = X.at["batch", 1].set(0)
    lines = told(lambda x: axn.softmax(axn.where(x > 0, x, -jnp.inf), "embed"), zeros)
    assert lines[0] == "locate: NaN at batch=1, all of pos, all of embed"
    assert lines[1].startswith("first appears: outside of layers, operation sub, ")
    assert lines[2].startswith("operands: float32 from -inf to ")
    assert told(lambda x: axn.softmax(axn.where(x >= 0, x, -jnp.inf), "embed"), zeros) is None
    assert told(lambda x: axn.isinf(axn.log(x)).sum(), zeros) is None


def test_a_bound_finds_what_is_large():
    assert told(lambda x: (x * 100).sum(), X) is None
    fault = debug.locate(
        lambda x: (axn.exp(x["batch", 2:4] * 5) * 0).sum(), X.at[{"batch": 3, "pos": 4}].set(10), bound=1e20
    )
    assert (fault.kind, fault.operation) == ("above 1e+20", "exp")
    assert str(fault).startswith("locate: above 1e+20 at batch=3, pos=4, all of embed\n")


def test_arguments_and_constants_are_found_first():
    linear = made(lambda *, key: nn.Linear.init(E, M, key=key))
    spoilt = jax.tree.map(lambda w: w.at["mlp", 3].set(jnp.nan), linear, is_leaf=axn.is_named_array)
    assert told(spoilt, X) == ["locate: parameter weight: NaN at all of embed, mlp=3"]
    assert told(lambda layer, x: layer(x), spoilt, X) == ["locate: argument 0.weight: NaN at all of embed, mlp=3"]
    table = jnp.array([1.0, jnp.nan])
    assert told(lambda x: x * table, jnp.ones(2)) == ["locate: a constant of the function: NaN at dimension 0=1"]


def test_positions_are_written_shortly():
    x = np.ones((4, 12, 3), np.float32)
    x[1, 2:6] = -1
    first = told(axn.log, axn.named(x, ("batch", "pos", "embed")))[0]
    assert first == "locate: NaN at batch=1, pos=2 to 5, all of embed"
    x[3, ::2, 0] = -1
    first = told(axn.log, axn.named(x, ("batch", "pos", "embed")))[0]
    assert first == "locate: NaN at batch=1, 3, pos=0, 2, 3, 4, ..., all of embed"
    assert told(axn.log, axn.named(np.float32(-1), ()))[0] == "locate: NaN"
    assert told(axn.log, axn.zeros({"none": 0})) is None
    assert told(axn.log, axn.named(x, ("batch", "pos", "embed")).astype(jnp.bfloat16))[0] == first


def test_a_function_without_a_gradient_says_how_to_look_at_results():
    def f(x):
        return jax.lax.while_loop(lambda x: x.sum() < 100, lambda x: 2 * x, x).sum()

    with pytest.raises(ValueError, match="Reverse-mode") as error:
        debug.locate(f, jnp.ones(2))
    assert error.value.__notes__[-1:] == [
        "locate: all results are finite, and this error is of the gradient\n"
        "  hint: for results only: locate(lambda *args: f(*jax.lax.stop_gradient(args)), ...)"
    ]
    assert debug.locate(lambda *args: f(*jax.lax.stop_gradient(args)), jnp.ones(2)) is None


def test_numbers_are_necessary():
    text = (
        "locate: arguments are abstract, so that there are no numbers to look at\n"
        "  hint: call it outside of jax.jit, with arrays"
    )
    fails(ArgumentError, text, lambda: debug.locate(axn.log, jax.eval_shape(lambda: X)))
