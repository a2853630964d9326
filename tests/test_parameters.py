"""Counting, listing and selecting the arrays of a model."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as axn
from axonym import nn, parameters
from axonym.errors import ArgumentError, OperandError

L, E, H, D, V, X = axn.make_axes(layers=2, embed=8, heads=2, head_dim=4, vocab=10, experts=3)
KEY = jax.random.key(0)


class Block(eqx.Module):
    norm: nn.LayerNorm
    split: nn.Linear
    same: nn.Linear
    act: object

    @staticmethod
    def init():
        split = nn.Linear.init(E, (H, D), key=KEY)
        return Block(nn.LayerNorm.init((H, D)), split, nn.Linear.init(E, E, key=KEY, use_bias=False), jnp.tanh)


class Model(eqx.Module):
    table: nn.Embedding
    positions: axn.NamedArray
    blocks: nn.Stacked[Block]
    extra: dict

    @staticmethod
    def init():
        extra = {"steps": jnp.arange(3), "scales": [jnp.ones(2, jnp.bfloat16)]}
        positions = axn.ones((axn.Axis("pos", 4), E))
        return Model(nn.Embedding.init(V, E, key=KEY), positions, nn.Stacked.init(L, Block)(), extra)

    def __call__(self, x):
        return x


MODEL = eqx.filter_eval_shape(Model.init)


def test_count_and_nbytes():
    each = 10 * 8, 4 * 8, 2 * (8 + 8), 2 * (64 + 8), 2 * 64
    assert parameters.count(MODEL) == sum(each) + 2 + 3
    assert parameters.nbytes(MODEL) == 4 * sum(each) + 2 * 2 + 4 * 3
    assert parameters.count(axn.ones(E)) == parameters.count(np.ones(8)) == 8
    assert parameters.count({"a": None, "f": jnp.tanh, "n": 3}) == 0


def test_a_table_of_each_array():
    table = parameters.table(MODEL)
    assert (table.count, table.nbytes) == (parameters.count(MODEL), parameters.nbytes(MODEL))
    row = next(array for array in table.arrays if array.path == "blocks.stacked.split.weight")
    assert (row.names, row.shape, row.dtype) == (("layers", "embed", "heads", "head_dim"), (2, 8, 2, 4), "float32")
    lines = str(table).splitlines()
    assert lines[0].split() == ["array", "axes", "dtype", "layout", "parameters", "bytes", "per", "device"]
    assert lines[1].split() == ["table.weight", "vocab=10,", "embed=8", "float32", "not", "known", "80", "320", "B"]
    assert lines[-1].split() == ["all", "9", "arrays", "421", "1.6", "KiB"]


def test_a_table_by_depth():
    table = parameters.table(MODEL, 1)
    assert {path: len(arrays) for path, arrays in table.groups.items()} == {
        "table": 1,
        "positions": 1,
        "blocks": 5,
        "extra": 2,
    }
    assert str(table) == (
        "part       arrays  parameters    bytes  per device\n"
        "table      1               80    320 B\n"
        "positions  1               32    128 B\n"
        "blocks     5              304  1.2 KiB\n"
        "extra      2                5     16 B\n"
        "all        9              421  1.6 KiB"
    )
    assert list(parameters.table(MODEL, 2).groups) == [
        "table.weight",
        "positions",
        "blocks.stacked",
        "extra.scales",
        "extra.steps",
    ]
    assert str(parameters.table({"f": jnp.tanh})) == "no arrays"
    with pytest.raises(ArgumentError) as error:
        parameters.table(MODEL, -1)
    assert str(error.value) == "table: depth must not be negative, got -1"
    with pytest.raises(ArgumentError) as error:
        parameters.table(MODEL, "2")
    assert str(error.value) == "table: depth must be an int, not '2'"


def test_a_table_of_what_each_device_holds(auto_mesh):
    mapping = {"vocab": "data", "embed": "model"}
    planned = parameters.table(MODEL, mapping={"embed": "model"}, mesh=auto_mesh).arrays
    held = {array.path: array.nbytes_per_device for array in planned}
    assert held["positions"] == 4 * 8 * 4 / 2
    spread = axn.shard({"x": axn.ones((V.resize(8), E))}, mapping, auto_mesh)
    assert str(parameters.table(spread)) == (
        "array  axes              dtype    layout                   parameters  bytes  per device\n"
        "x      vocab=8, embed=8  float32  vocab→data, embed→model          64  256 B        32 B"
    )


def test_equal_layers_share_a_row():
    model = jax.eval_shape(lambda: nn.BlockSeq.init(L, nn.LayerNorm)(E))
    assert str(parameters.table(model)).splitlines()[1].startswith("blocks.*.weight (2x)  embed=8")


def test_walk_tells_what_modules_say_of_axes():
    found = {own.path: own for own in parameters.walk(MODEL)}
    told = {path: (own.layers, own.inputs, own.looked_up) for path, own in found.items()}
    assert told == {
        "table.weight": ((), ("vocab",), True),
        "positions": ((), None, False),
        "blocks.stacked.norm.weight": (("layers",), (), False),
        "blocks.stacked.norm.bias": (("layers",), (), False),
        "blocks.stacked.split.weight": (("layers",), ("embed",), False),
        "blocks.stacked.split.bias": (("layers",), (), False),
        "blocks.stacked.same.weight": (("layers",), ("embed",), False),
        "extra.scales.0": ((), (), False),
    }
    assert found["blocks.stacked.same.weight"].sizes == {"layers": 2, "embed": 8, "embed.out": 8}
    for module, inputs in [
        (lambda: nn.MoELinear.init(X, E, D, key=KEY), ("embed",)),
        (lambda: nn.Conv.init("x", E, D, 3, key=KEY), ("embed", "kernel.x")),
        (lambda: nn.Conv.init("x", E, E, 3, groups=2, key=KEY), ("group.embed", "kernel.x")),
        (lambda: nn.PositionEmbedding.init(V, E, key=KEY), ("vocab",)),
        (lambda: nn.Linear.init((E, H), E, key=KEY), ("embed", "heads")),
        (lambda: nn.LayerNorm.init((E, H)), ()),
    ]:
        weight, *rest = parameters.walk(jax.eval_shape(module))
        assert set(weight.inputs) == set(inputs)
        assert all(bias.inputs == () for bias in rest)


def test_roles_print_as_a_table():
    """The model is abstract; what no module declares has a column of its own, until it is told."""
    assert str(parameters.roles(MODEL)) == (
        "parameter                    kind     stacks    inputs    outputs              not declared\n"
        "table.weight                 table              vocab=10  embed=8\n"
        "positions                    unknown                                           pos=4, embed=8\n"
        "blocks.stacked.norm.weight   scale    layers=2            heads=2, head_dim=4\n"
        "blocks.stacked.norm.bias     shift    layers=2            heads=2, head_dim=4\n"
        "blocks.stacked.split.weight  matrix   layers=2  embed=8   heads=2, head_dim=4\n"
        "blocks.stacked.split.bias    shift    layers=2            heads=2, head_dim=4\n"
        "blocks.stacked.same.weight   matrix   layers=2  embed=8   embed.out=8\n"
        "extra.scales.0               scale                        0=2"
    )
    told = parameters.roles(MODEL, {"positions": {"pos": "table", "embed": "output"}, "heads": "head"})
    assert [own.kind for own in told.parameters if own.path == "positions"] == ["table"]
    assert str(told).splitlines()[5].split()[-2:] == ["head_dim=4", "heads"]


def test_roles_that_match_nothing():
    for overrides, text in [
        ({"head": "head"}, "no parameter has axis 'head'"),
        ({"position": {"pos": "table"}}, "no path matches 'position'"),
        ({"heads": "header"}, "unknown role 'header'\n  known: 'stack', 'expert', 'input', 'window', 'table', "),
        ({"extra.scales.*": ("input", "output")}, "2 roles for 'extra.scales.0', which has 1 dimensions\n  hint: "),
    ]:
        with pytest.raises(ArgumentError) as error:
            parameters.roles(MODEL, overrides)
        assert str(error.value).startswith(f"roles: {text}")


def test_kinds_are_labels_of_optax():
    model = eqx.filter(Model.init(), eqx.is_inexact_array)
    zero = jax.tree.map(jnp.zeros_like, model)
    rates = {"matrix": 1.0, "table": 2.0, "scale": 3.0, "shift": 4.0, "unknown": 5.0}
    each = {kind: optax.add_decayed_weights(rate) for kind, rate in rates.items()}
    optimizer = optax.multi_transform(each, parameters.kinds)
    updates, _ = optimizer.update(zero, optimizer.init(model), model)
    split = model.blocks.stacked.split
    np.testing.assert_array_equal(updates.blocks.stacked.split.weight.array, split.weight.array)
    np.testing.assert_array_equal(updates.table.weight.array, 2 * model.table.weight.array)
    np.testing.assert_array_equal(updates.extra["scales"][0], 3 * np.ones(2))
    np.testing.assert_array_equal(updates.blocks.stacked.split.bias.array, 4 * split.bias.array)
    np.testing.assert_array_equal(updates.positions.array, 5 * model.positions.array)


def test_select_by_path_and_by_axes():
    by_path = parameters.select(MODEL, "split.*")
    assert (by_path.blocks.stacked.split.weight, by_path.blocks.stacked.split.bias) == (True, True)
    assert (by_path.table.weight, by_path.extra["steps"], by_path.blocks.stacked.act) == (False, False, False)
    by_axes = parameters.select(MODEL, lambda path, x: axn.is_named_array(x) and "vocab" in x.names)
    assert jax.tree.leaves(by_axes) == [True] + [False] * 9
    assert by_axes.blocks.stacked.same.bias is None
    assert parameters.select(axn.ones(E), lambda path, x: path == "") is True
    with pytest.raises(ArgumentError) as error:
        parameters.select({"a": axn.ones(E)}, "b.*")
    assert str(error.value) == "select: no path matches 'b.*'\n  paths: a"
    with pytest.raises(OperandError) as error:
        parameters.select(MODEL, ["table", "split"])
    assert str(error.value) == (
        "select: expected a pattern of paths, or a function of a path and an array, got list\n"
        '  hint: write "mlp.*.weight", or a function to join several'
    )
    with pytest.raises(OperandError) as error:
        parameters.labels(MODEL, "table")
    assert str(error.value) == (
        "labels: expected a function of a path and an array, got str\n"
        '  hint: write lambda path, x: "table" if "vocab" in x.names else None'
    )


def test_a_selection_parts_a_model():
    chosen, rest = eqx.partition(MODEL, parameters.select(MODEL, "split"))
    assert parameters.count(chosen) == 2 * (64 + 8)
    assert parameters.count(rest) == parameters.count(MODEL) - 2 * (64 + 8)
    assert jax.tree.structure(eqx.combine(chosen, rest)) == jax.tree.structure(MODEL)


def test_decay_mask_goes_by_axes():
    mask = parameters.decay_mask(MODEL)
    stacked = mask.blocks.stacked
    assert (mask.table.weight, mask.positions, stacked.split.weight, stacked.same.weight) == (True,) * 4
    assert (stacked.split.bias, stacked.norm.weight, stacked.norm.bias, mask.extra["steps"]) == (False,) * 4
    linear = eqx.nn.Linear(2, 3, key=KEY)  # its arrays have no names, but roles
    assert jax.tree.leaves(parameters.decay_mask([linear, jnp.ones((2, 2))])) == [True, False, False]
    ensemble = axn.vmap(lambda key: nn.Linear.init(E, (), key=key), X)(jax.random.split(KEY, X.size))
    assert not parameters.decay_mask(ensemble).weight
    scales = {"scale": axn.ones((X, E))}
    assert parameters.decay_mask(scales) == {"scale": True}
    assert parameters.decay_mask(scales, apart="experts") == {"scale": False}


def test_optax_takes_masks_and_labels():
    model = eqx.filter(
        {"a": nn.Linear.init(E, (H, D), key=KEY), "f": jnp.tanh, "m": Model.init()}, eqx.is_inexact_array
    )
    zero = jax.tree.map(jnp.zeros_like, model)

    def label(path, x):
        return "table" if "table" in path else "rest"

    each = {"table": optax.add_decayed_weights(2.0), "rest": optax.add_decayed_weights(1.0, mask=parameters.decay_mask)}
    optimizer = optax.multi_transform(each, lambda tree: parameters.labels(tree, label))
    updates, _ = optimizer.update(zero, optimizer.init(model), model)
    np.testing.assert_array_equal(updates["m"].table.weight.array, 2 * model["m"].table.weight.array)
    np.testing.assert_array_equal(updates["a"].weight.array, model["a"].weight.array)
    np.testing.assert_array_equal(updates["m"].blocks.stacked.norm.weight.array, 0)


def test_a_tree_of_labels_that_optax_calls():
    linear = nn.Linear.init(E, H, key=KEY)
    hint = (
        "  hint: Optax calls a tree of labels that is a module: give it a function, "
        "lambda model: axn.parameters.labels(model, label)"
    )

    class Named(eqx.Module):
        linear: nn.Linear

        def __call__(self, x):
            return self.linear(x)

    class Product(eqx.Module):
        weight: axn.NamedArray

        def __call__(self, x):
            return axn.dot(x, self.weight, axis="embed")

    for model, text in [
        (linear, "Linear: expected a NamedArray, got Linear"),
        (Named(linear), "Linear: expected a NamedArray, got Named\n  in the layer: linear"),
        (nn.Stacked.init(L, nn.LayerNorm)(E), "Stacked: its layers are not called as one"),
        (Product(axn.ones(E)), "dot: expected a NamedArray, got Product"),
    ]:
        each = {"all": optax.sgd(1.0)}
        labels = parameters.labels(model, lambda path, x: "all")
        with pytest.raises(OperandError) as error:
            optax.multi_transform(each, labels).init(model)
        assert str(error.value) == f"{text}\n{hint}"
        optax.multi_transform(each, lambda tree: parameters.labels(tree, lambda path, x: "all")).init(model)
    # A function that Optax calls rightly has hints of its own.
    with pytest.raises(OperandError, match='hint: write lambda path, x: "table"'):
        optax.multi_transform(each, lambda tree: parameters.labels(tree, "all")).init(model)
