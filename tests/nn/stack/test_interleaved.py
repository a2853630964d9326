"""`Interleaved` against a Python loop over its layers, and against its unrolled twin."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import ScanCheckpointPolicy as Policy, nn
from axonym.errors import AxisSizeError, OperandError
from tests.laws import count_equations
from tests.nn.layouts import check_on, compiled, draw, fails, same, same_trees, value_and_gradients

pytestmark = pytest.mark.sampled

L, B, E, M = axn.make_axes(layers=5, batch=8, embed=4, mlp=6)
KEY = jax.random.key(0)


class Wide(eqx.Module):
    """One kind of layers, with a setting that may differ within the pattern."""

    mlp: nn.MLP
    sign: float = eqx.field(static=True)

    @staticmethod
    def init(Embed, start=0.0, *, key, sign=1.0):
        mlp = nn.MLP.init(Embed, Embed, M, 1, axn.tanh, key=key)
        return Wide(eqx.tree_at(lambda mlp: mlp.layers[0].bias, mlp, replace_fn=lambda bias: bias + start), sign)

    def __call__(self, x, shift=0.0, *, key=None):
        out = axn.tree_checkpoint_name(self.mlp(x), "wide") * self.sign + shift
        return x + out * (1.0 if key is None else jax.random.uniform(key))


class Norm(eqx.Module):
    """Another kind of layers."""

    norm: nn.LayerNorm

    @staticmethod
    def init(Embed, start=0.0, *, key):
        return Norm(nn.LayerNorm.init(Embed))

    def __call__(self, x, shift=0.0, *, key=None):
        return self.norm(x) * 0.5 + shift


PATTERN = (Wide, functools.partial(Wide.init, sign=-1.0), Norm)
# one repetition and two layers left over; two and one; none, and all left over
PATTERNS = {"3 of 5": PATTERN, "2 of 5": PATTERN[1:], "6 of 5": PATTERN * 2}


@functools.cache
def twins(pattern="2 of 5"):
    return tuple(
        compiled(kind.init(L, PATTERNS[pattern]), E, axn.arange(L) * 0.1, key=KEY)
        for kind in (nn.Interleaved, nn.BlockSeq)
    )


def arrays(layers):
    return [jax.tree.leaves(eqx.filter(layer, eqx.is_array)) for layer in layers]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_layers_are_those_of_the_unrolled_twin(pattern):
    stack, blocks = twins(pattern)
    layers = stack.unstacked()
    for i, (mine, other) in enumerate(zip(layers, blocks.unstacked(), strict=True)):
        assert jax.tree.structure(mine) == jax.tree.structure(other) == jax.tree.structure(stack.get_layer(i))
        same_trees(arrays([mine]), arrays([other]), rtol=0, atol=0)
        same_trees(arrays([mine]), arrays([stack.get_layer(i - 5)]), rtol=0, atol=0)
    again = stack.with_layers(layers)
    assert jax.tree.structure(again) == jax.tree.structure(stack)
    same_trees(arrays(again.unstacked()), arrays(layers), rtol=0, atol=0)


@pytest.mark.parametrize("pattern", ["2 of 5", "6 of 5"])
def test_layers_of_a_filtered_tree(pattern):
    weights = lambda tree: jax.tree_util.tree_map_with_path(  # noqa: E731
        lambda path, _: jax.tree_util.keystr(path).endswith("weight.array"), tree
    )
    stack, blocks = twins(pattern)
    x = draw(B, E)
    trained, frozen = eqx.partition(stack, weights(stack))
    layers = trained.unstacked()
    for i, layer in enumerate(blocks.unstacked()):
        for mine in (layers[i], trained.get_layer(i)):
            same_trees(mine, eqx.filter(layer, weights(layer)), rtol=0, atol=0)
    same_trees(trained.with_layers(layers), trained, rtol=0, atol=0)
    same(eqx.combine(trained.with_layers(layers), frozen).fold(x), ("batch", "embed"), blocks.fold(x).array)
    bias = lambda layer: (layer.mlp.layers[0] if isinstance(layer, Wide) else layer.norm).bias  # noqa: E731
    hole = axn.NamedArray(None, ("layers", "embed"))
    step = lambda layer, x, given: (x, (given, axn.NamedArray(bias(layer).array, "e")))  # noqa: E731
    for results in (trained.scan_via(step)(x, hole)[1], trained.vmap_via(lambda *given: step(*given)[1])(x, hole)):
        assert [(each.array, each.names) for each in results] == [(None, ("layers", "embed")), (None, ("layers", "e"))]


def test_how_layers_are_stored():
    stack, _ = twins("2 of 5")
    wide, norm = stack.repeated.stacked
    assert wide.mlp.layers[0].weight.names == ("layers", "embed", "mlp")
    assert stack.repeated.Block == L.resize(2)
    assert norm.norm.weight.shape == {"layers": 2, "embed": 4}
    assert [type(layer) for layer in stack.rest] == [Wide]


def loop(layers, x, shift, keys):
    carries = []
    for i, layer in enumerate(layers):
        x = layer(x, shift["layers", i], key=keys[i])
        carries.append(x)
    return x, carries


def fold(stack, x, shift):
    return stack.fold(x, shift, key=KEY)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_layers_are_applied_in_order_with_their_arguments(pattern):
    stack, x, shift = twins(pattern)[0], draw(B, E), draw(E, L, seed=1)
    expected, carries = compiled(loop, stack.unstacked(), x, shift, jax.random.split(KEY, 5))
    same(stack.fold(x, shift, key=KEY), ("batch", "embed"), expected.array)

    def step(layer, x, shift, number, *, key):
        x = layer(x, shift, key=key)
        return x, {"named": x, "plain": x.array.sum(0), "number": 1.5, "own": number, "text": "t", "none": None}

    numbers = np.arange(5, dtype=np.float32)
    last, out = compiled(stack.scan_via(step, unroll=2), x, shift, numbers, key=jax.random.split(KEY, 5))
    same(last, ("batch", "embed"), expected.array)
    every = np.stack([carry.array for carry in carries])
    same(out["named"], ("layers", "batch", "embed"), every)
    np.testing.assert_allclose(out["plain"], every.sum(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(out["number"], np.full(5, 1.5))
    np.testing.assert_array_equal(out["own"], np.arange(5.0))
    assert (out["text"], out["none"]) == ("t", None)


def test_every_layer_applied_to_the_same():
    x, shift = draw(B, E), draw(L, seed=1)
    for pattern in ("2 of 5", "6 of 5"):
        stack, blocks = twins(pattern)
        each = lambda layers: [layer(x, shift["layers", i]).array for i, layer in enumerate(layers)]  # noqa: E731
        expected = np.stack(compiled(each, stack.unstacked()))
        for call in (stack.map, stack.vmap, blocks.map):
            same(compiled(call, x, shift), ("layers", "batch", "embed"), expected)
        result = stack.vmap_via(lambda layer, x, own: {"own": own, "n": 1.5})(x, jnp.arange(5))
        np.testing.assert_array_equal(result["own"], np.arange(5))
        assert result["n"] == 1.5


POLICIES = {
    "full": True,
    "nested": Policy(nested=2),
    "offload": Policy(save_carries="offload", save_inputs="offload", nested=2),
    "names": Policy(save_block_internals=["wide"]),
    "in turn": Policy(alternating=[True, False]),
}


@functools.cache
def expected_gradients():
    return value_and_gradients(fold)(twins()[1], draw(B, E), draw(E, L, seed=1))


@pytest.mark.parametrize("policy", [False, *POLICIES])
def test_gradients_are_those_of_the_unrolled_twin(policy):
    stack = dataclasses.replace(twins()[0], gradient_checkpointing=Policy.make(POLICIES.get(policy, False)))
    out, (gradients, others) = value_and_gradients(fold)(stack, draw(B, E), draw(E, L, seed=1))
    expected, (of_blocks, of_others) = expected_gradients()
    same(out, ("batch", "embed"), expected.array)
    same_trees(others, of_others)
    same_trees(arrays(gradients.unstacked()), arrays(of_blocks.blocks))


def test_names_that_no_layer_gives():
    stack = dataclasses.replace(twins()[0], gradient_checkpointing=Policy(save_block_internals=["wid"]))
    with pytest.warns(UserWarning, match="Interleaved.fold: the checkpoint policy names 'wid'"):
        jax.eval_shape(stack.fold, draw(B, E))


NAMES = Policy(save_block_internals=["wide"])  # each call looks for them


@pytest.mark.parametrize("policy", [False, True, "nested", NAMES])
def test_repetitions_are_compiled_once_outside_of_jit(policy, compiles):
    model = nn.Interleaved.init(L.resize(4), PATTERN[1:], gradient_checkpointing=policy)(E, key=KEY)
    via = lambda layer, x, shift: layer(x, shift)  # noqa: E731
    counts = []
    for i in range(3):
        x, shift = draw(B, E, seed=i), draw(E, seed=2 + i)
        expected = functools.reduce(lambda x, layer: layer(x, shift), model.unstacked(), x)
        counts.append(len(compiles))
        for result in (model.fold(x, shift), model.fold_via(via)(x, shift)):
            same(result, ("batch", "embed"), expected.array)
        counts.append(len(compiles))
    times = [after - before for before, after in zip(counts[::2], counts[1::2], strict=True)]
    assert times[0] >= 2
    assert (times[1:] == [0, 0]) == (policy is not NAMES)


def test_the_program_does_not_grow():
    def count(repetitions):
        stack = jax.eval_shape(lambda key: nn.Interleaved.init(L.resize(2 * repetitions), PATTERN[:2])(E, key=key), KEY)
        return count_equations(lambda s, x: s.fold(x), stack, draw(B, E))

    assert count(2) == count(12)


@pytest.mark.parametrize("mode", ["auto", "explicit"])
def test_on_a_mesh(mode, auto_mesh, explicit_mesh):
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[mode]
    check_on(mesh, lambda stack, x: stack.fold(x), nn.Interleaved.init(L, PATTERN[1:])(E, key=KEY), draw(B, E))


def test_layers_may_be_sharded(explicit_mesh):
    stack, x = nn.Interleaved.init(L.resize(4), PATTERN[1:])(E, key=KEY), draw(B, E)
    mapping, shift = {"layers": "model", "batch": "data"}, draw(L.resize(4), E)
    run = lambda stack, x, shift: (stack.fold(x, shift), stack.vmap(x, shift))  # noqa: E731
    with axn.set_mesh(explicit_mesh), axn.pipelined("batch", 2):
        results = axn.named_jit(run, mapping)(*axn.shard((stack, x, shift), mapping))
    for mine, other in zip(results, run(stack, x, shift), strict=True):
        same(mine, other.names, other.array)


def test_tools_for_whole_trees_see_its_layers():
    stack, blocks = twins()
    total = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(blocks, eqx.is_array)))
    assert sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(stack, eqx.is_array))) == total
    norms = axn.tree.scan_aware_map(lambda x: (x * x).sum(), stack)
    assert norms.repeated.stacked[0].mlp.layers[0].weight.axes == (L.resize(2),)
    paths = {parameter.path: parameter.layers for parameter in axn.parameters.walk(stack)}
    assert paths["repeated.stacked.0.mlp.layers.0.weight"] == ("layers",)
    assert paths["rest.0.mlp.layers.0.weight"] == ()


def test_errors():
    stack, x = twins()[0], draw(B, E)
    layers = stack.unstacked()
    fails(
        OperandError,
        f"Interleaved.init: pattern must be a list of classes, one for each layer of a repetition, not {Wide!r}\n"
        "  hint: write (Local, Local, Global)",
        lambda: nn.Interleaved.init(L, Wide),
    )
    fails(
        OperandError,
        "Interleaved.init: int has no constructor `init`\n  hint: add a static method init(...) that returns a module",
        lambda: nn.Interleaved.init(L, (Wide, int)),
    )
    fails(
        AxisSizeError,
        "Interleaved.init: there are 2 keys for layers=5\n"
        "  hint: pass one key for each layer, or a single key, which is split",
        lambda: nn.Interleaved.init(L, PATTERN)(E, key=jax.random.split(KEY, 2)),
    )
    fails(
        AxisSizeError,
        "Interleaved.fold: axis 'layers' has two sizes: 5 and 2\n  asked for: layers=5\n  argument 1 has: layers=2",
        lambda: stack.fold(x, axn.ones(L.resize(2))),
    )
    fails(AxisSizeError, "Interleaved.get_layer: layer 5 is out of range for layers=5", lambda: stack.get_layer(5))
    fails(
        AxisSizeError,
        "Interleaved.with_layers: there are 4 layers for layers=5",
        lambda: stack.with_layers(layers[:4]),
    )
    fails(
        OperandError,
        "Stacked.with_layers: stacked layers may differ only in the values of their arrays\n"
        "  layer 0 and layer 1: [0].sign: -1.0, and 2.0\n"
        "  in the layer: repeated\n"
        "  hint: use BlockSeq for layers that differ, or Interleaved for kinds of layers that alternate",
        lambda: stack.with_layers([*layers[:2], dataclasses.replace(layers[2], sign=2.0), *layers[3:]]),
    )
    fails(
        OperandError,
        "Interleaved.scan: layers must return equal structures and shapes, to be stacked along 'layers.pattern'\n"
        "  layer 0 and layer 1: they: None, and a NamedArray with batch=8, embed=4\n"
        "  hint: return the same structure from each, such as zeros where there is nothing to return",
        lambda: stack.scan_via(lambda layer, x: (x, x if isinstance(layer, Norm) else None))(x),
    )
    fails(
        AxisSizeError,
        "ScanCheckpointPolicy: 2 steps cannot be split into 3 equal groups\n  hint: nested=True chooses a number",
        lambda: dataclasses.replace(stack, gradient_checkpointing=Policy(nested=3)).fold(x),
    )
