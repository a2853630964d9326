"""`show` and `visualize`, against what JAX says of the same arrays."""

import html

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import axonym as axn
from axonym.base.kinds import type_text
from axonym.errors import LostAxisError, OperandError, ShardingError
from axonym.partitioning import show, visualize

pytestmark = pytest.mark.sampled

B, E, M = axn.make_axes(batch=8, embed=4, mlp=6)
MAPPINGS = [
    {},
    {"batch": "data"},
    {"embed": "model"},
    {"batch": "data", "embed": "model"},
    {"batch": ("model", "data")},
    {"embed": ("data",), "batch": "model"},
]


@pytest.fixture(params=["auto_mesh", "explicit_mesh"])
def mesh(request):
    return request.getfixturevalue(request.param)


def struct(*axes, sharding=None):
    sizes = tuple(axis.size for axis in axes)
    return axn.NamedArray(jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=sharding), axes)


# show
def test_the_table_of_a_tree(auto_mesh):
    tree = {
        "layers": [axn.shard(axn.ones((E, M)), {"embed": "data", "mlp": "model"}, auto_mesh) for _ in range(3)],
        "bias": axn.shard(axn.ones(M), {}, auto_mesh),
        "x": axn.shard(axn.ones((E, B)), {"batch": ("data", "model")}, auto_mesh),
        "heap": axn.NamedArray(jax.device_put(jnp.ones((16, 8)), NamedSharding(auto_mesh, P("model"))), ("batch",)),
        "loss": axn.ones(()).astype(jnp.bfloat16),
        "rows": np.ones((8, 2), np.int32),
        "steps": 3,
        "kind": np.float32,
        "nothing": axn.NamedArray(None, ("batch",)),
    }
    assert str(show(tree)) == (
        "array          axes                      dtype     layout                  bytes  per device\n"
        "bias           mlp=6                     float32   replicated               24 B        24 B\n"
        "heap           anonymous (16,), batch=8  float32   dim 0→model             512 B       256 B\n"
        "layers.* (3x)  embed=4, mlp=6            float32   embed→data, mlp→model    96 B        12 B\n"
        "loss           no axes                   bfloat16  one device                2 B         2 B\n"
        "rows           anonymous (8, 2)          int32     host                     64 B\n"
        "x              embed=4, batch=8          float32   batch→(data, model)     128 B        16 B\n"
        "all            8 arrays                                                   1018 B"
    )


def test_entries_with_fewer_dimensions_than_names_have_none_and_single_elements_are_whole(mesh):
    one = axn.Axis("batch", 1)
    tree = {"w": struct(B, E), "row": jax.eval_shape(lambda x: jax.tree.map(lambda a: a[0], x), struct(B, E))}
    tree |= {"b": struct(B), "v": struct(one)}
    assert str(show(tree, {"batch": "data", "embed": "model"}, mesh)) == (
        "array  axes              dtype    planned layout           bytes  per device\n"
        "b      batch=8           float32  batch→data                32 B         8 B\n"
        "row    anonymous (4,)    float32  replicated                16 B        16 B\n"
        "v      batch=1           float32  replicated                 4 B         4 B\n"
        "w      batch=8, embed=4  float32  batch→data, embed→model  128 B        16 B\n"
        "all    4 arrays                                            180 B        44 B"
    )
    held = jax.tree.map(lambda a: a[:, 0], axn.shard(axn.ones((B, E)), {"batch": "data"}, mesh))
    (row,) = show({"row": held}).arrays
    assert (row.names, row.shape, row.layout) == ((), (8,), ("dim 0→data",))


def test_notebooks_show_the_table(auto_mesh):
    shown = show({"a<b": axn.shard(axn.ones(B), {"batch": "data"}, auto_mesh)})
    text = shown._repr_html_()
    cells = [part.partition(">")[2].partition("<")[0] for part in text.split("<td ")[1:]]
    assert [html.unescape(cell) for cell in cells] == ["a<b", "batch=8", "float32", "batch→data", "32 B", "8 B"]
    assert repr(shown) == str(shown)


@pytest.mark.parametrize("mapping", MAPPINGS, ids=str)
def test_bytes_are_those_that_devices_hold(mesh, mapping):
    x = axn.shard(axn.ones((B, E)), mapping, mesh)
    (actual,), (plan,) = show(x).arrays, show(struct(B, E), mapping, mesh).arrays
    held = {piece.data.nbytes for piece in x.array.addressable_shards}
    assert {actual.nbytes_per_device} == {plan.nbytes_per_device} == held
    assert actual.nbytes == plan.nbytes == x.array.nbytes
    assert NamedSharding(mesh, plan.spec).is_equivalent_to(x.sharding, 2)
    assert (actual.planned, plan.planned) == (False, True)


def test_random_keys_have_the_bytes_of_their_data():
    keys = axn.NamedArray(jax.random.split(jax.random.key(0), 8), ("batch",))
    (row,) = show(keys).arrays
    assert row.nbytes == jax.random.key_data(keys.array).nbytes


def test_several_mappings_store_and_compute(auto_mesh):
    mappings = axn.Mappings({"embed": "data"}, {"batch": "data"}, {"head": {"embed": "model"}})
    rows = show({"table": struct(E, M), "head": struct(E, M), "x": struct(B, E)}, mappings, auto_mesh).arrays
    assert {row.path: row.layout for row in rows} == {
        "table": ("embed→data",),
        "head": ("embed→model",),
        "x": ("batch→data",),
    }


def test_abstract_arrays_have_the_sharding_they_were_given_or_the_current_plan(auto_mesh):
    given = struct(B, E, sharding=NamedSharding(auto_mesh, P(None, "model")))
    assert str(show(struct(B))).splitlines()[1] == "array  batch=8  float32  not known   32 B"
    with axn.set_mesh(auto_mesh), axn.axis_mapping({"batch": "data"}):
        assert str(show({"given": given, "open": struct(B)})) == (
            "array  axes              dtype    layout       bytes  per device\n"
            "given  batch=8, embed=4  float32  embed→model  128 B        64 B\n"
            "\n"
            "array  axes     dtype    planned layout  bytes  per device\n"
            "open   batch=8  float32  batch→data       32 B         8 B"
        )


def test_under_jit_explicit_axes_are_in_the_type(explicit_mesh):
    seen = []

    @jax.jit
    def f(x):
        with axn.axis_mapping({"batch": "model"}):  # the type counts, not the mapping
            seen.append(show(x))
        return x

    with axn.set_mesh(explicit_mesh):
        f(axn.shard(axn.ones((B, E)), {"batch": "data"}))
    (row,) = seen[0].arrays
    assert (row.layout, row.planned, row.nbytes_per_device) == (("batch→data",), False, 32)


def test_under_jit_auto_axes_show_the_plan(auto_mesh):
    seen = []

    @jax.jit
    def f(x):
        seen.append(show(x))
        with axn.axis_mapping({"batch": "model"}):
            seen.append(show(x))
        return x

    with axn.set_mesh(auto_mesh):
        f(axn.shard(axn.ones((B, E)), {"batch": "data"}))
    assert [str(shown).splitlines()[1] for shown in seen] == [
        "array  batch=8, embed=4  float32  not known  128 B",
        "array  batch=8, embed=4  float32  batch→model     128 B        64 B",
    ]
    assert "planned layout" in str(seen[1])


def test_inside_of_a_shard_map_a_device_has_its_block(mesh):
    seen = []

    def f(x):
        seen.extend(show(x).arrays)
        return x

    with axn.set_mesh(mesh):
        x = axn.shard(axn.ones((B, E)), {"batch": "data"})
        jax.jit(jax.shard_map(f, in_specs=P("data"), out_specs=P("data")))(x)
    assert [(row.layout, row.shape, row.nbytes_per_device) for row in seen] == [(("local block",), (2, 4), 32)]


def test_what_cannot_be_laid_out_is_an_error(auto_mesh):
    with pytest.raises(ShardingError) as caught:
        show(struct(M), {"mlp": "data"}, auto_mesh)
    assert str(caught.value) == (
        "show: mlp=6 cannot be split evenly in 4 over mesh axis data\n"
        "  array has: mlp=6\n"
        "  mapping: {'mlp': 'data'}\n"
        "  mesh: data=4, model=2\n"
        "  hint: use a multiple of 4, as pad_axes and pad_batch do, or map 'mlp' to None"
    )
    with pytest.raises(ShardingError) as caught:
        show(struct(M), {"mlp": "data"})
    assert str(caught.value) == (
        "show: there is no mesh\n"
        "  mapping: {'mlp': 'data'}\n"
        '  hint: run inside of: with axn.set_mesh(jax.make_mesh((8,), ("data",)))'
    )
    with pytest.raises(LostAxisError, match=r"^show: an array of shape \(4,\) cannot have the 2 axes batch, embed"):
        jax.vmap(lambda x: show(x).arrays[0].nbytes)(axn.ones((B, E)))


@pytest.mark.parametrize(
    "report",
    [show, lambda *given, **options: axn.parameters.table(given[0], mapping=given[1], mesh=given[2], **options)],
    ids=["show", "table"],
)
def test_a_key_that_no_array_has_is_an_error_unless_told(auto_mesh, report):
    with pytest.raises(ShardingError) as caught:
        report(struct(B, M), {"batc": "data"}, auto_mesh)
    assert str(caught.value) == (
        "show: the mapping has axis 'batc', which no array here has\n"
        "  mapping: {'batc': 'data'}\n"
        "  axes of the arrays: batch, mlp\n"
        "  hint: did you mean 'batch'?"
    )
    with pytest.raises(ShardingError, match="no array has a path that matches 'hed'"):
        report({"head": struct(B, M)}, axn.Mappings({}, {"seq": "data"}, {"hed": {}}), auto_mesh)
    for mapping in (
        {"batch": "data", "seq": "data"},
        axn.Mappings({"batch": "data"}, {"batch": "data", "seq": "data"}),
    ):
        (row,) = report(struct(B, M), mapping, auto_mesh, strict=False).arrays
        assert row.layout == ("batch→data",)
    with axn.set_mesh(auto_mesh), axn.axis_mapping({"batch": "data", "seq": "data"}):
        assert show(struct(B, M)).arrays == (row,)


def test_an_empty_tree():
    assert str(show({"steps": 3})) == "no arrays"


# visualize
def drawn(x):
    """Compute from JAX's own map which devices of a mesh hold which block."""
    numbers = {device: i for i, device in enumerate(x.sharding.mesh.devices.flat)}
    blocks = {}
    for device, index in x.sharding.devices_indices_map(x.array.shape).items():
        ranges = tuple(part.indices(size)[:2] for part, size in zip(index, x.array.shape, strict=True))
        blocks.setdefault(ranges, []).append(numbers[device])
    return {ranges: tuple(sorted(devices)) for ranges, devices in blocks.items()}


def found(blocks):
    return {tuple((part.start, part.stop) for part in b.slices.values()): b.devices for b in blocks.blocks}


@pytest.mark.parametrize("mapping", MAPPINGS, ids=str)
def test_blocks_are_those_of_jax(mesh, mapping):
    x = axn.shard(axn.ones((B, E)), mapping, mesh)
    blocks = visualize(x)
    assert found(blocks) == drawn(x)
    for block in blocks.blocks:
        assert list(block.slices) == ["batch", "embed"]
        places = np.argwhere(np.isin(np.arange(8).reshape(4, 2), block.devices))
        assert block.coordinates == {
            "data": tuple(sorted(set(places[:, 0].tolist()))),
            "model": tuple(sorted(set(places[:, 1].tolist()))),
        }


def test_devices_are_numbered_by_their_place_in_the_mesh():
    devices = np.array(jax.devices())[::-1].reshape(4, 2)
    mesh = jax.sharding.Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    x = axn.shard(axn.ones(B), {"batch": ("data", "model")}, mesh)
    assert x.sharding.devices_indices_map((8,))[jax.devices()[7]] == (slice(0, 1),)
    assert found(visualize(x))[((0, 1),)] == (0,)


def test_the_drawing_of_a_matrix(auto_mesh):
    x = axn.shard(axn.ones((B, E)), {"batch": "data", "embed": "model"}, auto_mesh)
    assert str(visualize(x)) == (
        "float32[batch=8@data, embed=4@model] on the mesh data=4, model=2\n"
        "\n"
        "held by   data  model  batch  embed\n"
        "device 0  0     0      0:2    0:2\n"
        "device 1  0     1      0:2    2:4\n"
        "device 2  1     0      2:4    0:2\n"
        "device 3  1     1      2:4    2:4\n"
        "device 4  2     0      4:6    0:2\n"
        "device 5  2     1      4:6    2:4\n"
        "device 6  3     0      6:8    0:2\n"
        "device 7  3     1      6:8    2:4\n"
        "\n"
        "           embed 0:2  embed 2:4\n"
        "batch 0:2  0          1\n"
        "batch 2:4  2          3\n"
        "batch 4:6  4          5\n"
        "batch 6:8  6          7"
    )


def test_replicas_share_a_row(auto_mesh):
    x = axn.NamedArray(jnp.ones((2, 8)), ("batch",))
    assert str(visualize(axn.shard(x, {}, auto_mesh))) == (
        "float32[anonymous (2,), batch=8] on the mesh data=4, model=2\n"
        "\n"
        "held by      data  model  dim 0  batch\n"
        "devices 0-7  0-3   0-1    0:2    0:8"
    )
    assert str(visualize(axn.shard(axn.ones(B), {"batch": "model"}, auto_mesh))) == (
        "float32[batch=8@model] on the mesh data=4, model=2\n"
        "\n"
        "held by             data  model  batch\n"
        "devices 0, 2, 4, 6  0-3   0      0:4\n"
        "devices 1, 3, 5, 7  0-3   1      4:8"
    )


def test_an_array_on_one_device():
    x = axn.NamedArray(jax.device_put(jnp.ones(8), jax.devices()[3]), B)
    assert str(visualize(x)) == "float32[batch=8] on device 3\n\nheld by   batch\ndevice 3  0:8"


def test_explicit_types_are_drawn_while_tracing(explicit_mesh):
    seen = []
    with axn.set_mesh(explicit_mesh):
        x = axn.shard(axn.ones((B, E)), {"batch": "model", "embed": "data"})
        jax.jit(lambda x: (seen.append(visualize(x)), x)[1])(x)
    assert found(seen[0]) == drawn(x)
    assert seen[0].title == "float32[batch=8@model, embed=4@data] on the mesh data=4, model=2"


def test_a_mesh_without_devices_is_enough_on_explicit_axes():
    mesh = AbstractMesh((64, 8), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    seen = []
    with axn.set_mesh(mesh):
        x = axn.NamedArray(
            jax.ShapeDtypeStruct((128,), jnp.float32, sharding=NamedSharding(mesh, P("data"))), ("batch",)
        )
        jax.eval_shape(lambda x: (seen.append(visualize(x)), x)[1], x)
    assert len(seen[0].blocks) == 64
    assert seen[0].blocks[1].devices == tuple(range(8, 16))
    assert seen[0].blocks[1].slices == {"batch": slice(2, 4)}


@pytest.mark.parametrize("through", ["jit", "grad", "vmap", "vmap of jit"])
def test_on_auto_axes_the_compilers_choice_is_printed(auto_mesh, capfd, through):
    seen = []

    def f(x):
        seen.append(str(visualize(x)))
        return (x * 2).sum().scalar()

    with axn.set_mesh(auto_mesh):
        x = axn.shard(axn.ones((B, E)), {"batch": "data"})
        if through == "jit":
            jax.jit(f)(x)
        elif through == "grad":
            jax.jit(jax.grad(f))(x)
        else:
            inner = jax.jit(f) if through == "vmap of jit" else f
            jax.jit(jax.vmap(inner))(x.untag("batch"))
    whole = "float32[batch=8, embed=4]" if "vmap" not in through else "float32[anonymous (8,), embed=4]"
    label = "batch" if "vmap" not in through else "dim 0"
    held = whole if "vmap" not in through else "float32[embed=4]"
    assert seen == [f"{held} is laid out by the compiler; its blocks are printed then"]
    jax.effects_barrier()
    assert capfd.readouterr().out.startswith(
        f"{whole} on the mesh data=4, model=2\n"
        "\n"
        f"held by      data  model  {label}  embed\n"
        "devices 0-1  0     0-1    0:2    0:4\n"
    )


@pytest.mark.parametrize("devices", ["device 0", "devices 0-7"])
def test_what_the_compiler_chose_without_a_mesh_axis(auto_mesh, capfd, devices):
    x = axn.NamedArray(np.ones(8), ("batch",))
    with axn.set_mesh(auto_mesh if devices == "devices 0-7" else AbstractMesh((), ())):
        jax.jit(lambda x: (visualize(x), x)[1])(x)
    jax.effects_barrier()
    printed = capfd.readouterr().out
    assert printed.splitlines()[0] == f"float32[batch=8] on {devices}"
    assert printed.splitlines()[-1].split("  ") == [devices, "0:8"]


def test_a_local_block_has_no_drawing(mesh):
    seen = []

    def f(x):
        seen.append(str(visualize(x)))
        return x

    with axn.set_mesh(mesh):
        x = axn.shard(axn.ones((B, E)), {"batch": "data"})
        jax.jit(jax.shard_map(f, in_specs=P("data"), out_specs=P("data")))(x)
    assert seen == ["float32[batch=2, embed=4] is a block that each device has of its own"]


@pytest.mark.parametrize(
    ("array", "hint"),
    [
        (np.ones(8), "lay it out with axn.shard"),
        (
            jax.ShapeDtypeStruct((8,), jnp.float32),
            "axn.partitioning.show(x, mapping, mesh) shows how a mapping would lay it out",
        ),
    ],
    ids=["ndarray", "ShapeDtypeStruct"],
)
def test_what_is_on_no_device_cannot_be_drawn(array, hint):
    with pytest.raises(OperandError) as caught:
        visualize(axn.NamedArray(array, ("batch",)))
    assert str(caught.value) == (
        f"visualize: a NamedArray holds {type_text(array)}, which is not on a device\n"
        "  array has: batch=8\n"
        f"  hint: {hint}"
    )


def test_an_array_without_names_has_no_drawing():
    with pytest.raises(OperandError) as caught:
        visualize(jnp.ones(8))
    assert str(caught.value) == (
        "visualize: expected a NamedArray, got a plain array\n"
        "  its shape: (8,)\n"
        '  hint: name its dimensions first: axn.named(array, "batch")'
    )


def test_a_module_shows_the_paths_of_its_fields():
    class Layer(eqx.Module):
        weight: axn.NamedArray

    assert [row.path for row in show([Layer(axn.ones(B))]).arrays] == ["0.weight"]
