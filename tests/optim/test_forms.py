"""A parameter whose axes no module declares needs roles."""

import jax.numpy as jnp
import optax
import pytest

import axonym as axn
from axonym import optim
from axonym.errors import ArgumentError
from tests.optim.table import E, M


def test_parameters_that_no_module_declares():
    own = {"kernel": axn.ones((E, M)), "scale": axn.ones(E)}
    for tx in (optim.per_matrix(optax.sm3(0.1)), optim.muon(0.1)):
        with pytest.raises(ArgumentError) as error:
            tx.init(own)
        name = "per_matrix" if "per_matrix" in str(error.value) else "muon"
        assert str(error.value) == (
            f"{name}: cannot tell which axes of 'kernel' are inputs, and which are outputs\n"
            "  array has: embed=8, mlp=6\n"
            '  hint: give a role for each, such as roles={"kernel": {"embed": "output", "mlp": "output"}}'
        )
    with pytest.raises(ArgumentError) as error:
        optim.per_matrix(optax.sm3(0.1)).init([jnp.ones((2, 3))])
    assert str(error.value).splitlines()[1:] == [
        "  array has: (2, 3)",
        '  hint: give a role for each, such as roles={"0": ("output", ...)}',
    ]
    roles = {"kernel": {"embed": "input", "mlp": "output"}}
    moments = optim.per_matrix(optax.sm3(0.1), roles=roles).init(own)
    assert [x.array.shape for x in axn.tree.leaves(moments) if axn.is_named_array(x)][:2] == [(8,), (6,)]
