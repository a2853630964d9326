"""Mistakes with data on many hosts, notebooks and checkpoints."""

from pathlib import Path

import jax
import numpy as np

import axonym as axn
import axonym.state_dict as sd
from axonym import nn
from tests.mistakes.answers import says, theirs

Batch, Pos, Embed, Mlp = axn.make_axes(batch=8, pos=4, embed=16, mlp=32)
KEY = jax.random.key(0)
Mesh = jax.sharding.Mesh
LAYER = nn.Linear.init(Embed, Mlp, key=KEY)


@says(
    """
    from_local: there is no mesh
      mapping: {'batch': 'data'}
      hint: run inside of: with axn.set_mesh(jax.make_mesh((8,), ("data",)))
    """
)
def test_host_data_without_a_mesh() -> None:
    axn.from_local(axn.NamedArray(np.ones((8, 4)), (Batch, Pos)), {"batch": "data"})


@says(
    """
    from_local: batch=6 cannot be split evenly in 4, the parts that this process holds of 4
      array has: batch=6, pos=4
      mapping: {'batch': 'data'}
      mesh: data=4, model=2
      hint: use a multiple of 4
    """
)
def test_host_data_of_a_size_that_does_not_divide(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.from_local(axn.NamedArray(np.ones((6, 4)), ("batch", "pos")), {"batch": "data"})


@says(
    """
    from_local: there is no named array, so nothing would be laid out
      hint: name their dimensions: axn.NamedArray(rows, ("batch", "embed"))
    """
)
def test_host_data_without_names(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.from_local(np.ones((8, 4)), {"batch": "data"})


@says(
    """
    from_callback: asked for the block batch=2, pos=4, the function returned shape (8, 4)
      the array has: batch=8, pos=4
    """
)
def test_a_callback_that_returns_everything(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.from_callback((Batch, Pos), lambda index: np.ones((8, 4)), {"batch": "data"})


@says(
    """
    local_slices: the mapping has axis 'bach', which no array here has
      mapping: {'bach': 'data'}
      axes of the arrays: batch, pos
      hint: did you mean 'batch'?
    """
)
def test_slices_of_an_axis_that_is_not_mapped(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.local_slices((Batch, Pos), {"bach": "data"})


@says(
    """
    from_state_dict: a state dict must be a mapping from keys to arrays, not Linear
      hint: write from_state_dict(model, state_dict)
    """
)
def test_a_state_dict_and_its_model_swapped() -> None:
    sd.from_state_dict(sd.to_state_dict(LAYER), LAYER)


@says(
    """
    save_state_dict: a state dict must be a mapping from keys to arrays, not Linear
      hint: write save_state_dict(to_state_dict(model), path)
    """
)
def test_a_model_saved_as_it_is(tmp_path: Path) -> None:
    sd.save_state_dict(LAYER, tmp_path / "a.safetensors")


@theirs("No such file or directory", page="guides/state-dicts.md", answer="load_state_dict")
def test_a_folder_without_a_file(tmp_path: Path) -> None:
    sd.load_state_dict(tmp_path)


@says(
    """
    from_state_dict: the state dict does not fit: 2 missing, 2 unexpected
      missing: attention.weight: embed=16, mlp=32; did you mean 'attn.weight'?
      missing: attention.bias: mlp=32; did you mean 'attn.bias'?
      unexpected: attn.weight: (16, 32)
      unexpected: attn.bias: (32,)
    """
)
def test_a_rename_the_wrong_way_round() -> None:
    state = {f"attn.{key}": value for key, value in sd.to_state_dict({"attention": LAYER}).items()}
    state = {key.replace("attn.attention", "attn"): value for key, value in state.items()}
    sd.from_state_dict({"attention": LAYER}, state, rename={"attn": "attention"})


@says(
    """
    from_state_dict: the state dict does not fit: 1 wrong shape
      wrong shape: weight: saved as vocab=10, embed=16, but the model has vocab=12, embed=16
    """
)
def test_a_larger_vocabulary() -> None:
    small, large = (nn.Embedding.init(axn.Axis("vocab", size), Embed, key=KEY) for size in (10, 12))
    sd.from_state_dict(large, sd.to_state_dict(small))


@theirs("a side effect, allowing for a reference to an intermediate value", page="faq.md", answer="Return it instead")
def test_an_array_that_left_its_program(x: axn.NamedArray) -> None:
    kept: list[axn.NamedArray] = []
    jax.jit(lambda x: kept.append(x * 2))(x)
    kept[0] + 1


@says(
    """
    asarray: the array has no values yet
      array has: batch=8, pos=4, embed=16
      hint: inside of jit there are none: compute with functions of axonym, or look with jax.debug.print
    """
)
def test_values_of_an_array_in_a_program(x: axn.NamedArray) -> None:
    jax.jit(lambda x: np.asarray(x))(x)


@says(
    """
    axis_mapping: a mapping was made, and never made current
      mapping: {'batch': 'data'}
      made in: tests/mistakes/test_processes.py, line N
      hint: use a block: with axn.axis_mapping(...):
    """
)
def test_axis_mapping_in_another_cell_without_with(mesh: Mesh) -> None:
    axn.axis_mapping({"batch": "data"})
    with axn.set_mesh(mesh):
        axn.auto_sharded(axn.ones(Batch))


@says(
    """
    from_callback: an object of type function is neither an Axis nor the name of one
      it takes: (axes, fn, mapping=None, mesh=None, *, copy=True, strict=True)
      hint: give the arguments in this order, or by name
    """
)
def test_a_callback_in_the_place_of_the_axes(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.from_callback(lambda index: np.ones((8, 4)), (Batch, Pos), {"batch": "data"})  # type: ignore[arg-type]


@says(
    """
    set_mesh: expected a mesh, got tuple
      hint: make one: jax.make_mesh((4, 2), ("data", "model"))
    """
)
def test_a_mesh_by_its_names() -> None:
    axn.set_mesh(("data", "model"))


@says(
    """
    named_jit: argument x was donated to an earlier call, which reused its memory
      hint: go on with what that call returned, or keep its arguments: donate_args=False
    """
)
def test_a_model_that_is_donated_twice(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        x = axn.shard(axn.ones(Batch), {"batch": "data"})
        step = axn.named_jit(lambda x: x * 2, {"batch": "data"}, donate_args=(True,))
        step(x)
        step(x)
