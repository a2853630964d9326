"""Fresh mistakes with arguments, of people who know NumPy, torch, Flax or Haliax, and the whole texts that answer them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from tests.mistakes.answers import raised, text_of
from tests.nn.layouts import made

Batch, Pos, Embed, Mlp = axn.make_axes(batch=8, pos=4, embed=16, mlp=32)
KEY = jax.random.key(0)
IDS = axn.zeros((Batch, Pos), dtype=int)
LINEAR = made(nn.Linear.init, Embed, Mlp)
ATTEND = made(nn.Attention.init, Embed, axn.Axis("heads", 2), axn.Axis("head_dim", 8))

ROWS: list[tuple[Callable[[Any], object], str]] = [
    (
        lambda x: axn.take(x, IDS, axis="embed"),
        "take: axis is given by position and by name\n"
        "  it takes: (x, axis, index, *, mode='fill', fill_value=None)\n"
        "  hint: give the arguments in this order, or by name",
    ),
    (
        lambda x: axn.take("embed", x, 0),
        "take: expected a NamedArray, got str\n"
        "  it takes: (x, axis, index, *, mode='fill', fill_value=None)\n"
        "  hint: give the arguments in this order, or by name",
    ),
    (
        lambda x: axn.sum("embed", x),
        "sum: expected a NamedArray, got str\n"
        "  it takes: (x, axis=None, *, dtype=None, where=None, initial=None)\n"
        "  hint: give the arguments in this order, or by name",
    ),
    (
        lambda x: x.sum("batch", "pos"),
        "sum: 3 arguments are given by position, where it takes 2: x, axis\n"
        "  it takes: (x, axis=None, *, dtype=None, where=None, initial=None)\n"
        '  hint: several axes go in a tuple: axis=("batch", "pos")',
    ),
    (
        lambda x: x.rename(pos="time"),
        "rename: there is no argument 'pos'\n  it takes: (x, renames)\n  hint: names go in a dict: {\"pos\": ...}",
    ),
    (
        lambda x: x.std("embed", unbiased=True),
        "std: there is no argument 'unbiased'\n"
        "  it takes: (x, axis=None, *, dtype=None, ddof=0, where=None)\n"
        "  hint: write ddof",
    ),
    (
        lambda x: x.cumsum(),
        'cumsum: axis is missing\n  it takes: (x, axis, dtype=None, *, reverse=False)\n  hint: name one: axis="embed"',
    ),
    (
        lambda x: axn.concatenate([x, x], axis="embed"),
        "concatenate: axis is given by position and by name\n  it takes: (axis, arrays)\n  hint: axis goes first",
    ),
    (
        lambda x: axn.concatenate("embed", x, x),
        "concatenate: 3 arguments are given by position, where it takes 2: axis, arrays\n"
        "  it takes: (axis, arrays)\n"
        "  hint: several arrays go in a list, as one argument",
    ),
    (
        lambda x: axn.quantile(x, "embed", 0.5),
        "quantile: 0.5 is neither an Axis nor the name of one\n"
        "  it takes: (x, q, axis=None, *, method='linear', weights=None)\n"
        "  hint: give the arguments in this order, or by name",
    ),
    (
        lambda x: axn.isclose(x, x, tol=1e-3),
        "isclose: there is no argument 'tol'\n"
        "  it takes: (x, y, rtol=1e-05, atol=1e-08, equal_nan=False)\n"
        "  hint: did you mean 'rtol'?",
    ),
    (
        lambda x: axn.one_hot(IDS, num_classes=16),
        "one_hot: there is no argument 'num_classes'\n"
        "  it takes: (x, class_axis, *, dtype=None)\n"
        "  hint: write class_axis",
    ),
    (
        lambda x: axn.zeros_like((Batch, Pos)),
        "zeros_like: expected a NamedArray, got tuple\n  hint: these are axes; axn.zeros(axes) is an array",
    ),
    (
        lambda x: axn.ones(Batch, dtype="bf16"),
        "ones: there is no dtype 'bf16'\n  hint: write jnp.bfloat16",
    ),
    (
        lambda x: axn.full(Batch, fill=2),
        "full: there is no argument 'fill'\n  it takes: (shape, fill_value, dtype=None)\n  hint: write fill_value",
    ),
    (
        lambda x: axn.eye(Embed),
        "eye: column is missing\n"
        "  it takes: (row, column, *, k=0, dtype=None)\n"
        "  hint: give the arguments in this order, or by name",
    ),
    (
        lambda x: axn.named(("batch", "pos"), np.ones((8, 4))),
        "named: names are given in the place of the array\n  hint: the array comes first: named(array, axes)",
    ),
    (
        lambda x: axn.named(np.ones((8, 4)), "batch", "pos"),
        "named: 3 arguments are given by position, where it takes 2: array, axes\n"
        "  it takes: (array, axes)\n"
        '  hint: several axes go in a tuple: axes=("batch", "pos")',
    ),
    (
        lambda x: axn.Axis("batch", 8, 2),
        "Axis: 3 arguments are given by position, where it takes 2: name, size\n  it takes: (name, size)",
    ),
    (
        lambda x: axn.make_axes({"batch": 8}),
        "make_axes: 1 argument is given by position, where it takes 0: none\n"
        "  it takes: (**sizes)\n"
        "  hint: write make_axes(**...)",
    ),
    (
        lambda x: Embed + 1,
        "Axis: 'embed' is an axis, and no number\n"
        "  hint: Axis.size is a number; Embed.resize(2 * Embed.size) is an axis of twice the size",
    ),
    (
        lambda x: 8 * Batch,
        "Axis: 'batch' is an axis, and no number\n"
        "  hint: Axis.size is a number; Embed.resize(2 * Embed.size) is an axis of twice the size",
    ),
    (
        lambda x: int(Batch),
        "Axis: 'batch' is an axis, and no number\n"
        "  hint: Axis.size is a number; Embed.resize(2 * Embed.size) is an axis of twice the size",
    ),
    (
        lambda x: axn.random.randint(KEY, 0, 10, Batch),
        "randint: 0 stands where axes go\n"
        "  it takes: (key, shape, minval, maxval, dtype=None)\n"
        "  hint: give the arguments in this order, or by name",
    ),
    (
        lambda x: axn.random.choice(KEY, x, 3),
        "choice: expected a NamedArray, got int\n"
        "  it takes: (key, shape, a, axis=None, replace=True, p=None)\n"
        "  hint: give the arguments in this order, or by name",
    ),
    (
        lambda x: axn.random.normal(KEY, Batch, loc=1.0),
        "normal: there is no argument 'loc'\n  it takes: (key, shape, dtype=None)",
    ),
    (
        lambda x: axn.vmap(LINEAR)(x),
        "vmap: axis is missing\n"
        "  it takes: (fn, axis, *, default=0, args=(), kwargs=None, out_axis=0)\n"
        '  hint: name the axis that is mapped, as in axn.vmap(f, "batch")',
    ),
    (
        lambda x: axn.vmap(LINEAR, "batch", x),
        "vmap: 3 arguments are given by position, where it takes 2: fn, axis\n"
        "  it takes: (fn, axis, *, default=0, args=(), kwargs=None, out_axis=0)\n"
        "  hint: the others go to what it returns: vmap(fn, axis)(...)",
    ),
    (
        lambda x: axn.vmap(lambda row: row, in_axes=0),
        "vmap: there is no argument 'in_axes'\n"
        "  it takes: (fn, axis, *, default=0, args=(), kwargs=None, out_axis=0)\n"
        '  hint: name the axis that is mapped: axn.vmap(f, "batch")',
    ),
    (
        lambda x: axn.scan(lambda total, row: (total, row), x, init=0.0),
        "scan: there is no argument 'init'\n"
        "  it takes: (f, axis, *, remat=False, reverse=False, unroll=1, is_scanned=is_scanned_by_default, out_axis=0)\n"
        "  hint: the others go to what it returns: scan(f, axis)(...)",
    ),
    (
        lambda x: nn.relu(x, inplace=True),
        "relu: there is no argument 'inplace'\n"
        "  it takes: (x)\n"
        "  hint: leave it out: arrays do not change, so use the result",
    ),
    (
        lambda x: nn.cross_entropy_loss(x, IDS),
        "cross_entropy_loss: targets is missing\n"
        "  it takes: (logits, Label, targets, reduction=mean, where=None, reduction_axis=None, *, z_loss=0.0, label_smoothing=0.0, ignore_index=None)\n"
        "  hint: give the arguments in this order, or by name",
    ),
    (
        lambda x: nn.dropout(x, p=0.5, key=KEY),
        "dropout: there is no argument 'p'\n"
        "  it takes: (x, pdrop, broadcast_axes=None, *, inference=False, key=None)\n"
        "  hint: write pdrop",
    ),
    (
        lambda x: nn.LayerNorm.init(normalized_shape=Embed),
        "LayerNorm.init: there is no argument 'normalized_shape'\n"
        "  it takes: (axis, eps=1e-05, *, use_weight=True, use_bias=True, dtype=None)\n"
        "  hint: write axis",
    ),
    (
        lambda x: nn.Linear.init(in_features=Embed, out_features=Mlp, key=KEY),
        "Linear.init: there is no argument 'in_features'\n"
        "  it takes: (In, Out, *, key, use_bias=True, out_first=False, init_scale=1.0, initializer=None, dot_general=None)\n"
        "  hint: write In",
    ),
    (
        lambda x: nn.Sequential(LINEAR, nn.relu),
        "Sequential: 2 arguments are given by position, where it takes 1: layers\n"
        "  it takes: (layers)\n"
        "  hint: layers go in a list, as one argument",
    ),
    (
        lambda x: nn.causal(x),
        "causal: 1 argument is given by position, where it takes 0: none\n  it takes: ()",
    ),
    (
        lambda x: nn.rotary(x),
        "rotary: positions, HeadDim are missing\n"
        "  it takes: (x, positions, HeadDim, *, theta=10000.0, scaling=None, interleaved=False, size=None)\n"
        "  hint: give the arguments in this order, or by name",
    ),
    (
        lambda x: ATTEND(x, mask="causal"),
        "dot_product_attention: a mask must be an AttentionMask or a NamedArray of booleans, not str\n"
        "  hint: write nn.causal(), nn.window(...), nn.prefix(...) or nn.segments(...)",
    ),
    (
        lambda x: ATTEND(x, is_causal=True),
        "Attention: there is no argument 'is_causal'\n"
        "  it takes: (x, mask=None, *, context=None, rotate=None, bias=None, implementation=None, key=None)\n"
        "  hint: write mask=nn.causal()",
    ),
    (
        lambda x: ATTEND(x, nn.causal(), rotate=True),
        "Attention: rotate must be a function of queries and keys, not True\n"
        "  hint: a RotaryTable is one: nn.RotaryEmbedding.init(HeadDim).at(Pos)",
    ),
    (
        lambda x: LINEAR(x, x),
        "Linear: 2 arguments are given by position, where it takes 1: x\n"
        "  it takes: (x, *, key=None)\n"
        "  hint: give the others by name",
    ),
    (
        lambda x: LINEAR(input=x),
        "Linear: there is no argument 'input'\n  it takes: (x, *, key=None)\n  hint: write x",
    ),
    (
        lambda x: LINEAR.in_features,
        "'Linear' object has no attribute 'in_features'\n  hint: the axes of a layer are layer.In and layer.Out",
    ),
    (
        lambda x: len(LINEAR),
        "Linear: a layer has no length\n  hint: for Optax, write optimizer.update(gradients, state, model)",
    ),
    (
        lambda x: x.swap_axes("pos", "batch"),
        "swap_axes: a NamedArray has no such attribute\n"
        '  hint: x.rearrange(("embed", ...)) stores the axes in another order',
    ),
    (
        lambda x: axn.state_dict.load_state_dict(LINEAR, "model.safetensors"),
        "load_state_dict: 2 arguments are given by position, where it takes 1: path\n"
        "  it takes: (path, *, check=False)\n"
        "  hint: give the others by name",
    ),
    (
        lambda x: nn.Stacked.init(axn.Axis("layers", 2), nn.Linear, Embed, Mlp),
        "Stacked.init: 4 arguments are given by position, where it takes 2: Block, module\n"
        "  it takes: (Block, module, *, gradient_checkpointing=False, rounds=1, stages=1)\n"
        "  hint: the others go to what it returns: Stacked.init(Block, module)(...)",
    ),
    (
        lambda x: eqx.nn.MLP(16, 4, 8, 1, key=KEY)(x["batch", 0, "pos", 0]),
        "@: a layer of Equinox takes arrays without names\n"
        "  in the layer: layers.0\n"
        '  hint: write axn.nmap(layer, out_axis="embed")(x.untag("embed")), or use one of axn.nn',
    ),
]


@pytest.mark.parametrize(("make", "answer"), ROWS, ids=[answer.partition("\n")[0] for _, answer in ROWS])
def test_an_argument_is_answered(make: Callable[[Any], object], answer: str, x: axn.NamedArray) -> None:
    assert text_of(raised(lambda: make(x))) == answer
