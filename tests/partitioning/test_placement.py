"""`from_local`, `local_slices` and `from_callback` in one process, against blocks that numpy cuts out."""

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax.sharding import AbstractMesh, AxisType

import axonym as axn
from axonym.errors import AxisSizeError, LostAxisError, OperandError, ShardingError
from tests.partitioning.meshes import KINDS, make_mesh

pytestmark = pytest.mark.sampled

MESH_SIZES = {"data": 4, "model": 2}
ENTRIES = [None, "data", "model", ("data",), ("data", "model"), ("model", "data"), ()]
DTYPES = [np.float32, np.int32, np.int8, np.uint16, np.bool_, np.complex64, ml_dtypes.bfloat16, np.float16]


def block_of(place, size, entry):
    """Return the positions of an axis that the device at a place of the mesh holds."""
    part, ways = 0, 1
    for mesh_axis in (entry,) if isinstance(entry, str) else entry or ():
        part, ways = part * MESH_SIZES[mesh_axis] + place[mesh_axis], ways * MESH_SIZES[mesh_axis]
    return slice(part * size // ways, (part + 1) * size // ways)


def check_blocks(x, whole, mapping, mesh):
    """Each device has its block, and the type tells the layout of Explicit axes."""
    assert x.array.shape == whole.shape
    assert x.array.dtype == whole.dtype
    entries = [None] * (whole.ndim - len(x.names)) + [mapping.get(name) for name in x.names]
    held = {shard.device: shard.data for shard in x.array.addressable_shards}
    assert len(held) == mesh.size
    for position, device in np.ndenumerate(mesh.devices):
        place = dict(zip(mesh.axis_names, position, strict=True))
        index = tuple(block_of(place, size, entry) for size, entry in zip(whole.shape, entries, strict=True))
        np.testing.assert_array_equal(np.asarray(held[device]), whole[index])
    if AxisType.Auto not in mesh.axis_types:
        assert jax.typeof(x.array).sharding.spec == axn.pspec_for(x, mapping, mesh, strict=False)


@st.composite
def cases(draw):
    """Draw names, a mapping that uses no mesh axis twice on one array, and data whose sizes divide."""
    names = draw(st.lists(st.sampled_from("abcd"), max_size=3, unique=True))
    mapping, free = {}, set(MESH_SIZES)
    for name in names:
        entry = draw(st.sampled_from(ENTRIES))
        if free.issuperset((entry,) if isinstance(entry, str) else entry or ()):
            mapping[name] = entry
            free.difference_update((entry,) if isinstance(entry, str) else entry or ())
    anonymous = draw(st.lists(st.integers(0, 2), max_size=2))
    sizes = [8 * draw(st.integers(0, 2)) if mapping.get(name) else draw(st.integers(0, 3)) for name in names]
    dtype = draw(st.sampled_from(DTYPES))
    numbers = np.random.default_rng(draw(st.integers(0, 9))).integers(0, 99, (*anonymous, *sizes))
    return tuple(names), mapping, numbers.astype(dtype)


# from_local
@given(cases(), st.sampled_from(list(KINDS)), st.booleans())
def test_from_local_places_blocks(case, kind, given_by_context):
    names, mapping, data = case
    mesh = make_mesh(kind)
    x = axn.NamedArray(data, names)
    if given_by_context:
        with axn.set_mesh(mesh), axn.axis_mapping({**mapping, "of_another_array": "data"}):
            made = axn.from_local(x)
    else:
        made = axn.from_local(x, mapping, mesh)
    assert made.names == names
    check_blocks(made, data, mapping, mesh)


def test_from_local_takes_jax_arrays(mesh):
    data = jnp.arange(32.0).reshape(8, 4)
    check_blocks(axn.from_local(axn.named(data, ("a", "b")), {"a": "data"}), np.asarray(data), {"a": "data"}, mesh)


def test_from_local_takes_keys(mesh):
    keys = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(3), (8, 2))))
    typed = axn.NamedArray(jax.random.wrap_key_data(keys, impl="threefry2x32"), ("a", "b"))
    made = axn.from_local(typed, {"a": ("model", "data")})
    assert made.names == ("a", "b")
    assert made.array.dtype == typed.array.dtype
    for shard in made.array.addressable_shards:
        np.testing.assert_array_equal(np.asarray(jax.random.key_data(shard.data)), keys[shard.index])
        assert shard.data.shape == (1, 2)


def test_from_local_keeps_what_is_no_named_array(mesh):
    class Batch(eqx.Module):
        tokens: axn.NamedArray
        weights: np.ndarray
        missing: axn.NamedArray
        kind: str

    tokens = np.arange(16, dtype=np.int32).reshape(8, 2)
    missing = axn.NamedArray(None, ("batch",))
    batch = Batch(axn.NamedArray(tokens, ("batch", "pos")), np.ones(3), missing, "train")
    made = axn.from_local(batch, {"batch": "data"})
    check_blocks(made.tokens, tokens, {"batch": "data"}, mesh)
    assert made.weights is batch.weights
    assert made.missing is missing
    assert made.kind == "train"


def test_loading_is_a_transfer_that_was_asked_for(mesh):
    data = np.arange(32, dtype=np.float32).reshape(8, 4)
    keys = axn.NamedArray(jax.random.split(jax.random.key(3), 8), ("a",))
    mapping = {"a": "data"}

    def load():
        check_blocks(axn.from_local(axn.NamedArray(data, ("a", "b")), mapping), data, mapping, mesh)
        made = axn.from_callback(axn.make_axes(a=8, b=4), lambda at: data[at["a"], at["b"]], mapping)
        check_blocks(made, data, mapping, mesh)
        assert axn.from_local(keys, mapping).axes == keys.axes

    for guard in (jax.transfer_guard_host_to_device, jax.transfer_guard):
        with guard("disallow"):
            load()
            with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
                jnp.asarray(data) + 1
            with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
                axn.from_callback(axn.Axis("a", 8), lambda at: jnp.asarray(data[at["a"], 0]) + 1, mapping)
        with guard("disallow_explicit"):
            for make in (lambda: jax.device_put(data, jax.P("data")), load):
                with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
                    make()


@pytest.mark.parametrize("rows", [8, 1024])
def test_a_loader_may_use_its_buffers_again(mesh, rows):
    data = np.ones((rows, 128), np.float32)
    x = axn.from_local(axn.NamedArray(data, ("a", "b")), {"a": "data"}, strict=False)
    y = axn.from_callback(axn.make_axes(a=rows, b=128), lambda at: data[at["a"]], {"a": "data"})
    jax.block_until_ready((x, y))
    data[:] = 2
    assert np.asarray(x).max() == np.asarray(y).max() == 1


def test_what_was_loaded_can_be_donated(mesh):
    x = axn.from_local(axn.NamedArray(np.ones(1024, np.float32), ("a",)), {"a": None})
    add = axn.named_jit(lambda x: x + 1, donate_args=(True,))
    for _ in range(3):
        x = add(x)
    check_blocks(x, np.full(1024, 4, np.float32), {}, mesh)


def test_named_jit_knows_what_its_function_closes_over(mesh):
    x = axn.from_local(axn.NamedArray(np.ones((8, 2), np.float32), ("loaded_row", "b")), {"loaded_row": "data"})
    total = axn.named_jit(lambda: x.sum().scalar(), {"loaded_row": "data"})
    if mesh.axis_types == KINDS["auto"]:  # on Explicit axes JAX closes over no array
        assert total() == 16


def test_derived_names_follow_their_base(mesh):
    data = np.arange(64, dtype=np.float32).reshape(8, 8)
    x = axn.NamedArray(data, ("embed", "embed.out"))
    made = axn.from_local(x, {"embed": "data", "embed.out": "model"})
    check_blocks(made, data, {"embed": "data", "embed.out": "model"}, mesh)
    check_blocks(axn.from_local(x, {"embed": "data"}), data, {"embed": "data"}, mesh)  # one mesh axis is used once
    (out,) = x["embed", 0].axes
    made = axn.from_callback(out, lambda at: data[0, at["embed.out"]], {"embed": "data"})
    check_blocks(made, data[0], {"embed.out": "data"}, mesh)


# local_slices
@given(cases(), st.sampled_from(list(KINDS)))
def test_local_slices_are_whole_in_one_process(case, kind):
    names, mapping, data = case
    sizes = data.shape[data.ndim - len(names) :]
    slices = axn.local_slices(tuple(map(axn.Axis, names, sizes)), mapping, make_mesh(kind))
    assert slices == {name: slice(0, size) for name, size in zip(names, sizes, strict=True)}
    assert list(slices) == list(names)


def test_local_slices_take_mapping_and_mesh_from_context(mesh):
    with axn.axis_mapping({"a": "data"}):
        assert axn.local_slices(axn.Axis("a", 8)) == {"a": slice(0, 8)}


# from_callback
@given(cases(), st.sampled_from(list(KINDS)))
def test_from_callback_asks_for_each_block_once(case, kind):
    names, mapping, data = case
    data = data[(0,) * (data.ndim - len(names))] if 0 not in data.shape else np.zeros((0,) * len(names), data.dtype)
    mesh = make_mesh(kind)
    asked = []

    def load(at):
        assert list(at) == list(names)
        asked.append(tuple((part.start, part.stop, part.step) for part in at.values()))
        return data[tuple(at.values())]

    made = axn.from_callback(tuple(map(axn.Axis, names, data.shape)), load, mapping, mesh)
    assert made.names == names
    check_blocks(made, data, mapping, mesh)
    entries = [mapping.get(name) for name in names]
    places = [dict(zip(mesh.axis_names, position, strict=True)) for position in np.ndindex(mesh.devices.shape)]
    blocks = [[block_of(place, *pair) for pair in zip(data.shape, entries, strict=True)] for place in places]
    assert sorted(asked) == sorted({tuple((part.start, part.stop, None) for part in block) for block in blocks})


def test_from_callback_takes_python_numbers(mesh):
    made = axn.from_callback((), lambda at: 3.5, {})
    assert made.names == ()
    check_blocks(made, np.asarray(3.5, np.float32), {}, mesh)


def test_errors_of_the_function_come_through(mesh):
    def load(at):
        raise FileNotFoundError("weights.bin")

    with pytest.raises(FileNotFoundError, match=r"^weights\.bin$"):
        axn.from_callback(axn.Axis("a", 8), load, {"a": "data"})


def test_a_block_of_another_shape(mesh):
    axes = axn.make_axes(rows=8, embed=3)
    with pytest.raises(AxisSizeError) as error:
        axn.from_callback(axes, lambda at: np.zeros((3, 2)), {"rows": "data"})
    assert str(error.value) == (
        "from_callback: asked for the block rows=2, embed=3, the function returned shape (3, 2)\n"
        "  the array has: rows=8, embed=3"
    )


# errors
ROWS = axn.Axis("rows", 8)
CALLS = {
    "from_local": lambda *args: axn.from_local(axn.NamedArray(np.zeros(8), ("rows",)), *args),
    "local_slices": lambda *args: axn.local_slices(ROWS, *args),
    "from_callback": lambda *args: axn.from_callback(ROWS, lambda at: np.zeros(8)[at["rows"]], *args),
}


@pytest.mark.parametrize("name", list(CALLS))
class TestRefusals:
    def test_no_mapping(self, name):
        with axn.set_mesh(make_mesh()), pytest.raises(ShardingError) as error:
            CALLS[name]()
        assert str(error.value) == f"{name}: there is no axis mapping\n  hint: pass one, or use axn.axis_mapping"

    def test_no_mesh(self, name):
        with pytest.raises(ShardingError) as error:
            CALLS[name]({"rows": "data"})
        assert str(error.value) == (
            f"{name}: there is no mesh\n"
            "  mapping: {'rows': 'data'}\n"
            '  hint: run inside of: with axn.set_mesh(jax.make_mesh((8,), ("data",)))'
        )

    @pytest.mark.parametrize("where", ["argument", "context", "jit"])
    def test_an_abstract_mesh(self, name, where):
        abstract = AbstractMesh((4, 2), ("data", "model"), KINDS["auto"])
        call = lambda *args: CALLS[name]({"rows": "data"}, *args) and None  # noqa: E731
        mesh, function, args = {
            "argument": (make_mesh(), call, (abstract,)),
            "context": (abstract, call, ()),
            "jit": (make_mesh(), jax.jit(call), ()),
        }[where]
        with axn.set_mesh(mesh), pytest.raises(ShardingError) as error:
            function(*args)
        assert str(error.value) == (
            f"{name}: an abstract mesh has no devices to put data on\n"
            "  mesh: data=4, model=2\n"
            "  hint: call it outside of jit, on a mesh of jax.make_mesh"
        )

    def test_an_unknown_mesh_axis(self, name):
        with pytest.raises(ShardingError) as error:
            CALLS[name]({"rows": ("data", "modle")}, make_mesh())
        assert str(error.value) == (
            f"{name}: axis 'rows' is mapped to 'modle', which is not an axis of the mesh\n"
            + ("  array has: rows=8\n" if name == "from_callback" else "")
            + "  mapping: {'rows': ('data', 'modle')}\n"
            "  mesh: data=4, model=2\n"
            "  hint: did you mean 'model'?"
        )


def test_one_mesh_axis_twice():
    x = axn.NamedArray(np.zeros((8, 8)), ("rows", "embed"))
    mapping, mesh = {"rows": ("model", "data"), "embed": "data"}, make_mesh()
    for name, call in (
        ("from_local", lambda: axn.from_local(x, mapping, mesh)),
        ("local_slices", lambda: axn.local_slices(x.axes, mapping, mesh)),
        ("from_callback", lambda: axn.from_callback(x.axes, lambda at: np.zeros(1), mapping, mesh)),
    ):
        with pytest.raises(ShardingError) as error:
            call()
        assert str(error.value).startswith(
            f"{name}: mesh axis 'data' would shard both 'rows' and 'embed' of one array\n  array has: rows=8, embed=8\n"
        )


def test_a_size_that_does_not_divide():
    facts = "  array has: rows=6\n  mapping: {'rows': ('data', 'model')}\n  mesh: data=4, model=2\n"
    tail = f"{facts}  hint: use a multiple of 8"
    mapping = {"rows": ("data", "model")}
    with pytest.raises(ShardingError) as error:
        axn.from_local(axn.NamedArray(np.zeros(6), ("rows",)), mapping, make_mesh())
    assert str(error.value) == (
        f"from_local: rows=6 cannot be split evenly in 8, the parts that this process holds of 8\n{tail}"
    )
    for name, call in (
        ("local_slices", lambda axis: axn.local_slices(axis, mapping, make_mesh())),
        ("from_callback", lambda axis: axn.from_callback(axis, lambda at: np.zeros(1), mapping, make_mesh())),
    ):
        with pytest.raises(ShardingError) as error:
            call(axn.Axis("rows", 6))
        assert str(error.value) == (
            f"{name}: rows=6 cannot be split evenly in 8 over mesh axis data, model\n"
            f"{tail}, as pad_axes and pad_batch do, or map 'rows' to None"
        )


def test_a_key_that_no_array_has():
    x = axn.NamedArray(np.zeros(8, np.float32), ("rows",))
    with pytest.raises(ShardingError) as error:
        axn.from_local(x, {"row": "data"}, make_mesh())
    assert str(error.value) == (
        "from_local: the mapping has axis 'row', which no array here has\n"
        "  mapping: {'row': 'data'}\n"
        "  axes of the arrays: rows\n"
        "  hint: did you mean 'rows'?"
    )
    check_blocks(
        axn.from_local(x, {"row": "data"}, make_mesh(), strict=False), np.zeros(8, np.float32), {}, make_mesh()
    )


@pytest.mark.parametrize("kind", ["ShapeDtypeStruct", "a traced array"])
def test_what_has_no_data(kind):
    mesh = make_mesh()
    load = lambda array: axn.from_local(axn.NamedArray(array, ("rows",)), {"rows": "data"}, mesh)  # noqa: E731
    call = jax.jit(load) if kind == "a traced array" else load
    with pytest.raises(OperandError) as error:
        call(jax.ShapeDtypeStruct((8,), np.float32) if kind == "ShapeDtypeStruct" else np.zeros(8))
    assert str(error.value) == (
        f"from_local: a NamedArray holds {kind}, which is not data of this process\n"
        "  its axes: rows=8\n"
        "  hint: give it a numpy array, outside of jit"
    )


def test_what_is_no_array():
    with pytest.raises(OperandError) as error:
        axn.from_local(axn.NamedArray("abc", ("rows",)), {"rows": "data"}, make_mesh())
    assert str(error.value) == "from_local: a NamedArray holds an object of type str, not an array\n  its names: rows"


def test_an_array_that_lost_its_axis():
    x = axn.NamedArray(np.zeros((8, 2)), ("rows", "embed"))
    with pytest.raises(LostAxisError):
        axn.from_local(jax.tree.map(lambda a: a[0], x), {"rows": "data"}, make_mesh())


def test_a_key_that_an_earlier_array_had_is_refused_all_the_same(auto_mesh: jax.sharding.Mesh) -> None:
    rows = axn.NamedArray(np.ones((8, 4), np.float32), ("batch", "embed"))
    for place in (axn.from_local, axn.shard):
        place(rows, {"batch": "data"}, auto_mesh)
        with pytest.raises(ShardingError, match="the mapping has axis 'batch', which no array here has"):
            place(rows.rename({"batch": "rows"}), {"batch": "data"}, auto_mesh)


def test_the_mapping_of_the_computation_loads_data_too(auto_mesh: jax.sharding.Mesh) -> None:
    """Its axes of weights are no axes of a batch; a misspelled axis of the batch still is an error."""
    rows = {"x": axn.NamedArray(np.ones((8, 4), np.float32), ("batch", "pos"))}
    compute = {"batch": "data", "mlp": "model", "heads": "model"}
    assert axn.from_local(rows, compute, auto_mesh)["x"].sharding.spec == jax.P("data", None)
    wrong: list[tuple[dict[str, str], str, str]] = [
        ({"bacth": "data", "mlp": "model"}, "bacth", "did you mean 'batch'?"),
        ({"batch": "data", "poss": "model"}, "poss", "did you mean 'pos'?"),
        ({"mlp": "model"}, "mlp", "pass strict=False if all of it is the same on all processes"),
    ]
    for mapping, key, hint in wrong:
        with pytest.raises(ShardingError) as error:
            axn.from_local(rows, mapping, auto_mesh)
        assert str(error.value) == (
            f"from_local: the mapping has axis {key!r}, which no array here has\n  mapping: {mapping}\n"
            f"  axes of the arrays: batch, pos\n  hint: {hint}"
        )
        assert axn.from_local(rows, mapping, auto_mesh, strict=False)["x"].axes == rows["x"].axes
    with pytest.raises(ShardingError, match="axis 'mlp' is mapped to 'modle', which is not an axis of the mesh"):
        axn.from_local(rows, {"batch": "data", "mlp": "modle"}, auto_mesh)


def test_a_misspelled_axis_of_what_is_loaded_by_blocks(auto_mesh: jax.sharding.Mesh) -> None:
    """A parameter may be on all devices, so the mapping of a model needs no axis of it."""
    axes = axn.make_axes(embed=8, mlp=4)
    load = lambda at: np.ones((8, 4), np.float32)[at["embed"], at["mlp"]]  # noqa: E731
    assert axn.from_callback(axes, load, {"vocab": "data"}, auto_mesh).sharding.spec == jax.P(None, None)
    with pytest.raises(ShardingError) as error:
        axn.from_callback(axes, load, {"embd": "data", "vocab": "model"}, auto_mesh)
    assert str(error.value) == (
        "from_callback: the mapping has axis 'embd', which no array here has\n"
        "  mapping: {'embd': 'data', 'vocab': 'model'}\n"
        "  axes of the arrays: embed, mlp\n"
        "  hint: did you mean 'embed'?"
    )
    assert axn.from_callback(axes, load, {"embd": "data"}, auto_mesh, strict=False).axes == axes
    with pytest.raises(ShardingError, match="axis 'vocab' is mapped to 'modle', which is not an axis of the mesh"):
        axn.from_callback(axes, load, {"embed": "data", "vocab": "modle"}, auto_mesh)
