"""The feed-forward part of a transformer: the smallest model with two layouts in each layer."""

import functools

import equinox as eqx

import axonym as axn
import axonym.nn as nn


class FeedForward(eqx.Module):
    """Two products, with the same weights drawn for both."""

    up: nn.Linear
    down: nn.Linear

    @staticmethod
    def init(Embed, Mlp, *, key, use_bias=True):
        linear = functools.partial(nn.Linear.init, key=key, use_bias=use_bias)
        return FeedForward(linear(Embed, Mlp), linear(Mlp, Embed))

    def __call__(self, x):
        return x + self.down(axn.tanh(self.up(x)))
