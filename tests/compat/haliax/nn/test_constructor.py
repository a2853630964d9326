"""Classes that may be called with axes and a key."""

import dataclasses
import inspect

import equinox as eqx
import jax
import pytest

from axonym.compat.haliax.nn._constructor import TwoSpellings

KEY = jax.random.key(0)


class Layer(eqx.Module, metaclass=TwoSpellings):
    width: int = 1
    drawn: bool = False

    @staticmethod
    def init(width, *, key):
        return Layer(width, drawn=key is KEY)


class Named(Layer):
    name: str = "no name"


class Keyed(Layer):
    def __init__(self, width, *, key):
        self.width = width + 1
        self.drawn = key is KEY


def test_a_key_means_init():
    assert Layer(3, key=KEY) == Layer(width=3, key=KEY) == Layer.init(3, key=KEY) == Layer(3, True)


def test_without_a_key_the_arguments_are_the_fields():
    assert dataclasses.astuple(Layer()) == (1, False)
    assert dataclasses.astuple(Named(2, name="n")) == (2, False, "n")
    assert dataclasses.replace(Layer(3, key=KEY), width=4) == Layer(4, True)
    assert list(inspect.signature(Layer).parameters) == ["width", "drawn"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        Layer(depth=3)


def test_a_constructor_that_takes_a_key_keeps_it():
    assert dataclasses.astuple(Keyed(3, key=KEY)) == (4, True)
