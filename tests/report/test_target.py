"""What `check` looks at: which paths arguments have, and what counts as a function."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

import axonym as axn
from axonym.report import target

B = axn.Axis("batch", 8)


class Model(eqx.Module):
    weight: axn.NamedArray

    def __call__(self, x):
        return self.weight * x


MODEL = Model(axn.ones(B))


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "is_traced"),
    [
        (MODEL, (), {}, False),
        ({"w": axn.ones(B)}, (), {}, False),
        (MODEL, (axn.ones(B),), {}, True),
        (MODEL, (), {"x": axn.ones(B)}, True),
        (lambda: axn.ones(B), (), {}, True),
        (MODEL.__call__, (), {}, True),
        (functools.partial(MODEL, axn.ones(B)), (), {}, True),
        (axn.named_jit(lambda: axn.ones(B)), (), {}, True),
    ],
)
def test_a_module_is_a_tree_unless_it_is_called(fn, args, kwargs, is_traced):
    assert target.unwrapped(fn, args, kwargs).is_traced == is_traced


def test_arguments_have_the_names_of_their_parameters():
    call = target.unwrapped(lambda x, *rest, scale: x, ("a", "b", "c"), {"scale": "d"})
    assert call.by_parameter() == {
        "x": ("0", "a"),
        "rest.0": ("1", "b"),
        "rest.1": ("2", "c"),
        "scale": ("scale", "d"),
    }
    wrong = target.unwrapped(lambda x: x, ("a", "b"), {})
    assert wrong.by_parameter() == {"0": ("0", "a"), "1": ("1", "b")}


def test_the_owner_of_a_method_is_found_in_it():
    assert target.unwrapped(MODEL.__call__, (), {}).owner()[1] is MODEL
    assert target.unwrapped(MODEL, (), {}).owner() == ("", MODEL)


def test_arrays_are_what_jax_would_make_of_them():
    found = target.abstract_array(np.zeros((2, 3)))
    assert (found.shape, found.dtype) == ((2, 3), jnp.zeros((2, 3)).dtype)
    kinds = (jnp.ones(2), np.float32(1), jax.ShapeDtypeStruct((), int), 1.0, "a", None)
    assert list(map(target.is_array, kinds)) == [True, True, True, False, False, False]


def test_sizes_make_a_mesh_of_auto_axes():
    mesh = AbstractMesh((64, 8), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    assert target.abstract_mesh({"data": 64, "model": np.int64(8)}) == mesh
    assert target.abstract_mesh(mesh) is mesh


def test_the_place_of_an_error_is_in_the_code_of_the_user():
    with pytest.raises(axn.errors.OperandError) as error:
        target.abstract_mesh({"data": 0})
    assert target.place_of(error.value).startswith(
        "test_the_place_of_an_error_is_in_the_code_of_the_user, test_target.py line "
    )
