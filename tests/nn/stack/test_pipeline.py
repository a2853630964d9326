"""Stacks whose layers the mapping of the computation splits: microbatches go from device to device."""

import re

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisSizeError, OperandError, ShardingError
from tests.laws import count_equations
from tests.nn.layouts import compiled, draw, fails, same
from tests.nn.staging import (
    COMPUTED,
    KEY,
    MICROBATCHES,
    STORED,
    B,
    E,
    L,
    P,
    Residual,
    Tilted,
    apply_by_hand,
    close,
    gradients_by_hand,
    loss_of,
    mean_square,
    pipeline,
)

pytestmark = pytest.mark.sampled

STACKS = {
    "Stacked": (lambda: nn.Stacked.init(L, Residual)(key=KEY), (1.0,)),
    "recomputed": (lambda: nn.Stacked.init(L, Residual, gradient_checkpointing=True)(key=KEY), (1.0,)),
    "Interleaved": (lambda: nn.Interleaved.init(L, (Residual, Tilted))(key=KEY), (1.0, 1.25)),
}


@pytest.mark.parametrize(("kind", "mode"), [("recomputed", "auto"), ("Interleaved", "explicit")])
def test_equals_the_layers_one_by_one(kind, mode, auto_mesh, explicit_mesh):
    make, tilts = STACKS[kind]
    stack, x, mask, shift = make(), draw(B, P, E), draw(B, P), draw(L, E)
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[mode]
    value, gradients = pipeline(jax.value_and_grad(loss_of, argnums=(0, 1, 2, 3)), mesh, stack, x, mask, shift)

    parameters = [(layer.weight.array, layer.scale) for layer in stack.unstacked()]
    expected, (layers, *rest) = gradients_by_hand(parameters, x.array, mask.array, shift.array, tilts, 2)
    close(value, expected)
    of_layers = [(layer.weight.array, layer.scale) for layer in gradients[0].unstacked()]
    close(of_layers, layers)
    close([gradient.array for gradient in gradients[1:]], rest)


def fold(stack, x):
    return stack.fold(x)


def folded_by_hand(stack, x):
    one = jnp.ones((B.size, P.size))
    for layer in stack.unstacked():
        x = apply_by_hand(layer.weight.array, layer.scale, x, one, 0.0, 1.0)
    return x


LAYOUTS = {
    "batch on other devices alone": (STORED, {"layers": "data", "batch": "model"}),
    "batch not split": (STORED, {"layers": "data"}),
    "layers stored whole": ({}, COMPUTED),
    "layers over two mesh axes": ({}, {"layers": ("data", "model"), "batch": ("data", "model")}),
    "layers also fully sharded": ({"layers": "data", "embed": "model"}, COMPUTED),
    "layers also tensor parallel": (
        {"layers": "data", "embed.out": "model"},
        {"layers": "data", "batch": "data", "embed.out": "model"},
    ),
    "uneven order of mesh axes": (STORED, {"layers": "data", "batch": ("data", "model")}),
}


@pytest.mark.parametrize("mode", ["auto", "explicit", "mixed"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_with_other_layouts(layout, mode, auto_mesh, explicit_mesh, mixed_mesh):
    stack, x = STACKS["Stacked"][0](), draw(B, P, E)
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh, "mixed": mixed_mesh}[mode]
    stored, computed = LAYOUTS[layout]
    out = pipeline(fold, mesh, stack, x, stored=stored, computed=computed)
    same(out, ("batch", "pos", "embed"), folded_by_hand(stack, x.array), rtol=1e-5)


@pytest.mark.parametrize("mode", ["auto", "explicit"])
def test_only_one_microbatch_travels_in_a_tick_and_direction(mode, auto_mesh, explicit_mesh):
    """Nothing is gathered, and each device has the parameters and the gradients of its stage."""
    stack, x = STACKS["Stacked"][0](), draw(B, P, E)
    mappings = axn.Mappings(STORED, COMPUTED)
    with axn.set_mesh({"auto": auto_mesh, "explicit": explicit_mesh}[mode]), axn.pipelined(B, MICROBATCHES):
        run = axn.named_jit(jax.value_and_grad(mean_square), mappings)
        compiled = run.lower(*axn.shard((stack, x), mappings)).compile()
    program = compiled.as_text()
    assert not re.search("all-gather|all-to-all|reduce-scatter", program)
    sent = re.findall(r"= f32\[([\d,]+)\]\S* collective-permute\(", program)
    # One queue and one row of stages, forward and backward; two devices share the rows of a microbatch.
    rows = B.size // MICROBATCHES // 2
    sizes = [int(jnp.prod(jnp.array(list(map(int, shape.split(",")))))) for shape in sent]
    assert sizes == [rows * P.size * E.size] * 4


def test_parameters_and_gradients_of_a_device_are_those_of_its_stage(auto_mesh):
    stack, x = STACKS["Stacked"][0](), draw(B, P, E)
    gradients = pipeline(jax.grad(mean_square), auto_mesh, stack, x)
    weight = gradients.stacked.weight.array
    assert weight.sharding.shard_shape(weight.shape) == (2, 4, 4)


def test_the_program_does_not_grow_with_the_layers(auto_mesh):
    def count(layers):
        stack = nn.Stacked.init(L.resize(layers), Residual)(key=KEY)
        with axn.set_mesh(auto_mesh), axn.axis_mapping(COMPUTED), axn.pipelined(B, MICROBATCHES):
            return count_equations(jax.grad(mean_square), stack, draw(B, P, E))

    assert count(8) == count(48)


def test_dropout_does_not_depend_on_the_number_of_stages(auto_mesh):
    stack, x = STACKS["Stacked"][0](), draw(B, P, E)
    run = lambda stack, x: stack.fold(x, key=KEY)  # noqa: E731
    four = pipeline(run, auto_mesh, stack, x, computed={"layers": "data"})
    two = pipeline(run, auto_mesh, stack, x, stored={}, computed={"layers": "model"})
    one = pipeline(run, jax.make_mesh((1,), ("data",)), stack, x, computed={"layers": "data"})
    same(two, ("batch", "pos", "embed"), four.array)
    same(one, ("batch", "pos", "embed"), four.array)


@pytest.mark.parametrize("mode", ["auto", "explicit"])
def test_inside_of_a_shard_map_over_other_axes(mode, auto_mesh, explicit_mesh):
    stack, x = STACKS["Stacked"][0](), draw(B, P, E)
    mapping = {"layers": "data", "batch": "model"}

    def loss(stack, x):
        local = lambda stack, x: axn.pmean(mean_square(stack, x), "batch")  # noqa: E731
        return axn.shard_map(local, mapping, manual_axes="model")(stack, x)

    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[mode]
    value, gradients = pipeline(jax.value_and_grad(loss), mesh, stack, x, computed=mapping)

    plain = jax.value_and_grad(lambda stack: (folded_by_hand(stack, x.array) ** 2).mean())
    expected, by_hand = compiled(plain, stack)
    close(value, expected)
    close(gradients, by_hand)


def test_old_random_keys_and_calls_without_jit(auto_mesh):
    stack, x = STACKS["Stacked"][0](), draw(B, P, E)
    old = jax.random.key_data(KEY)
    with axn.set_mesh(auto_mesh), axn.axis_mapping({"layers": "data"}), axn.pipelined("batch", MICROBATCHES):
        out = stack.fold(x, key=old)
    new = pipeline(lambda s, x: s.fold(x, key=KEY), auto_mesh, stack, x, computed={"layers": "data"})
    same(out, ("batch", "pos", "embed"), new.array)


def test_other_methods_work_where_the_layers_are(auto_mesh):
    stack, x = STACKS["Stacked"][0](), draw(B, P, E)
    mapping = {"layers": "data"}
    mapped, at_once = pipeline(lambda s, x: (s.map(x), s.vmap(x)), auto_mesh, stack, x, computed=mapping)
    one = jnp.ones((B.size, P.size))
    expected = [apply_by_hand(own.weight.array, own.scale, x.array, one, 0.0, 1.0) for own in stack.unstacked()]
    same(mapped, ("layers", "batch", "pos", "embed"), jnp.stack(expected))
    same(at_once, ("layers", "batch", "pos", "embed"), jnp.stack(expected))


# errors
def counting(stack, x):
    return stack.fold_via(lambda layer, carry: (layer(carry[0]), carry[1] + 1))((x, 0))[0]


def plain(stack, x):
    return stack.fold_via(lambda layer, carry: (layer(carry[0]), carry[1]))((x, x.array))[0]


def outputs_counted(stack, x):
    return stack.scan_via(lambda layer, x: (layer(x), (x > 0).sum()))(x)


def closing(stack, x):
    return stack.fold_via(lambda layer, carry: layer(carry) * (x > 0))(x)


MISTAKES = {
    "a closure over a whole array": (
        (nn.Stacked, L, closing, {}),
        AxisSizeError,
        "multiply: axis 'batch' has two sizes: 2 and 16\n"
        "  operand 1 has: batch=2, pos=3, embed=4\n"
        "  operand 2 has: batch=16, pos=3, embed=4\n"
        "  'batch' is cut into 8 microbatches, except in arrays that functions close over\n"
        "  hint: pass these to the stack as arguments, or in place of such a function, eqx.Partial(function, array)",
    ),
    "layers": (
        (nn.Stacked, L.resize(6), fold, {}),
        AxisSizeError,
        "Stacked.fold: layers=6 cannot be split evenly into 4 stages over mesh axis data\n"
        "  hint: use a multiple of 4 layers, or make the stack with stages=4",
    ),
    "microbatches": (
        (nn.Stacked, L, fold, {"microbatches": 6}),
        AxisSizeError,
        "Stacked.fold: 6 microbatches cannot be divided evenly among 4 stages\n"
        "  layers: layers=8 over mesh axis data\n"
        '  hint: use a multiple: axn.pipelined("batch", 8)',
    ),
    "batch": (
        (nn.Stacked, L, fold, {"microbatches": 12}),
        AxisSizeError,
        "Stacked.fold: batch=16 cannot be cut evenly into 12 microbatches, each of which the mesh splits in 2\n"
        "  array has: {'batch': 16, 'pos': 3, 'embed': 4}\n"
        "  hint: use a multiple of 24",
    ),
    "axis": (
        (nn.Stacked, L, fold, {"axis": "bacth"}),
        AxisSizeError,
        "Stacked.fold: the work is cut along 'bacth', which no array of the carry has\n"
        "  it has: {'batch': 16, 'pos': 3, 'embed': 4}\n"
        "  hint: did you mean 'batch'?",
    ),
    "count in the carry": (
        (nn.Stacked, L, counting, {}),
        OperandError,
        "Stacked.fold: an entry of the carry has no axis 'batch', and int32 cannot be averaged over microbatches\n"
        "  it has: one number\n"
        "  hint: keep the axis 'batch', or use a float",
    ),
    "plain array in the carry": (
        (nn.Stacked, L, plain, {}),
        OperandError,
        "Stacked.fold: the carry has a plain array of shape (16, 3, 4), to be cut along 'batch'\n"
        "  hint: name its axes: axn.named(array, axes)",
    ),
    "count in the outputs": (
        (nn.Stacked, L, outputs_counted, {}),
        OperandError,
        "Stacked.scan: an output of the layers has no axis 'batch', and int32 cannot be averaged over microbatches",
    ),
    "repetitions": (
        (nn.Interleaved, L, lambda stack, x: stack.fold(x), {"pattern": (Residual, Residual, Tilted)}),
        AxisSizeError,
        "Interleaved.fold: each of 4 stages needs as many repetitions of the pattern of 3\n"
        "  layers=8: 2 repetitions, and 2 layers left over\n"
        "  hint: use a multiple of 12 layers",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake, auto_mesh):
    (kind, Layers, fn, options), error, text = MISTAKES[mistake]
    stack = kind.init(Layers, options.get("pattern", Residual))(key=KEY)
    cut = axn.pipelined(options.get("axis", "batch"), options.get("microbatches", MICROBATCHES))
    with axn.set_mesh(auto_mesh), axn.axis_mapping(COMPUTED), cut, pytest.raises(error) as caught:
        jax.eval_shape(fn, stack, draw(B, P, E))
    assert str(caught.value).startswith(text)


def test_the_axis_that_a_pipeline_cuts_has_no_alternatives(auto_mesh):
    first = axn.partitioning.first_fitting
    stack, x = STACKS["Stacked"][0](), draw(B, P, E)
    several = {**COMPUTED, "batch": first("data", None)}
    with axn.set_mesh(auto_mesh), axn.axis_mapping(several), axn.pipelined("batch", MICROBATCHES):
        with pytest.raises(ShardingError) as caught:
            jax.eval_shape(lambda stack, x: stack.fold(x), stack, x)
        assert str(caught.value).startswith(
            "Stacked.fold: 'batch', which a pipeline cuts, has alternatives in the mapping\n  mapping: {"
        )
        hint = "  hint: give it the mesh axes that divide it, and the one of the stages last"
        assert str(caught.value).splitlines()[2] == hint


def test_a_mapping_of_layers_that_says_nothing_about_the_work(auto_mesh):
    stack, x = STACKS["Stacked"][0](), draw(B, P, E)
    text = (
        "Stacked.fold: the layers are computed on mesh axis data, and nothing says how to cut the work\n"
        "  layers: layers=8\n"
        "  mapping: {'layers': 'data'}\n"
        '  hint: for a pipeline: with axn.pipelined("batch", 8); to store layers there, map them in `parameters` of '
        "axn.Mappings alone"
    )
    with axn.set_mesh(auto_mesh):
        fails(ShardingError, text, lambda: axn.named_jit(fold, {"layers": "data"})(stack, x))
    (problem,) = axn.check(fold, {"layers": "data"}, auto_mesh, stack, x).problems
    assert text.splitlines()[0] in str(problem)


@pytest.mark.parametrize("count", [0, True, 2.0])
def test_microbatches_are_counted(count):
    with pytest.raises(ArgumentError, match="the number of microbatches must be a positive int"):
        axn.pipelined("batch", count)
