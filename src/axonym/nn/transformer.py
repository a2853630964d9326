"""The block of a transformer: attention and a perceptron, with norms and residual connections."""

from collections.abc import Callable
from functools import partial
from typing import Self

import equinox as eqx
import jax

from ..array import NamedArray
from ..axis import Axis, AxisSelector, AxisSpec
from ..engine.core import Operand
from ..errors import OperandError, message
from .activation import gelu, silu
from .attention.cache.cache import KVCache
from .attention.layer import Attention
from .attention.masks.mask import AttentionMask
from .dropout import Dropout
from .initializer import Initializer
from .layer import Layer, enter_scope
from .mlp import MLP, GatedMLP
from .norm import LayerNorm, RmsNorm

__all__ = ["TransformerBlock"]


class TransformerBlock(Layer):
    """Attention and a perceptron, each with a norm and beside a residual connection.

    With `post_norm`, the norm follows the sum with the residual, as in the first transformers; otherwise it precedes
    attention or the perceptron.

    Attributes:
        attention_norm: the norm of attention.
        attention: self-attention.
        mlp_norm: the norm of the perceptron.
        mlp: the perceptron.
        dropout: of what attention and perceptron add to the residual.
        post_norm: whether norms come last.

    Examples:
        >>> Pos, Embed, Heads, HeadDim, Mlp = axn.make_axes(pos=5, embed=8, heads=2, head_dim=4, mlp=16)
        >>> block = axn.nn.TransformerBlock.init(Embed, Heads, HeadDim, Mlp, key=jax.random.key(0))
        >>> block(axn.ones((Pos, Embed)), axn.nn.causal()).shape
        {'pos': 5, 'embed': 8}

    Reference:
        Vaswani et al. (2017), Attention is all you need; Xiong et al. (2020), On layer normalization in the transformer
        architecture, for the order of norms.
    """

    attention_norm: LayerNorm | RmsNorm
    attention: Attention
    mlp_norm: LayerNorm | RmsNorm
    mlp: MLP | GatedMLP
    dropout: Dropout
    post_norm: bool = eqx.field(static=True, default=False)

    @classmethod
    def init(
        cls,
        Embed: Axis,
        Heads: AxisSpec,
        HeadDim: Axis,
        Mlp: Axis,
        *,
        key: jax.Array,
        KVHeads: AxisSpec | None = None,
        pos: AxisSelector = "pos",
        norm: Callable[[Axis], LayerNorm | RmsNorm] = LayerNorm.init,
        gated: bool = False,
        activation: Callable[[NamedArray], NamedArray] | None = None,
        post_norm: bool = False,
        use_bias: bool = True,
        dropout: float = 0.0,
        initializer: Initializer | None = None,
    ) -> Self:
        """Make a block; by default that of GPT-2.

        `norm=nn.RmsNorm.init, gated=True, use_bias=False` is that of Llama.

        Args:
            Embed: the axis of the residual stream.
            Heads: the axes of the heads of queries; see `Attention.init`.
            HeadDim: the features of a head.
            Mlp: the hidden axis of the perceptron.
            key: for the weights.
            KVHeads: those of `Heads` that keys and values have; see `Attention.init`.
            pos: the axis of positions.
            norm: makes a norm over an axis.
            gated: whether the perceptron is a `GatedMLP`.
            activation: of the perceptron; by default `gelu`, or `silu` of a gate.
            post_norm: whether norms come last.
            use_bias: whether linear layers have biases.
            dropout: the probability of dropping, of attention weights and of what is added to the residual.
            initializer: see `Linear.init`.

        Raises:
            OperandError: if `norm` or `activation` is not callable.
        """
        _check_norm(norm)
        k_attention, k_mlp = jax.random.split(key)
        attention = Attention.init(
            Embed,
            Heads,
            HeadDim,
            key=k_attention,
            KVHeads=KVHeads,
            pos=pos,
            use_bias=use_bias,
            dropout=dropout,
            initializer=initializer,
        )
        make_mlp: Callable[..., MLP | GatedMLP] = (
            GatedMLP.init if gated else partial(MLP.init, depth=1, use_final_bias=use_bias)
        )
        mlp = make_mlp(
            Embed,
            Embed,
            Mlp,
            activation=activation or (silu if gated else gelu),
            key=k_mlp,
            use_bias=use_bias,
            initializer=initializer,
        )
        return cls(norm(Embed), attention, norm(Embed), mlp, Dropout(dropout), post_norm)

    def __call__(
        self,
        x: NamedArray,
        mask: AttentionMask | NamedArray | None = None,
        rotate: Callable[[NamedArray], NamedArray] | None = None,
        *,
        key: jax.Array | None = None,
    ) -> NamedArray:
        """Apply the block.

        Args:
            x: axes {pos, Embed, ...}.
            mask: which keys each query sees; see `Attention`.
            rotate: a function of queries and of keys, such as a `RotaryTable`.
            key: for dropout; without it, nothing is dropped.

        Returns:
            The axes of `x`.
        """
        k_attention, k_residual, k_mlp = _keys(key)

        def attend(x: NamedArray) -> NamedArray:
            return self.attention(x, mask, rotate=rotate, key=k_attention)

        x = self._add_branch(x, self.attention_norm, attend, k_residual)
        return self._add_branch(x, self.mlp_norm, self.mlp, k_mlp)

    @enter_scope
    def extend(
        self,
        x: NamedArray,
        cache: KVCache,
        rotate: Callable[[NamedArray], NamedArray] | None = None,
        *,
        count: int | Operand | None = None,
        layer: tuple[AxisSelector, int | Operand] | None = None,
    ) -> tuple[NamedArray, KVCache]:
        """Apply the block to the next tokens of sequences whose keys and values are in a cache.

        Args:
            x: axes {pos, Embed, ...}, or one token of each sequence, without `pos`.
            cache: keys and values of the tokens so far.
            rotate: see `Attention.extend`.
            count: see `Attention.extend`.
            layer: see `Attention.extend`.

        Returns:
            The result, with the axes of `x`, and the next cache.

        Examples:
            >>> Embed, Heads, HeadDim, Mlp = axn.make_axes(embed=8, heads=2, head_dim=4, mlp=16)
            >>> block = axn.nn.TransformerBlock.init(Embed, Heads, HeadDim, Mlp, key=jax.random.key(0))
            >>> KPos = axn.Axis("key_pos", 6)
            >>> cache = axn.nn.KVCache.init(KPos, (KPos, Heads, HeadDim))
            >>> y, cache = block.extend(axn.ones(Embed), cache)
            >>> y.shape
            {'embed': 8}
        """

        def attend(x: NamedArray) -> NamedArray:
            # The residual branch takes and returns one array, so the cache takes a side door.
            nonlocal cache
            out, cache = self.attention.extend(x, cache, rotate=rotate, count=count, layer=layer)
            return out

        # A decoder drops nothing, so no branch gets a key.
        x = self._add_branch(x, self.attention_norm, attend, None)
        return self._add_branch(x, self.mlp_norm, self.mlp, None), cache

    def _add_branch(
        self,
        x: NamedArray,
        norm: LayerNorm | RmsNorm,
        branch: Callable[[NamedArray], NamedArray],
        key: jax.Array | None,
    ) -> NamedArray:
        """Add a branch, with its norm and dropout, to the residual stream."""
        added = branch(x if self.post_norm else norm(x))
        # A call without a key is one of inference, even if the block was not switched to it.
        inference = key is None or self.dropout.inference
        x = x + self.dropout(added, key=key, inference=inference)
        return norm(x) if self.post_norm else x


def _keys(key: jax.Array | None) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None]:
    first, second, third = (None,) * 3 if key is None else jax.random.split(key, 3)
    return first, second, third


def _check_norm(norm: object) -> None:
    if not callable(norm):
        problem = f"norm must be a function of an axis, not {norm!r}"
        hint = "pass axn.nn.LayerNorm.init or axn.nn.RmsNorm.init"
        raise OperandError(message("TransformerBlock.init", problem, hint=hint))
