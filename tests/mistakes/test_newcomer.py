"""The answers to the mistakes of a newcomer's review, one by one, and a count of their verdicts.

Good: a text of ours that says what was asked, what is there and what would work, or a warning of this kind. Usable: the
text of another library, or one of ours that comes later. Silent mistakes raise nothing, for a reason.
"""

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as axn
from axonym import nn
from tests.mistakes.answers import raised, text_of
from tests.mistakes.test_verdicts import decorators
from tests.nn.layouts import made

Batch, Pos, Embed, Mlp = axn.make_axes(batch=8, pos=4, embed=16, mlp=32)
KEY = jax.random.key(0)
IDS = axn.zeros((Batch, Pos), dtype=int)
LINEAR = made(nn.Linear.init, Embed, Mlp)
ATTEND = made(nn.Attention.init, Embed, axn.Axis("heads", 2), axn.Axis("head_dim", 8))
STACK = made(nn.Stacked.init(axn.Axis("layers", 2), nn.Attention), Embed, axn.Axis("heads", 2), axn.Axis("head_dim", 8))
ADAM = optax.adam(1e-3)


class Slope(eqx.Module):
    """A layer with a number."""

    slope: float = 0.1


SLOPE = Slope()


class Row(NamedTuple):
    """A mistake, how good its answer is, and the answer: the whole text if it is ours, a part of the text of others."""

    mistake: str
    verdict: str
    make: Callable[[Any], object]
    answer: str
    why: str = ""


ROWS = [
    Row(
        "several axes as arguments of zeros",
        "good",
        lambda x: axn.zeros(Batch, Embed),
        "zeros: several axes go in a tuple, as one argument\n  axes: batch=8, embed=16",
    ),
    Row(
        "several axes as arguments of named",
        "good",
        lambda x: axn.named(np.ones((2, 4)), Batch, Embed),
        "named: 3 arguments are given by position, where it takes 2: array, axes\n"
        "  it takes: (array, axes)\n"
        '  hint: several axes go in a tuple: axes=("batch", "embed")',
    ),
    Row(
        "an axis without its size",
        "good",
        lambda x: axn.Axis("pos"),
        "Axis: size is missing\n"
        "  it takes: (name, size)\n"
        '  hint: an axis has a size: Axis("batch", 32); where one is there, "batch" alone names it',
    ),
    Row(
        "names for make_axes",
        "good",
        lambda x: axn.make_axes("batch", "embed"),
        "make_axes: 2 arguments are given by position, where it takes 0: none\n"
        "  it takes: (**sizes)\n"
        "  hint: write batch=..., embed=...",
    ),
    Row(
        "an array of NumPy times a named one",
        "good",
        lambda x: np.ones(8) * x,
        "multiply: cannot combine a plain array of shape (8,) with axes batch, pos, embed\n"
        "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
    ),
    Row(
        "a ufunc of NumPy",
        "usable",
        lambda x: np.exp(x),
        "operand 'NamedArray' does not support ufuncs (__array_ufunc__=None)",
        "NumPy's text, which the question about functions of NumPy answers",
    ),
    Row(
        "a function of NumPy",
        "good",
        lambda x: np.dot(x, x),
        "np.dot: functions of NumPy work by position, and return arrays without names\n"
        "  operand 1 has: batch=8, pos=4, embed=16\n"
        "  operand 2 has: batch=8, pos=4, embed=16\n"
        "  hint: write axn.dot; np.asarray(x) is the array without its names, in storage order",
    ),
    Row(
        "a shape compared with sizes",
        "warns",
        lambda x: x.shape == (8, 4, 16),
        "shape: sizes by name are never equal to (8, 4, 16)\n"
        "  array has: batch=8, pos=4, embed=16\n"
        '  hint: write x.shape == {"batch": 8}, or x.array.shape == (8,)',
    ),
    Row(
        "detach",
        "good",
        lambda x: x.detach(),
        "detach: a NamedArray has no such attribute\n  hint: axn.stop_gradient(x)",
    ),
    Row(
        "a mask of queries",
        "warns",
        lambda x: ATTEND(x, axn.zeros(Pos, dtype=bool)),
        "dot_product_attention: the mask has axis 'pos' of queries and not 'pos.key', so it hides whole queries\n"
        "  mask has: pos=4\n"
        '  hint: to hide keys, rename it: mask.rename({"pos": "pos.key"})',
    ),
    Row(
        "labels with an axis of size 1",
        "good",
        lambda x: nn.cross_entropy_loss(x, "embed", axn.zeros({"batch": 8, "pos": 4, "label": 1}, dtype=int)),
        "cross_entropy_loss: the targets have axis 'label', which the logits lack\n"
        "  logits have: batch=8, pos=4, embed=16\n"
        "  targets have: batch=8, pos=4, label=1\n"
        '  hint: drop it: targets["label", 0]',
    ),
    Row(
        "labels over another name",
        "good",
        lambda x: nn.cross_entropy_loss(x, "embed", axn.zeros({"sample": 8, "pos": 4}, dtype=int)),
        "cross_entropy_loss: the targets have axis 'sample', which the logits lack\n"
        "  logits have: batch=8, pos=4, embed=16\n"
        "  targets have: sample=8, pos=4\n"
        '  hint: if it is the same as \'batch\', rename it: targets.rename({"sample": "batch"})',
    ),
    Row(
        "labels from 1",
        "silent",
        lambda x: nn.cross_entropy_loss(x, "embed", axn.full((Batch, Pos), 16, dtype=int)),
        "",
        "NaN, as JAX cannot raise in a program; an error inside of axn.debug.checks()",
    ),
    Row(
        "targets before the axis",
        "good",
        lambda x: nn.cross_entropy_loss(x, IDS, "embed"),
        "cross_entropy_loss: a NamedArray is neither an Axis nor the name of one\n"
        "  it takes: (logits, Label, targets, reduction=mean, where=None, reduction_axis=None, *, z_loss=0.0, label_smoothing=0.0, ignore_index=None)\n"
        "  hint: give the arguments in this order, or by name",
    ),
    Row(
        "a loss of Optax",
        "usable",
        lambda x: optax.softmax_cross_entropy_with_integer_labels(x, IDS),
        "expand_dims requires ndarray or scalar arguments, got <class 'axonym.a",
        "JAX's text",
    ),
    Row(
        "a target over another name",
        "good",
        lambda x: ((x - axn.ones({"batch": 8, "pos": 4, "label": 16})) ** 2).mean(),
        "subtract: no operand has the axes of all others\n"
        "  operand 1 has: batch=8, pos=4, embed=16\n"
        "  operand 2 has: batch=8, pos=4, label=16\n"
        "  hint: if the outer product is meant, give an operand the others' axes first: x.broadcast_axis(label)",
    ),
    Row(
        "a Python number in a module",
        "warns",
        lambda x: axn.value_and_grad(lambda model: model.slope * model.slope)(SLOPE),
        "value_and_grad: argument 0.slope is the Python number 0.1, and gets a gradient as a parameter does\n"
        "  hint: a parameter is an array: jnp.array(0.1). To leave numbers alone, differentiate by eqx.filter_grad, or declare the field with eqx.field(static=True)",
    ),
    Row(
        "integers in a model",
        "good",
        lambda x: axn.grad(lambda model: model.sum())(axn.ones({"a": 2}, dtype=int)),
        "grad: argument 0 has no derivatives: int32, a=2\n"
        "  hint: eqx.filter_grad(fn) takes any model: it differentiates with respect to floating arrays only",
    ),
    Row(
        "an assignment to a weight",
        "usable",
        lambda x: setattr(LINEAR, "weight", LINEAR.weight),
        "cannot assign to field 'weight'",
        "Python's text",
    ),
    Row(
        "a layer without a key",
        "good",
        lambda x: nn.Linear.init(Embed, Mlp),
        "Linear.init: key is missing\n"
        "  it takes: (In, Out, *, key, use_bias=True, out_first=False, init_scale=1.0, initializer=None, dot_general=None)\n"
        "  hint: a key is made from a seed: key=jax.random.key(0)",
    ),
    Row(
        "a key by position",
        "good",
        lambda x: nn.Linear.init(Embed, Mlp, KEY),
        "Linear.init: 3 arguments are given by position, where it takes 2: In, Out\n"
        "  it takes: (In, Out, *, key, use_bias=True, out_first=False, init_scale=1.0, initializer=None, dot_general=None)\n"
        "  hint: write key=...",
    ),
    Row(
        "a key by position for an embedding",
        "good",
        lambda x: nn.Embedding.init(Mlp, Embed, KEY),
        "Embedding.init: 3 arguments are given by position, where it takes 2: Vocab, Embed\n"
        "  it takes: (Vocab, Embed, *, key, init_scale=1.0, initializer=None)\n"
        "  hint: write key=...",
    ),
    Row(
        "keys by their number",
        "good",
        lambda x: axn.random.split(KEY, 3),
        'split: 3 is a size without a name\n  hint: name it: Axis("name", 3), or {"name": 3}',
    ),
    Row(
        "a seed for a key",
        "good",
        lambda x: axn.random.normal(0, Batch),
        "normal: key must be a PRNG key, not int\n  hint: make one from a seed: jax.random.key(0)",
    ),
    Row(
        "numbers that wrap around", "silent", lambda x: axn.zeros(Batch, dtype=jnp.uint8) - 5, "", "as in NumPy and JAX"
    ),
    Row("a mean of nothing", "silent", lambda x: axn.mean(x, where=x > 100), "", "as in NumPy and JAX"),
    Row(
        "one mapping for fsdp",
        "good",
        lambda x: axn.fsdp(lambda model, x: model(x), {"embed": "data"}),
        "fsdp: compute_mapping is missing\n  hint: write fsdp(step, parameters, compute)",
    ),
    Row(
        "a misspelt option",
        "good",
        lambda x: axn.named_jit(lambda x: x, in_axis_resource={"batch": "data"}),
        "named_jit: there is no option 'in_axis_resource'\n"
        "  options: in_axis_resources, out_axis_resources, donate_args, donate_kwargs, strict, rings, keep_unused, device, backend, inline, compiler_options\n"
        "  hint: did you mean 'in_axis_resources'?",
    ),
    Row(
        "a named condition of JAX",
        "usable",
        lambda x: jax.lax.cond(axn.ones(()) > 0, lambda: 1, lambda: 2),
        "Error interpreting argument to convert_element_type as a JAX value. Th",
        "JAX's text",
    ),
    Row(
        "an if under jit",
        "usable",
        lambda x: jax.jit(lambda x: 1 if x.mean() > 0 else 2)(x),
        "Attempted boolean conversion of traced array with shape bool[].",
        "JAX's text, with the page that explains it",
    ),
    Row(
        "a scan without its carry",
        "good",
        lambda x: axn.scan(lambda total, row: (total, row), "pos")(x),
        "scan: got only the initial carry, which has axis 'pos'\n"
        '  hint: write axn.scan(f, "pos")(init, x); for a loop without arrays, give its size: Axis("pos", size)',
    ),
    Row(
        "a fold that returns a pair",
        "good",
        lambda x: axn.fold(lambda total, row: (total, row), "pos")(x["pos", 0], x),
        "fold: a step changes the structure of the carry\n"
        "  before: PyTreeDef(*)\n"
        "  after: PyTreeDef((*, *))\n"
        "  hint: use scan for a step that returns a pair of carry and output",
    ),
    Row(
        "an axis before the function",
        "good",
        lambda x: axn.map("pos", lambda row: row),
        "map: an object of type function is neither an Axis nor the name of one\n"
        "  it takes: (fn, axis, *, remat=False, reverse=False, unroll=1, is_mapped=is_scanned_by_default, out_axis=0)\n"
        "  hint: give the arguments in this order, or by name",
    ),
    Row(
        "a condition that comes second",
        "silent",
        lambda x: axn.where(x, x > 0, 0.0),
        "",
        "as in NumPy and JAX, where numbers are conditions",
    ),
    Row(
        "classes before ids",
        "good",
        lambda x: axn.one_hot(Mlp, IDS),
        "one_hot: expected a NamedArray, got Axis\n"
        "  it takes: (x, class_axis, *, dtype=None)\n"
        "  hint: give the arguments in this order, or by name",
    ),
    Row(
        "torch's correction",
        "good",
        lambda x: x.var("embed", correction=1),
        "var: there is no argument 'correction'\n"
        "  it takes: (x, axis=None, *, dtype=None, ddof=0, where=None)\n"
        "  hint: write ddof",
    ),
    Row(
        "a perceptron in torch's order",
        "good",
        lambda x: nn.MLP.init(Embed, Mlp, Embed, key=KEY),
        "MLP.init: depth is missing\n"
        "  it takes: (Input, Output, width, depth, activation=relu, *, key, out_first=False, use_bias=True, use_final_bias=True, init_scale=1.0, initializer=None)\n"
        "  hint: depth counts the layers: MLP.init(In, Out, width, depth, key=key)",
    ),
    Row(
        "an embedding with its axes exchanged",
        "usable",
        lambda x: nn.Embedding.init(Embed, Mlp, key=KEY)(IDS).dot(LINEAR.weight, axis="embed"),
        "dot: axis 'embed' is to be summed over, but only operand 2 has it",
        "each axis may be a vocabulary: the next operation answers",
    ),
    Row(
        "sizes for axes of a layer",
        "good",
        lambda x: nn.Attention.init(Embed, 2, 4, key=KEY),
        'Attention.init: 2 is a size without a name\n  hint: name it: Axis("name", 2), or {"name": 2}',
    ),
    Row(
        "names for axes of a layer",
        "good",
        lambda x: nn.Linear.init("embed", "mlp", key=KEY),
        "Linear.init: axis 'embed' needs a size here\n  hint: write Axis(\"embed\", size)",
    ),
    Row(
        "a key in the place of a mask",
        "good",
        lambda x: ATTEND(x, KEY),
        "dot_product_attention: a mask must be an AttentionMask or a NamedArray of booleans, not PRNGKeyArray\n"
        "  hint: the key goes by its name: key=...",
    ),
    Row(
        "a key in the place of a mask of a stack",
        "good",
        lambda x: STACK.fold(x, KEY),
        "dot_product_attention: a mask must be an AttentionMask or a NamedArray of booleans, not DynamicJaxprTracer\n"
        "  in the layer: stacked\n"
        "  hint: the key goes by its name: key=...",
    ),
    Row(
        "queries, keys and values",
        "good",
        lambda x: ATTEND(x, x, x),
        "Attention: 3 arguments are given by position, where it takes 2: x, mask\n"
        "  it takes: (x, mask=None, *, context=None, rotate=None, bias=None, implementation=None, key=None)\n"
        "  hint: give the others by name",
    ),
    Row(
        "a rate in percent",
        "good",
        lambda x: nn.Dropout(20),
        "Dropout: pdrop must be a probability from 0 to 1, not 20",
    ),
    Row(
        "torch's word for a rate",
        "good",
        lambda x: nn.Dropout(p=0.1),
        "Dropout: there is no argument 'p'\n"
        "  it takes: (pdrop=0.5, broadcast_axes=None, inference=False)\n"
        "  hint: write pdrop",
    ),
    Row(
        "torch's word for a bias",
        "good",
        lambda x: nn.Linear.init(Embed, Mlp, bias=False, key=KEY),
        "Linear.init: there is no argument 'bias'\n"
        "  it takes: (In, Out, *, key, use_bias=True, out_first=False, init_scale=1.0, initializer=None, dot_general=None)\n"
        "  hint: write use_bias",
    ),
    Row(
        "an expression without an arrow",
        "good",
        lambda x: axn.rearrange(x, "pos, batch, embed"),
        "rearrange: the expression has no ->\n"
        "  pos, batch, embed\n"
        "                   ^\n"
        "  array has: batch=8, pos=4, embed=16\n"
        '  hint: write -> and the axes of the result, as in "a b -> b a"',
    ),
    Row(
        "letters that are initials of other axes",
        "silent",
        lambda x: axn.rearrange(axn.ones({"pos": 4, "batch": 8, "embed": 16}), "b p e -> (token: b p) e"),
        "",
        "letters stand for axes by position, as in einops; names in braces are exact",
    ),
    Row(
        "an index by a slice of Python",
        "good",
        lambda x: x["batch":0],
        "index: an index is a dict, or pairs of an axis and a selector, not (slice)\n"
        "  array has: batch=8, pos=4, embed=16\n"
        '  hint: write x["batch", 0] or x[{"batch": 0, "embed": slice(2, 5)}]',
    ),
    Row(
        "an item of several elements",
        "good",
        lambda x: x.item(),
        "item: the array has several elements\n"
        "  array has: batch=8, pos=4, embed=16\n"
        "  hint: reduce it, as x.mean().item() does; x.tolist() has all",
    ),
    Row(
        "the maximum of Python",
        "good",
        lambda x: max(x, 0.0),
        "bool: the truth of an array of several elements is ambiguous\n"
        "  array has: batch=8, pos=4, embed=16\n"
        "  hint: reduce it: x.all() or x.any()",
    ),
    Row(
        "an assignment to a part",
        "good",
        lambda x: x.at.__setitem__(("batch", 0), 1),
        'at: arrays of JAX do not change\n  hint: x.at["batch", 0].set(1.0) returns a new array',
    ),
    Row(
        "a stack of several arguments",
        "good",
        lambda x: axn.stack("pair", x, x),
        "stack: 3 arguments are given by position, where it takes 2: axis, arrays\n"
        "  it takes: (axis, arrays)\n"
        "  hint: several arrays go in a list, as one argument",
    ),
    Row(
        "the maximum of two arrays",
        "good",
        lambda x: axn.max(x, x),
        "max: a NamedArray is neither an Axis nor the name of one\n"
        "  hint: axn.maximum(x, y) compares the elements of two arrays",
    ),
    Row(
        "a range by numbers",
        "good",
        lambda x: axn.arange(0, 8),
        "arange: 2 arguments are given by position, where it takes 1: axis\n"
        "  it takes: (axis, *, start=0, step=1, dtype=None)\n"
        "  hint: give the others by name",
    ),
    Row(
        "numbers of linspace",
        "good",
        lambda x: axn.linspace(0, 1, 10),
        "linspace: 3 arguments are given by position, where it takes 1: axis\n"
        "  it takes: (axis, *, start, stop, endpoint=True, dtype=None)\n"
        "  hint: give the others by name",
    ),
    Row(
        "a value before the axes",
        "good",
        lambda x: axn.full(3.0, Batch),
        "full: 3.0 is neither an Axis nor the name of one\n"
        "  it takes: (shape, fill_value, dtype=None)\n"
        "  hint: give the arguments in this order, or by name",
    ),
    Row(
        "a short word for a dtype",
        "good",
        lambda x: x.astype("bf16"),
        "astype: there is no dtype 'bf16'\n  hint: write jnp.bfloat16",
    ),
    Row(
        "a layer of Equinox",
        "good",
        lambda x: eqx.nn.Linear(16, 8, key=KEY)(x["batch", 0, "pos", 0]),
        "@: a layer of Equinox takes arrays without names\n"
        '  hint: write axn.nmap(layer, out_axis="embed")(x.untag("embed")), or use one of axn.nn',
    ),
    Row(
        "a layer of torch",
        "good",
        lambda x: nn.Conv2d,
        "axonym.nn: there is no 'Conv2d'\n"
        '  hint: nn.Conv.init(("height", "width"), In, Out, kernel_size, key=key), over any number of named axes',
    ),
    Row(
        "parameters of a model",
        "good",
        lambda x: LINEAR.parameters(),
        "'Linear' object has no attribute 'parameters'\n"
        "  hint: eqx.filter(model, eqx.is_inexact_array) keeps them, axn.parameters.table lists them",
    ),
    Row(
        "Flax's order of a cell",
        "good",
        lambda x: nn.GRUCell.init(Embed, Mlp, key=KEY)(axn.ones(Mlp), x),
        "Linear: the input lacks axis 'embed'\n"
        "  input has: mlp=32\n"
        "  the layer works over: embed=16\n"
        "  in the layer: input",
    ),
    Row(
        "an equation of other axes",
        "good",
        lambda x: axn.ones(Batch) == axn.ones(Pos),
        "equal: no operand has the axes of all others\n"
        "  operand 1 has: batch=8\n"
        "  operand 2 has: pos=4\n"
        "  hint: if the outer product is meant, give an operand the others' axes first: x.broadcast_axis(pos)",
    ),
    Row(
        "a loop over an axis",
        "good",
        lambda x: range(Batch),
        "Axis: 'batch' is an axis, and no number\n"
        "  hint: Axis.size is a number; Embed.resize(2 * Embed.size) is an axis of twice the size",
    ),
    Row(
        "arithmetic of an axis",
        "good",
        lambda x: Embed * 2,
        "Axis: 'embed' is an axis, and no number\n"
        "  hint: Axis.size is a number; Embed.resize(2 * Embed.size) is an axis of twice the size",
    ),
    Row(
        "a function of NumPy of an axis",
        "usable",
        lambda x: np.sqrt(Embed),
        "loop of ufunc does not support argument 0 of type Axis",
        "NumPy's text",
    ),
    Row(
        "an array of NumPy reshaped to axes",
        "good",
        lambda x: np.ones((8, 16)).reshape(Batch, Embed),
        "Axis: 'batch' is an axis, and no number\n"
        "  hint: Axis.size is a number; Embed.resize(2 * Embed.size) is an axis of twice the size",
    ),
    Row(
        "an array divided by an axis",
        "good",
        lambda x: x / Embed,
        "Axis: 'embed' is an axis, and no number\n"
        "  hint: Axis.size is a number; Embed.resize(2 * Embed.size) is an axis of twice the size",
    ),
    Row(
        "a name with spaces in an expression",
        "good",
        lambda x: axn.ones({"my axis": 2, "b": 3}).rearrange("{my axis b} -> b"),
        "rearrange: no axis named 'my'\n"
        "  {my axis b} -> b\n"
        "   ^^\n"
        "  array has: my axis=2, b=3\n"
        "  hint: spaces separate names: write a letter, and a='my axis'",
    ),
    Row(
        "a format of an array",
        "good",
        lambda x: f"{x:.3f}",
        "format: format '.3f' applies to a single element, but the array has dimensions\n"
        "  array has: batch=8, pos=4, embed=16\n"
        "  hint: reduce or index it first; without a format, the array is shown as by print(x)",
    ),
    Row(
        "a misspelt name in a shape",
        "good",
        lambda x: x.shape["bacth"],
        "shape: no axis named 'bacth'\n  array has: batch=8, pos=4, embed=16\n  hint: did you mean 'batch'?",
    ),
    Row(
        "a function of JAX in axn.vmap",
        "good",
        lambda x: axn.vmap(lambda row: jnp.clip(row, 0, 1), "batch")(axn.ones(Batch)),
        "clip requires ndarray or scalar arguments, got <class 'axonym.array.NamedArray'> at position 0.\n"
        "hint: a function of JAX got a named array: call the one of axonym, such as axn.clip, or give it x.array, which for an array without axes is x.scalar()",
    ),
    Row(
        "Optax's update with its arguments exchanged",
        "good",
        lambda x: ADAM.update(LINEAR, LINEAR, ADAM.init(LINEAR)),
        "Linear: a layer has no length\n  hint: for Optax, write optimizer.update(gradients, state, model)",
    ),
    Row(
        "a filter of adapters without adapters",
        "warns",
        lambda x: nn.lora_filter(LINEAR),
        "lora_filter: the model has no LoraLinear, so that nothing is selected\n"
        "  hint: adapt it first: axn.nn.add_lora(model, rank, key=key)",
    ),
]
# Other tests of this folder, which hold answers that need a mesh, or are also those to other mistakes; all are good.
ELSEWHERE = [
    "mappings_of_fsdp_exchanged",
    "a_mesh_axis_twice_in_an_entry",
    "several_mesh_axes_in_one_string",
    "a_pipeline_without_mapped_layers",
    "a_misspelt_key_of_named_jit",
    "two_names_on_one_mesh_axis",
    "a_method_of_modules_in_torch",
    "a_number_that_changes_at_each_step",
]


@pytest.mark.parametrize("row", ROWS, ids=[row.mistake for row in ROWS])
def test_a_mistake_is_answered(row: Row, x: axn.NamedArray) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        error = raised(lambda: row.make(x))
    if row.verdict in ("usable", "silent"):
        assert row.why
    if row.verdict == "silent":
        assert error is None
        assert not caught
    elif row.verdict == "warns":
        assert (error, [str(one.message) for one in caught]) == (None, [row.answer])
    elif row.verdict == "usable":
        assert row.answer in text_of(error)
    else:
        assert text_of(error) == row.answer


def test_the_count_of_verdicts() -> None:
    counts = Counter(row.verdict for row in ROWS)
    assert set(ELSEWHERE) <= {name for name, kind in decorators().items() if kind in ("says", "warns")}
    assert len(ROWS) + len(ELSEWHERE) == 82
    assert counts == {"good": 58, "usable": 7, "warns": 4, "silent": 5}
