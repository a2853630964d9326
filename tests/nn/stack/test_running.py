"""What all stacks share: what they keep for the backward pass, and the operations that they emit."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax import lax

import axonym as axn
from axonym import ScanCheckpointPolicy as Policy, nn
from axonym.errors import AxisSizeError, ShardingError
from axonym.nn.stack.running import find_constructor, find_difference, stack_outputs
from tests.laws import bytes_on_host, count_equations, count_kept
from tests.nn.layouts import compiled, draw, fails, same, same_trees

pytestmark = pytest.mark.sampled

L, B, E, M = axn.make_axes(layers=4, batch=8, embed=4, mlp=6)
KEY = jax.random.key(0)
CARRY, HIDDEN = 8 * 4, 8 * 6


class Block(eqx.Module):
    fc: nn.Linear
    out: nn.Linear

    @staticmethod
    def init(*, key):
        return Block(nn.Linear.init(E, M, key=key), nn.Linear.init(M, E, key=key))

    def __call__(self, x, scale=1.0, *, key=None):
        x = x + self.out(axn.tanh(axn.tree_checkpoint_name(self.fc(x), "hidden"))) * scale
        return x if key is None else x + jax.random.uniform(key)


MAKE = {
    "Stacked": lambda policy: compiled(nn.Stacked.init(L, Block, gradient_checkpointing=policy), key=KEY),
    "BlockSeq": lambda policy: compiled(nn.BlockSeq.init(L, Block, gradient_checkpointing=policy), key=KEY),
    # two repetitions of two layers, and one that is left over
    "Interleaved": lambda policy: compiled(
        nn.Interleaved.init(L.resize(5), (Block, Block), gradient_checkpointing=policy), key=KEY
    ),
}


@pytest.mark.parametrize("kind", MAKE)
def test_what_is_kept_to_the_number(kind):
    template = jax.eval_shape(lambda: MAKE[kind](False))
    depth = template.Block.size

    def kept(spec):
        """Count the numbers that are kept for the backward pass, and tell whether the host keeps some."""
        stack = dataclasses.replace(template, gradient_checkpointing=Policy.make(spec))
        run = lambda stack, x: stack.fold(x)  # noqa: E731
        gradient = jax.grad(lambda *both: run(*both).sum().scalar())
        host = bytes_on_host(gradient, stack, draw(B, E))
        return count_kept(run, stack, draw(B, E)), host > 0

    (everything, _), (carries, host) = kept(False), kept(True)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(template))
    assert not host
    assert everything - carries >= depth * HIDDEN
    assert parameters - (E.size + M.size) * depth <= carries - depth * CARRY <= parameters  # biases need not be kept
    assert kept(Policy(save_inputs=True)) == kept(Policy(simple=True, save_carries="offload")) == (carries, False)
    with_hidden = carries + depth * (HIDDEN - M.size)  # the bias that was added already is not needed again
    assert kept(Policy(save_block_internals=["hidden"])) == (with_hidden, False)
    assert kept(Policy(offload_block_internals=["hidden"])) == (with_hidden, True)
    assert kept("offload") == kept(Policy(save_inputs="offload")) == (carries, True)
    if depth % 2 == 0:
        assert kept([True, Policy(save_block_internals=["hidden"])]) == (carries + (with_hidden - carries) // 2, False)
    # Two groups of two layers keep two carries; all biases of a group are kept, as its arguments.
    spared = carries - 2 * CARRY
    for save, on_host in ((True, False), ("offload", True)):
        size, host = kept(Policy(nested=2, save_carries=save))
        assert spared - E.size * depth <= size <= spared + (E.size + M.size) * depth
        assert host == on_host


def by_hand(checkpointing):
    def layer(x, given):
        (a, b, c, d), scale, key = given
        hidden = jnp.tanh(jax.ad_checkpoint.checkpoint_name(x @ a + b, "hidden"))
        return x + (hidden @ c + d) * scale + jax.random.uniform(key), None

    step = jax.checkpoint(layer, prevent_cse=False) if checkpointing else layer
    return lambda w, x, scale, key: lax.scan(step, x, (w, scale, jax.random.split(key, 4)))[0].sum()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_no_more_equations_than_a_scan_by_hand(checkpointing):
    stack, x, scale = MAKE["Stacked"](checkpointing), draw(B, E), axn.arange(L) * 0.1
    named = lambda stack, x, scale, key: stack.fold(x, scale, key=key).sum().scalar()  # noqa: E731
    plain = by_hand(checkpointing)
    arrays = jax.tree.leaves(stack)
    for change in (lambda f: f, lambda f: jax.grad(f, (0, 1, 2))):
        mine = count_equations(change(named), stack, x, scale, KEY)
        assert mine <= count_equations(change(plain), arrays, x.array, scale.array, KEY)


def test_constructors():
    assert find_constructor("f", L, Block) is Block.init
    make = lambda *, key: Block.init(key=key)  # noqa: E731
    assert find_constructor("f", L, make) is make
    stack = jax.eval_shape(lambda: nn.Stacked.init(L, make)(key=KEY))
    assert jax.tree.structure(stack) == jax.tree.structure(MAKE["Stacked"](False))
    with pytest.raises(axn.errors.OperandError) as error:
        nn.Stacked.init(L, (Block, Block))
    assert str(error.value) == (
        f"Stacked.init: {(Block, Block)!r} has no constructor `init`\n"
        "  hint: use Interleaved for layers of several kinds that alternate"
    )


X = jnp.ones(3)
DIFFERENCES = [
    ({"a": [X, None]}, {"a": [X + 1, None]}, None),
    (axn.named(X, "e"), axn.named(X, "f"), "they: a NamedArray with e=3, and a NamedArray with f=3"),
    ((X, 1), (X, 2), "[1]: 1, and 2"),
    ({"a": X}, {"b": X}, "they: dict with 1 parts, and dict with 1 parts"),
    ([X], [X, X], "they: list with 1 parts, and list with 2 parts"),
    ([X], [X[:2]], "[0]: a plain array of shape (3,), and a plain array of shape (2,)"),
    ([X], [None], "[0]: a plain array of shape (3,), and None"),
    (
        axn.NamedArray(None, "e"),
        axn.NamedArray(None, "f"),
        "they: a NamedArray with e, but no array, and a NamedArray with f, but no array",
    ),
    (
        [axn.NamedArray(None, "e")],
        [axn.named(X, "e")],
        "[0]: a NamedArray with e, but no array, and a NamedArray with e=3",
    ),
    (nn.LayerNorm.init(E), nn.LayerNorm.init(E, eps=0.5), "eps: 1e-05, and 0.5"),
    (nn.LayerNorm.init(E), nn.RmsNorm.init(E), "they: LayerNorm with 5 parts, and RmsNorm with 5 parts"),
]


@pytest.mark.parametrize(("one", "other", "text"), DIFFERENCES)
def test_differences_are_spelled(one, other, text):
    assert find_difference(one, one) is None
    assert find_difference(one, other) == text


def test_layers_that_return_different_things():
    assert find_difference(1.5, 2.5, numbers=True) is None
    assert stack_outputs("f", [1.5, 2.5], L, numbers=True).tolist() == [1.5, 2.5]
    blocks = MAKE["BlockSeq"](False)
    layers = [dataclasses.replace(layer) for layer in blocks.unstacked()]
    step = lambda layer, x: (x, x if layer is layers[1] else None)  # noqa: E731
    with pytest.raises(axn.errors.OperandError) as error:
        blocks.with_layers(layers).scan_via(step)(draw(B, E))
    assert str(error.value) == (
        "BlockSeq.scan: layers must return equal structures and shapes, to be stacked along 'layers'\n"
        "  layer 0 and layer 1: they: None, and a NamedArray with batch=8, embed=4\n"
        "  hint: return the same structure from each, such as zeros where there is nothing to return"
    )


# inside of a shard_map that splits the layers
STAGES = {"layers": "data"}
SPLIT = {
    "Stacked": lambda depth: compiled(nn.Stacked.init(L.resize(depth), Block), key=KEY),
    "Interleaved": lambda depth: compiled(nn.Interleaved.init(L.resize(depth), (Block, Block)), key=KEY),
}


@pytest.mark.parametrize("kind", SPLIT)
def test_stages_of_layers_one_after_the_other(kind, auto_mesh):
    """Each layer has the parameters and the random key that it has where one device has all layers."""
    x, stack = draw(B, E), SPLIT[kind](8)

    def by_stages(stack, x, key):
        for stage in range(4):
            out = stack.fold(axn.pcast(x, "layers"), key=key)
            x = axn.psum(axn.where(axn.axis_index("layers") == stage, out, 0.0), "layers")
        whole = axn.all_gather(stack, "layers").fold(axn.pcast(x, "layers"))
        return x, (stack.map(x), stack.vmap(x), stack.with_layers(stack.unstacked()), axn.pmean(whole, "layers"))

    def one_by_one(layers, x):
        for layer, key in zip(layers, jax.random.split(KEY, 8), strict=True):
            x = layer(x, key=key)
        return x

    def loss(stack):
        x_out, aux = axn.shard_map(by_stages, STAGES, auto_mesh)(stack, x, KEY)
        return (x_out**2).sum().scalar(), (x_out, *aux)

    (_, (out, mapped, at_once, again, whole)), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(stack)
    layers = stack.unstacked()

    @jax.jit
    def references(layers):
        last = expected = one_by_one(layers, x)
        by_hand = jax.grad(lambda layers: (one_by_one(layers, x) ** 2).sum().scalar())(layers)
        for layer in layers:
            last = layer(last)
        return expected, by_hand, jnp.stack([layer(expected).array for layer in layers]), last

    expected, by_hand, each, last = references(layers)
    same(out, ("batch", "embed"), expected.array)
    same_trees(gradients.unstacked(), by_hand, rtol=1e-4, atol=1e-4)
    for result in (mapped, at_once):
        same(result, ("layers", "batch", "embed"), each)
    same_trees(again, stack)
    same(whole, ("batch", "embed"), last.array)


def test_layers_split_over_two_mesh_axes_and_gathered_over_one(auto_mesh):
    stack = nn.Stacked.init(L.resize(8), nn.LayerNorm)(E)
    shapes = []

    def count(stack):
        shapes.append([len(part.unstacked()) for part in (stack, axn.all_gather(stack, "model"))])
        return stack

    jax.eval_shape(axn.shard_map(count, {"layers": ("data", "model")}, auto_mesh), stack)
    assert shapes == [[1, 2]]


def test_results_of_as_many_layers_on_each_device_as_there_are_repetitions(auto_mesh):
    """Alternating layers are stored by repetition: what they return has the size of all layers, and their names."""
    stack, x = nn.Interleaved.init(L.resize(4), (nn.LayerNorm, nn.RmsNorm))(E), draw(B, E)
    run = axn.shard_map(lambda stack, x: stack.map(x), {"layers": "model"}, auto_mesh)
    same(run(stack, x), ("layers", "batch", "embed"), jnp.stack([layer(x).array for layer in stack.unstacked()]))


MISTAKES = {
    "layer of another device": (
        AxisSizeError,
        lambda: (SPLIT["Interleaved"](8), lambda stack: stack.get_layer(2)),
        "Interleaved.get_layer: layer 2 is out of range for layers=2",
    ),
    "too many layers": (
        AxisSizeError,
        lambda: (SPLIT["Stacked"](8), lambda stack: stack.with_layers(stack.unstacked() * 2)),
        "Stacked.with_layers: there are 4 layers for layers=2",
    ),
    "layers left over": (
        ShardingError,
        lambda: (SPLIT["Interleaved"](9), lambda stack: stack.fold(axn.zeros((B, E)))),
        "Interleaved: repetitions are split over data, but the remaining layers are on every device\n"
        "  layers=9: 4 repetitions of 2 layers, and 1 left over\n"
        "  hint: apply `repeated` here, and `rest` after the last of the devices; or choose another depth",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_with_stages(mistake, auto_mesh):
    error, make, expected = MISTAKES[mistake]
    stack, use = make()
    fails(error, expected, lambda: jax.eval_shape(axn.shard_map(use, STAGES, auto_mesh), stack))
