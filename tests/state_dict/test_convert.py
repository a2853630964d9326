"""Models to state dicts and back, on one device and on meshes."""

import contextlib
import dataclasses
import tracemalloc
import weakref
from collections.abc import Iterator, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, OperandError, ShardingError
from axonym.state_dict import (
    StateDict,
    from_state_dict,
    from_torch_compatible_state_dict,
    load_state_dict,
    save_state_dict,
    to_state_dict,
    to_torch_compatible_state_dict,
)
from tests.nn.layouts import lies, same_trees

pytestmark = pytest.mark.sampled

L, E, M, H = axn.make_axes(layers=4, embed=8, mlp=16, heads=2)
KEY = jax.random.key(0)


class Block(eqx.Module):
    norm: nn.LayerNorm
    mlp: nn.MLP
    split: nn.Linear

    @staticmethod
    def init(*, key):
        return Block(nn.LayerNorm.init(E), nn.MLP.init(E, E, M, 1, key=key), nn.Linear.init(E, (H, M), key=key))


class Model(eqx.Module):
    blocks: nn.Stacked | nn.BlockSeq
    extra: dict
    steps: int = 3
    function: object = jnp.tanh

    @staticmethod
    def init(stack=nn.Stacked, *, key):
        extra = {"seen": jnp.arange(3), "half": [axn.ones(E).astype("bfloat16"), None, axn.zeros(())]}
        return Model(stack.init(L, Block)(key=key), extra)


make = eqx.filter_jit(Model.init)


@pytest.fixture(scope="module")
def model():
    return make(key=KEY)


TEMPLATE = eqx.filter_eval_shape(Model.init, key=KEY)
LAYER = ["norm.weight", "norm.bias", *(f"mlp.layers.{i}.{name}" for i in range(2) for name in ("weight", "bias"))]


def test_keys_and_values(model):
    state = to_state_dict(model)
    layers = [*LAYER, "split.weight", "split.bias"]
    expected = [f"blocks.{i}.{name}" for name in layers for i in range(4)]
    assert list(state) == [*expected, "extra.half.0", "extra.half.2", "extra.seen"]
    assert repr(state) == "StateDict(35 arrays)"
    assert all(isinstance(array, np.ndarray) for array in state.values())
    assert state.axes("blocks.1.split.weight") == state["blocks.1.split.weight"].axes
    for i in range(4):
        given = model.blocks.stacked.split.weight.array[i]
        np.testing.assert_array_equal(state[f"blocks.{i}.split.weight"], given)
    assert state["extra.half.0"].dtype == jnp.bfloat16
    assert state.spec("blocks.1.split.weight") == jax.ShapeDtypeStruct((8, 2, 16), jnp.float32)
    assert to_torch_compatible_state_dict(TEMPLATE).spec("blocks.1.split.weight").shape == (32, 8)


@pytest.mark.parametrize(
    ("to", "back"),
    [(to_state_dict, from_state_dict), (to_torch_compatible_state_dict, from_torch_compatible_state_dict)],
)
def test_round_trips_and_both_forms_of_layers(model, to, back):
    state = to(model, "model")
    loaded = back(TEMPLATE, state, "model")
    same_trees(eqx.filter(loaded, eqx.is_array), eqx.filter(model, eqx.is_array), rtol=0, atol=0)
    assert (loaded.steps, loaded.function) == (3, jnp.tanh)

    unrolled = back(eqx.filter_eval_shape(Model.init, nn.BlockSeq, key=KEY), state, "model")
    assert type(unrolled.blocks) is nn.BlockSeq
    assert sorted(to(unrolled, "model")) == sorted(state)
    stacked = back(TEMPLATE, dict(to(unrolled, "model")), "model")
    same_trees(eqx.filter(stacked, eqx.is_array), eqx.filter(model, eqx.is_array), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_layouts_on_a_mesh_and_files_between_two_of_them(model, kind, request, tmp_path):
    mesh = request.getfixturevalue(kind)
    here, there = {"embed": "data", "mlp": "model"}, {"layers": "data", "embed": "model"}
    with axn.set_mesh(mesh):
        save_state_dict(to_torch_compatible_state_dict(axn.shard(model, here)), tmp_path / "a.safetensors")
        state = load_state_dict(tmp_path / "a.safetensors")
        given = from_torch_compatible_state_dict(TEMPLATE, state, mapping=there)
        with axn.axis_mapping(here):
            current = from_torch_compatible_state_dict(TEMPLATE, state)
    by_path = axn.Mappings(here, overrides={"split": {"embed": None, "heads": "model", "mlp": None}})
    fsdp = from_torch_compatible_state_dict(TEMPLATE, state, mapping=by_path, mesh=mesh)
    like = from_torch_compatible_state_dict(given, state)
    for loaded in (given, current, fsdp, like):
        same_trees(eqx.filter(loaded, eqx.is_array), eqx.filter(model, eqx.is_array), rtol=0, atol=0)
    for tree, mapping in ((given, there), (like, there), (current, here)):
        weight = tree.blocks.stacked.mlp.layers[0].weight
        assert lies(weight, mesh, mapping)
        assert not weight.sharding.is_fully_replicated
    assert lies(fsdp.blocks.stacked.split.weight, mesh, {"heads": "model"})
    assert lies(fsdp.blocks.stacked.mlp.layers[0].weight, mesh, here)


def test_a_layer_that_is_split_over_devices_is_brought_together(model, explicit_mesh):
    with axn.set_mesh(explicit_mesh):
        state = to_state_dict(axn.shard(model, {"layers": "data", "mlp": "model"}))
        found = dict(state)
    for key, array in to_state_dict(model).items():
        np.testing.assert_array_equal(found[key], array)


def test_renaming_replaces_whole_components_at_once(model):
    table = {"mlp.layers.0": "up", "up": "never", "mlp": "m", "layer": "no", "blocks": "h"}
    names = list(to_state_dict(TEMPLATE, "model", rename=table))
    assert names[8] == "model.h.0.up.weight"
    assert names[16] == "model.h.0.m.layers.1.weight"
    assert list(to_state_dict(TEMPLATE, rename={})) == list(to_state_dict(TEMPLATE))
    assert next(iter(to_state_dict(TEMPLATE, rename=str.upper))) == "BLOCKS.0.NORM.WEIGHT"
    state = to_state_dict(model, rename=table)
    loaded = from_state_dict(TEMPLATE, state, rename=table)
    np.testing.assert_array_equal(loaded.blocks.stacked.norm.weight.array, model.blocks.stacked.norm.weight.array)


def test_arrays_alone():
    assert list(to_state_dict(axn.ones(E), "x")) == ["x"]
    np.testing.assert_array_equal(from_state_dict(jnp.zeros(2), {"x": [1.0, 2.0]}, "x", cast=True), [1, 2])
    assert len(to_state_dict({"a": None, "f": jnp.tanh, "n": 3, "none": axn.NamedArray(None, ())})) == 0


def error_of(function, *args, **options):
    with pytest.raises(ArgumentError) as error:
        function(*args, **options)
    return str(error.value)


def test_keys_that_are_none_and_keys_that_are_one():
    assert error_of(to_state_dict, axn.ones(E)) == "to_state_dict: a bare array has no key\n  hint: pass a prefix"
    tree = {"a": {"b": axn.ones(E)}, "a.b": axn.ones(E)}
    assert error_of(to_state_dict, tree, "x") == "to_state_dict: a.b and a.b have the same key, 'x.a.b'"
    text = error_of(from_state_dict, {"up": axn.ones(E), "down": axn.ones(E)}, {}, rename={"up": "down"})
    assert text == "from_state_dict: down and up have the same key, 'down'"


def test_one_error_tells_all_that_does_not_fit():
    template = eqx.filter_eval_shape(nn.MLP.init, E, (H, M), M, 1, key=KEY)
    state = {
        "net.layers.0.weights": np.ones((8, 16), "f4"),
        "net.layers.0.bias": np.ones(5, "f2"),
        "net.layers.1.weight": np.ones((16, 2, 16), "f4"),
        "net.layers.1.bias": np.ones((2, 16), "i4"),
        "elsewhere": np.ones(1),
    }
    assert error_of(from_state_dict, template, state, "net") == (
        "from_state_dict: the state dict does not fit: 1 missing, 1 unexpected, 1 wrong shape, 2 wrong dtype\n"
        "  missing: net.layers.0.weight: embed=8, mlp=16; did you mean 'net.layers.0.weights'?\n"
        "  unexpected: net.layers.0.weights: (8, 16)\n"
        "  wrong shape: net.layers.0.bias: (5,), but the model has mlp=16\n"
        "  wrong dtype: net.layers.0.bias: float16, but the model has float32\n"
        "  wrong dtype: net.layers.1.bias: int32, but the model has float32\n"
        "  hint: pass strict=False to ignore missing and unexpected keys; pass cast=True to convert dtypes"
    )
    # In a layout of torch, axes that are flattened stand together; integers are not cast to floats.
    assert error_of(from_torch_compatible_state_dict, template, state, "net", False, cast=True) == (
        "from_torch_compatible_state_dict: the state dict does not fit: 1 missing, 3 wrong shape, 1 wrong dtype\n"
        "  missing: net.layers.0.weight: mlp=16, embed=8; did you mean 'net.layers.0.weights'?\n"
        "  wrong shape: net.layers.0.bias: (5,), but the model has mlp=16\n"
        "  wrong shape: net.layers.1.weight: (16, 2, 16), but the model has heads=2 * mlp.out=16, mlp=16\n"
        "  wrong shape: net.layers.1.bias: (2, 16), but the model has heads=2 * mlp=16\n"
        "  wrong dtype: net.layers.1.bias: int32, but the model has float32\n"
        "  hint: an abstract model has no arrays to keep: initialise it; call from_state_dict: 2 of 3 arrays fit then"
    )


@pytest.mark.parametrize("function", [from_state_dict, from_torch_compatible_state_dict])
def test_the_model_comes_first(function):
    with pytest.raises(OperandError) as error:
        function({}, nn.Linear.init(E, M, key=KEY))
    assert str(error.value) == (
        f"{function.__name__}: a state dict must be a mapping from keys to arrays, not Linear\n"
        f"  hint: write {function.__name__}(model, state_dict)"
    )


@pytest.mark.parametrize(("given", "kept"), [("?", "f4"), ("i4", "f4"), ("O", "f4"), ("f4", "i4")])
def test_casting_is_not_offered_where_it_would_not_help(given, kept):
    for cast in (False, True):
        text = error_of(from_state_dict, {"w": jnp.ones(2, kept)}, {"w": np.ones(2, given)}, cast=cast)
        assert text == (
            "from_state_dict: the state dict does not fit: 1 wrong dtype\n"
            f"  wrong dtype: w: {np.dtype(given)}, but the model has {np.dtype(kept)}"
        )


def test_no_prefix_can_be_empty_text():
    state = {"w": np.ones(8, "f4"), "more": np.ones(2)}
    assert error_of(from_state_dict, {"w": axn.ones(E)}, state, "") == (
        "from_state_dict: the state dict does not fit: 1 unexpected\n"
        "  unexpected: more: (2,)\n"
        "  hint: pass strict=False to ignore missing and unexpected keys"
    )
    assert list(to_state_dict({"w": axn.ones(E)}, "")) == ["w"]


def test_names_are_changed_to_text():
    tree = {"w": axn.ones(E)}
    for rename, made in ((lambda key: None, "None"), ({"w": 3}, "3")):
        with pytest.raises(OperandError) as error:
            to_state_dict(tree, "x", rename=rename)
        assert str(error.value) == f"to_state_dict: rename turns 'w' into {made}, but keys must be strings"
    with pytest.raises(OperandError) as error:
        from_state_dict(tree, {"w": np.ones(8, "f4")}, rename="w")
    assert str(error.value) == (
        "from_state_dict: rename must be a function of a key or a dict of strings, not str\n"
        '  hint: write rename={"attention.qkv": "attn.c_attn"}'
    )


def test_a_long_list_is_cut():
    text = error_of(from_state_dict, TEMPLATE, {})
    assert text.splitlines()[0] == "from_state_dict: the state dict does not fit: 35 missing"
    assert text.splitlines()[1] == "  missing: blocks.0.norm.weight: embed=8"
    assert text.splitlines()[20] == "  missing: blocks.3.mlp.layers.1.weight: mlp=16, embed=8"
    assert text.splitlines()[21:] == ["  missing: and 15 more"]  # and strict=False would load nothing


def test_what_is_there_is_taken_if_not_strict(model):
    other = make(key=jax.random.key(1))
    state = {key: array for key, array in to_state_dict(other).items() if ".split." in key}
    loaded = from_state_dict(model, state, strict=False)
    np.testing.assert_array_equal(loaded.blocks.stacked.split.weight.array, other.blocks.stacked.split.weight.array)
    assert loaded.blocks.stacked.mlp.layers[0].weight is model.blocks.stacked.mlp.layers[0].weight
    whole = dict(to_state_dict(other))
    del whole["blocks.2.split.bias"]
    assert error_of(from_state_dict, TEMPLATE, whole, strict=False) == (
        "from_state_dict: the state dict does not fit: 1 missing\n"
        "  missing: blocks.2.split.bias: heads=2, mlp=16\n"
        "  hint: an abstract model has no arrays to keep: initialise it"
    )


@pytest.mark.parametrize("kind", [None, "auto_mesh", "explicit_mesh"])
@pytest.mark.parametrize(
    ("to", "back"),
    [(to_state_dict, from_state_dict), (to_torch_compatible_state_dict, from_torch_compatible_state_dict)],
)
def test_layers_that_are_missing_stay_as_they_are(to, back, kind, model, request):
    other = make(key=jax.random.key(1))
    state = {key: array for key, array in to(other).items() if not key.startswith("blocks.2.")}
    layers = [(model if i == 2 else other).blocks.get_layer(i) for i in range(4)]
    unrolled = nn.BlockSeq(model.blocks.unstacked(), L, model.blocks.gradient_checkpointing)
    loaded = back(dataclasses.replace(model, blocks=unrolled), state, strict=False)
    same_trees(loaded.blocks.blocks, tuple(layers), rtol=0, atol=0)

    layout = {"layers": "data", "mlp": "model"}
    with axn.set_mesh(request.getfixturevalue(kind)) if kind else contextlib.nullcontext():
        own = axn.shard(model, layout) if kind else model
        loaded = back(own, state, strict=False)
    same_trees(loaded.blocks, model.blocks.with_layers(layers), rtol=0, atol=0)
    if kind:
        assert lies(loaded.blocks.stacked.split.weight, request.getfixturevalue(kind), layout)


def test_casting_rounds_as_jax_does():
    x = np.random.default_rng(0).normal(size=8).astype("f4")
    template = {"w": axn.zeros(E).astype("bfloat16"), "n": jnp.zeros(2, jnp.int32)}
    loaded = from_state_dict(template, {"w": x, "n": np.array([1, 2])}, cast=True)
    np.testing.assert_array_equal(loaded["w"].array, jnp.asarray(x).astype("bfloat16"))
    assert (loaded["w"].dtype, loaded["n"].dtype) == (jnp.bfloat16, jnp.int32)


def test_mappings_that_do_not_fit(auto_mesh):
    tree = {"w": axn.ones(E)}
    state = {"w": np.ones(8, "f4")}
    with pytest.raises(ShardingError) as error:
        from_state_dict(tree, state, mapping={"embed": "data"})
    assert str(error.value) == (
        "from_state_dict: there is no mesh\n"
        "  mapping: {'embed': 'data'}\n"
        '  hint: run inside of: with axn.set_mesh(jax.make_mesh((8,), ("data",)))'
    )
    with pytest.raises(ShardingError, match=r"^from_state_dict: "):
        from_state_dict(tree, state, mapping={"embedd": "data"}, mesh=auto_mesh)
    with pytest.raises(ShardingError) as error:
        from_state_dict(
            {"w": axn.ones(E.resize(7))}, {"w": np.ones(7, "f4")}, mapping={"embed": "data"}, mesh=auto_mesh
        )
    assert str(error.value).startswith("from_state_dict: embed=7 cannot be split evenly in 4 over mesh axis data\n")
    loaded = from_state_dict(tree, state, strict=False, mapping={"embed": "data", "batch": "model"}, mesh=auto_mesh)
    assert lies(loaded["w"], auto_mesh, {"embed": "data"})


def test_state_dicts_are_read_when_looked_up():
    tree = {"a": axn.ones(E), "b": axn.ones(E)}
    state = to_state_dict(tree)
    assert isinstance(state, StateDict)
    tree["b"].array.delete()
    np.testing.assert_array_equal(state["a"], np.ones(8))
    with pytest.raises(RuntimeError, match="deleted"):
        state["b"]


def test_what_was_abstract_on_a_mesh_is_laid_out_on_it(explicit_mesh):
    mesh = explicit_mesh
    weight = np.arange(2 * 8 * 8, dtype="f4").reshape(2, 8, 8)

    def init():
        named = axn.auto_sharded(axn.NamedArray(jnp.zeros((2, 8, 8)), ("embed", "embed.out")))
        return {"named": named, "plain": jnp.zeros(3)}

    state = {"named": weight, "plain": np.ones(3, "f4")}
    with axn.set_mesh(mesh):
        with axn.axis_mapping({"embed": "data"}):
            template = jax.eval_shape(init)
        loaded = from_state_dict(template, state)
    assert loaded["named"].sharding == jax.NamedSharding(mesh, jax.P(None, "data", None))
    assert loaded["plain"].sharding == jax.NamedSharding(mesh, jax.P(None))
    np.testing.assert_array_equal(loaded["named"].array, weight)
    np.testing.assert_array_equal(loaded["plain"], state["plain"])

    other = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    elsewhere = from_state_dict(template, state, mesh=other)
    assert elsewhere["named"].sharding == jax.NamedSharding(other, jax.P(None, "data", None))
    with pytest.raises(ShardingError) as error:
        from_state_dict(template, state)
    assert str(error.value) == (
        "from_state_dict: there is no mesh\n"
        "  mapping: {'dimension 0': None, 'embed': 'data', 'embed.out': None}\n"
        '  hint: run inside of: with axn.set_mesh(jax.make_mesh((8,), ("data",)))'
    )


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_what_is_on_one_device_stays_there(kind):
    x = np.arange(8, dtype="f4")
    mesh = jax.make_mesh((1,), ("data",), axis_types=(kind,), devices=jax.devices()[2:3])
    placed = [jax.sharding.SingleDeviceSharding(jax.devices()[3]), jax.NamedSharding(mesh, jax.P("data"))]
    for sharding in placed:
        told = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharding)
        for template in (jax.device_put(jnp.zeros(8), sharding), told):
            loaded = from_state_dict({"x": axn.NamedArray(template, ("embed",))}, {"x": x})["x"].array
            assert loaded.sharding == sharding
            np.testing.assert_array_equal(loaded, x)
    free = from_state_dict({"x": axn.zeros(E)}, {"x": x})["x"].array
    assert not free.committed


@pytest.mark.parametrize("out_first", [False, True])
def test_a_load_holds_no_more_than_one_array_on_the_host(auto_mesh, tmp_path, out_first):
    Wide, Hidden = axn.make_axes(embed=512, mlp=1024)

    def make(*, key):
        return nn.Linear.init(Wide, Hidden, key=key, use_bias=False, out_first=out_first)

    layers = nn.Stacked.init(L, lambda *, key: [make(key=key) for key in jax.random.split(key, 3)])
    model = eqx.filter_jit(layers)(key=KEY)
    save_state_dict(to_torch_compatible_state_dict(model), tmp_path / "model.safetensors")
    stored = load_state_dict(tmp_path)
    largest = max(leaf.nbytes for leaf in jax.tree.leaves(model))

    tracemalloc.start()
    try:
        loaded = from_torch_compatible_state_dict(
            model, stored, mapping={"embed": "data", "mlp": "model"}, mesh=auto_mesh
        )
        # What a CPU keeps as its own memory was allocated here, too.
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert largest == 8 << 20
    assert most - held < 1.5 * largest
    same_trees(loaded, model)


def test_arrays_of_numpy_stay_on_the_host(auto_mesh):
    tree = {"plain": np.arange(3.0), "number": np.float64(2.5), "named": axn.NamedArray(np.arange(8.0), ("embed",))}
    layers = nn.Stacked({"ids": np.arange(6).reshape(2, 3)}, axn.Axis("layers", 2), axn.ScanCheckpointPolicy())
    state = dict(to_state_dict({**tree, "layers": layers}))
    zeros = jax.tree.map(lambda x: x * 0, {**tree, "layers": layers})
    loaded = from_state_dict(zeros, state)
    spread = from_state_dict(zeros, state, mapping={"embed": "data"}, mesh=auto_mesh)
    for found in (loaded, spread):
        for key in ("plain", "number"):
            assert type(found[key]) is type(tree[key])
            assert found[key].dtype == np.float64
            np.testing.assert_array_equal(found[key], tree[key])
        assert type(found["layers"].stacked["ids"]) is np.ndarray
        assert found["layers"].stacked["ids"].dtype == np.int64
        np.testing.assert_array_equal(found["layers"].stacked["ids"], np.arange(6).reshape(2, 3))
    assert type(loaded["named"].array) is np.ndarray
    assert loaded["named"].array.dtype == np.float64
    assert lies(spread["named"], auto_mesh, {"embed": "data"})  # as `shard` does it
    state["plain"][:] = -1
    np.testing.assert_array_equal(loaded["plain"], np.arange(3.0))


def test_arrays_are_copies(auto_mesh):
    x = np.arange(64, dtype="f4")
    shardings = [jax.NamedSharding(auto_mesh, jax.P("data")), jax.sharding.SingleDeviceSharding(jax.devices()[3])]
    for template in (jnp.zeros(64), *(jax.device_put(jnp.zeros(64), sharding) for sharding in shardings)):
        memory = np.empty(x.nbytes + 64, "u1")
        start = -memory.ctypes.data % 64  # a CPU can keep memory that is aligned
        given = memory[start : start + x.nbytes].view("f4")
        given[:] = x
        loaded = from_state_dict({"x": template}, {"x": given})
        given[:] = -1
        np.testing.assert_array_equal(loaded["x"], x)


def test_a_model_alone_has_no_axes_of_data(auto_mesh):
    tree, state = {"w": axn.ones((E, M))}, {"w": np.ones((8, 16), "f4")}
    both = axn.Mappings({"embed": "data", "mlp": "model"}, {"batch": "data", "mlp": "model"})
    for loaded in (from_state_dict(tree, state, mapping=both, mesh=auto_mesh), axn.shard(tree, both, auto_mesh)):
        assert lies(loaded["w"], auto_mesh, {"embed": "data", "mlp": "model"})
    wrong = axn.Mappings({"embedd": "data"}, {"batch": "data"})
    with pytest.raises(ShardingError) as error:
        from_state_dict(tree, state, mapping=wrong, mesh=auto_mesh)
    assert str(error.value) == (
        "from_state_dict: the mapping has axis 'embedd', which no array here has\n"
        "  mapping: {'embedd': 'data'}\n"
        "  axes of the arrays: embed, mlp\n"
        "  hint: did you mean 'embed'?"
    )


class Tensor:
    """A tensor of torch that numpy cannot read."""

    __module__ = "torch"

    def __init__(self, text):
        self.text = text

    def __array__(self, dtype=None, copy=None):
        raise TypeError(self.text)


def test_values_are_plain_arrays(tmp_path):
    named = axn.ones((M, E))
    wrong = [
        (
            named,
            "'model.w' is a NamedArray; values of a state dict must be plain arrays, in the layout of the file\n"
            "  its axes: mlp=16, embed=8\n"
            "  hint: pass its `.array`, with the axes in the order of the file: x.rearrange((...)).array",
        ),
        (
            Tensor("Got unsupported ScalarType BFloat16\nand more"),
            "numpy cannot read 'model.w', a Tensor\n"
            "  Got unsupported ScalarType BFloat16\n"
            "  hint: pass tensor.detach(), and .float() of bfloat16; or save to a safetensors file, and use "
            "load_state_dict",
        ),
    ]
    for value, text in wrong:
        for back in (from_state_dict, from_torch_compatible_state_dict):
            with pytest.raises(OperandError) as error:
                back({"w": axn.ones((E, M))}, {"model.w": value}, "model")
            assert str(error.value) == f"{back.__name__}: {text}"
        with pytest.raises(OperandError) as error:
            save_state_dict({"model.w": value}, tmp_path / "a.safetensors")
        assert str(error.value) == f"save_state_dict: {text}"
    with pytest.raises(OperandError) as error:
        from_state_dict({"w": jnp.ones(2)}, {"w": [[1.0], [1.0, 2.0]]})
    assert str(error.value).startswith("from_state_dict: numpy cannot read 'w', a list\n  ")
    assert "hint" not in str(error.value)


def test_abstract_arrays_have_no_values(tmp_path):
    abstract = {"w": jax.eval_shape(lambda: axn.ones((E, M))), "s": TEMPLATE}
    state = to_state_dict(abstract)
    text = "is abstract: it has a shape and a dtype, but no values\n"
    hint = "  hint: initialise the model, or load it with from_state_dict"
    assert error_of(state.__getitem__, "w") == f"state dict: 'w' {text}{hint}"
    assert error_of(state.__getitem__, "s.blocks.1.norm.bias") == f"state dict: 's.blocks.1.norm.bias' {text}{hint}"
    assert error_of(save_state_dict, state, tmp_path / "a.safetensors").endswith(f" {text}{hint}")
    given = {"w": jax.ShapeDtypeStruct((8, 16), jnp.float32)}
    assert error_of(from_state_dict, {"w": axn.ones((E, M))}, given) == f"from_state_dict: 'w' {text}{hint}"


def test_keys_of_random_and_traced_arrays_have_no_values(tmp_path):
    w, key = axn.ones(E), jax.random.key(0)
    text = (
        "'key' is a key of jax.random, not an array of numbers\n"
        "  hint: leave it out of the model: eqx.partition; or keep its numbers: jax.random.key_data(key)"
    )
    state = to_state_dict({"w": w, "key": key})
    assert error_of(dict, state) == f"state dict: {text}"
    assert error_of(from_state_dict, {"w": w, "key": key}, state) == f"state dict: {text}"
    assert error_of(from_state_dict, {"key": key}, {"key": key}) == f"from_state_dict: {text}"
    assert error_of(save_state_dict, {"key": key}, tmp_path / "a.safetensors") == f"save_state_dict: {text}"
    loaded = from_state_dict({"w": w, "key": key}, {"w": np.zeros(8, "f4")}, strict=False)
    assert loaded["key"] is key

    text = (
        "'w' is traced: it has no values before the function runs\n  hint: call it outside of jit, grad, vmap and scan"
    )
    told = []
    jax.eval_shape(lambda x: told.append(error_of(from_state_dict, {"w": w}, {"w": x})), w.array)
    jax.eval_shape(lambda x: told.append(error_of(dict, to_state_dict({"w": x}))), w)
    assert told == [f"from_state_dict: {text}", f"state dict: {text}"]


def test_keys_are_text():
    for prefix in (None, "model"):
        text = error_of(from_state_dict, [jnp.ones(2)], {0: np.ones(2, "f4")}, prefix)
        assert text == "from_state_dict: keys of a state dict must be strings, not 0\n  hint: write '0'"


class Made(Mapping[str, np.ndarray]):
    """A state dict whose arrays are made when they are looked up, and which knows how many bytes of them live."""

    def __init__(self, state: StateDict) -> None:
        self.state, self.alive, self.most = state, [], 0

    def __getitem__(self, key: str) -> np.ndarray:
        array = np.array(self.state[key])
        self.alive = [each for each in self.alive if each() is not None] + [weakref.ref(array)]
        self.most = max(self.most, sum(each().nbytes for each in self.alive))
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.state)

    def __len__(self) -> int:
        return len(self.state)

    def spec(self, key: str) -> jax.ShapeDtypeStruct:
        return self.state.spec(key)


def test_what_is_made_for_one_array_goes_before_the_next_is_made():
    model = nn.Stacked.init(L, nn.MLP)(E, E, M, 2, key=KEY)
    made = Made(to_state_dict(model))
    same_trees(from_state_dict(model, made), model)
    # The layers of the largest array at the same time, and no other array.
    assert made.most == max(leaf.nbytes for leaf in jax.tree.leaves(model))
