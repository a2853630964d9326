"""Plans of a small step, against mappings written by hand and against all legal ones."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import axonym as axn
import axonym.nn as nn
from axonym.errors import ArgumentError, OperandError, ShardingError
from axonym.partitioning import TARGETS
from tests.costs.programs import ADAM, MESH, NAMES, Batch, Embed, Layers, Model, abstract, loss, step

# So slow links that what is sent decides; and a memory of any size.
TARGET = dataclasses.replace(TARGETS["v5e"], link=axn.partitioning.Link(1e9))
donating = axn.named_jit(step, {}, donate_args=(True, True))
HAND = {
    "dp": ({}, {"batch": "data"}),
    "fsdp": ({"embed": "data"}, {"batch": "data"}),
    "tp": ({"mlp": "model"}, {"mlp": "model"}),
    "fsdp+tp": ({"embed": "data", "mlp": "model"}, {"batch": "data", "mlp": "model"}),
}


def rank(cost, target):
    over = max(0, cost.memory.peak - target.memory)
    return over, cost.time.compared


@functools.cache
def planned(memory):
    target = dataclasses.replace(TARGET, memory=memory)
    return axn.plan(donating, MESH, *abstract(), target=target, limit=40)


@pytest.mark.sampled
@pytest.mark.parametrize("memory", [2**30, 16000], ids=["roomy", "tight"])
def test_a_plan_is_not_worse_than_what_is_written_by_hand(memory):
    target = dataclasses.replace(TARGET, memory=memory)
    found = planned(memory)
    for mappings in HAND.values():
        theirs = axn.cost(donating, axn.Mappings(*mappings), MESH, *abstract(), target=target, depth="traced")
        assert rank(found.best.cost, target) <= rank(theirs, target)


def test_the_plan_is_what_it_says():
    found = planned(2**30)
    again = axn.cost(donating, found.mappings, found.mesh, *abstract(), target=TARGET, depth="traced")
    assert again.totals == found.best.cost.totals
    assert found.mesh == MESH
    ranks = [rank(one.cost, found.best.cost.target) for one in (found.best, *found.others)]
    assert ranks == sorted(ranks)
    assert "slower" in str(found)


def test_what_does_not_fit_is_said():
    found = planned(1000)
    assert found.problems
    assert "nothing fits" in str(found)
    peaks = [one.cost.memory.peak for one in found.others]
    assert found.best.cost.memory.peak <= 1.01 * min(peaks)


def test_fixed_entries_stay():
    found = axn.plan(donating, {"data": 4}, *abstract(), target=TARGET, fixed={"batch": "data"}, limit=10)
    for one in (found.best, *found.others):
        assert dict(one.mappings.compute.entries)["batch"] == ("data",)


def test_numbers_of_devices_compare_meshes():
    found = axn.plan(donating, 4, *abstract(), target=TARGET, limit=9)
    meshes = {tuple(dict(one.mesh).values()) for one in (found.best, *found.others)}
    assert meshes == {(4, 1), (2, 2)}


def test_slices_are_a_mesh_axis():
    found = axn.plan(donating, 8, *abstract(), target="v5e", slices=2, limit=4, verify=0)
    assert found.mesh["slice"] == 2
    assert found.best.cost.target.domains[-1].devices == 4


def test_a_mesh_axis_is_divided_where_that_helps():
    # Two devices are the most that one of these axes is divided over.
    Rows, Inputs, Heads, Width = axn.make_axes(rows=2, inputs=3, heads=2, width=2)
    weight = jax.eval_shape(lambda: axn.ones((Inputs, Heads, Width)))
    x = jax.eval_shape(lambda: axn.ones((Rows, Inputs)))

    def value(weights, x):
        return (axn.dot(x, weights[0], axis="inputs") ** 2).mean().scalar()

    slow = dataclasses.replace(TARGET, flops={"float32": 1e5}, memory_bandwidth=1e6)
    found = axn.plan(jax.grad(value), 8, (weight,), x, target=slow, limit=60, verify=0)
    mapped = {name: found.mappings.compute[name] for name in ("rows", "heads", "width")}
    assert sorted(mapped.values()) == [("data",), ("inner",), ("model",)]
    assert found.mesh == {"data": 2, "inner": 2, "model": 2}
    by_hand = {"rows": "a", "heads": "b", "width": "c"}
    theirs = axn.cost(jax.grad(value), by_hand, {"a": 2, "b": 2, "c": 2}, (weight,), x, target=slow, depth="traced")
    assert found.best.cost.time.seconds <= theirs.time.seconds


def test_mesh_axes_that_differ_compare_all_meshes():
    slow = TARGET.linked(data=axn.partitioning.Link(1e8))
    found = axn.plan(donating, 4, *abstract(), target=slow, limit=12)
    meshes = {tuple(dict(one.mesh).values()) for one in (found.best, *found.others)}
    assert meshes == {(4, 1), (2, 2), (1, 4)}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"mesh": 0}, ArgumentError, "plan: the number of devices must be positive, not 0"),
        (
            {"mesh": 4, "limit": 1},
            ArgumentError,
            "plan: limit must be at least 2, the number of meshes, not 1",
        ),
        ({"mesh": 8, "limit": "20"}, ArgumentError, "plan: limit must be an integer, not '20'"),
        (
            {"mesh": 8, "target": "v5e", "slices": 3},
            ArgumentError,
            "plan: slices=3 do not divide 8 devices",
        ),
        (
            {"mesh": MESH, "slices": 2},
            OperandError,
            "resize_domains: cpu has no domains, so it does not say how slices are connected\n"
            "  hint: describe that by Target(..., domains=(Domain(devices, link),))",
        ),
        (
            {"mesh": MESH, "target": "v5"},
            OperandError,
            f"plan: there is no target 'v5'\n  names: {NAMES}\n  hint: did you mean 'v5p'?",
        ),
    ],
)
def test_mistakes(options, error, text):
    mesh = options.pop("mesh")
    with pytest.raises(error) as raised:
        axn.plan(donating, mesh, *abstract(), **options)
    assert str(raised.value) == text


def test_a_tree_has_no_plan():
    with pytest.raises(OperandError, match="plan: it takes a function or a module, not dict"):
        axn.plan({}, MESH)


def test_what_is_fixed_wrongly_is_an_error():
    with pytest.raises(ShardingError, match=r"^plan: .*'bacth'"):
        axn.plan(donating, MESH, *abstract(), fixed={"bacth": "data"})


def remembering(model, state, x, *, recomputes):
    policy = axn.ScanCheckpointPolicy.make(recomputes)

    def value(model):
        blocks = dataclasses.replace(model.blocks, gradient_checkpointing=policy)
        return loss(dataclasses.replace(model, blocks=blocks), x)

    return ADAM.update(jax.grad(value)(model), state)


def test_arguments_are_chosen():
    slow = dataclasses.replace(TARGET, flops={"float32": 1e9})
    both = {"batch": ("data", "model")}
    costs = {}
    for value in (True, False):
        costs[value] = axn.cost(remembering, both, MESH, *abstract(), target=slow, depth="traced", recomputes=value)
    assert costs[True].time.compared > costs[False].time.compared
    options = {"fixed": both, "limit": 12, "verify": 0, "choices": {"recomputes": [True, False]}}
    found = axn.plan(remembering, MESH, *abstract(), target=slow, **options)
    assert found.choices == {"recomputes": False}
    assert found.best.cost.time.compared <= costs[False].time.compared
    assert "recomputes=False" in str(found)


def test_batches_compare_by_the_time_for_an_example_and_rings_are_chosen():
    Positions, Width, Hidden = axn.make_axes(**{"sequence.pos": 512, "embed": 2048, "mlp": 2048})
    mlp = jax.eval_shape(lambda: nn.MLP.init(Width, Width, Hidden, 1, key=jax.random.key(0)))

    def build(*, rows=64, rings=False):
        x = jax.eval_shape(lambda: axn.zeros((Batch.resize(rows), Positions, Width)))
        fn = axn.named_jit(lambda mlp, x: jax.grad(lambda mlp: (mlp(x) ** 2).mean().scalar())(mlp), {}, rings=rings)
        return fn, mlp, x

    options = {"verify": 0, "choices": {"rows": [8, 64]}}
    found = axn.plan(build, MESH, target="v5e", limit=8, **options)
    # More rows hide more of what is sent for the gradients, in more time.
    several = (found.best, *found.others)
    assert found.choices == {"rows": 64}
    assert found.bound <= found.best.cost.time.compared > min(one.cost.time.compared for one in several)
    paces = [one.cost.time.compared / one.choices["rows"] for one in several]
    assert paces[0] <= 1.01 * min(paces)
    # Memory has no place for the large batch.
    least = min(one.cost.memory.peak for one in several if one.choices == {"rows": 64})
    small = dataclasses.replace(TARGETS["v5e"], memory=least - 1)
    assert axn.plan(build, MESH, target=small, limit=4, **options).choices == {"rows": 8}

    split = axn.Mappings({"mlp": "model"}, {"batch": "data", "mlp": "model", "sequence": "model"})
    found = axn.plan(build, MESH, target="v5e", fixed=split, limit=8, verify=0, choices={"rings": [False, True]})
    kinds = {one.choices["rings"]: str(one.cost.communication) for one in (found.best, *found.others)}
    assert ("permute" in kinds[False], "permute" in kinds[True]) == (False, True)


def test_the_number_of_microbatches_is_found():
    deep = jax.eval_shape(functools.partial(Model.init, layers=Layers.resize(4)), jax.random.key(0))
    numbers = jax.ShapeDtypeStruct((64, 16), np.float32)
    x = axn.NamedArray(numbers, (Batch.resize(64), Embed))
    stages = axn.Mappings({"layers": "stage"}, {"layers": "stage", "batch": "stage"})
    grad = jax.value_and_grad(loss)
    costs = {}
    for count in (2, 4, 8, 16):
        with axn.pipelined("batch", count):
            costs[count] = axn.cost(grad, stages, {"stage": 2}, deep, x, target=TARGET, depth="traced")
    options = {"fixed": stages, "limit": 12, "verify": 0, "pipelined": (Layers, "batch")}
    found = axn.plan(grad, {"stage": 2}, deep, x, target=TARGET, **options)
    seconds = {count: cost.time.seconds for count, cost in costs.items()}
    assert found.microbatches == min(seconds, key=seconds.__getitem__)
    assert found.best.cost.totals == costs[found.microbatches].totals
    assert f"{found.microbatches} microbatches" in str(found)


def test_key_heads_that_devices_do_not_divide_share_them_with_their_groups():
    # Eight devices divide neither the width nor the heads' own width, so the groups are all that is left.
    KVHeads, Group, HeadDim, Embed = axn.make_axes(kv_heads=2, group=4, head_dim=7, embed=15)
    weights = jax.eval_shape(lambda: (axn.ones((Embed, KVHeads, Group, HeadDim)), axn.ones((Embed, KVHeads, HeadDim))))
    x = jax.eval_shape(lambda: axn.ones((Batch.resize(6), Embed)))

    def value(weights, x):
        query, key = (axn.dot(x, weight, axis="embed") for weight in weights)
        return (axn.dot(query, key, axis="head_dim") ** 2).mean().scalar()

    # Memory takes most of the time, so heads are divided; a part of a mesh axis has the link of the whole.
    slow = dataclasses.replace(TARGETS["cpu"], memory_bandwidth=1e6, link=axn.partitioning.Link(1))
    parts = {"a": 2, "b": 4}
    link = axn.partitioning.Link(1e8)
    theirs = axn.cost(
        jax.grad(value),
        {"kv_heads": "a", "group": "b"},
        parts,
        weights,
        x,
        target=slow.linked(a=link, b=link),
        depth="traced",
    )
    mesh = jax.make_mesh((8,), ("model",))
    options = {"target": slow.linked(model=link), "limit": 60, "verify": 1}
    found = axn.plan(jax.grad(value), mesh, weights, x, **options)
    assert rank(found.best.cost, slow) <= rank(theirs, slow)
    assert found.is_verified
    assert found.split == {"model": {"model": 2, "model_2": 4}}
    assert found.mesh == {"model": 2, "model_2": 4}
    assert "\nfitted: mesh axis model=8 is split into model=2, model_2=4\n" in str(found)
    # What is asked for is not adapted.
    with pytest.raises(ShardingError, match="kv_heads=2 cannot be split evenly in 8"):
        axn.plan(jax.grad(value), mesh, weights, x, fixed={"kv_heads": "model"}, **options)


def test_positions_are_divided_where_there_are_no_rows():
    Pos, Heads, HeadDim = axn.make_axes(pos=64, heads=2, head_dim=4)
    weight = jax.eval_shape(lambda: axn.ones((Embed, Heads, HeadDim)))
    x = jax.eval_shape(lambda: axn.ones((Pos, Embed)))

    def attend(weights, x):
        q = axn.dot(x, weights[0], axis="embed")
        k = q.rename({"pos": "pos.key"})
        return (nn.dot_product_attention("pos", "pos.key", "head_dim", q, k, k, nn.causal()) ** 2).mean().scalar()

    # The scores take most of the time, and to divide features would send them.
    slow = dataclasses.replace(TARGET, flops={"float32": 1e9}, link=axn.partitioning.Link(3e8))
    by_hand = axn.cost(jax.grad(attend), {"pos": "context"}, {"context": 4}, (weight,), x, target=slow, depth="traced")
    options = {"target": slow, "limit": 8, "verify": 0}
    found = axn.plan(jax.grad(attend), {"context": 4}, (weight,), x, **options)
    assert found.mappings.compute["pos"] == ("context",)
    assert found.best.cost.time.seconds <= by_hand.time.seconds


def test_a_pipeline_needs_axes_of_the_arguments():
    with pytest.raises(OperandError) as raised:
        axn.plan(donating, MESH, *abstract(), pipelined=("layer", "batch"))
    assert str(raised.value) == (
        "plan: pipelined=('layer', 'batch'), and no parameters have an axis 'layer'\n"
        "  axes of parameters: layers, embed, mlp\n  hint: did you mean 'layers'?"
    )


def test_parameters_are_sharded_in_groups_of_several_nodes():
    """As HSDP: 32 H100s in 4 nodes keep a whole copy; no mesh with a longer first axis has such groups."""
    Rows, Width, Hidden = axn.make_axes(batch=2**17, embed=4096, mlp=16384)

    def value(weights, x):
        return (axn.dot(axn.dot(x, weights[0], axis="embed"), weights[1], axis="mlp") ** 2).mean().scalar()

    weights = jax.eval_shape(lambda: (axn.ones((Width, Hidden)), axn.ones((Hidden, Width))))
    given = jax.grad(value), weights, jax.eval_shape(lambda: axn.ones((Rows, Width)))
    rule = axn.Mappings({"embed": "model"}, {"batch": ("data", "model")})
    theirs = {
        size: axn.cost(given[0], rule, {"data": 64 // size, "model": size}, *given[1:], target="h100", depth="traced")
        for size in (8, 16, 32, 64)
    }
    times = {size: cost.time.compared for size, cost in theirs.items()}
    assert min(times, key=times.get) == 32
    found = axn.plan(given[0], 64, *given[1:], target="h100", limit=20, verify=0)
    assert found.best.cost.time.compared <= 1.01 * times[32] < times[64]


def test_few_mappings_are_enough_for_experts():
    """As GShard and its successors: rows over all devices, which send them along one mesh axis to their experts."""
    Tokens, Width, Experts = axn.make_axes(batch=2**18, embed=4096, experts=8)
    moe = jax.eval_shape(lambda: nn.MixtureOfExperts.init(Width, Experts, 14336, 2, key=jax.random.key(0)))
    x = jax.eval_shape(lambda: axn.zeros((Tokens, Width)))
    fn = axn.named_jit(lambda moe, x: jax.grad(lambda moe: (moe(x)[0] ** 2).mean().scalar())(moe), {})
    rule = axn.Mappings({"experts": "model"}, {"batch": ("data", "model"), "experts": "model"})
    theirs = axn.cost(fn, rule, {"data": 2, "model": 8}, moe, x, target="v5p", depth="traced").time.compared
    found = axn.plan(fn, 16, moe, x, target="v5p", limit=5, verify=0)
    assert found.best.cost.time.compared <= 1.01 * theirs
    # No mapping takes less than the bound, the rule included.
    assert found.bound <= theirs
