"""Maximal update parametrisation: the table of the paper, and that activations move alike at all widths."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisNotFoundError, AxisSizeError, OperandError
from axonym.mup import Mup
from tests.nn.layouts import fails

Batch, In, Out, Layers, HeadDim, Vocab = axn.make_axes(batch=16, input=8, output=4, layers=3, head_dim=4, vocab=10)
KEY = jax.random.key(0)


class Block(eqx.Module):
    norm: nn.LayerNorm
    split: nn.Linear
    merge: nn.Linear
    same: nn.Linear

    @staticmethod
    def init(Embed, Heads, *, key):
        return Block(
            nn.LayerNorm.init(Embed),
            nn.Linear.init(Embed, (Heads, HeadDim), key=key),
            nn.Linear.init((Heads, HeadDim), Embed, key=key),
            nn.Linear.init(Embed, Embed, key=key),
        )


class Model(eqx.Module):
    table: nn.Embedding
    blocks: nn.Stacked[Block]
    positions: axn.NamedArray
    head: nn.Linear
    counter: jax.Array

    @staticmethod
    def init(embed, heads):
        Embed, Heads = axn.make_axes(embed=embed, heads=heads)
        blocks = nn.Stacked.init(Layers, Block)(Embed, Heads, key=KEY)
        positions = axn.ones((axn.Axis("pos", 2), Embed))
        head = nn.Linear.init(Embed, Out, key=KEY)
        return Model(nn.Embedding.init(Vocab, Embed, key=KEY), blocks, positions, head, jnp.zeros(1, int))


@functools.cache
def model_of_four_widths() -> Model:
    return jax.jit(lambda: Model.init(32, 8))()


MUP = Mup({"embed": 8, "heads": 2})


def test_the_table_of_the_paper():
    """Widths grow four-fold: the columns of table 3 with fan_in and fan_out relative to the base."""
    rows = {own.path: f for own, f in MUP.report(jax.eval_shape(lambda: Model.init(32, 8))).rows}
    vector, hidden, output = ("input", 1, 1, 4), ("hidden", 1 / 2, 1 / 4, 1), ("output", 1 / 4, 1 / 4, 1 / 4)
    expected = {
        "table.weight": vector,
        "blocks.stacked.norm.weight": vector,
        "blocks.stacked.norm.bias": vector,
        "blocks.stacked.split.weight": hidden,
        "blocks.stacked.split.bias": vector,
        "blocks.stacked.merge.weight": hidden,
        "blocks.stacked.merge.bias": vector,
        "blocks.stacked.same.weight": hidden,
        "blocks.stacked.same.bias": vector,
        "positions": vector,
        "head.weight": output,
        "head.bias": ("fixed", 1, 1, 1),
    }
    assert {path: (f.role, f.std, f.adam, f.sgd) for path, f in rows.items()} == expected
    base = MUP.report(jax.eval_shape(lambda: Model.init(8, 2))).rows
    assert {own.path: f.role for own, f in base} == {path: row[0] for path, row in expected.items()}
    assert {(f.std, f.adam, f.sgd) for _, f in base} == {(1, 1, 1)}


def test_the_report_prints_as_a_table():
    model = jax.eval_shape(lambda: nn.MLP.init(In, Out, 32, 1, key=KEY))
    assert str(Mup({"mlp": 8}).report(model)) == (
        "parameter        axes              role     std  Adam   SGD\n"
        "layers.0.weight  input=8, mlp=32   input      1     1     4\n"
        "layers.0.bias    mlp=32            input      1     1     4\n"
        "layers.1.weight  mlp=32, output=4  output  0.25  0.25  0.25\n"
        "layers.1.bias    output=4          fixed      1     1     1"
    )


def test_initial_values_have_the_standard_deviations_of_the_table():
    model = model_of_four_widths()
    fixed = nn.initializer.normal(0.5)
    for made, spread in [
        (model, "fan_in"),
        (eqx.tree_at(lambda m: m.head.weight, model, fixed(KEY, model.head.weight.axes)), by_path),
    ]:
        scaled = MUP.initial(made, spread)
        ratio = jax.tree.map(lambda new, old: jnp.std(new) / jnp.std(old), scaled, made)
        # Of what was drawn by fan-in, hidden weights are right already; an embedding's vectors must not shrink.
        np.testing.assert_allclose(ratio.blocks.stacked.same.weight.array, 1, rtol=1e-5)
        np.testing.assert_allclose(ratio.table.weight.array, 2, rtol=1e-5)
        np.testing.assert_allclose(ratio.head.weight.array, 1 / 2 if spread == "fan_in" else 1 / 4, rtol=1e-5)
        np.testing.assert_array_equal(scaled.blocks.stacked.norm.weight.array, 1)
        np.testing.assert_array_equal(scaled.positions.array, 1)
        assert scaled.counter is made.counter
    constant = MUP.initial(model, "constant")
    np.testing.assert_allclose(constant.blocks.stacked.same.weight.array, model.blocks.stacked.same.weight.array / 2)
    np.testing.assert_array_equal(constant.table.weight.array, model.table.weight.array)


def by_path(path, x):
    return "constant" if path.startswith("head") else "fan_in"


def test_learning_rates_and_scaled_updates():
    model = model_of_four_widths()
    rates = MUP.learning_rates(model)
    assert (rates.head.weight, rates.table.weight, rates.blocks.stacked.split.weight, rates.counter) == (
        1 / 4,
        1,
        1 / 4,
        None,
    )
    assert MUP.learning_rates(model, "sgd").table.weight == 4
    updates = eqx.filter(jax.tree.map(jnp.ones_like, model), eqx.is_inexact_array)
    scaled = jax.jit(MUP.scaled_updates, static_argnums=1)(updates, "adam")
    assert scaled.counter is None
    assert scaled.head.weight.names == ("embed", "output")
    np.testing.assert_array_equal(scaled.head.weight.array, 1 / 4)
    np.testing.assert_array_equal(scaled.table.weight.array, 1)
    # A part of a model, as what optax.masked passes on.
    np.testing.assert_array_equal(MUP.scaled_updates(updates.head).weight.array, 1 / 4)


def test_ratio():
    assert MUP.ratio(axn.Axis("embed", 24)) == 3
    assert MUP.ratio((axn.Axis("embed.out", 24), axn.Axis("heads", 4), HeadDim)) == 6


def test_arrays_of_unknown_sides():
    class Own(eqx.Module):
        w: axn.NamedArray

    model = Own(axn.ones(axn.make_axes(embed=16, heads=4)))
    with pytest.raises(ArgumentError) as error:
        MUP.report(model)
    assert str(error.value) == (
        "Mup: cannot tell which axes 'w' sums over\n  array has: embed=16, heads=4\n"
        '  hint: write Mup(..., inputs={"w": "embed"})'
    )
    ((_, factors),) = dataclasses.replace(MUP, inputs={"w": "heads"}).report(model).rows
    assert (factors.role, factors.inputs, factors.outputs) == ("hidden", 2, 2)


def test_errors():
    with pytest.raises(AxisNotFoundError) as error:
        Mup({"embd": 8}).learning_rates(nn.LayerNorm.init(axn.Axis("embed", 8)))
    assert str(error.value) == ("Mup: no parameter has width axis 'embd'\n  axes: embed\n  hint: did you mean 'embed'?")
    with pytest.raises(AxisSizeError) as error:
        Mup({"embed": 0})
    assert str(error.value) == "Mup: the base size of 'embed' must be positive, got 0"
    Embed = axn.Axis("embed", 8)
    for base, kind, text in (
        ({"embed": Embed}, ArgumentError, "the base size of 'embed' must be an int, not Axis(name='embed', size=8)"),
        ({Embed: 8}, OperandError, "Axis(name='embed', size=8) is not the name of an axis\n  hint: keys are names"),
        (Embed, OperandError, 'base must be a dict from axis names to sizes, not Axis\n  hint: write {"mlp": 256}'),
    ):
        fails(kind, f"Mup: {text}", lambda base=base: Mup(base))
    model = jax.eval_shape(lambda: nn.MLP.init(In, Out, 32, 1, key=KEY))
    for call, what, given, known, near in (
        (lambda: Mup({"mlp": 8}).learning_rates(model, "adamw"), "optimizer", "'adamw'", "'adam', 'sgd'", "adam"),
        (lambda: Mup({"mlp": 8}).scaled_updates(model, "SGD"), "optimizer", "'SGD'", "'adam', 'sgd'", "sgd"),
        (lambda: Mup({"mlp": 8}).initial(model, "fan in"), "spread", "'fan in'", "'fan_in', 'constant'", "fan_in"),
        (lambda: Mup({"mlp": 8}).initial(model, lambda *_: None), "spread", "None", "'fan_in', 'constant'", None),
    ):
        hint = f"\n  hint: did you mean '{near}'?" if near else ""
        fails(ArgumentError, f"Mup: unknown {what} {given}\n  known: {known}{hint}", call)
    fails(
        ArgumentError,
        "Mup: inputs: no parameter matches 'layer.1'\n"
        "  parameters: layers.0.weight, layers.0.bias, layers.1.weight, layers.1.bias\n"
        "  hint: did you mean 'layers.1.bias'?",
        lambda: Mup({"mlp": 8}, inputs={"layer.1": "mlp"}).report(model),
    )
    fails(
        AxisNotFoundError,
        "Mup: inputs: no parameter that matches 'layers.0' has axis 'mpl'\n"
        "  axes: input, mlp\n  hint: did you mean 'mlp'?",
        lambda: Mup({"mlp": 8}, inputs={"layers.0": "mpl"}).report(model),
    )


@functools.cache
def coordinates(width: int, mup: bool) -> np.ndarray:
    """Train an MLP; return the mean square root of each layer's output at the start, and of its change."""
    x, y = axn.random.normal(jax.random.key(1), (Batch, In)), axn.random.normal(jax.random.key(2), (Batch, Out))
    visitor = Mup({"mlp": 64})
    model = nn.MLP.init(In, Out, width, 2, key=KEY)
    model = visitor.initial(model) if mup else model
    factors = optax.stateless(lambda updates, _: visitor.scaled_updates(updates)) if mup else optax.identity()
    optimizer = optax.chain(optax.scale_by_adam(), factors, optax.scale(-0.02))

    def outputs(model):
        hidden, found = x, []
        for layer in model.layers:
            found.append(layer(hidden))
            hidden = nn.relu(found[-1])
        return found

    def step(carry, _):
        model, state = carry
        updates, state = optimizer.update(jax.grad(lambda m: ((m(x) - y) ** 2).mean().scalar())(model), state)
        return (optax.apply_updates(model, updates), state), None

    @jax.jit
    def run(model):
        (after, _), _ = jax.lax.scan(step, (model, optimizer.init(model)), length=4)
        pairs = zip(outputs(model), outputs(after), strict=True)
        return jnp.array([[jnp.sqrt((z**2).mean().array) for z in (old, new - old)] for old, new in pairs])

    return np.asarray(run(model))


def test_coordinate_check():
    """The hidden and output layers move alike at 64 and 1024 units, and more and more in the standard form."""
    narrow, wide, standard = coordinates(64, True), coordinates(1024, True), coordinates(1024, False)
    # At the start, hidden layers are alike and the output is smaller in a wide model.
    np.testing.assert_allclose(wide[:2, 0], narrow[:2, 0], rtol=0.25)
    assert wide[2, 0] < narrow[2, 0]
    # After four steps: how far the layers have moved.
    assert (wide[:, 1] < 1.5 * narrow[:, 1]).all()
    assert (wide[:, 1] > 0.5 * narrow[:, 1]).all()
    assert standard[1, 1] > 3 * narrow[1, 1]
