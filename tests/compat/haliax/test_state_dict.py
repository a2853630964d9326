"""Models as flat dictionaries."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym.compat.haliax  # noqa: F401

# isort: split
import haliax as hax
import haliax.nn as hnn
from haliax import Axis, NamedArray
from haliax.nn.scan import BlockSeq, Stacked
from haliax.state_dict import (
    ModuleWithStateDictSerialization,
    StateDict,
    flatten_modules_for_export,
    from_state_dict,
    from_torch_compatible_state_dict,
    load_state_dict,
    save_state_dict,
    to_numpy_state_dict,
    to_state_dict,
    to_torch_compatible_state_dict,
    unflatten_modules_from_export,
    with_prefix,
)

Embed, Heads, HeadDim, Layers = hax.make_axes(embed=4, heads=2, head_dim=3, layers=3)
KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("prefix", "leaf", "joined"), [("a", "b", "a.b"), (None, "b", "b"), ("a", None, "a"), (None, None, None)]
)
def test_with_prefix(prefix, leaf, joined):
    assert with_prefix(prefix, leaf) == joined


class Attention(ModuleWithStateDictSerialization):
    qkv: hnn.Linear
    proj: hnn.Linear
    name: str = eqx.field(static=True)

    @staticmethod
    def init(*, key):
        one, two = jax.random.split(key)
        return Attention(
            hnn.Linear.init(Embed, (Heads, HeadDim), key=one, out_first=True),
            hnn.Linear.init((Heads, HeadDim), Embed, key=two, out_first=False),
            "name",
        )

    def _state_dict_key_map(self):
        return {"qkv": "c_attn"}


class Block(eqx.Module):
    attn: Attention
    norm: hnn.LayerNorm
    drop: hnn.Dropout
    scale: jax.Array
    parts: list
    table: dict
    pair: tuple
    none: NamedArray | None = None
    number: float = 0.5

    @staticmethod
    def init(*, key):
        x = hax.random.normal(key, Embed)
        norm = hnn.LayerNorm.init((Heads, HeadDim))
        return Block(
            Attention.init(key=key), norm, hnn.Dropout(0.1), jnp.ones(2), [x, x * 2], {"k": x * 3}, (x * 4, jax.nn.relu)
        )


BLOCK_KEYS = {
    "attn.c_attn.weight": (2, 3, 4),
    "attn.c_attn.bias": (2, 3),
    "attn.proj.weight": (2, 3, 4),
    "attn.proj.bias": (4,),
    "norm.weight": (2, 3),
    "norm.bias": (2, 3),
    "scale": (2,),
    "parts.0": (4,),
    "parts.1": (4,),
    "table.k": (4,),
    "pair.0": (4,),
}
TORCH_KEYS = BLOCK_KEYS | {
    "attn.c_attn.weight": (6, 4),
    "attn.c_attn.bias": (6,),
    "attn.proj.weight": (6, 4),
    "norm.weight": (6,),
    "norm.bias": (6,),
}


def _equal(one, other):
    ones, others = jax.tree.leaves(one), jax.tree.leaves(other)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(ones, others, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("prefix", [None, "model"])
def test_keys_and_shapes(prefix):
    block = Block.init(key=KEY)
    state = to_state_dict(block, prefix)
    assert type(state) is dict
    keys = {with_prefix(prefix, key): shape for key, shape in BLOCK_KEYS.items()}
    assert {key: value.shape for key, value in state.items() if hasattr(value, "shape")} == keys
    numbers = {with_prefix(prefix, "number"): 0.5}
    assert set(state) - {with_prefix(prefix, "drop.inference")} == {*keys, *numbers}
    assert state[with_prefix(prefix, "number")] == 0.5
    assert state[with_prefix(prefix, "table.k")] is block.table["k"].array
    _equal(from_state_dict(Block.init(key=jax.random.key(1)), state, prefix), block)


@pytest.mark.parametrize("abstract", [False, True])
def test_numpy(abstract):
    block = Block.init(key=KEY)
    state = to_numpy_state_dict(block)
    assert all(isinstance(value, np.ndarray | float | bool) for value in state.values())
    template = eqx.filter_eval_shape(Block.init, key=KEY) if abstract else Block.init(key=jax.random.key(1))
    loaded = from_state_dict(template, state)
    _equal(loaded, block)
    assert type(loaded.parts[0]) is NamedArray
    assert isinstance(loaded.scale, jax.Array)
    assert isinstance(loaded.parts[0].array, jax.Array)


def test_files(tmp_path):
    block = Block.init(key=KEY)
    block = eqx.tree_at(lambda b: b.parts[0], block, block.parts[0].astype(jnp.bfloat16))
    save_state_dict(to_state_dict(block), tmp_path / "model.safetensors")
    state = load_state_dict(str(tmp_path / "model.safetensors"))
    assert state["parts.0"].dtype == jnp.bfloat16
    assert isinstance(state["scale"], np.ndarray)
    loaded = from_state_dict(block, state)
    _equal(loaded, block)
    assert type(loaded.number) is float


def test_dtypes_are_those_of_the_state_dict_and_further_keys_do_not_matter():
    x = hax.ones(Embed)
    loaded = from_state_dict({"x": x}, {"x": np.ones(4, np.int32), "other": 3, "x.y": 4})
    assert loaded["x"].dtype == jnp.int32


def test_what_has_no_array():
    empty = NamedArray(None, ())
    tree = {"a": None, "b": empty, "c": 2.5, "d": "text", "e": [], "f": jax.nn.relu}
    assert to_state_dict(tree) == {"c": 2.5}
    loaded = from_state_dict(tree, {"c": 3.5})
    assert (loaded["c"], loaded["d"]) == (3.5, "text")
    assert loaded["b"] is empty
    assert from_state_dict(tree, {})["c"] == 2.5


def test_errors():
    block = Block.init(key=KEY)
    state = to_state_dict(block, "m")
    for call in (lambda: to_state_dict(jnp.ones(2)), lambda: from_state_dict(hax.ones(Embed), {})):
        with pytest.raises(ValueError, match="no key"):
            call()
    with pytest.raises(KeyError, match=r"no 'm\.attn\.c_attn\.bias'"):
        from_state_dict(block, {key: state[key] for key in state if key != "m.attn.c_attn.bias"}, "m")
    with pytest.raises(ValueError, match=r"'m\.scale' has shape \(5,\)"):
        from_state_dict(block, state | {"m.scale": jnp.ones(5)}, "m")
    with pytest.raises(ValueError, match=r"heads=2, head_dim=3, embed=4"):
        from_state_dict(block, state | {"m.attn.c_attn.weight": jnp.ones((6, 4))}, "m")


class Merged(ModuleWithStateDictSerialization):
    inner: Attention
    own: NamedArray

    def _state_dict_key_map(self) -> dict[str, str | None]:
        return {"inner": None, "own": "other"}


def test_a_field_that_is_merged():
    merged = Merged(Attention.init(key=KEY), hax.ones(Embed))
    assert set(to_state_dict(merged, "m")) == {
        "m.c_attn.weight",
        "m.c_attn.bias",
        "m.proj.weight",
        "m.proj.bias",
        "m.other",
    }
    _equal(from_state_dict(merged, to_numpy_state_dict(merged, "m"), "m"), merged)


class Custom(ModuleWithStateDictSerialization):
    """Stores the transpose, under another key, as a model of another library would have it."""

    weight: NamedArray

    def to_state_dict(self, prefix: str | None = None) -> StateDict:
        state = super().to_state_dict(prefix)
        state[with_prefix(prefix, "w")] = jnp.swapaxes(state.pop(with_prefix(prefix, "weight")), -1, -2)
        return state

    def from_state_dict(self, state_dict: StateDict, prefix: str | None = None) -> "Custom":
        state = dict(state_dict)
        state[with_prefix(prefix, "weight")] = np.swapaxes(state[with_prefix(prefix, "w")], -1, -2)
        return super().from_state_dict(state, prefix)

    @staticmethod
    def init(*, key):
        return Custom(hax.random.normal(key, (Embed, Heads)))


def test_methods_of_own_modules():
    custom = Custom.init(key=KEY)
    state = to_numpy_state_dict([custom], "m")
    np.testing.assert_array_equal(state["m.0.w"], np.asarray(custom.weight.array).T)
    _equal(from_state_dict([custom], state, "m"), [custom])


class Renamed(eqx.Module):
    """A module that has a method without the base class."""

    up: hnn.Linear
    inner: Custom

    @staticmethod
    def init(*, key):
        return Renamed(hnn.Linear.init(Embed, Heads, key=key), Custom.init(key=key))

    def _state_dict_key_map(self) -> dict[str, str | None]:
        return {"up": "c_fc", "inner": None}


class Bare(eqx.Module):
    """A module that has the other methods without the base class."""

    weight: NamedArray

    def to_state_dict(self, prefix: str | None = None) -> StateDict:
        return {f"{prefix}.kernel": self.weight.array.T}

    def from_state_dict(self, state_dict: StateDict, prefix: str | None = None) -> "Bare":
        return Bare(hax.named(jnp.asarray(state_dict[f"{prefix}.kernel"]).T, ("embed", "heads")))


def test_methods_count_without_the_base_class():
    renamed = Renamed.init(key=KEY)
    bare = Bare(hax.random.normal(KEY, (Embed, Heads)))
    model = {"layers": [renamed], "bare": bare}
    state = to_numpy_state_dict(model, "m")
    assert set(state) == {"m.layers.0.c_fc.weight", "m.layers.0.c_fc.bias", "m.layers.0.w", "m.bare.kernel"}
    np.testing.assert_array_equal(state["m.layers.0.c_fc.weight"], renamed.up.weight.array)
    np.testing.assert_array_equal(state["m.bare.kernel"], np.asarray(bare.weight.array).T)
    _equal(from_state_dict(jax.tree.map(jnp.zeros_like, model), state, "m"), model)
    assert set(to_torch_compatible_state_dict(model, prefix="m")) == set(state)
    layers = Stacked.init(Layers, Renamed)(key=jax.random.split(KEY, 3))
    names = [f"h.{i}.{name}" for i in range(3) for name in ("c_fc.weight", "c_fc.bias", "w")]
    assert sorted(to_state_dict(layers, "h")) == sorted(names)


def test_integers_are_not_wrapped():
    template = {"x": hax.zeros(Embed, dtype=jnp.int32), "n": jnp.zeros(2, jnp.int32)}
    good = {"x": np.arange(4), "n": np.array([2**31 - 1, -(2**31)])}
    _equal(from_state_dict(template, good)["n"], np.array([2**31 - 1, -(2**31)], np.int32))
    for key in good:
        with pytest.raises(ValueError, match=f"'{key}' has integers that do not fit int32: 1 to 2147483648"):
            from_state_dict(template, good | {key: np.linspace(1, 2**31, len(good[key])).astype(np.int64)})


@pytest.mark.parametrize(("module", "prefix"), [(Block, "h"), (Custom, "h"), (Custom, None)])
def test_layers(module, prefix):
    keys = jax.random.split(KEY, 3)
    stacked, seq = (kind.init(Layers, module)(key=keys) for kind in (Stacked, BlockSeq))
    state = to_numpy_state_dict(stacked, prefix)
    expected = {}
    for i, key in enumerate(keys):
        expected |= to_numpy_state_dict(module.init(key=key), with_prefix(prefix, str(i)))
    for other in (expected, to_numpy_state_dict(seq, prefix)):
        assert state.keys() == other.keys()
        for key, value in state.items():
            np.testing.assert_allclose(value, other[key], rtol=1e-6)
    abstract = eqx.filter_eval_shape(lambda: stacked)
    for template in (stacked, abstract):
        loaded = from_state_dict(template, state, prefix)
        assert type(loaded) is Stacked
        _equal(loaded, stacked)
    _equal(from_state_dict(seq, to_state_dict(seq, prefix), prefix), seq)
    _equal(
        from_torch_compatible_state_dict(
            abstract, to_torch_compatible_state_dict(stacked, prefix=prefix), prefix=prefix
        ),
        stacked,
    )


def test_layers_that_are_missing_or_more():
    stacked = Stacked.init(Layers, Attention)(key=jax.random.split(KEY, 3))
    state = to_numpy_state_dict(stacked, "h")
    more = state | {key.replace("h.2", "h.3"): value for key, value in state.items()} | {"h.0.extra": np.ones(3)}
    _equal(from_state_dict(stacked, more, "h"), stacked)
    del state["h.1.proj.bias"]
    with pytest.raises(KeyError, match=r"no 'h\.1\.proj\.bias'"):
        from_state_dict(stacked, state, "h")
    with pytest.raises(ValueError, match="differ in shape"):
        from_state_dict(stacked, state | {"h.1.proj.bias": np.ones(9)}, "h")


class Outer(eqx.Module):
    inner: Stacked
    weight: NamedArray

    @staticmethod
    def init(weight):
        inner = Stacked.init(Axis("inner", 2), hnn.LayerNorm)((Heads, HeadDim))
        return Outer(eqx.tree_at(lambda m: m.stacked.bias, inner, inner.stacked.bias + weight[Embed, 0]), weight)


def test_layers_in_layers():
    outer = Stacked.init(Layers, Outer)(hax.random.normal(KEY, (Layers, Embed)))
    state = to_torch_compatible_state_dict(outer, prefix="h")
    assert {key: value.shape for key, value in state.items()} == {
        **{f"h.{i}.inner.{j}.{name}": (6,) for i in range(3) for j in range(2) for name in ("weight", "bias")},
        **{f"h.{i}.weight": (4,) for i in range(3)},
    }
    np.testing.assert_array_equal(state["h.2.inner.1.bias"], outer.get_layer(2).inner.get_layer(1).bias.array.ravel())
    _equal(from_torch_compatible_state_dict(outer, state, prefix="h"), outer)


def test_torch():
    block = Block.init(key=KEY)
    state = to_torch_compatible_state_dict(block, prefix="m")
    assert {key: value.shape for key, value in state.items()} == {f"m.{key}": TORCH_KEYS[key] for key in TORCH_KEYS}
    assert all(isinstance(value, np.ndarray) for value in state.values())
    np.testing.assert_array_equal(state["m.attn.c_attn.weight"], block.attn.qkv.weight.array.reshape(6, 4))
    _equal(from_torch_compatible_state_dict(block, state, prefix="m"), block)
    plain = to_torch_compatible_state_dict(block, flatten=False)
    assert {key: value.shape for key, value in plain.items()} == BLOCK_KEYS
    _equal(from_torch_compatible_state_dict(block, plain, unflatten=False), block)


def test_torch_with_a_filter():
    block = Block.init(key=KEY)
    by_rank = to_torch_compatible_state_dict(block, filter=lambda x: eqx.is_array(x) and x.ndim == 2)
    assert set(by_rank) == {"attn.c_attn.weight", "attn.proj.weight"}
    nothing = jax.tree.map(lambda _: False, block)
    chosen = eqx.tree_at(lambda b: b.attn.qkv.weight.array, nothing, True)
    assert {k: v.shape for k, v in to_torch_compatible_state_dict(block, filter=chosen).items()} == {
        "attn.c_attn.weight": (6, 4)
    }
    assert set(to_torch_compatible_state_dict(block, filter=chosen, flatten=False)) == {"attn.c_attn.weight"}


class Doubled(ModuleWithStateDictSerialization):
    inner: hnn.Linear
    weight: NamedArray

    def flatten_for_export(self):
        flat = super().flatten_for_export()
        return eqx.tree_at(lambda m: m.weight, flat, self.weight.flatten("all"))

    def unflatten_from_export(self, template):
        whole = super().unflatten_from_export(template)
        return eqx.tree_at(lambda m: m.weight, whole, self.weight.unflatten_axis("all", template.weight.axes))

    @staticmethod
    def init(*, key):
        return Doubled(hnn.Linear.init(Embed, (Heads, HeadDim), key=key), hax.random.normal(key, (Embed, Heads)))


@pytest.mark.parametrize("stacked", [False, True])
def test_own_forms_for_export(stacked):
    keys = jax.random.split(KEY, 3)
    model = {"m": Stacked.init(Layers, Doubled)(key=keys) if stacked else Doubled.init(key=KEY)}
    flat = flatten_modules_for_export(model)
    own = flat["m"].stacked if stacked else flat["m"]
    assert own.weight.axes[-1] == Axis("all", 8)
    assert len(own.inner.weight.axes) == 2 + stacked
    _equal(unflatten_modules_from_export(flat, model), model)
    _equal(from_torch_compatible_state_dict(model, to_torch_compatible_state_dict(model)), model)


def test_mlps_can_be_exported():
    mlp = hnn.MLP.init(Embed, Heads, 8, 1, key=KEY)
    state = to_torch_compatible_state_dict(mlp)
    assert set(state) == {f"layers.{i}.{name}" for i in range(2) for name in ("weight", "bias")}
    _equal(from_torch_compatible_state_dict(mlp, state), mlp)


def test_on_several_devices(auto_mesh):
    Wide = Axis("wide", 8)
    layers = Stacked.init(Layers, hnn.Linear)(Wide, Heads, key=jax.random.split(KEY, 3))
    state = to_numpy_state_dict(layers, "h")
    template = eqx.filter_eval_shape(lambda: layers)
    with hax.set_mesh(auto_mesh), hax.axis_mapping({"wide": "data"}):
        loads = [
            from_state_dict(template, state, "h"),
            hax.named_jit(lambda: from_state_dict(template, state, "h"))(),
            from_torch_compatible_state_dict(template, state, prefix="h"),
        ]
        for loaded in loads:
            assert loaded.stacked.weight.array.sharding.spec == jax.P(None, None, "data")
            assert len(loaded.stacked.bias.array.devices()) == 8
            for key, value in to_numpy_state_dict(loaded, "h").items():
                np.testing.assert_array_equal(value, state[key])
