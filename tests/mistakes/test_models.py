"""Mistakes with whole models: low precision, adapters, experts, recurrence, convolution, caches."""

import equinox as eqx
import jax
import jax.numpy as jnp

import axonym as axn
from axonym import nn, quant
from tests.mistakes.answers import says
from tests.nn.layouts import made

Batch, Pos, Embed, Mlp, Layers, Vocab, Experts = axn.make_axes(
    batch=8, pos=4, embed=16, mlp=32, layers=3, vocab=10, experts=2
)
KPos, Height, Width, Channels, Hidden = axn.make_axes(
    **{"pos.key": 4, "height": 6, "width": 6, "channels": 3, "hidden": 5}
)
KEY = jax.random.key(0)
MODEL = {"up": made(nn.Linear.init, Embed, Mlp), "down": made(nn.Linear.init, Mlp, Embed)}
IMAGE = axn.ones((Batch, Height, Width, Channels))


class Block(eqx.Module):
    norm: nn.LayerNorm
    mlp: nn.MLP

    @classmethod
    def init(cls, *, key: jax.Array) -> "Block":
        return cls(nn.LayerNorm.init(Embed), nn.MLP.init(Embed, Embed, Mlp, 1, key=key))

    def __call__(self, x: axn.NamedArray) -> axn.NamedArray:
        return x + self.mlp(self.norm(x).rename({"embed": "features"}))


class Model(eqx.Module):
    blocks: nn.BlockFoldable[Block]

    def __call__(self, x: axn.NamedArray) -> axn.NamedArray:
        return self.blocks.fold(x)


@says(
    """
    Linear: the input lacks axis 'embed'
      input has: batch=8, pos=4, features=16
      the layer works over: embed=16
      in the layer: blocks.stacked.mlp.layers.0
    """
)
def test_a_layer_deep_in_a_stack(x: axn.NamedArray) -> None:
    Model(nn.Stacked.init(Layers, Block)(key=KEY))(x)


@says(
    """
    Linear: the input lacks axis 'embed'
      input has: batch=8, pos=4, features=16
      the layer works over: embed=16
      in the layer: blocks.blocks.0.mlp.layers.0
    """
)
def test_a_layer_deep_in_a_sequence(x: axn.NamedArray) -> None:
    Model(nn.BlockSeq.init(Layers, Block)(key=KEY))(x)


@says(
    """
    Linear: axis 'embed' of the input has size 3, but the layer was made for 16
      input has: batch=8, pos=4, embed=3
      in the layer: blocks.blocks.2.mlp.layers.0
    """
)
def test_a_layer_of_a_model_in_a_function(x: axn.NamedArray) -> None:
    def loss(model: Model, x: axn.NamedArray) -> axn.NamedArray:
        return model.blocks.blocks[2].mlp(x["embed", :3]).mean()

    axn.grad(loss)(Model(nn.BlockSeq.init(Layers, Block)(key=KEY)), x)


@says(
    """
    quantize_linear_layers: config must be a QuantizationConfig, not the class Int8DotGeneral
      hint: write QuantizationConfig(Int8DotGeneral)
    """
)
def test_quantisation_without_a_config() -> None:
    quant.quantize_linear_layers(MODEL, quant.Int8DotGeneral)


@says(
    """
    quantize_linear_layers: the target 'upp' matches no linear layer
      there are: down, up
      hint: did you mean 'up'?
    """
)
def test_quantisation_of_layers_that_are_not_there() -> None:
    quant.quantize_linear_layers(MODEL, quant.QuantizationConfig(quant.Int8DotGeneral, targets="upp"))


@says(
    """
    quantize_linear_layers: dot_general must be a function that makes a product, not Int8DotGeneral
      hint: write Fp8DotGeneral.init, or a lambda: each layer needs a state of its own
    """
)
def test_quantisation_by_a_product_not_a_function() -> None:
    quant.quantize_linear_layers(MODEL, quant.QuantizationConfig(quant.Int8DotGeneral()))


@says(
    """
    Fp8DotGeneral: Fp8DotGeneral(...) fills in the fields input_amax_history, kernel_amax_history, output_grad_amax_history
      hint: to make a layer, write Fp8DotGeneral.init()
    """
)
def test_fp8_without_init(x: axn.NamedArray) -> None:
    nn.Linear.init(Embed, Mlp, key=KEY, dot_general=quant.Fp8DotGeneral)(x)


@says(
    """
    add_lora: `where` chose no linear layer
      linear layers: down, up
    """
)
def test_lora_where_nothing_matches() -> None:
    nn.add_lora(MODEL, 4, key=KEY, where=lambda path: "attention" in path)


@says(
    """
    add_lora() missing 1 required keyword-only argument: 'key'
    """
)
def test_lora_without_a_key() -> None:
    nn.add_lora(MODEL, 4)


@says(
    """
    LoraLinear.init: the rank must be at least 1, got lora=0
    """
)
def test_lora_of_rank_zero() -> None:
    nn.add_lora(MODEL, 0, key=KEY)


@says(
    """
    MixtureOfExperts.init: top_k is 3, but there are 2 experts
    """
)
def test_more_experts_for_a_token_than_there_are() -> None:
    nn.MixtureOfExperts.init(Embed, Experts, 4, 3, key=KEY)


@says(
    """
    MixtureOfExperts.init: 2 is a size without a name
      hint: name it: Axis("name", 2), or {"name": 2}
    """
)
def test_experts_by_their_number() -> None:
    nn.MixtureOfExperts.init(Embed, 2, 4, 1, key=KEY)


@says(
    """
    MixtureOfExperts: the input lacks axis 'time' of tokens
      input has: batch=8, pos=4, embed=16
    """
)
def test_experts_that_count_tokens_along_an_axis_that_is_not_there(x: axn.NamedArray) -> None:
    nn.MixtureOfExperts.init(Embed, Experts, 4, 1, key=KEY, capacity_factor=1.0, tokens=("batch", "time"))(x)


@says(
    """
    LSTMCell: the state must be a pair of h and c, not NamedArray
      hint: leave it out to start from zeros, or give (h, c)
    """
)
def test_an_lstm_with_the_state_of_a_gru(x: axn.NamedArray) -> None:
    nn.LSTMCell.init(Embed, Hidden, key=KEY)(x["pos", 0], axn.zeros((Batch, Hidden)))


@says(
    """
    Recurrent: no axis named 'time'
      array has: batch=8, pos=4, embed=16
    """
)
def test_recurrence_along_an_axis_that_is_not_there(x: axn.NamedArray) -> None:
    nn.Recurrent(nn.GRUCell.init(Embed, Hidden, key=KEY), "time")(x)


@says(
    """
    Linear: the input lacks axis 'mlp'
      input has: batch=8, pos=4, embed=16
      the layer works over: mlp=32
      in the layer: cell.input
    """
)
def test_recurrence_of_another_input(x: axn.NamedArray) -> None:
    nn.Recurrent(nn.GRUCell.init(Mlp, Hidden, key=KEY), "pos")(x)


@says(
    """
    Conv: no axis named 'width'
      array has: batch=8, height=6, channels=3
    """
)
def test_convolution_of_an_image_that_lacks_an_axis() -> None:
    nn.Conv.init(("height", "width"), Channels, Hidden, 3, key=KEY)(IMAGE["width", 0])


@says(
    """
    Conv: the input lacks axis 'embed'
      input has: batch=8, height=6, width=6, channels=3
      the layer works over: embed=16
    """
)
def test_convolution_of_other_channels() -> None:
    nn.Conv.init(("height", "width"), Embed, Hidden, 3, key=KEY)(IMAGE)


@says(
    """
    Conv.init: kernel_size has 3 entries, but there are 2 axes
      hint: give one int, or one for each axis
    """
)
def test_a_kernel_of_other_dimensions() -> None:
    nn.Conv.init(("height", "width"), Channels, Hidden, (3, 3, 3), key=KEY)


@says(
    """
    Conv: a window of 9 does not fit into axis 'height' of size 6
      input has: batch=8, height=6, width=6, channels=3
    """
)
def test_a_kernel_that_is_larger_than_the_image() -> None:
    nn.Conv.init(("height", "width"), Channels, Hidden, 9, key=KEY)(IMAGE)


@says(
    """
    Conv.init: unknown padding 'reflect'
      hint: "SAME", "VALID", an int, one int for each axis, or a pair for each axis
    """
)
def test_padding_by_an_unknown_word() -> None:
    nn.Conv.init(("height", "width"), Channels, Hidden, 3, key=KEY, padding="reflect")(IMAGE)


@says(
    """
    Conv.init: 2 groups do not divide both axes evenly
      In: channels=3
      Out: hidden=5
    """
)
def test_channels_that_do_not_split_into_groups() -> None:
    nn.Conv.init(("height", "width"), Channels, Hidden, 3, key=KEY, groups=2)


@says(
    """
    max_pool: a window of 7 does not fit into axis 'height' of size 6
      input has: batch=8, height=6, width=6, channels=3
    """
)
def test_a_pool_that_is_larger_than_the_image() -> None:
    nn.max_pool({"height": 7, "width": 7}, IMAGE)


@says(
    """
    GroupNorm.init: 2 groups do not divide channels=3 evenly
    """
)
def test_groups_of_a_norm_that_do_not_divide() -> None:
    nn.GroupNorm.init(Channels, 2)


@says(
    """
    KVCache: axis 'batch' has size 8 in the keys, and 2 in the cache
      keys have: batch=8, pos=4, embed=16
      cache has: batch=2, pos.key=4, embed=16
    """
)
def test_a_cache_of_another_batch(x: axn.NamedArray) -> None:
    nn.KVCache.init("pos.key", (axn.Axis("batch", 2), KPos, Embed)).attend("pos", "embed", x, x, x)


@says(
    """
    KVCache.init: the keys lack axis 'pos.key', the positions
      keys have: batch=8, pos=4, embed=16
    """
)
def test_a_cache_without_positions() -> None:
    nn.KVCache.init("pos.key", (Batch, Pos, Embed))


@says(
    """
    KVCache.attend() missing 1 required positional argument: 'keys'
    """
)
def test_a_cache_that_is_called_by_position(x: axn.NamedArray) -> None:
    nn.KVCache.init("pos.key", (Batch, KPos, Embed)).attend(x, x, x)


@says(
    """
    Embedding: ids must have an integer dtype, not float32
    """
)
def test_float_tokens() -> None:
    nn.Embedding.init(Vocab, Embed, key=KEY)(axn.ones(Pos))


@says(
    """
    Embedding: expected a NamedArray, got a plain array
      its shape: (4,)
      hint: name its dimensions first: axn.named(array, "batch")
    """
)
def test_plain_tokens() -> None:
    nn.Embedding.init(Vocab, Embed, key=KEY)(jnp.arange(4))


@says(
    """
    RotaryEmbedding.init: features are rotated in pairs: cannot rotate 5 of head_dim=5
      hint: pass size=..., an even number of features to rotate
    """
)
def test_rotary_positions_of_an_odd_number_of_features(x: axn.NamedArray) -> None:
    nn.RotaryEmbedding.init(axn.Axis("head_dim", 5))(axn.ones({"pos": 4, "head_dim": 5}), Pos)


@says(
    """
    MLP.init: key is missing
      it takes: (Input, Output, width, depth, activation=relu, *, key, out_first=False, use_bias=True, \
use_final_bias=True, init_scale=1.0, initializer=None)
      hint: the key goes by its name: key=...
    """
)
def test_an_mlp_with_its_key_by_position() -> None:
    nn.MLP.init(Embed, Embed, Mlp, 1, KEY)
