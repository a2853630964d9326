"""The scales of parametrisations, against the table of the papers' rules."""

import inspect

import jax
import pytest

import axonym.compat.haliax  # noqa: F401

# isort: split
import haliax as hax
from haliax.nn import mup

In, Out, More = hax.make_axes(embed=16, mlp=4, more=2)


@pytest.mark.parametrize(
    ("cls", "init", "active", "lr"),
    [
        (mup.LinearStandardParam, 1 / 4, 1, 1),
        (mup.InputLinearMup, 1, 1, 1),
        (mup.HiddenLinearMup, 1 / 4, 1, 1 / 16),
        (mup.OutputLinearMup, 1, 1 / 16, 1),
    ],
)
def test_linear(cls, init, active, lr):
    reparam = cls(In, Out)
    assert isinstance(reparam, mup.AbstractLinearReparam)
    assert isinstance(reparam, mup.AbstractReparam)
    assert (reparam.In, reparam.Out) == (In, Out)
    assert (cls.init_scale(In, Out), reparam.active_scale, reparam.lr_scale) == (init, active, lr)


def test_several_axes_count_together():
    assert mup.HiddenLinearMup((In, More), Out).lr_scale == 1 / 32
    assert mup.LinearStandardParam.init_scale((), Out) == 1
    assert mup.OutputLinearMup({"embed": 8, "more": 2}, Out).active_scale == 1 / 16


@pytest.mark.parametrize(
    ("cls", "init", "unembed"), [(mup.EmbeddingStandardParam, 1 / 16, 1), (mup.EmbeddingMup, 1, 1 / 16)]
)
def test_embedding(cls, init, unembed):
    reparam = cls(Embed=In, Vocab=Out)
    assert isinstance(reparam, mup.AbstractEmbeddingReparam)
    assert cls.init_scale(Out, In) == init
    assert (reparam.active_scale, reparam.lr_scale, reparam.unembed_active_scale) == (1, 1, unembed)


def test_own_classes():
    class Half(mup.AbstractLinearReparam):
        @staticmethod
        def init_scale(In, Out):
            return 0.5

        @property
        def active_scale(self):
            return 2 * hax.axis_size(self.Out)

        @property
        def lr_scale(self):
            return 3

    layer = hax.nn.Linear.init(In, Out, key=jax.random.PRNGKey(0), reparam_cls=Half)
    assert (layer.reparam.active_scale, layer.reparam.lr_scale) == (8, 3)


@pytest.mark.parametrize("cls", [mup.AbstractReparam, mup.AbstractLinearReparam, mup.ReparamEnabled])
def test_abstract_classes(cls):
    assert inspect.isabstract(cls)
