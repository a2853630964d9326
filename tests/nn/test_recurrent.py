"""LSTM, GRU and `Recurrent`, against the cells of Equinox."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from measure import collectives, flops_bytes

import axonym as axn
from axonym import nn
from axonym.errors import AxisNotFoundError, AxisSizeError, OperandError
from tests.nn.layouts import check_on, draw, lies, same, same_trees, value_and_gradients

pytestmark = pytest.mark.sampled

B, T, E, M = axn.make_axes(batch=8, time=5, embed=4, mlp=6)
KEY = jax.random.key(0)
KINDS = [nn.LSTMCell, nn.GRUCell]


def drawn(kind, In=E, Hidden=M, **options):
    """Make a cell whose parameters numpy draws, which needs no program."""
    cell = eqx.filter_eval_shape(lambda: kind.init(In, Hidden, key=KEY, **options))
    leaves, tree = jax.tree.flatten(cell)
    random = np.random.default_rng(5)
    return jax.tree.unflatten(tree, [jnp.asarray(random.normal(size=p.shape, scale=0.5), p.dtype) for p in leaves])


def theirs_of(cell):
    """Make the cell of Equinox with the same parameters: all gates in one axis, in front."""
    flat = lambda w: w.array.reshape(w.array.shape[0], -1).T  # noqa: E731
    kind = eqx.nn.LSTMCell if isinstance(cell, nn.LSTMCell) else eqx.nn.GRUCell
    other = kind(4, 6, use_bias=cell.input.bias is not None, key=KEY)
    where = lambda n: [n.weight_ih, n.weight_hh]  # noqa: E731
    other = eqx.tree_at(where, other, [flat(cell.input.weight), flat(cell.hidden.weight)])
    if cell.input.bias is not None:
        other = eqx.tree_at(lambda n: n.bias, other, cell.input.bias.array.reshape(-1))
        if isinstance(cell, nn.GRUCell):
            other = eqx.tree_at(lambda n: n.bias_n, other, cell.bias.array)
    return other


def first(state):
    return state[0] if isinstance(state, tuple) else state


both = eqx.filter_jit(lambda layer, *args: layer(*args, key=None))


def run(layer, x):
    return layer(x)[0]


def by_scan(layer, x):
    """Run the cell of Equinox along the time of {batch, time, embed}, with raw JAX."""
    cell = theirs_of(layer.cell)
    start = jnp.zeros(6, x.dtype)
    start = (start, start) if isinstance(layer.cell, nn.LSTMCell) else start

    def one(x):
        def step(state, x):
            state = cell(x, state)
            return state, first(state)

        return lax.scan(step, start, x, reverse=layer.reverse)[1]

    return axn.named(jnp.moveaxis(jax.vmap(one)(x.array), 1, 0), ("time", "batch", "mlp"))


@pytest.mark.parametrize(("kind", "use_bias"), [(nn.LSTMCell, True), (nn.GRUCell, True), (nn.GRUCell, False)])
def test_a_step_equals_that_of_equinox(kind, use_bias):
    cell = drawn(kind, use_bias=use_bias)
    x, h, c = draw(B, E), draw(B, M, seed=1), draw(B, M, seed=2)
    state = (h, c) if kind is nn.LSTMCell else h
    found = both(cell, x, state)
    arrays = jax.tree.map(lambda s: s.array, state, is_leaf=axn.is_named_array)
    expected = eqx.filter_jit(lambda cell, *args: jax.vmap(theirs_of(cell))(*args))(cell, x.array, arrays)
    for mine, theirs in zip(jax.tree.leaves(found, is_leaf=axn.is_named_array), jax.tree.leaves(expected), strict=True):
        same(mine, ("batch", "mlp"), theirs)
    zeros = jax.tree.map(jnp.zeros_like, state)
    same_trees(both(cell, x), both(cell, x, zeros))


@pytest.mark.parametrize(("kind", "reverse"), [(nn.LSTMCell, False), (nn.GRUCell, True)])
def test_a_loop_and_its_gradients(kind, reverse):
    layer, x = nn.Recurrent(drawn(kind), "time", reverse=reverse), draw(B, T, E)
    out, found = value_and_gradients(run)(layer, x)
    theirs, expected = value_and_gradients(by_scan)(layer, x)
    same(out, ("time", "batch", "mlp"), theirs.array)
    same_trees(found, expected, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_states_go_on(kind):
    layer, x = nn.Recurrent(drawn(kind), T.name), draw(E, B, T)
    outputs, last = both(layer, x)
    before, state = both(layer, x["time", :2])
    after, end = both(layer, x["time", 2:], state)
    same(axn.concatenate("time", [before, after]), ("time", "batch", "mlp"), outputs.array)
    same_trees(end, last)
    same(outputs["time", -1], ("batch", "mlp"), layer.cell.output(last).array)
    state = None
    for t in range(5):
        state = both(layer.cell, x["time", t], state)
    same_trees(state, last)


def test_several_axes_in_and_the_same_name_in_and_out():
    H = axn.Axis("heads", 2)
    layer = nn.Recurrent(drawn(nn.GRUCell, (E, H), E), "time", unroll=True)
    assert layer.cell.hidden.weight.names == ("embed", "gate", "embed.out")
    out, h = both(layer, draw(T, H, E, B))
    assert out.names == ("time", "batch", "embed")
    same(h, ("batch", "embed"), out["time", -1].array)
    anonymous, _ = both(layer, draw(T, H, E, B).rearrange(("batch", "time", "heads", "embed")).untag("batch"))
    assert anonymous.names == ("time", "embed")
    same(anonymous.tag("batch"), ("batch", "time", "embed"), out.rearrange(("batch", "time", "embed")).array)


def test_the_input_is_projected_once():
    """XLA counts the body of a loop once: what all steps need of the input is in front of it."""
    layer, x = nn.Recurrent(drawn(nn.LSTMCell), "time"), draw(B, T, E)
    flops = flops_bytes(jax.jit(run).lower(layer, x).compile()).flops
    gates = 4 * M.size
    products = 2 * B.size * gates * (T.size * E.size + M.size)
    assert flops >= products


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision(kind):
    layer, x = nn.Recurrent(drawn(kind), "time"), draw(B, T, E)
    narrow, cut = jax.tree.map(lambda p: p.astype(jnp.bfloat16), (layer, x))
    assert both(narrow, cut)[0].dtype == jnp.bfloat16
    assert jax.eval_shape(run, layer, cut).dtype == jnp.float32  # as of a product
    same(both(narrow, cut)[0], ("time", "batch", "mlp"), both(layer, x)[0].array, rtol=0.05, atol=0.05)


def test_a_cell_of_ones_own():
    class Sum(nn.RecurrentCell):
        def project(self, x):
            return x

        def initial_state(self, projected):
            return axn.zeros_like(projected)

        def advance(self, projected, state):
            return state + projected

    x = draw(T, E)
    out, last = nn.Recurrent(Sum(), "time")(x)
    same(out, ("time", "embed"), np.cumsum(x.array, 0))
    same(last, ("embed",), x.array.sum(0))


def test_parameters_at_the_start():
    cell = jax.jit(lambda key: nn.LSTMCell.init(E, axn.Axis("mlp", 100), key=key))(KEY)
    assert cell.input.weight.names == ("embed", "gate", "mlp")
    for weight in (cell.input.weight, cell.hidden.weight):
        assert 0.09 < abs(weight).max().item() <= 0.1
    assert not cell.input.bias.array.any()
    assert nn.GRUCell.init(E, M, key=KEY, initializer=nn.initializer.ones()).hidden.weight.array.all()


@pytest.mark.parametrize("mode", ["auto_mesh", "explicit_mesh"])
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_mesh(kind, mode, request):
    layer = nn.Recurrent(drawn(kind), "time")
    check_on(request.getfixturevalue(mode), run, layer, draw(B, T, E))


def test_a_first_state_of_all_examples_moves_nothing_on_a_mesh(explicit_mesh):
    def last(cell, start, x):
        return nn.Recurrent(cell, "time")(x, start.broadcast_axis(B))[1]

    cell, start, x = drawn(nn.GRUCell), draw(M), draw(B, T, E)
    with axn.set_mesh(explicit_mesh):
        arguments = axn.shard(cell, {}), axn.shard(start, {}), axn.shard(x, {"batch": "data"})
        program = axn.named_jit(last, {"batch": "data"}).lower(*arguments).compile()
        assert collectives(program) == []
        result = program(*arguments)
    same(result, ("batch", "mlp"), last(cell, start, x).array)


def test_the_result_lies_as_the_mapping_says(auto_mesh):
    layer = nn.Recurrent(drawn(nn.GRUCell), "time")
    with axn.set_mesh(auto_mesh), axn.axis_mapping({"batch": "data", "mlp": "model"}):
        assert lies(jax.jit(run)(layer, draw(B, T, E)), auto_mesh, {"batch": "data", "mlp": "model"})


@pytest.mark.parametrize("kind", KINDS)
def test_no_steps_leave_the_state_as_it_is(kind):
    layer, x = nn.Recurrent(drawn(kind), "time"), draw(B, T.resize(0), E)
    given = layer.cell.initial_state(layer.cell.project(draw(B, E)))
    for start in (given, jax.tree.map(jnp.ones_like, given)):
        out, last = layer(x, start)
        assert out.axes == (T.resize(0), B, M)
        same_trees(last, start)
    same_trees(layer(x)[1], given)


def test_errors():
    layer = nn.Recurrent(drawn(nn.LSTMCell), T)
    with pytest.raises(AxisNotFoundError) as error:
        layer(draw(B, E))
    assert str(error.value) == "Recurrent: no axis named 'time'\n  array has: batch=8, embed=4"
    with pytest.raises(AxisNotFoundError) as error:
        layer(draw(B, T))
    assert str(error.value) == (
        "Linear: the input lacks axis 'embed'\n"
        "  input has: batch=8, time=5\n"
        "  the layer works over: embed=4\n"
        "  in the layer: cell.input"
    )
    with pytest.raises(AxisSizeError) as error:
        layer(draw(T.resize(3), E))
    assert str(error.value) == (
        "scan: axis 'time' has two sizes: 5 and 3\n  asked for: time=5\n  argument 0 has: time=3, gate=4, mlp=6"
    )
    with pytest.raises(OperandError, match=r"^Recurrent: expected a NamedArray, got a plain array"):
        layer(jnp.ones(3))
    for state, given in ((draw(M), "NamedArray"), ((draw(M),) * 3, "3 parts")):
        for call in (lambda state: layer.cell(draw(E), state), lambda state: layer(draw(T, E), state)):
            with pytest.raises(OperandError) as error:
                call(state)
            assert str(error.value) == (
                f"LSTMCell: the state must be a pair of h and c, not {given}\n  in the layer: cell\n"
                "  hint: leave it out to start from zeros, or give (h, c)"
            )
    with pytest.raises(OperandError) as error:
        nn.Recurrent(nn.Linear.init(E, M, key=jax.random.key(0)), T)
    assert str(error.value) == (
        "Recurrent: expected a RecurrentCell, got Linear\n  hint: use LSTMCell, GRUCell or a subclass of RecurrentCell"
    )
    with pytest.raises(OperandError) as error:
        nn.Recurrent(nn.LSTMCell, T)
    assert str(error.value) == (
        "Recurrent: expected a RecurrentCell, got the class LSTMCell\n  hint: make one: LSTMCell.init(...)"
    )
