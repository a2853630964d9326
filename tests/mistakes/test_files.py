"""Mistakes with files and dtypes."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import axonym as axn
import axonym.state_dict as sd
from axonym import nn
from tests.mistakes.answers import says, silent, theirs
from tests.nn.layouts import made

Embed, Mlp = axn.make_axes(embed=4, mlp=6)
LAYER = made(nn.Linear.init, Embed, Mlp)
SQUARE = made(nn.Linear.init, Embed, axn.Axis("out", 4))


@says(
    """
    from_state_dict: the state dict does not fit: 1 missing, 1 unexpected, 1 wrong shape, 1 wrong dtype
      missing: weight: embed=4, mlp=6; did you mean 'wieght'?
      unexpected: wieght: (4, 6)
      wrong shape: bias: (5,), but the model has mlp=6
      wrong dtype: bias: float64, but the model has float32
      hint: pass strict=False to ignore missing and unexpected keys; pass cast=True to convert dtypes
    """
)
def test_keys_that_do_not_fit() -> None:
    sd.from_state_dict(LAYER, {"wieght": np.ones((4, 6)), "bias": np.ones(5)})


@says(
    """
    from_state_dict: the state dict does not fit: 2 missing, 2 unexpected
      missing: weight: embed=4, mlp=6; did you mean 'model.weight'?
      missing: bias: mlp=6
      unexpected: model.weight: (4, 6)
      unexpected: model.bias: (6,)
      hint: pass prefix='model': 2 of 2 keys are there after 'model'
    """
)
def test_keys_with_a_prefix() -> None:
    sd.from_state_dict(LAYER, {"model.weight": np.ones((4, 6)), "model.bias": np.ones(6)})


@says(
    """
    from_state_dict: nothing would be loaded: the state dict has none of the 2 arrays of the model
      the model has: weight, bias
      the state dict has: a.weight
      hint: for 'weight': did you mean 'a.weight'?
    """
)
def test_a_load_of_nothing() -> None:
    sd.from_state_dict(LAYER, {"a.weight": np.ones((4, 6))}, strict=False)


@says(
    """
    from_state_dict: the state dict does not fit: 1 wrong shape, 2 wrong dtype
      wrong shape: up.weight: (6, 4), but the model has embed=4, mlp=6
      wrong dtype: up.weight: float64, but the model has float32
      wrong dtype: up.bias: float64, but the model has float32
      hint: call from_torch_compatible_state_dict: 2 of 2 arrays fit then; pass cast=True to convert dtypes
    """
)
def test_a_file_of_torch() -> None:
    sd.from_state_dict({"up": LAYER}, {"up.weight": np.ones((6, 4)), "up.bias": np.ones(6)})


def test_a_square_weight_that_was_saved_for_torch_is_exchanged_by_the_names_in_the_file(tmp_path: Path) -> None:
    sd.save_state_dict(sd.to_torch_compatible_state_dict(SQUARE), tmp_path / "a.safetensors")
    loaded = sd.from_state_dict(SQUARE, sd.load_state_dict(tmp_path / "a.safetensors"))
    assert (loaded.weight == SQUARE.weight).all()


@silent("an array without a file has no names", page="guides/state-dicts.md", answer="A square weight fits both ways")
def test_a_square_weight_of_torch() -> None:
    sd.from_state_dict(SQUARE, {key: np.asarray(x) for key, x in sd.to_torch_compatible_state_dict(SQUARE).items()})


@says(
    """
    from_state_dict: the state dict does not fit: 1 wrong axes
      wrong axes: weight: saved as embed=4, out=4, but the model has features=4, out=4
      hint: if these are the same axes, pass rename_axes={'features': 'embed'}; numpy.asarray(array) of a value has no names to compare
    """
)
def test_a_file_of_other_names(tmp_path: Path) -> None:
    sd.save_state_dict(sd.to_state_dict(SQUARE), tmp_path / "a.safetensors")
    other = made(nn.Linear.init, axn.Axis("features", 4), axn.Axis("out", 4))
    sd.from_state_dict(other, sd.load_state_dict(tmp_path / "a.safetensors"))


def test_shard_of_an_abstract_tree_says_where_its_arrays_will_be(mesh: jax.sharding.Mesh) -> None:
    with axn.set_mesh(mesh):
        planned = axn.shard(jax.eval_shape(lambda: LAYER), {"embed": "data"})
    assert planned.weight.sharding.spec == PartitionSpec("data", None)


@says(
    """
    load_state_dict: a.safetensors is not a safetensors file, or is incomplete
    """
)
def test_a_file_of_another_format(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"PK\x03\x04" * 10)
    sd.load_state_dict(tmp_path / "a.safetensors")


@theirs("No such file or directory: 'nowhere.safetensors'", page="guides/state-dicts.md", answer="load_state_dict")
def test_no_file() -> None:
    sd.load_state_dict("nowhere.safetensors")


@silent("it may be meant", page="guides/precision.md", answer="gradients in bfloat16")
def test_a_model_cast_outside_of_the_gradient() -> None:
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), LAYER)
    assert axn.grad(lambda m: m(axn.ones(Embed)).sum())(half).weight.dtype == jnp.bfloat16
