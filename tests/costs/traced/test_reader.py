"""What mappings cost, counted without devices, against sums by hand and against compiled programs."""

import functools

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
import axonym.nn as nn
from axonym.errors import ShardingError
from tests.costs.programs import MAPPINGS, MESH, Batch, Embed, Mlp, abstract, step, trained

UP, DOWN, X = axn.ones((Embed, Mlp)), axn.ones((Mlp, Embed)), axn.ones((Batch, Embed))
traced = functools.partial(axn.cost, depth="traced")


def perceptron(up, down, x):
    return axn.dot(axn.tanh(axn.dot(x, up, axis=Embed)), down, axis=Mlp)


def found_in(report):
    """Return what is sent: by collective, mesh axes, named axis, layer and phase, the runs and bytes of an operand."""
    rows = {}
    for one in report.communication:
        if one.nbytes > 16:
            # The partitioner of the compiler gathers for a product, and names the collective after it.
            phase = one.phase.replace("recomputed", "backward")
            key = (one.kind, one.mesh_axes, one.axis, one.layer, phase)
            rows[key] = rows.get(key, (0, 0))[0] + one.count, one.nbytes
    return rows


@functools.cache
def stepped(target="cpu"):
    compiled = axn.named_jit(step, MAPPINGS, donate_args=(True, True))
    return traced(compiled, MAPPINGS, MESH, *abstract(), target=target)


def test_a_contracted_axis_that_is_split_is_summed_once():
    report = traced(perceptron, {"mlp": "model"}, {"model": 8}, UP, DOWN, X)
    (one,) = report.communication
    assert (one.kind, one.mesh_axes, one.axis) == ("all-reduce", ("model",), "mlp")
    assert (one.count, one.group, one.nbytes, one.dtype) == (1, 8, 8 * 16 * 4, "f32")
    assert report.totals["flops"] == 2 * 2 * 8 * 16 * 32 / 8
    # x, a block of up and what it makes; the second product computes a gelu of that while it reads it, and a block of
    # down; and the result.
    assert report.totals["bytes accessed"] == 4 * (8 * 16 + 16 * 4 + 2 * (8 * 4) + 4 * 16 + 8 * 16)
    assert report.memory.arguments == (16 * 32 * 2 // 8 + 8 * 16) * 4
    assert report.memory.results == 8 * 16 * 4
    assert report.depth == "traced"
    assert report.compiler == ""


def test_a_step_is_that_of_the_compiler():
    ours, theirs = stepped(), trained()
    assert ours.totals["flops"] == theirs.totals["flops"]
    assert found_in(ours).keys() - found_in(theirs).keys() == set()
    for row, (count, nbytes) in found_in(theirs).items():
        assert found_in(ours)[row] == (count, nbytes)
    assert ours.totals["bytes sent"] == pytest.approx(theirs.totals["bytes sent"], rel=0.01)
    for what in ("parameters", "optimizer", "data", "donated"):
        assert getattr(ours.memory, what) == getattr(theirs.memory, what)
    flops = [{(w.layer, w.phase): w.flops for w in report.work if w.flops} for report in (ours, theirs)]
    assert flops[0] == flops[1]
    assert ours.unattributed == 0


def test_gradients_are_scattered_where_the_compiler_does_it():
    weight = 16 * 32 * 4 // 2
    scattered = [one for one in stepped("h100").communication if one.kind == "reduce-scatter"]
    assert {(one.layer, one.phase, one.axis, one.count, one.nbytes) for one in scattered} == {
        ("blocks.up", "backward", "batch", 3, weight),
        ("blocks.down", "backward", "batch", 3, weight),
    }


def test_what_is_kept_for_the_backward_pass():
    kept = {(one.names, one.shape, one.count) for one in stepped().memory.kept}
    # Of a block, its input and what tanh is differentiated by; the loss keeps the result.
    assert kept == {
        (("batch", "embed"), (2, 16), 3),
        (("batch", "mlp"), (2, 16), 3),
        (("batch", "embed"), (2, 16), 1),
    }
    assert sum(one.nbytes for one in stepped().memory.kept) <= stepped().memory.temporary


def test_the_current_mesh_changes_nothing(auto_mesh):
    alone = traced(perceptron, {"mlp": "model"}, {"model": 8}, UP, DOWN, X)
    with axn.set_mesh(auto_mesh):
        inside = traced(perceptron, {"mlp": "model"}, {"model": 8}, UP, DOWN, X)
    assert inside.totals == alone.totals


def test_the_current_mesh_may_have_the_same_sizes(explicit_mesh):
    mapping = {"batch": "data", "mlp": "model"}
    alone = traced(perceptron, mapping, explicit_mesh, UP, DOWN, X)
    with axn.set_mesh(explicit_mesh):
        for mesh in (explicit_mesh, dict(explicit_mesh.shape)):
            inside = traced(perceptron, mapping, mesh, UP, DOWN, X)
            assert inside.totals == alone.totals


def test_thousands_of_devices():
    Large = axn.Axis("batch", 2**14)
    x = axn.NamedArray(jax.ShapeDtypeStruct((2**14, 16), jnp.float32), (Large, Embed))
    report = traced(perceptron, {"batch": "data", "mlp": "model"}, {"data": 512, "model": 8}, UP, DOWN, x)
    assert report.devices == 4096
    (one,) = report.communication
    assert (one.group, one.shape) == (8, (32, 16))
    assert report.totals["flops"] == 2 * 2 * 2**14 * 16 * 32 / 4096


def test_devices_that_nothing_lies_on_change_nothing():
    one = traced(perceptron, {"mlp": "model"}, {"model": 8}, UP, DOWN, X)
    more = traced(perceptron, {"mlp": "model"}, {"data": 64, "model": 8}, UP, DOWN, X)
    assert one.totals == more.totals
    assert one.memory == more.memory


def test_renamed_axes_and_mesh_axes_cost_the_same():
    renamed = [x.rename({"mlp": "wide"} if "mlp" in x.names else {}) for x in (UP, DOWN, X)]

    def other(up, down, x):
        return axn.dot(axn.tanh(axn.dot(x, up, axis=Embed)), down, axis="wide")

    one = traced(perceptron, {"mlp": "model"}, {"data": 2, "model": 8}, UP, DOWN, X)
    two = traced(other, {"wide": "tensor"}, {"tensor": 8, "data": 2}, *renamed)
    assert one.totals == two.totals
    assert one.memory == two.memory
    assert list(two.by_axis) == ["wide"]


def test_collectives_of_a_shard_map():
    summed = axn.shard_map(lambda x: axn.psum(x.sum("batch"), "batch"), {"batch": "data"})
    report = traced(lambda x: summed(x), {"batch": "data"}, {"data": 4}, X)
    assert [(one.kind, one.nbytes, one.count) for one in report.communication] == [("all-reduce", 64, 1)]


def test_what_goes_around_one_way_takes_twice_as_long_on_a_torus():
    def around(*shifts):
        def sent(x):
            return [axn.ppermute(x, "batch", shift) for shift in shifts]

        report = traced(axn.shard_map(sent, {"batch": "data"}), {"batch": "data"}, {"data": 4}, X, target="v5e")
        assert {one.kind for one in report.communication} == {"collective-permute"}
        return [one.seconds for one in report.communication]

    nbytes = 8 * 16 * 4 / 4
    assert around(1) == around(-1) == pytest.approx([1e-6 + nbytes / 50e9])
    assert around(1, -1) == pytest.approx([1e-6 + nbytes / 100e9] * 2)


def test_what_changes_place_and_what_is_gathered():
    def moved(x):
        other = axn.shard(x, {"embed": "data"})
        return other, axn.shard(x * 2, {})

    report = traced(moved, {"batch": "data"}, {"data": 4}, X)
    kinds = sorted((one.kind, one.axis, one.nbytes) for one in report.communication)
    assert ("all-gather", "batch", 8 * 16 * 4 // 4) in kinds
    assert ("all-to-all", "batch", 8 * 16 * 4 // 4) in kinds


def test_the_longest_branch_counts():
    def chosen(up, down, x):
        return jax.lax.cond(x.sum().scalar() > 0, perceptron, lambda up, down, x: x, up, down, x)

    report = traced(chosen, {"mlp": "model"}, {"model": 8}, UP, DOWN, X)
    assert report.totals["flops"] == 2 * 2 * 8 * 16 * 32 / 8
    assert {one.axis for one in report.communication} == {"mlp"}


def test_tables_that_are_looked_up():
    Vocab, Pos = axn.make_axes(vocab=64, pos=8)
    table = nn.Embedding.init(Vocab, Embed, key=jax.random.key(0))
    tokens = axn.zeros((Batch, Pos), dtype=jnp.int32)

    def loss(table, tokens):
        return (table(tokens) ** 2).sum().scalar()

    report = traced(jax.grad(loss), {"batch": "data"}, {"data": 4}, table, tokens)
    assert [(one.kind, one.axis, one.nbytes) for one in report.communication] == [("all-reduce", "batch", 64 * 16 * 4)]


def test_loops_of_unknown_length_are_told():
    def halved(x):
        return jax.lax.while_loop(lambda x: x.sum().scalar() > 1, lambda x: x / 2, x)

    report = traced(halved, {"batch": "data"}, {"data": 4}, X)
    assert report.notes == ("loops whose length the program does not say count as one iteration: outside of layers",)


def test_what_needs_the_compiler_is_an_error():
    def sorted_by_auto(x):
        if jax.typeof(x.array).sharding.mesh.explicit_axes:
            raise ValueError("no rule for this layout")
        return x

    with pytest.raises(ShardingError) as raised:
        traced(sorted_by_auto, {"batch": "data"}, {"data": 4}, X)
    assert str(raised.value) == (
        "cost: sorted_by_auto can be traced on Auto mesh axes, but not on Explicit ones, whose types it needs\n"
        "  ValueError: no rule for this layout\n"
        '  hint: write depth="compiled", which needs devices, perhaps simulated ones'
    )


def test_mistakes_of_the_function_stay_what_they_are():
    def wrong(x):
        raise ZeroDivisionError("of the user")

    with pytest.raises(ZeroDivisionError, match="of the user"):
        traced(wrong, {"batch": "data"}, {"data": 4}, X)
    with pytest.raises(ShardingError, match="batch=8"):
        traced(lambda x: x, {"batch": "data"}, {"data": 3}, X)


@pytest.mark.parametrize("gather", [False, True])
def test_groups_of_a_mesh_axis_are_smaller_rings(gather):
    """In a ring of two, a sum sends 2 b (2 - 1) / 2 bytes and a gather b (2 - 1), so both send their operand."""
    pairs = {"axis_index_groups": [[0, 1], [2, 3]]}

    def send(x):
        return jax.lax.all_gather(x, "data", **pairs) if gather else jax.lax.psum(x, "data", **pairs)

    def run(x):
        spec = jax.P("data")
        return jax.shard_map(send, in_specs=spec, out_specs=spec, check_vma=False)(jax.reshard(x, spec))

    report = traced(run, {}, {"data": 4}, jnp.ones((4, 32)), target="v5e")
    assert report.totals["bytes sent"] == 32 * 4
