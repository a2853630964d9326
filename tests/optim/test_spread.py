"""The work of an optimiser spread over devices: values are those of one device, and each way there is one exchange."""

import functools

import equinox as eqx
import jax
import numpy as np
import optax
import pytest

import axonym as axn
from axonym import nn, optim
from axonym.errors import OperandError, ShardingError
from axonym.partitioning import first_fitting
from tests.optim.table import (
    MAPPING,
    assert_like,
    begin,
    drawn,
    from_rounds,
    in_rounds,
    train,
    trained,
    transformation,
)

AXES = ("data", "model")
L, E, M, V = axn.make_axes(layers=8, embed=16, mlp=32, vocab=24)
KEY = jax.random.key(0)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["optim.muon, injected", "adafactor", "lamb"])
@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_training_is_that_of_matrices_by_hand(name, kind, request):
    """Layers in rounds, with heads; the table has no layers, and is updated where it is."""
    mesh, rounds = request.getfixturevalue(kind), {"layers_round": "model"}
    mappings = axn.Mappings(MAPPING, {}, overrides={"optimizer": rounds})
    tx = optim.spread(transformation(name, is_named=True), rounds)

    def start(model):
        params, state = begin(tx, model)
        return {"model": params, "optimizer": state}

    def step(carry, target):
        params, state = train(tx, (carry["model"], carry["optimizer"]), target)
        return {"model": params, "optimizer": state}

    with axn.set_mesh(mesh):
        model, target = axn.shard((in_rounds(drawn(0)), in_rounds(drawn(1))), MAPPING)
        compile_it = functools.partial(axn.named_jit, axis_resources=mappings, strict=False)
        found = compile_it(step)(compile_it(start)(model), target)
    assert_like(from_rounds(found["model"]), trained(name)[0])
    # Overrides leave the mesh axes that they do not need. Moments of rows and columns keep names at their ends alone.
    expected = {"optimizer": {"layers_round": "model", "embed": "data"}, "model": MAPPING}
    for part, entries in expected.items():
        arrays = [x for x in axn.tree.leaves(found[part]) if axn.is_named_array(x) and "layers_round" in x.names]
        assert arrays
        for x in arrays:
            spec = jax.P(*[None] * (x.ndim - len(x.names)), *map(entries.get, x.names))
            assert x.sharding.is_equivalent_to(jax.NamedSharding(mesh, spec), x.ndim)


def make_step(tx):
    def loss(model, x):
        return ((model["blocks"].fold(x) - x) ** 2).mean().scalar()

    def step(state, x):
        gradients = jax.grad(loss)(state["model"], x)
        updates, moments = tx.update(gradients, state["optimizer"], state["model"])
        return {"model": optax.apply_updates(state["model"], updates), "optimizer": moments}

    return step


def abstract(tx, Layers=L, **options):
    def make():
        blocks = nn.Stacked.init(Layers, nn.MLP, **options)(E, E, M, 1, use_bias=False, key=KEY)
        model = {"blocks": blocks, "table": nn.Embedding.init(V, E, key=KEY)}
        return {"model": model, "optimizer": tx.init(model)}

    return eqx.filter_eval_shape(make), jax.eval_shape(lambda: axn.ones({"batch": 16, "embed": 16}))


LAYERS = {"layers": AXES}
WAYS = [
    ("Auto", {"embed": AXES}, LAYERS, {}),
    ("Explicit", {"embed": AXES}, LAYERS, {}),
    ("Auto", {"embed": "data", "mlp": "model"}, LAYERS, {}),
    ("Auto", {"embed": AXES}, {"layers_round": "data", "layers": "model"}, {"Layers": L.resize(16), "rounds": 8}),
]


@pytest.mark.parametrize(("kind", "stored", "layers", "options"), WAYS)
def test_each_way_is_one_exchange(kind, stored, layers, options):
    """One for each mesh axis, if these split two axes of a weight; to gather sends more than five times as much."""
    ways, own_layers = len(stored) * len(layers), options.get("Layers", L).size // 8
    mesh = jax.sharding.AbstractMesh((4, 2), AXES, axis_types=(jax.sharding.AxisType[kind],) * 2)
    compute = {"batch": AXES}

    def costs(tx, overrides):
        report = axn.cost(make_step(tx), axn.Mappings(stored, compute, overrides), mesh, *abstract(tx, **options))
        own = [row for row in report.communication if row.layer == "optimizer"]
        assert {row.phase for row in own} == {"other"}
        work = [row.flops for row in report.work if row.layer == "optimizer"]
        return own, sum(row.sent for row in own), sum(work)

    gathered = costs(optim.muon(0.02), {})
    rows, sent, flops = costs(optim.spread(optim.muon(0.02), layers), {"optimizer": layers})
    weights = [row for row in rows if row.nbytes > 1000]
    assert {row.kind for row in weights} == {"all-to-all"}
    assert len(weights) == 2 * 2 * ways  # two weights, there and back
    # Each device sends all but its own part of an eighth of the weights.
    nbytes = 2 * own_layers * 16 * 32 * 4
    parts = [7 / 8] if ways == 1 else [3 / 4, 1 / 2]
    assert sum(row.sent for row in weights) == pytest.approx(2 * nbytes * sum(parts))
    assert gathered[1] > 5 * sent
    # Five steps of three products for each weight of the layers of a device: two of 16 x 16 x 32, one of 16 x 16 x 16.
    assert flops == 2 * own_layers * 5 * 2 * (2 * 16 * 16 * 32 + 16**3)


def test_sizes_that_do_not_divide(auto_mesh):
    """Each stack takes what divides it; what cannot be spread stays where it is, if the mapping says so."""
    stacks = {size: nn.Stacked.init(axn.Axis("layers", size), nn.RmsNorm)(E, use_bias=False) for size in (8, 4, 3)}
    with axn.set_mesh(auto_mesh):
        model = axn.shard(stacks, {"embed": "data"})
        with pytest.raises(ShardingError) as error:
            optim.spread(optax.adam(1e-2), {"layers": AXES}).init({"4": model[4]})
        assert str(error.value) == (
            "spread: layers=4 cannot be split evenly in 8 over mesh axis data, model\n"
            "  array has: layers=4, embed=16\n"
            "  mapping: {'layers': ('data', 'model')}\n"
            "  mesh: data=4, model=2\n"
            "  at: 0.mu.4.stacked.weight\n"
            "  hint: give alternatives, {'layers': axn.partitioning.first_fitting(('data', 'model'), 'data', 'model', "
            "None)}, where None leaves it as it is"
        )
        fitting = {"layers": first_fitting(AXES, "data", None)}
        state = axn.shard(
            {"optimizer": optax.adam(1e-2).init(model)},
            axn.Mappings({"embed": "data"}, {}, {"optimizer": fitting}),
        )
        seen = []

        def look(updates, params):
            jax.tree.map(lambda x: jax.debug.inspect_array_sharding(x, callback=seen.append), updates)
            return updates

        tx = optim.spread(optax.chain(optax.stateless(look), optax.adam(1e-2)), fitting)
        jax.jit(tx.update)(model, (optax.EmptyState(), state["optimizer"]), model)
    expected = {8: jax.P(AXES), 4: jax.P("data"), 3: jax.P(None, "data")}
    shardings = [jax.NamedSharding(auto_mesh, expected[size]) for size in sorted(expected)]
    for sharding, there, size in zip(shardings, seen, sorted(expected), strict=True):
        assert there.is_equivalent_to(sharding, 2)
        moment = state["optimizer"][0].mu[size].stacked.weight
        assert moment.sharding.is_equivalent_to(sharding, 2)


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_eager_updates_are_laid_out_like_gradients(kind, request):
    mesh = request.getfixturevalue(kind)
    model = nn.Stacked.init(L, nn.RmsNorm)(E, use_bias=False)
    tx = optim.spread(optax.adam(1e-2), {"layers": "data"})
    expected, _ = tx.update(model, tx.init(model), model)  # without a mesh
    np.testing.assert_allclose(expected.stacked.weight.array, -1e-2, rtol=1e-5)
    with axn.set_mesh(mesh):
        model = axn.shard(model, {"embed": "model"})
        updates, state = tx.update(model, tx.init(model), model)
    assert updates.stacked.weight.sharding.spec == jax.P(None, "model")
    assert state[0].mu.stacked.weight.sharding.is_equivalent_to(jax.NamedSharding(mesh, jax.P("data")), 2)
    np.testing.assert_array_equal(updates.stacked.weight.array, expected.stacked.weight.array)


def test_mistakes(auto_mesh):
    model = nn.Stacked.init(L, nn.RmsNorm)(E, use_bias=False)
    tx = optim.spread(optax.adam(1e-2), {"layers": "data"})
    with axn.set_mesh(auto_mesh):
        with pytest.raises(ShardingError) as error:
            optim.spread(optax.adam(1e-2), {"layer": "data"}).init(model)
        assert str(error.value) == (
            "spread: the mapping has axis 'layer', which no array here has\n"
            "  mapping: {'layer': 'data'}\n"
            "  axes of the arrays: embed, layers\n"
            "  hint: did you mean 'layers'?"
        )
        with pytest.raises(ShardingError) as error:
            axn.shard_map(tx.init, {"layers": "data"})(model)
        assert str(error.value) == (
            "spread: mesh axis 'data' is one of a surrounding shard_map, where a device has parts of layers\n"
            "  hint: update outside of the shard_map"
        )
    with pytest.raises(OperandError) as error:
        optim.spread(optax.adam, {"layers": "data"})
    assert str(error.value) == (
        "spread: expected a transformation of Optax, got function\n  hint: write optax.adam(1e-3)"
    )


def test_a_plan_chooses_to_spread():
    """Where the update runs is a choice of the step, and where the state is stored one of the plan."""
    plain, layers = optim.muon(0.02), {"layers": "data"}

    def step(model, moments, x, *, spread):
        tx = plain if spread is None else optim.spread(plain, spread)
        state = make_step(tx)({"model": model, "optimizer": moments}, x)
        return state["model"], state["optimizer"]

    state, x = abstract(plain)
    fixed = axn.Mappings({"embed": "data"}, {"batch": "data"})
    given = state["model"], state["optimizer"], x
    plan = axn.plan(step, {"data": 8}, *given, fixed=fixed, choices={"spread": [None, layers]}, limit=30, verify=0)
    assert plan.choices == {"spread": layers}
    assert {tuple(extra.items()) for _, extra in plan.mappings.overrides} == {(("embed", ()), ("layers", ("data",)))}
