"""Mistakes with layers."""

import equinox as eqx
import jax
import jax.numpy as jnp

import axonym as axn
from axonym import nn
from tests.mistakes.answers import says, silent, warns
from tests.nn.layouts import compiled, made

Batch, Pos, Embed, Mlp, Layers, Vocab, Heads = axn.make_axes(
    batch=8, pos=4, embed=16, mlp=32, layers=3, vocab=10, heads=2
)
KPos = axn.Axis("pos.key", 4)
KEY = jax.random.key(0)


@says(
    """
    Linear: Linear(...) fills in the fields weight, bias, In, Out, dot_general
      hint: to make a layer, write Linear.init(In, Out, key=...)
    """
)
def test_linear_without_init() -> None:
    nn.Linear(Embed, Mlp)


@says(
    """
    Linear: Linear(...) fills in the fields weight, bias, In, Out, dot_general
      hint: to make a layer, write Linear.init(In, Out, key=...)
    """
)
def test_linear_without_init_but_with_a_key() -> None:
    nn.Linear(Embed, Mlp, key=KEY)


@says(
    """
    LayerNorm: LayerNorm(...) fills in the fields axis, weight, bias, eps, dtype
      hint: to make a layer, write LayerNorm.init(axis)
    """
)
def test_layer_norm_without_init() -> None:
    nn.LayerNorm(Embed)


@says(
    """
    Stacked: its layers are not called as one
      hint: write .fold(x) to apply the layers in sequence; .scan if each returns an output too
    """
)
def test_a_stack_that_is_called(x: axn.NamedArray) -> None:
    nn.Stacked.init(Layers, nn.LayerNorm)(Embed)(x)


@says(
    """
    Stacked.init: the axis of layers comes first, not 3
      hint: write Stacked.init(Axis("layers", 3), LayerNorm)
    """
)
def test_a_stack_of_a_number_of_layers() -> None:
    nn.Stacked.init(3, nn.LayerNorm)


@says(
    """
    Stacked.init: the axis of layers comes first, not the class LayerNorm
      hint: write Stacked.init(Axis("layers", 12), LayerNorm)
    """
)
def test_a_stack_with_its_arguments_swapped() -> None:
    nn.Stacked.init(nn.LayerNorm, Layers)


@says(
    """
    Stacked.init: there are 2 keys for layers=3
      hint: pass one key for each layer, or a single key, which is split
    """
)
def test_too_few_keys() -> None:
    nn.Stacked.init(Layers, nn.Linear)(Embed, Embed, key=jax.random.split(KEY, 2))


@says(
    """
    Linear.init: key is missing
      it takes: (In, Out, *, key, use_bias=True, out_first=False, init_scale=1.0, initializer=None, dot_general=None)
      hint: a key is made from a seed: key=jax.random.key(0)
    """
)
def test_a_stack_without_a_key() -> None:
    nn.Stacked.init(Layers, nn.Linear)(Embed, Embed)


@says(
    """
    Stacked.fold: a step changes the axes of the carry
      before: a NamedArray with batch=8, pos=4, embed=16
      after: a NamedArray with batch=8, pos=4, mlp=32
      hint: start with the axes that a step returns, or reduce what it returns
    """
)
def test_a_layer_of_a_stack_that_changes_axes(x: axn.NamedArray) -> None:
    nn.Stacked.init(Layers, nn.Linear)(Embed, Mlp, key=KEY).fold(x)


@says(
    """
    dot_product_attention: the query has axis 'pos', the positions of keys
      query has: batch=8, pos=4, embed=16
      hint: rename it on keys and values: keys.rename({"pos": "pos.key"})
    """
)
def test_keys_that_were_not_renamed(x: axn.NamedArray) -> None:
    nn.dot_product_attention("pos", "pos", "embed", x, x, x)


@says(
    """
    dot_product_attention: the keys have axis 'pos', the positions of queries
      keys have: batch=8, pos=4, embed=16
      hint: rename it: keys.rename({"pos": "pos.key"})
    """
)
def test_keys_that_were_not_renamed_as_said(x: axn.NamedArray) -> None:
    nn.dot_product_attention("pos", "pos.key", "embed", x, x, x)


@says(
    """
    dot_product_attention: the values have axis 'pos', the positions of queries
      values have: batch=8, pos=4, embed=16
      hint: rename it: values.rename({"pos": "pos.key"})
    """
)
def test_values_that_were_not_renamed(x: axn.NamedArray) -> None:
    nn.dot_product_attention("pos", "pos.key", "embed", x, x.rename({"pos": "pos.key"}), x)


@says(
    """
    dot_product_attention: the mask must not have axis 'pos_k'
      mask has: pos=4, pos_k=4
      scores have: batch=8, pos=4, pos.key=4
      hint: did you mean 'pos.key'?
    """
)
def test_a_mask_over_another_name(x: axn.NamedArray) -> None:
    k = x.rename({"pos": "pos.key"})
    mask = axn.ones((Pos, axn.Axis("pos_k", 4)), bool)
    nn.dot_product_attention("pos", "pos.key", "embed", x, k, k, mask=mask)


def test_an_array_and_a_mask_combine() -> None:
    padding = axn.ones(KPos, bool)
    for combined, turned in (
        (padding & nn.causal(), nn.causal() & padding),
        (padding | nn.prefix(1), nn.prefix(1) | padding),
    ):
        assert (combined.materialize(Pos, KPos) == turned.materialize(Pos, KPos)).all()


@says(
    """
    Dropout: dropout with probability 0.1 needs a key
      hint: pass key=..., or inference=True
    """
)
def test_dropout_without_a_key(x: axn.NamedArray) -> None:
    nn.Dropout(0.1)(x)


@says(
    """
    cross_entropy_loss: the logits lack axis 'vocab'
      logits have: batch=8, pos=4, embed=16
    """
)
def test_a_loss_over_another_axis(x: axn.NamedArray) -> None:
    nn.cross_entropy_loss(x, "vocab", axn.zeros((Batch, Pos), int))


@says(
    """
    cross_entropy_loss: the targets have dtype float32 and lack axis 'embed'
      logits have: batch=8, pos=4, embed=16
      targets have: batch=8, pos=4
      hint: class numbers must be integers, probabilities must have the axis of classes
    """
)
def test_float_targets(x: axn.NamedArray) -> None:
    nn.cross_entropy_loss(x, "embed", axn.zeros((Batch, Pos)))


@says(
    """
    cross_entropy_loss: expected a NamedArray, got a plain array
      its shape: (8, 4)
      hint: name its dimensions first: axn.named(array, ("batch", "embed"))
    """
)
def test_targets_without_names(x: axn.NamedArray) -> None:
    nn.cross_entropy_loss(x, "embed", jnp.zeros((8, 4), int))


@says(
    """
    cross_entropy_loss: axis 'pos' has two sizes: 4 and 3
      operand 1 has: batch=8, pos=4, embed=16
      operand 2 has: batch=8, pos=3
      hint: if one is shifted by a place, cut the longer one: x["pos", :-1] or x["pos", 1:]
    """
)
def test_targets_that_were_not_shifted(x: axn.NamedArray) -> None:
    nn.cross_entropy_loss(x, "embed", axn.zeros((Batch, Pos), int)["pos", 1:])


@says(
    """
    BatchNorm: the running statistics are missing, which are an argument and a result
      hint: y, state = norm(x, state), at first with state = norm.initial_state()
    """
)
def test_batch_norm_without_its_state(x: axn.NamedArray) -> None:
    nn.BatchNorm.init(Embed, ("batch", "pos"))(x)


@says(
    """
    add: cannot combine a NamedArray and a tuple of 2
      hint: take it apart first: y, *rest = ...
    """
)
def test_a_residual_of_experts(x: axn.NamedArray) -> None:
    compiled(made(nn.MixtureOfExperts.init, Embed, axn.Axis("experts", 2), 4, 1), x) + x


@says(
    """
    KVCache: 4 more tokens do not fit
      cache has: batch=8, pos.key=4, embed=16
      hint: make it larger, or give it a window; at most 4 fit at once
    """
)
def test_a_cache_that_is_full() -> None:
    x = axn.ones((Batch, Pos, Embed))
    _, cache = nn.KVCache.init("pos.key", (Batch, KPos, Embed)).attend("pos", "embed", x, x, x)
    cache.attend("pos", "embed", x, x, x)


@says(
    """
    KVCache: length 8 is out of range for pos.key=4
      cache has: batch=8, pos.key=4, embed=16
    """
)
def test_a_cache_that_is_full_in_a_program_where_that_is_checked() -> None:
    tokens = axn.ones((Batch, Pos, Embed))
    step = jax.jit(lambda cache: cache.attend("pos", "embed", tokens, tokens, tokens)[1])
    with axn.debug.checks():
        step(step(nn.KVCache.init("pos.key", (Batch, KPos, Embed))))


@silent("JAX cannot raise in a program", page="guides/attention.md", answer="A full cache drops tokens under")
def test_a_cache_that_is_full_in_a_program() -> None:
    tokens = axn.ones((Batch, Pos, Embed))
    step = jax.jit(lambda cache: cache.attend("pos", "embed", tokens, tokens, tokens)[1])
    step(step(nn.KVCache.init("pos.key", (Batch, KPos, Embed))))


@says(
    """
    Axis: the name must be a non-empty str, not 8
    """
)
def test_an_axis_with_its_size_first() -> None:
    axn.Axis(8, "batch")


@says(
    """
    Axis: the size of 'batch' must not be negative, got -1
    """
)
def test_an_axis_of_negative_size() -> None:
    axn.Axis("batch", -1)


@says(
    """
    Axis: the size of 'head_dim' must be an int, not 16.0
    """
)
def test_an_axis_of_a_fraction() -> None:
    axn.Axis("head_dim", 64 / 4)


@says(
    """
    dot: expected a NamedArray, got a plain array
      its shape: (16, 32)
      hint: name its dimensions first: axn.named(array, ("batch", "embed"))
    """
)
def test_a_plain_array_put_in_place_of_a_weight(x: axn.NamedArray) -> None:
    layer = nn.Linear.init(Embed, Mlp, key=KEY)
    eqx.tree_at(lambda layer: layer.weight, layer, jnp.ones((16, 32)))(x)


@says(
    """
    add: no operand has the axes of all others
      operand 1 has: batch=8, pos=4, vocab=32
      operand 2 has: mlp=32
      hint: if the outer product is meant, give an operand the others' axes first: x.broadcast_axis(mlp)
    """
)
def test_other_axes_put_in_place_of_a_weight(x: axn.NamedArray) -> None:
    layer = nn.Linear.init(Embed, Mlp, key=KEY)
    eqx.tree_at(lambda layer: layer.weight, layer, axn.ones({"embed": 16, "vocab": 32}))(x)


@says(
    """
    Linear.init: there is no argument 'bias'
      it takes: (In, Out, *, key, use_bias=True, out_first=False, init_scale=1.0, initializer=None, dot_general=None)
      hint: write use_bias
    """
)
def test_the_word_of_torch_for_an_argument() -> None:
    nn.Linear.init(Embed, Mlp, bias=False, key=KEY)  # type: ignore[call-arg]


@says(
    """
    Linear.init: key is missing
      it takes: (In, Out, *, key, use_bias=True, out_first=False, init_scale=1.0, initializer=None, dot_general=None)
      hint: a key is made from a seed: key=jax.random.key(0)
    """
)
def test_a_layer_without_a_key() -> None:
    nn.Linear.init(Embed, Mlp)  # type: ignore[call-arg]


@says(
    """
    RmsNorm.init: 3 arguments are given by position, where it takes 2: axis, eps
      it takes: (axis, eps=1e-05, *, use_weight=True, use_bias=True, dtype=None)
      hint: give the others by name
    """
)
def test_arguments_by_position() -> None:
    nn.RmsNorm.init(Embed, 1e-5, True)  # type: ignore[call-arg]


@says(
    """
    Dropout: there is no argument 'p'
      it takes: (pdrop=0.5, broadcast_axes=None, inference=False)
      hint: write pdrop
    """
)
def test_the_word_of_torch_for_a_layer_without_init() -> None:
    nn.Dropout(p=0.1)  # type: ignore[call-arg]


@says(
    """
    'Linear' object has no attribute 'state_dict'
      hint: write axonym.state_dict.to_state_dict(model)
    """
)
def test_a_method_of_modules_in_torch() -> None:
    nn.Linear.init(Embed, Mlp, key=KEY).state_dict()  # type: ignore[attr-defined]


@warns(
    """
    lora_filter: the model has no LoraLinear, so that nothing is selected
      hint: adapt it first: axn.nn.add_lora(model, rank, key=key)
    """
)
def test_a_filter_of_adapters_that_are_not_there() -> None:
    nn.lora_filter(nn.Linear.init(Embed, Mlp, key=KEY))
