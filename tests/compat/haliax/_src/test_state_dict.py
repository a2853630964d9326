"""The private aliases of state dicts, and the default for modules."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import equinox as eqx
import haliax as hax
import haliax._src.state_dict as private
import jax
import numpy as np
from haliax import state_dict
from haliax.nn import Linear


def test_aliases():
    for name in private.__all__:
        if not name.startswith("default"):
            assert getattr(private, name) is getattr(state_dict, name)


class Renamed(state_dict.ModuleWithStateDictSerialization):
    layer: Linear

    def to_state_dict(self, prefix=None):
        own = private.default_eqx_module_to_state_dict(self, prefix)
        return {f"{key}!": value for key, value in own.items()}

    def from_state_dict(self, state_dict, prefix=None):
        own = {key.removesuffix("!"): value for key, value in state_dict.items()}
        return private.default_eqx_module_from_state_dict(self, own, prefix)


def test_a_module_may_build_on_the_default():
    In, Out = hax.make_axes(i=2, o=3)
    model = Renamed(Linear.init(In, Out, key=jax.random.PRNGKey(0)))
    state = private.to_state_dict(model, "m")
    assert sorted(state) == ["m.layer.bias!", "m.layer.weight!"]
    np.testing.assert_array_equal(state["m.layer.weight!"], model.layer.weight.array)
    blank = jax.tree.map(lambda x: 0 * x, model)
    assert eqx.tree_equal(private.from_state_dict(blank, state, "m"), model)
