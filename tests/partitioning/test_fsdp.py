"""`fsdp` and `Mappings` under `named_jit`: what is stored and what computes, overrides by path, and chosen mappings."""

import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import AbstractMesh, AxisType, PartitionSpec
from measure import collectives

import axonym as axn
import axonym.nn as nn
from axonym.errors import ArgumentError, LostAxisError, OperandError, ShardingError
from axonym.partitioning import check
from tests.nn.layouts import lies

pytestmark = pytest.mark.sampled

P = PartitionSpec
B, E, M = axn.make_axes(batch=8, embed=16, mlp=32)
PARAMETERS, COMPUTE = {"embed": "data", "mlp": "model"}, {"batch": "data", "mlp": "model"}
OPTIMIZER = optax.adam(1e-2)
ADAFACTOR = optax.adafactor(1e-2, min_dim_size_to_factor=4)


@pytest.fixture(params=["auto", "explicit"])
def mesh(request, auto_mesh, explicit_mesh):
    chosen = auto_mesh if request.param == "auto" else explicit_mesh
    with axn.set_mesh(chosen):
        yield chosen


def init(key):
    model = nn.MLP.init(E, E, M, 1, key=key)
    return model, OPTIMIZER.init(model)


def loss_fn(model, x):
    return ((model(x) - 1) ** 2).mean().scalar()


def step(model, state, x):
    loss, gradients = jax.value_and_grad(loss_fn)(model, x)
    updates, state = OPTIMIZER.update(gradients, state)
    return optax.apply_updates(model, updates), state, loss


def data():
    return axn.random.normal(jax.random.key(1), (B, E))


def blocks(x):
    return x.sharding.shard_shape(x.array.shape)


def check_close(got, expected):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


@pytest.fixture(scope="module")
def on_one_device():
    """Two steps without any mesh."""
    first = jax.jit(step)(*init(jax.random.key(0)), data())
    return first, jax.jit(step)(*first[:2], data())


def test_a_step_stores_by_one_mapping_and_computes_by_the_other(on_one_device, mesh):
    seen = []

    def watched(model, state, x):
        seen.append(dict(axn.current_mapping()))
        return step(model, state, x)

    compiled = axn.fsdp(watched, PARAMETERS, COMPUTE)
    model, state = axn.named_jit(init, PARAMETERS)(jax.random.key(0))
    result = compiled(model, state, data())
    check_close(result, on_one_device[0])
    assert seen == [{"batch": ("data",), "mlp": ("model",)}]
    for tree in (result[0], result[1][0].mu):
        assert [blocks(layer.weight) for layer in tree.layers] == [(4, 16), (16, 4)]
        assert [blocks(layer.bias) for layer in tree.layers] == [(16,), (4,)]
    check_close(compiled(*result[:2], data()), on_one_device[1])
    assert len(seen) == 1


# An optimiser whose state has fewer dimensions than the parameters (sums of matrices over rows and columns), and arrays
# of one element in the place of those that it has no use for.
def adafactor_init(key):
    model = nn.MLP.init(E, E, M, 1, key=key)
    return model, ADAFACTOR.init(model)


def adafactor_step(loss_fn):
    def step(params, state, x):
        loss, gradients = jax.value_and_grad(loss_fn)(params, x)
        updates, state = ADAFACTOR.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    return step


def four_losses(step, params, state, x):
    losses = []
    for _ in range(4):
        params, state, loss = step(params, state, x)
        losses.append(float(loss))
    return losses, params, state


@pytest.fixture(scope="module")
def adafactor_on_one_device():
    """Four losses of raw arrays, without names and without any mesh."""

    def raw_loss(params, x):
        (up, first), (down, second) = params
        return jnp.mean((jnp.maximum(x @ up + first, 0) @ down + second - 1) ** 2)

    model = nn.MLP.init(E, E, M, 1, key=jax.random.key(0))
    params = [(layer.weight.array, layer.bias.array) for layer in model.layers]
    return four_losses(jax.jit(adafactor_step(raw_loss)), params, ADAFACTOR.init(params), data().array)


@pytest.mark.parametrize("way", ["named_jit", "replicated", "fsdp"])
def test_state_that_has_less_than_the_parameters_trains(adafactor_on_one_device, mesh, way):
    stored = {} if way == "replicated" else PARAMETERS
    step = adafactor_step(loss_fn)
    both = axn.Mappings(stored, COMPUTE if way == "fsdp" else {})
    model, state = axn.named_jit(adafactor_init, stored)(jax.random.key(0))
    assert state[0].v_row.layers[0].weight.array.shape == (16,)
    assert state[0].v_row.layers[0].bias.axes == (axn.Axis("mlp", 1),)
    report = check(step, both, mesh, model, state, data(), quiet=True)
    assert report.problems == ()
    compiled = axn.fsdp(step, stored, COMPUTE) if way == "fsdp" else axn.named_jit(step, stored)
    losses, model, state = four_losses(compiled, model, state, data())
    check_close(losses, adafactor_on_one_device[0])
    check_close(state, adafactor_on_one_device[2])
    if stored:
        assert blocks(model.layers[0].weight) == (4, 16)
        assert blocks(state[0].v.layers[0].bias) == (16,)
    for part in (state[0].v_row, state[0].v_col, state[0].v):
        assert part.layers[0].weight.sharding.is_fully_replicated


def test_a_call_has_one_size_for_an_axis_in_all_of_its_arguments(mesh):
    f = axn.fsdp(lambda w, *, row: {"w": w, "row": row}, {"mlp": "model"}, {}, strict=False)
    w, row = axn.ones(M), {"v": axn.ones(axn.Axis("mlp", 1))}
    assert blocks(f(w, row=row)["w"]) == (16,)
    assert check(f, {"mlp": "model"}, mesh, w, row=row, quiet=True).problems == ()


def test_all_forms_are_the_same(mesh):
    def apply(layer, x):
        return layer(x)

    layer, x = nn.Linear.init(E, M, key=jax.random.key(0)), data()
    forms = [
        axn.fsdp(apply, PARAMETERS, COMPUTE),
        axn.fsdp(PARAMETERS, COMPUTE)(apply),
        axn.fsdp(apply, parameter_mapping=PARAMETERS, compute_mapping=COMPUTE),
        axn.fsdp(parameter_mapping=PARAMETERS, compute_mapping=COMPUTE)(apply),
        axn.fsdp(apply, PARAMETERS, compute_mapping=COMPUTE),
        axn.named_jit(apply, axn.Mappings(PARAMETERS, COMPUTE)),
        axn.named_jit(axis_resources=axn.Mappings(PARAMETERS, COMPUTE))(apply),
    ]
    for form in forms:
        result = form(layer, x)
        assert blocks(result) == (2, 16)  # has a batch, and is laid out as data
        np.testing.assert_allclose(result.array, layer(x).array, rtol=1e-5, atol=1e-6)


def test_options_pass_through(mesh):
    update = axn.fsdp(lambda w, x: w - x, {"embed": "data"}, {}, donate_args=(True,), strict=False)
    w = axn.shard(axn.ones(E), {"embed": "data"})
    assert update(w, axn.ones(E)).array.tolist() == [0.0] * 16
    assert w.array.is_deleted()
    assert "stablehlo" in update.lower(axn.shard(axn.ones(E), {"embed": "data"}), axn.ones(E)).as_text()


def test_other_shapes_and_other_mappings_do_not_share_results(mesh):
    def scaled(w, raw):
        return w * raw.sum(), raw * 2

    compiled = axn.fsdp(scaled, {"embed": "data"}, {})
    w = axn.arange(E)
    for raw in (jnp.ones(3), jnp.ones((2, 2)), jnp.ones(3)):
        named, doubled = compiled(w, raw)
        assert doubled.shape == raw.shape
        assert named.array.tolist() == [i * raw.size for i in range(16)]
        assert blocks(named) == (4,)
    double = axn.named_jit(lambda x: 2 * x)
    for mapping, block in [({"embed": "data"}, (4,)), ({"embed": "model"}, (8,)), ({"embed": "data"}, (4,))]:
        with axn.axis_mapping(mapping):
            result = double(w)
        assert blocks(result) == block
        assert result.array.tolist() == [2 * i for i in range(16)]


def test_overrides_lay_out_some_paths_otherwise(mesh):
    mappings = axn.Mappings(PARAMETERS, COMPUTE, {"layers.1": {"embed": None}, "layers.*.bias": {"mlp": None}})
    model, state = axn.named_jit(init, mappings, strict=False)(jax.random.key(0))
    for tree in (model, state[0].mu, state[0].nu):
        assert [blocks(layer.weight) for layer in tree.layers] == [(4, 16), (16, 16)]
        assert [blocks(layer.bias) for layer in tree.layers] == [(32,), (16,)]
    expected = axn.named_jit(step, axn.Mappings(PARAMETERS, COMPUTE))(model, state, data())
    result = axn.named_jit(step, mappings)(model, state, data())
    check_close(result, expected)
    assert blocks(result[0].layers[1].weight) == (16, 16)
    placed = axn.shard(model, axn.Mappings(PARAMETERS, overrides={"layers.1": {"embed": None}}))
    assert [blocks(layer.weight) for layer in placed.layers] == [(4, 16), (16, 16)]


@pytest.mark.parametrize(
    ("text", "act"),
    [
        (
            "named_jit: no array has a path that matches 'layer.1'\n"
            "  paths: 0.layers.0.bias, 0.layers.0.weight, 0.layers.1.bias, 0.layers.1.weight, 1, layers.0.bias, "
            "layers.0.weight, layers.1.bias, ...\n"
            "  hint: did you mean 'layers'?",
            lambda: axn.named_jit(lambda m, x: m, axn.Mappings({"embed": "data"}, {}, {"layer.1": {"mlp": None}}))(
                init(jax.random.key(0))[0], data()
            ),
        ),
        (
            "fsdp: the mapping has axis 'ebmed', which no array here has\n"
            "  mapping: {'ebmed': 'data'}\n"
            "  axes of the arrays: batch, embed\n"
            "  hint: did you mean 'embed'?",
            lambda: axn.fsdp(lambda x: x, {"ebmed": "data"}, {"batch": "data"})(data()),
        ),
    ],
)
def test_what_no_array_has_is_refused(text, act, auto_mesh):
    with axn.set_mesh(auto_mesh), pytest.raises(ShardingError) as error:
        act()
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("missing", "act"),
    [
        ("parameter_mapping", lambda: axn.fsdp(lambda x: x)),
        ("compute_mapping", lambda: axn.fsdp(lambda x: x, {"embed": "data"})),
        ("compute_mapping", lambda: axn.fsdp({"embed": "data"})),
    ],
)
def test_both_mappings_are_needed(missing, act):
    with pytest.raises(ArgumentError) as error:
        act()
    assert str(error.value) == f"fsdp: {missing} is missing\n  hint: write fsdp(step, parameters, compute)"


EIGHT = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))


def arrays(*axes):
    return [axn.NamedArray(jax.ShapeDtypeStruct(tuple(sizes.values()), jnp.float32), tuple(sizes)) for sizes in axes]


@pytest.mark.parametrize(
    ("axes", "options", "expected"),
    [
        # One name that spreads everything.
        ([{"vocab": 50257, "embed": 768}, {"embed": 768, "mlp": 3072}, {"embed": 768}], {}, {"embed": "data"}),
        # The classifier of many tutorials: `hidden` is in all of its large arrays.
        (
            [{"input": 784, "hidden": 512}, {"hidden": 512}, {"hidden": 512, "out": 10}, {"out": 10}],
            {"min_size": 2**4},
            {"hidden": "data"},
        ),
        # Small arrays are left alone, and what does not divide cannot be chosen.
        ([{"a": 8, "b": 16}], {"min_size": 129}, {}),
        ([{"a": 8, "b": 16}], {"min_size": 128}, {"b": "data"}),
        ([{"a": 300, "b": 301}], {}, {}),
        ([{"a": 304, "b": 900}], {}, {"a": "data"}),
        # Two names for two arrays, but never both on one.
        ([{"a": 512, "b": 512}, {"c": 512, "d": 256}], {}, {"a": "data", "c": "data"}),
        ([{"a": 512, "b": 512}, {"b": 511, "c": 512}, {"a": 512, "c": 512}], {}, {"a": "data"}),
        # Tensor parallelism has chosen already.
        (
            [{"embed": 512, "mlp": 2048}],
            {"mapping": {"mlp": "model"}},
            {"mlp": "model", "embed": "data"},
        ),
        ([{"embed": 512, "mlp": 2048}], {"mapping": {"embed": "data"}}, {"embed": "data"}),
        ([{"embed": 0, "mlp": 0}, {}], {"min_size": 0}, {}),
    ],
)
def test_a_mapping_is_chosen_by_size(axes, options, expected):
    mesh = AbstractMesh((8, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    assert axn.partitioning.fsdp_mapping(arrays(*axes), "data", mesh, **options) == expected


@settings(max_examples=50)
@given(
    sizes=st.fixed_dictionaries({name: st.sampled_from([3, 8, 16, 24]) for name in "abcd"}),
    sets=st.lists(st.sets(st.sampled_from("abcd"), max_size=3), max_size=4),
)
def test_a_chosen_mapping_fits_each_array_and_cannot_be_extended(sizes, sets):
    trees = arrays(*({name: sizes[name] for name in sorted(names)} for names in sets))
    chosen = axn.partitioning.fsdp_mapping(trees, "data", EIGHT, min_size=1)
    for names in sets:
        assert len(names & chosen.keys()) <= 1
    axn.pspec_for(trees, chosen, EIGHT)  # each size divides
    for name in set(itertools.chain(*sets)) - chosen.keys():
        helps = [names for names in sets if name in names and not names & chosen.keys() and sizes[name] % 8 == 0]
        assert not helps or any(name in names and names & chosen.keys() for names in sets)


def test_several_mesh_axes_count_together():
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    tree = arrays({"a": 12, "b": 8})
    assert axn.partitioning.fsdp_mapping(tree, ("data", "model"), mesh, min_size=1) == {"b": ("data", "model")}
    assert math.prod(mesh.shape.values()) == 8


def test_a_mapping_is_chosen_by_parameters_and_not_by_what_an_optimizer_keeps_of_them():
    params = {"w": axn.zeros((E, M)), "b": axn.zeros(M)}
    state = ADAFACTOR.init(params)
    assert len(state[0].v_row["w"].array.shape) == 1
    assert axn.partitioning.fsdp_mapping((params, state), "data", EIGHT, min_size=100) == {"mlp": "data"}
    with pytest.raises(
        LostAxisError, match=r"^fsdp_mapping: an array of shape \(16,\) cannot have the 2 axes embed, mlp"
    ):
        axn.partitioning.fsdp_mapping(state[0].v_row["w"], "data", EIGHT)


@pytest.mark.parametrize(
    ("text", "act"),
    [
        (
            "fsdp_mapping: there is no mesh\n"
            '  hint: pass one, or run inside of: with axn.set_mesh(jax.make_mesh((8,), ("data",)))',
            lambda: axn.partitioning.fsdp_mapping([], "data"),
        ),
        (
            "fsdp_mapping: 'date' is not an axis of the mesh\n  mesh: data=8\n  hint: did you mean 'data'?",
            lambda: axn.partitioning.fsdp_mapping([], "date", EIGHT),
        ),
    ],
)
def test_a_mapping_is_chosen_for_a_mesh(text, act):
    with pytest.raises(ShardingError) as error:
        act()
    assert str(error.value) == text


class Table(eqx.Module):
    """Rows that are looked up and scored by one table, and positions that the model gathers by itself."""

    table: nn.Embedding
    positions: axn.NamedArray

    @staticmethod
    def init(vocab):
        drawn = axn.random.normal(jax.random.key(1), axn.make_axes(seq=4, embed=16))
        return Table(nn.Embedding.init(axn.Axis("vocab", vocab), E, key=jax.random.key(0)), drawn)

    def loss(self, ids):
        x = self.table(ids) + axn.auto_sharded(self.positions)
        return (axn.tanh(self.table.unembed(axn.sin(x))) ** 2).mean().scalar()


def table_step(model, ids):
    return jax.value_and_grad(Table.loss)(model, ids)


def in_a_block(compute):
    def step(model, ids):
        with axn.axis_mapping(compute):
            return table_step(model, ids)

    return step


@pytest.mark.parametrize("way", ["fsdp", "a block"])
def test_gradients_are_laid_out_as_parameters_are_stored(way, auto_mesh):
    stored, compute = {"embed": ("data", "model")}, {"batch": ("data", "model")}
    model, ids = Table.init(64), axn.zeros(axn.make_axes(batch=8, seq=4), jnp.int32)
    compiled = axn.fsdp(table_step, stored, compute)
    if way == "a block":
        compiled = axn.named_jit(in_a_block(compute), stored, strict=False)
    with axn.set_mesh(auto_mesh):
        sent = collectives(compiled.lower(model, ids).compile())
        got = compiled(model, ids)
        assert all(lies(gradient, auto_mesh, stored) for gradient in (got[1].table.weight, got[1].positions))
    # Rows go to where they are needed and their gradients back; the table is gathered for the logits alone.
    assert [one.bytes for one in sent if one.kind == "all-to-all"] == [8 * 4 * 16 * 4 // 8] * 2
    assert [one.bytes for one in sent if one.kind == "all-gather"].count(64 * 16 * 4 // 8) == 1
    # No device needs more of a gradient than what it stores of the parameter.
    kinds = [one.kind for one in sent]
    assert "all-gather" not in kinds[kinds.index("all-reduce") :]
    check_close(got, jax.jit(table_step)(model, ids))


@pytest.mark.parametrize("vocab", [4, 64])
def test_a_table_that_is_less_than_its_rows_is_gathered(vocab, mesh):
    devices = ("data", "model")
    model, ids = Table.init(vocab), axn.arange(axn.Axis("batch", 8)).broadcast_axis(axn.Axis("seq", 4)) % 3
    compiled = axn.fsdp(lambda model, ids: table_step(model, ids), {"embed": devices}, {"batch": devices})
    assert ("all-to-all" in compiled.lower(model, ids).compile().as_text()) == (vocab > 4)
    check_close(compiled(model, ids), jax.jit(table_step)(model, ids))


def test_gathered_parameters_have_all_derivatives(auto_mesh):
    model, ids = Table.init(64), axn.zeros(axn.make_axes(batch=8, seq=4), jnp.int32)

    def curvature(model, ids):
        slope = jax.grad(Table.loss)
        forward = jax.jvp(lambda model: Table.loss(model, ids), (model,), (model,))
        return forward, jax.jvp(lambda model: slope(model, ids), (model,), (model,))[1]

    with axn.set_mesh(auto_mesh):
        got = axn.fsdp(curvature, {"embed": "data"}, {"batch": "data"})(model, ids)
    check_close(got, jax.jit(curvature)(model, ids))


def test_where_axes_are_mapped_over_gradients_are_those_of_one_device(auto_mesh):
    layer = nn.Linear.init(E, E, key=jax.random.key(0))

    def loss(layer, x):
        each = axn.vmap(lambda x: axn.auto_sharded(layer(axn.auto_sharded(axn.sin(x)))), "batch")
        return (each(x) ** 2).mean().scalar()

    with axn.set_mesh(auto_mesh):
        got = axn.fsdp(jax.grad(loss), {"embed": "data"}, {"batch": "data"})(layer, data())
    check_close(got, jax.jit(jax.grad(loss))(layer, data()))
    assert blocks(got.weight) == (4, 16)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"manuel": True}, "fsdp: there is no option 'manuel'"),
        ({"manual": "yes"}, "fsdp: manual must be True or False, not 'yes'"),
    ],
)
def test_options_that_are_wrong(options, told):
    with pytest.raises(OperandError) as error:
        axn.fsdp(step, PARAMETERS, COMPUTE, **options)
    assert str(error.value).splitlines()[0] == told
