"""What holds for every layer of `axonym.nn`, over a table of them all."""

import dataclasses
import functools
import inspect
import io
import itertools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import AxisError, OperandError
from tests.nn.layouts import COMPUTE, PARAMETERS, draw, lies, same_trees
from tests.together import list_beside, together

pytestmark = pytest.mark.sampled

B, S, T, E, M, D, V, X = axn.make_axes(batch=8, seq=2, time=3, embed=4, mlp=6, head_dim=4, vocab=5, experts=2)
KEY = jax.random.key(0)
BF16 = jmp.Policy(param_dtype=jnp.float32, compute_dtype=jnp.bfloat16, output_dtype=jnp.float32)
# Parts of layers, and what says how to make them.
NOT_LAYERS = {"AttentionMask", "BatchNormState", "BlockFoldable", "Generated", "KVCache", "RecurrentCell"}


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """A layer and the axes of one element of its input.

    Attributes:
        make: makes the layer.
        axes: the axes of one element, which has further axes for a batch.
        call: applies it, and returns a named array or a tuple of some.
        by_element: whether elements of a batch do not see each other.
        any_order: whether the order of axes in storage does not matter; random numbers are drawn in it.
        integers: whether the input counts; `take`, which such layers do, wants a name for every dimension.
        is_mapped: whether vmap works; `jax.lax.ragged_dot` has no rule for it.
    """

    make: Callable[[], Any]
    axes: tuple[axn.Axis, ...]
    call: Callable[[Any, axn.NamedArray], Any] = lambda layer, x: layer(x)
    by_element: bool = True
    any_order: bool = True
    integers: bool = False
    is_mapped: bool = True

    def input(self, *batch: axn.Axis) -> axn.NamedArray:
        if self.integers:
            axes = (*batch, *self.axes)
            sizes = [axis.size for axis in axes]
            return axn.named(jax.device_put(np.arange(np.prod(sizes)).reshape(sizes) % 5), axes)
        return draw(*batch, *self.axes)

    def layer(self) -> Any:
        return drawn(self.make)


def drawn(make: Callable[[], Any], seed: int = 5) -> Any:
    """Make a layer whose parameters numpy draws, which needs no program."""
    leaves, tree = jax.tree.flatten(eqx.filter_eval_shape(make))
    random = np.random.default_rng(seed)
    arrays = [random.normal(size=p.shape, scale=0.4).astype(p.dtype) for p in leaves]
    return jax.tree.unflatten(tree, jax.device_put(arrays))


class Block(eqx.Module):
    """What a user might stack: a norm and a perceptron."""

    norm: nn.RmsNorm
    mlp: nn.GatedMLP

    @staticmethod
    def init(Embed: axn.Axis, *, key: jax.Array) -> "Block":
        return Block(nn.RmsNorm.init(Embed), nn.GatedMLP.init(Embed, Embed, M, key=key))

    def __call__(self, x: axn.NamedArray, *, key: jax.Array | None = None) -> axn.NamedArray:
        return x + self.mlp(self.norm(x))


def normalized(layer: nn.BatchNorm, x: axn.NamedArray) -> axn.NamedArray:
    return layer(x, layer.initial_state())[0]


def perceptron(Embed: axn.Axis, *, key: jax.Array) -> nn.MLP:
    return nn.MLP.init(Embed, Embed, M, 1, nn.gelu, key=key)


def twice(cell: nn.RecurrentCell, x: axn.NamedArray) -> Any:
    return cell(x, cell(x))


L = axn.Axis("layers", 2)
C, H, Q, R = axn.make_axes(latent=3, heads=2, query=3, rotary=2)
ROWS = {
    "Attention": Row(lambda: nn.Attention.init(E, H, D, pos="time", key=KEY), (T, E)),
    "BatchNorm": Row(lambda: nn.BatchNorm.init(E, ("batch", "seq")), (E,), normalized, by_element=False),
    "BlockSeq": Row(lambda: nn.BlockSeq.init(L, Block)(E, key=KEY), (E,), lambda layers, x: layers.fold(x)),
    "Conv": Row(lambda: nn.Conv.init("time", E, M, 3, padding="SAME", key=KEY), (T, E)),
    "ConvTranspose": Row(lambda: nn.ConvTranspose.init("time", E, M, 2, stride=2, key=KEY), (T, E)),
    "DiagonalSSM": Row(lambda: nn.DiagonalSSM.init("time", E, M, key=KEY), (T, E)),
    "Dropout": Row(
        lambda: nn.Dropout(0.5), (E,), lambda layer, x: layer(x, key=KEY), by_element=False, any_order=False
    ),
    "Embedding": Row(lambda: nn.Embedding.init(V, E, key=KEY), (T,), integers=True),
    "GRUCell": Row(lambda: nn.GRUCell.init(E, M, key=KEY), (E,), twice),
    "GatedDeltaNet": Row(lambda: nn.GatedDeltaNet.init("time", E, H, D, V, chunk=2, key=KEY), (T, E)),
    "GatedMLP": Row(lambda: nn.GatedMLP.init(E, E, M, key=KEY), (E,)),
    "GroupNorm": Row(lambda: nn.GroupNorm.init(E, 2, "time"), (T, E)),
    "Interleaved": Row(
        lambda: nn.Interleaved.init(L.resize(3), (Block, perceptron))(E, key=KEY),
        (E,),
        lambda layers, x: layers.fold(x),
    ),
    "LSTMCell": Row(lambda: nn.LSTMCell.init(E, M, key=KEY), (E,), twice),
    "LatentAttention": Row(lambda: nn.LatentAttention.init(E, H, D, C, R, QueryLatent=Q, pos="time", key=KEY), (T, E)),
    "LayerNorm": Row(lambda: nn.LayerNorm.init(E), (E,)),
    "Linear": Row(lambda: nn.Linear.init(E, (M, D), key=KEY), (E,)),
    "LoraLinear": Row(lambda: nn.LoraLinear.init(nn.Linear.init(E, M, key=KEY), 2, key=KEY), (E,)),
    "MLP": Row(lambda: perceptron(E, key=KEY), (E,)),
    "Mamba2": Row(lambda: nn.Mamba2.init("time", E, H, D, V, chunk=2, key=KEY), (T, E)),
    "MixtureOfExperts": Row(
        lambda: nn.MixtureOfExperts.init(E, X, M, 1, key=KEY), (E,), lambda layer, x: layer(x)[0], is_mapped=False
    ),
    "MoELinear": Row(lambda: nn.MoELinear.init(X, E, M, key=KEY), (X, E)),
    "PositionEmbedding": Row(lambda: nn.PositionEmbedding.init(V, E, key=KEY), (T,), integers=True),
    "Recurrent": Row(lambda: nn.Recurrent(nn.GRUCell.init(E, M, key=KEY), "time"), (T, E)),
    "RmsNorm": Row(lambda: nn.RmsNorm.init(E), (E,)),
    "RotaryEmbedding": Row(lambda: nn.RotaryEmbedding.init(D), (T, D), lambda layer, x: layer(x, "time")),
    "RotaryTable": Row(lambda: nn.RotaryEmbedding.init(D).at(T), (T, D)),
    "Sequential": Row(
        lambda: nn.Sequential([nn.Linear.init(E, M, key=KEY), nn.gelu, nn.Linear.init(M, E, key=KEY)]), (E,)
    ),
    "Stacked": Row(lambda: nn.Stacked.init(L, Block)(E, key=KEY), (E,), lambda layers, x: layers.fold(x)),
    "TransformerBlock": Row(lambda: nn.TransformerBlock.init(E, H, D, M, pos="time", key=KEY), (T, E)),
}
each_row = pytest.mark.parametrize("name", ROWS)


def named_results(results: Any) -> list[axn.NamedArray]:
    return [leaf for leaf in jax.tree.leaves(results, is_leaf=axn.is_named_array) if axn.is_named_array(leaf)]


def in_order(results: Any, like: Any) -> list[axn.NamedArray]:
    """Bring results to the order of axes of others."""
    pairs = zip(named_results(results), named_results(like), strict=True)
    return [x.rearrange(y.names) for x, y in pairs]


def agree(results: Any, others: Any) -> None:
    for x, y in zip(in_order(results, others), named_results(others), strict=True):
        assert x.axes == y.axes
        np.testing.assert_allclose(x.array, y.array, rtol=1e-5, atol=1e-5)


def test_no_layer_is_missing():
    classes = [getattr(nn, name) for name in nn.__all__ if isinstance(getattr(nn, name), type)]
    layers = {value.__name__ for value in classes if issubclass(value, eqx.Module)}
    assert layers - NOT_LAYERS == set(ROWS)


@each_row
def test_keys_are_passed_by_name(name):
    """`init` demands a key where it draws, and a call takes one where it may be left out."""
    kind = getattr(nn, name)
    signatures = {"init": inspect.signature(getattr(kind, "init", lambda: None))}
    if callable(kind.__dict__.get("__call__")):
        signatures["call"] = inspect.signature(kind.__call__)
        assert signatures["call"].parameters["key"].default is None
    for signature in signatures.values():
        if "key" in signature.parameters:
            assert signature.parameters["key"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("name", [name for name in ROWS if hasattr(getattr(nn, name), "init")])
def test_init_of_a_subclass_makes_the_subclass(name, monkeypatch):
    class Own(getattr(nn, name)):
        def __call__(self, *args: Any, **kwargs: Any) -> str:
            return "own"

    monkeypatch.setattr(nn, name, Own)
    layer = eqx.filter_eval_shape(ROWS[name].make)
    assert type(layer) is Own
    assert layer(None) == "own"


def by_order(row: Row) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Apply a layer to a batch in all ways that should be one."""

    def run(layer: Any, x: axn.NamedArray) -> dict[str, Any]:
        found = {
            "plain": row.call(layer, x),
            "again": row.call(layer, x),
        }
        if row.any_order:
            found["backwards"] = row.call(layer, x.rearrange([axis.name for axis in reversed(x.axes)]))
        if row.by_element:
            parts = [row.call(layer, x["seq", i]) for i in range(S.size)]
            found["one by one"] = jax.tree.map(lambda *each: axn.stack(S, each), *parts, is_leaf=axn.is_named_array)
            if row.is_mapped:
                found["vmap"] = axn.vmap(functools.partial(row.call, layer), S)(x)
            if not row.integers:
                found["anonymous"] = [y.tag("seq") for y in named_results(row.call(layer, x.untag("seq")))]
        return found

    return run, (row.layer(), row.input(B, S))


@pytest.fixture
def beside(request: pytest.FixtureRequest) -> list[Row]:
    """Give the rows for which this run has the test."""
    return [ROWS[name] for name in list_beside(request, "name")]


@each_row
def test_batch_axes_stand_anywhere_and_are_mapped_over(name, beside):
    found = together(by_order, beside, ROWS[name])
    plain = named_results(found.pop("plain"))
    assert plain
    assert all(np.isfinite(y.array).all() for y in plain)
    assert {"batch", "seq"} <= set(plain[0].names)
    for results in found.values():
        agree(results, plain)


def by_gradient(row: Row) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Differentiate a layer by its parameters and its input, and a stack of two if it gives what it takes."""
    x = row.input(B, S)
    stacked = nn.Stacked.init(axn.Axis("depth", 2), lambda: row.make())

    def first(layer: Any, x: axn.NamedArray) -> axn.NamedArray:
        return named_results(row.call(layer, x))[0]

    def loss(both: Any) -> axn.NamedArray:
        return axn.sin(first(*both)).sum()

    def run(layer: Any, layers: Any, x: axn.NamedArray) -> Any:
        found = {"gradient": eqx.filter_grad(lambda both: loss(both).scalar())((layer, x))}
        if set(first(layer, x).axes) == set(x.axes):
            found["folded"] = layers.fold_via(first)(x)
            found["in turn"] = functools.reduce(lambda y, layer: first(layer, y), layers.unstacked(), x)
        return found

    return run, (row.layer(), drawn(stacked), x)


@each_row
def test_gradients_are_finite_and_reach_all_parameters_and_stacks_are_loops(name, beside):
    row = ROWS[name]
    found = together(by_gradient, beside, row)
    for gradient in jax.tree.leaves(found["gradient"]):
        assert np.isfinite(gradient).all()
        assert np.any(np.asarray(gradient))
    if "folded" in found:
        agree(found["folded"], found["in turn"])


@each_row
def test_half_precision_in_is_half_precision_out(name):
    layer, x = BF16.cast_to_compute((ROWS[name].layer(), ROWS[name].input(B, S)))
    result, *states = named_results(jax.eval_shape(ROWS[name].call, layer, x))
    assert result.dtype == jnp.bfloat16
    wide = {"DiagonalSSM": jnp.complex64, "GatedDeltaNet": jnp.float32, "Mamba2": jnp.float32}
    # The first part of a state sums over many positions.
    expected = [wide.get(name, jnp.bfloat16), *[jnp.bfloat16] * len(states)]
    assert [state.dtype for state in states] == expected[: len(states)]


@each_row
def test_a_layer_is_a_tree_of_arrays_with_a_static_rest(name):
    row = ROWS[name]
    layer, other = row.layer(), drawn(row.make, seed=6)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(layer))
    assert hash(jax.tree.structure(layer)) == hash(jax.tree.structure(other))
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, layer)
    file.seek(0)
    same_trees(eqx.tree_deserialise_leaves(file, other), layer, rtol=0, atol=0)

    traced = []

    @jax.jit
    def run(layer: Any, x: axn.NamedArray) -> Any:
        traced.append(x)
        return row.call(layer, x)

    for each in (layer, other):
        jax.eval_shape(run, each, row.input(B, S))
    assert len(traced) == 1


@each_row
def test_a_layer_shows_its_arrays(name):
    layer = ROWS[name].layer()
    assert repr(layer) == str(layer)
    assert repr(layer).startswith(f"{name}(")
    arrays = jax.tree.leaves(layer, is_leaf=axn.is_named_array)
    assert all(axn.is_named_array(array) for array in arrays)
    spelled = [", ".join(f"{axis.name}={axis.size}" for axis in array.axes) for array in arrays]
    assert all(f"[{axes}]" in repr(layer) for axes in spelled)
    table = axn.parameters.table(layer)
    assert [(array.names, array.shape) for array in table.arrays] == [(x.names, x.array.shape) for x in arrays]
    assert str(table)


@each_row
def test_results_lie_as_the_mapping_says(name, explicit_mesh):
    row = ROWS[name]
    layer, x = row.layer(), row.input(B, S)

    def run(layer: Any, x: axn.NamedArray) -> Any:
        with axn.axis_mapping(COMPUTE):
            results = row.call(layer, axn.auto_sharded(x))
            as_mapped.extend(jax.typeof(y.array).sharding.spec == axn.pspec_for(y) for y in named_results(results))
            return results

    as_mapped: list[bool] = []
    with axn.set_mesh(explicit_mesh):
        stored = axn.shard(layer, PARAMETERS, strict=False)
        jax.eval_shape(run, stored, x)
    assert as_mapped
    assert all(as_mapped)


def test_results_lie_as_the_mapping_says_on_auto_axes(auto_mesh):
    """Few layers, as a program of all takes long. The inputs lie on one device: only the layers ask for a layout."""
    rows = [ROWS[name] for name in ("Conv", "Embedding", "Linear", "TransformerBlock")]

    @jax.jit
    def run(layers: Any, inputs: Any) -> Any:
        return [row.call(layer, x) for row, layer, x in zip(rows, layers, inputs, strict=True)]

    given = [row.layer() for row in rows], [row.input(B, S) for row in rows]
    with axn.set_mesh(auto_mesh), axn.axis_mapping(COMPUTE):
        results = run(*given)
    assert all(lies(y, auto_mesh, COMPUTE) for y in results)


@pytest.mark.sampled
@each_row
def test_a_layout_fits_on_any_number_of_devices(name):
    row = ROWS[name]
    layer, x = row.layer(), row.input(B, S)
    names = {axis for leaf in jax.tree.leaves((layer, x), is_leaf=axn.is_named_array) for axis in leaf.names}
    several = {axis: entry for axis, entry in {**PARAMETERS, **COMPUTE, "embed": None}.items() if axis in names}
    kinds = (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit)
    for devices, kind in zip([(6, 2), (24, 1), (2, 4), (96, 1), (16, 16)], itertools.cycle(kinds)):
        mesh = jax.sharding.AbstractMesh(devices, ("data", "model"), axis_types=(kind,) * 2)
        fitted = axn.partitioning.fit_mapping(row.call, several, mesh, layer, x, limit_bytes=2**20)
        assert fitted.mesh.size == mesh.size
        ways = {axis: math.prod(fitted.mesh.shape[one] for one in fitted.mapping[axis]) for axis in several}
        assert ways["batch"] == math.gcd(8, devices[0])
        # The axes have these sizes in all layers.
        for axis, size in (("mlp", 6), ("heads", 2)):
            assert ways.get(axis, math.gcd(size, devices[1])) == math.gcd(size, devices[1])


@pytest.mark.sampled
@each_row
def test_the_alternative_that_fits_gives_the_program_of_that_entry(name, auto_mesh, explicit_mesh):
    first = axn.partitioning.first_fitting
    # Of the sizes, 2, 3, 5 and 6 do not divide among the four devices of `data`.
    several = {"batch": first("data", None), "vocab": first("data", None), "time": first("data", None)}
    several |= dict.fromkeys(("mlp", "heads", "kv_heads"), first("data", "model", None))

    def write(mapping: dict[str, Any]) -> str:
        call, args = by_gradient(ROWS[name])
        with axn.axis_mapping(mapping):
            placed = axn.shard(args, mapping, strict=False)
            return jax.jit(lambda *args: call(*args)).lower(*placed).as_text()

    for mesh in (auto_mesh, explicit_mesh):
        with axn.set_mesh(mesh):
            assert write(several) == write({**COMPUTE, "kv_heads": "model"})


def test_labels_of_a_layer_are_no_function():
    """Optax calls them, since a layer is callable; whatever a layer does first, the error says what to write."""
    for name, row in ROWS.items():
        labels = axn.parameters.labels(row.layer(), lambda path, x: "all")
        if callable(labels) and jax.tree.leaves(labels):
            with pytest.raises(OperandError, match="lambda model: axn") as error:
                optax.multi_transform({"all": optax.sgd(1.0)}, labels).init(row.layer())
            assert error.value.hint.startswith("Optax calls a tree of labels"), name


@pytest.mark.parametrize("name", [name for name in ROWS if name != "RotaryTable"])  # made in a call, and not trained
def test_what_every_axis_of_a_stacked_layer_is_for_is_known(name):
    Depth = axn.Axis("depth", 2)
    found = list(axn.parameters.walk(eqx.filter_eval_shape(nn.Stacked.init(Depth, lambda: ROWS[name].make()))))
    for own in found:
        assert own.kind != "unknown", own.path
        assert None not in own.roles.values(), own.path
        assert own.roles["depth"] == "stack"


@each_row
def test_what_has_no_names_is_refused(name):
    row = ROWS[name]
    layer = row.layer()
    for wrong in (np.ones((8, 4), np.float32), jnp.ones((8, 4)), None, "x", 3.0, [1.0]):
        with pytest.raises((OperandError, AxisError)) as error:
            row.call(layer, wrong)
        assert ": " in str(error.value)


@each_row
def test_every_axis_that_a_layer_works_over_is_missed(name):
    row = ROWS[name]
    layer, x = row.layer(), row.input(B, S)
    if row.integers or name == "Dropout":
        return
    for axis in row.axes:
        with pytest.raises(AxisError, match=f"'{axis.name}'"):
            row.call(layer, x[axis.name, 0])


WITHOUT_SIZE: dict[str, Callable[[Any], Any]] = {
    "BatchNorm": lambda axis: nn.BatchNorm.init(axis, "batch"),
    "Conv": lambda axis: nn.Conv.init("time", axis, M, 3, key=KEY),
    "ConvTranspose": lambda axis: nn.ConvTranspose.init("time", E, axis, 3, key=KEY),
    "DiagonalSSM": lambda axis: nn.DiagonalSSM.init("time", E, axis, key=KEY),
    "Embedding": lambda axis: nn.Embedding.init(axis, E, key=KEY),
    "GRUCell": lambda axis: nn.GRUCell.init(E, axis, key=KEY),
    "GatedDeltaNet": lambda axis: nn.GatedDeltaNet.init("time", E, H, axis, D, key=KEY),
    "GroupNorm": lambda axis: nn.GroupNorm.init(axis, 2),
    "LSTMCell": lambda axis: nn.LSTMCell.init(E, axis, key=KEY),
    "LatentAttention": lambda axis: nn.LatentAttention.init(E, H, axis, Q, R, key=KEY),
    "LayerNorm": nn.LayerNorm.init,
    "Linear": lambda axis: nn.Linear.init(E, axis, key=KEY),
    "LoraLinear": lambda axis: nn.LoraLinear.init(ROWS["Linear"].layer(), axis, key=KEY),
    "Mamba2": lambda axis: nn.Mamba2.init("time", E, H, axis, D, key=KEY),
    "MixtureOfExperts": lambda axis: nn.MixtureOfExperts.init(axis, X, M, 1, key=KEY),
    "MoELinear": lambda axis: nn.MoELinear.init(X, E, axis, key=KEY),
    "PositionEmbedding": lambda axis: nn.PositionEmbedding.init(axis, E, key=KEY),
    "RmsNorm": nn.RmsNorm.init,
    "RotaryEmbedding": nn.RotaryEmbedding.init,
}


@pytest.mark.parametrize("name", WITHOUT_SIZE)
def test_axes_of_parameters_need_a_size(name):
    with pytest.raises(OperandError) as error:
        WITHOUT_SIZE[name]("mlp")
    assert str(error.value) == f"{name}.init: axis 'mlp' needs a size here\n  hint: write Axis(\"mlp\", size)"


def test_what_is_no_linear_layer_is_not_adapted():
    with pytest.raises(OperandError) as error:
        nn.LoraLinear.init(ROWS["MLP"].layer(), 2, key=KEY)
    assert str(error.value) == (
        "LoraLinear.init: expected a Linear to wrap, got MLP\n  hint: use add_lora for a whole model"
    )
