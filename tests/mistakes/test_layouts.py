"""Mistakes with mappings, meshes and compiled functions."""

import jax
from jax.sharding import PartitionSpec

import axonym as axn
from axonym import nn
from tests.mistakes.answers import says, silent, theirs, warns
from tests.nn.layouts import made

Batch, Pos, Embed, Mlp = axn.make_axes(batch=8, pos=4, embed=16, mlp=32)
Mesh = jax.sharding.Mesh
X = axn.ones((Batch, Pos, Embed))
LAYER = made(nn.Linear.init, Embed, Mlp)


def other(mesh: Mesh, shape: tuple[int, int] = (2, 4), names: tuple[str, str] = ("data", "model")) -> Mesh:
    return jax.make_mesh(shape, names, axis_types=mesh.axis_types)


@says(
    """
    named_jit: the mapping has axis 'bach', which no array here has
      mapping: {'bach': 'data'}
      axes of the arrays: batch, embed, mlp, pos
      hint: did you mean 'batch'?
    """
)
def test_a_misspelt_key_of_named_jit(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.named_jit(lambda layer, x: layer(x), {"bach": "data"})(LAYER, X)


@says(
    """
    fsdp: the mapping has axis 'embd', which no array here has
      mapping: {'embd': 'data'}
      axes of the arrays: batch, embed, mlp, pos
      hint: did you mean 'embed'?
    """
)
def test_a_misspelt_key_of_fsdp(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.fsdp(lambda layer, x: layer(x), {"embd": "data"}, {"batch": "data"})(LAYER, X)


@says(
    """
    shard: the mapping has axis 'embd', which no array here has
      mapping: {'embd': 'data'}
      axes of the arrays: embed, mlp
      hint: did you mean 'embed'?
    """
)
def test_a_misspelt_key_of_shard(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.shard(LAYER, {"embd": "data"})


@says(
    """
    shard_map: the mapping has axis 'bach', which no array here has
      mapping: {'bach': 'data'}
      axes of the arrays: batch, embed, pos
      hint: did you mean 'batch'?
    """
)
def test_a_misspelt_key_of_shard_map(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.shard_map(lambda x: x * 2, {"bach": "data"})(X)


@silent(
    "the block may hold a part of a model", page="guides/partitioning.md", answer="A misspelled key in `axis_mapping`"
)
def test_a_misspelt_key_of_axis_mapping(mesh: Mesh) -> None:
    with axn.set_mesh(mesh), axn.axis_mapping({"bach": "data"}):
        jax.jit(lambda x: x * 2)(X)


@says(
    """
    pspec_for: the mapping has axis 'embd', which no array here has
      mapping: {'embd': 'data'}
      axes of the arrays: embed, mlp
      hint: did you mean 'embed'?
    """
)
def test_a_misspelt_key_of_pspec_for(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.pspec_for(LAYER, {"embd": "data"})


@says(
    """
    named_jit: axis 'batch' is mapped to 'dta', which is not an axis of the mesh
      mapping: {'batch': 'dta'}
      mesh: data=4, model=2
      hint: did you mean 'data'?
    """
)
def test_a_misspelt_mesh_axis(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.named_jit(lambda layer, x: layer(x), {"batch": "dta"})(LAYER, X)


@says(
    """
    shard: mesh axis 'data' would shard both 'embed' and 'mlp' of one array
      array has: embed=16, mlp=32
      mapping: {'embed': 'data', 'mlp': 'data'}
      mesh: data=4, model=2
      at: blocks.0.weight
      hint: map one of the two elsewhere, or rename it on this array: x.rename({'mlp': ...})
    """
)
def test_two_names_on_one_mesh_axis(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.shard({"blocks": [LAYER]}, {"embed": "data", "mlp": "data"})


@says(
    """
    named_jit: mesh axis 'data' would shard both 'embed' and 'mlp' of one array
      array has: embed=16, mlp=32
      mapping: {'embed': 'data', 'mlp': 'data'}
      mesh: data=4, model=2
      at: result.blocks.0.weight
      hint: map one of the two elsewhere, or rename it on this array: x.rename({'mlp': ...})
    """
)
def test_two_names_on_one_mesh_axis_in_named_jit(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.named_jit(lambda model: model, {"embed": "data", "mlp": "data"})({"blocks": [LAYER]})


@says(
    """
    shard: embed=30 cannot be split evenly in 4 over mesh axis data
      array has: embed=30, mlp=32
      mapping: {'embed': 'data'}
      mesh: data=4, model=2
      at: blocks.0
      hint: use a multiple of 4, as pad_axes and pad_batch do, or map 'embed' to None
    """
)
def test_a_size_that_does_not_divide(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.shard({"blocks": [axn.ones({"embed": 30, "mlp": 32})]}, {"embed": "data"})


@says(
    """
    named_jit: there is no mesh
      mapping: {'batch': 'data'}
      hint: run inside of: with axn.set_mesh(jax.make_mesh((8,), ("data",)))
    """
)
def test_no_mesh() -> None:
    axn.named_jit(lambda layer, x: layer(x), {"batch": "data"})(LAYER, X)


@says(
    """
    axis mapping: a mapping must be a dict from axis names to mesh axes, not [('batch', 'data')]
      hint: write {"batch": "data", "mlp": "model"}
    """
)
def test_a_mapping_that_is_a_list(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.shard(X, [("batch", "data")])


@says(
    """
    axis mapping: a mapping must be a dict from axis names to mesh axes, not P('data',)
      hint: write {"batch": "data", "mlp": "model"}
    """
)
def test_a_mapping_that_is_a_spec(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.shard(X, PartitionSpec("data"))


@says(
    """
    axis mapping: axis 'batch' is mapped to 0
      hint: map it to a mesh axis, a tuple of them, or None
    """
)
def test_a_mapping_to_a_position(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.shard(X, {"batch": 0})


def test_a_mapping_of_axes_is_one_of_their_names(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        assert axn.shard(X, {Batch: "data"}).sharding == axn.shard(X, {"batch": "data"}).sharding


@says(
    """
    shard: axis 'data' is mapped to 'batch', which is not an axis of the mesh
      mapping: {'data': 'batch'}
      mesh: data=4, model=2
      hint: the axis of the array comes first: {'batch': 'data'}
    """
)
def test_a_mapping_the_wrong_way_round(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.shard(X, {"data": "batch"})


@says(
    """
    axis_mapping: a mapping was made, and never made current
      mapping: {'batch': 'data'}
      made in: tests/mistakes/test_layouts.py, line N
      hint: use a block: with axn.axis_mapping(...):
    """
)
def test_axis_mapping_without_with(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.axis_mapping({"batch": "data"})
        axn.auto_sharded(X)


@says(
    """
    named_jit: argument state.weight is on another mesh than the current one
      array has: embed=16, mlp=32
      its mesh: data=4 (KIND), model=2 (KIND)
      mesh: data=2 (KIND), model=4 (KIND)
      hint: move it first, outside of jit: axn.shard(x, mapping)
    """
)
def test_a_state_of_another_mesh(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        state = axn.shard(LAYER, {"embed": "data"})
    with axn.set_mesh(other(mesh)):
        axn.named_jit(lambda state: state, {"embed": "data"})(state)


@says(
    """
    mesh: an operand is on another mesh than the current one
      its shape: (8, 4, 16)
      its mesh: data=4 (KIND), model=2 (KIND)
      mesh: data=2 (KIND), model=4 (KIND)
      hint: move it first, outside of jit: axn.shard(x, mapping)
    """
)
def test_two_meshes_in_one_operation(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        first = axn.shard(X, {"batch": "data"})
    with axn.set_mesh(other(mesh)):
        second = axn.shard(X, {"batch": "data"})
        first + second


@says(
    """
    named_jit: argument x is on another mesh than the current one
      array has: batch=8, pos=4, embed=16
      its mesh: data=4 (KIND), model=2 (KIND)
      mesh: dp=4 (KIND), tp=2 (KIND)
      hint: move it first, outside of jit: axn.shard(x, mapping)
    """
)
def test_an_array_of_a_mesh_with_other_names(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        x = axn.shard(X, {"batch": "data"})
    with axn.set_mesh(other(mesh, (4, 2), ("dp", "tp"))):
        axn.named_jit(lambda x: x * 2, {"batch": "dp"})(x)


@says(
    """
    shard_map: the result differs between the devices of mesh axis 'data', but is not split over it
      it has: pos=4, embed=16
      mapping of the results: {'batch': 'data'}
      mesh: data=4, model=2
      hint: axn.psum(x, "batch") or axn.pmean for a part of a sum, axn.all_gather(x, "batch", to="invarying") for a block; or map an axis of the result to 'data' with out_mapping
    """
)
def test_shard_map_without_a_psum(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.shard_map(lambda x: x.sum("batch"), {"batch": "data"})(X)


@says(
    """
    psum: the array has axis 'batch' itself, so its blocks would be reduced into one
      array has: batch=2, pos=4, embed=16
      hint: reduce it first: axn.psum(x.sum("batch"), "batch"); or name the mesh axis
    """
)
def test_psum_of_a_block(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.shard_map(lambda x: axn.psum(x, "batch"), {"batch": "data"})(X)


@says(
    """
    psum: 'bach' is an axis of neither the arguments, the mapping nor the mesh
      there are: batch, data, embed, model, pos
      hint: did you mean 'batch'?
    """
)
def test_psum_over_an_unknown_name(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.shard_map(lambda x: axn.psum(x.sum("batch"), "bach"), {"batch": "data"})(X)


@says(
    """
    shard_map: a collective of jax.lax got a name that is not a mesh axis of this shard_map
      mesh: data=4, model=2
      hint: axn.psum(x, "batch") takes names of axes, jax.lax.psum those of the mesh
    """
)
def test_psum_of_jax_over_a_name(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.shard_map(lambda x: jax.lax.psum(x.sum("batch"), "batch"), {"batch": "data"})(X)


@says(
    """
    add: axis 'batch' has two sizes: 2 and 8
      operand 1 has: batch=2, pos=4, embed=16
      operand 2 has: batch=8
      hint: inside of a shard_map arrays are blocks, with batch=2: make both of this size, or pass both in
    """
)
def test_the_global_size_inside_of_shard_map(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.shard_map(lambda x: x + axn.ones(Batch), {"batch": "data"})(X)


@theirs("in_specs", page="guides/shard-map.md", answer="Each device gets its block")
def test_a_spec_that_is_too_long(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        jax.shard_map(lambda x: x, in_specs=PartitionSpec(*"abcd"), out_specs=PartitionSpec("data"))(X)


@says(
    """
    named_jit: in_shardings of jax.jit is set automatically
      hint: use in_axis_resources
    """
)
def test_in_shardings() -> None:
    axn.named_jit(lambda x: x, {"batch": "data"}, in_shardings=None)


@says(
    """
    named_jit: donate_argnums of jax.jit is set automatically
      hint: use donate_args and donate_kwargs
    """
)
def test_donate_argnums() -> None:
    axn.named_jit(lambda x: x, {"batch": "data"}, donate_argnums=0)


@says(
    """
    named_jit: static_argnums of jax.jit is set automatically
      hint: arguments that are not arrays are static automatically
    """
)
def test_static_argnums() -> None:
    axn.named_jit(lambda x: x, {"batch": "data"}, static_argnums=0)


@warns(
    """
    named_jit: <lambda> is compiled for each value of i, and was so 5 times
      its values: 0, 1, 2, 3, 4
      hint: a Python number is static; an array is not: pass jnp.asarray(i)
    """
)
def test_a_number_that_changes_at_each_step() -> None:
    step = axn.named_jit(lambda state, i: state + i)
    state = axn.zeros(())
    for i in range(8):
        state = step(state, i)


@theirs("Array has been deleted", page="faq.md", answer="a compiled function has reused its memory")
def test_a_donated_state(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        x = axn.shard(X, {"batch": "data"})
        axn.named_jit(lambda x: x * 2, {"batch": "data"}, donate_args=(True,))(x)
        x + 1


@says(
    """
    Attempted boolean conversion of traced array with shape bool[].
    The error occurred while tracing the function train_step at tests/mistakes/test_layouts.py:N for jit. This concrete value was not available in Python because it depends on the value of the argument x.
    See https://docs.jax.dev/en/latest/errors.html#jax.errors.TracerBoolConversionError
    """
)
def test_a_misspelt_value_in_a_traced_function(mesh: Mesh) -> None:
    @axn.named_jit
    def train_step(x: axn.NamedArray) -> axn.NamedArray:
        return x * 2 if x.sum() > 0 else x

    train_step(X)


@says(
    """
    axis mapping: axis 'batch' is mapped to mesh axis 'data' twice
      entry: ('data', 'data')
    """
)
def test_a_mesh_axis_twice_in_an_entry(mesh: Mesh) -> None:
    axn.shard(X, {"batch": ("data", "data")}, mesh)


@warns(
    """
    fsdp: the mapping of parameters stores none of the arrays
      mappings: parameters {'batch': 'data'}, compute {'embed': 'data'}
      hint: it is the first one; if the two are exchanged, weights count as data
    """
)
def test_mappings_of_fsdp_exchanged(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.fsdp(lambda layer, x: layer(x), {"batch": "data"}, {"embed": "data"})(LAYER, X)


@warns(
    """
    named_jit: axn.pipelined is current, but the mapping has no axis of layers, so nothing is a pipeline
      axes of layers: layers
      mapping: {'batch': 'data'}
      hint: map the layers to a mesh axis, as in {"layers": "stage"}
    """
)
def test_a_pipeline_without_mapped_layers(mesh: Mesh) -> None:
    stack = nn.Stacked.init(axn.Axis("layers", 4), nn.RmsNorm)(axn.Axis("embed", 4))
    with axn.set_mesh(mesh), axn.pipelined("batch", 4):
        axn.named_jit(lambda stack, x: stack.fold(x), {"batch": "data"})(stack, axn.ones({"batch": 8, "embed": 4}))


@says(
    """
    named_jit: axis 'batch' is mapped to 'data,model', which is not an axis of the mesh
      mapping: {'batch': 'data,model'}
      mesh: data=4, model=2
      hint: several mesh axes go in a tuple: ('data', 'model')
    """
)
def test_several_mesh_axes_in_one_string(mesh: Mesh) -> None:
    with axn.set_mesh(mesh):
        axn.named_jit(lambda x: x, {"batch": "data,model"})(X)
