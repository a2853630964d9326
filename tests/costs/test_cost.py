"""What mappings cost, against collectives that were counted by hand."""

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
import axonym.nn as nn
from axonym.errors import ArgumentError, OperandError, ShardingError
from tests.costs.programs import MAPPINGS, MESH, NAMES, Batch, Embed, Mlp, abstract, simulated, trained

X = axn.ones((Batch, Embed))
UP, DOWN = axn.ones((Embed, Mlp)), axn.ones((Mlp, Embed))


def perceptron(up, down, x):
    return axn.dot(axn.tanh(axn.dot(x, up, axis=Embed)), down, axis=Mlp)


def test_a_contracted_axis_that_is_split_is_summed_once():
    report = axn.cost(perceptron, {"mlp": "model"}, simulated({"model": 8}), UP, DOWN, X, target="v5e")
    (one,) = report.communication
    assert (one.kind, one.mesh_axes, one.axis) == ("all-reduce", ("model",), "mlp")
    assert (one.count, one.group, one.nbytes) == (1, 8, 8 * 16 * 4)
    assert one.sent == 2 * 8 * 16 * 4 * 7 // 8
    assert report.totals["flops"] == 2 * 2 * 8 * 16 * 32 / 8
    assert report.memory.arguments == (16 * 32 * 2 // 8 + 8 * 16) * 4
    assert report.memory.results == 8 * 16 * 4


def sums_of(report):
    """Return what is sent, without numbers of a few bytes such as the loss."""
    found = {}
    for one in report.communication:
        if one.nbytes > 16:
            key = (one.kind, one.mesh_axes, one.axis, one.layer, one.phase)
            count, _ = found.get(key, (0, 0))
            found[key] = (count + one.count, one.nbytes)
    return found


def test_loops_count_and_layers_are_told():
    found = sums_of(trained())
    weight, activation = 16 * 32 * 4 // 8, 8 * 16 * 4 // 4
    for layer in ("blocks.up", "blocks.down"):
        gathered = found["all-gather", ("data",), "embed", layer, "forward"]
        assert gathered == (3, weight)
    assert found["all-reduce", ("model",), "mlp", "blocks.down", "forward"] == (3, activation)
    assert found["all-reduce", ("model",), "mlp", "blocks.up", "backward"] == (3, activation)
    # The gradient of a weight is whole along `embed` until it is summed over the batch.
    for layer in ("blocks.up", "blocks.down"):
        assert found["all-reduce", ("data",), "batch", layer, "backward"] == (3, 4 * weight)


def test_all_is_attributed():
    assert trained().unattributed == 0
    assert set(trained().by_axis) == {"batch", "embed", "mlp"}


def test_arguments_are_sorted():
    report = trained()
    parameters = 3 * 2 * 16 * 32 * 4 // 8
    assert report.memory.parameters == parameters
    assert report.memory.optimizer == 2 * parameters + 4
    assert report.memory.data == 8 * 16 * 4 // 4
    assert report.memory.donated == 3 * parameters + 4
    assert {row.path for row in report.arguments["data"]} == {"x"}
    layouts = {row.path: row.layout for row in report.arguments["parameters"]}
    assert set(layouts.values()) == {("embed→data", "mlp→model"), ("mlp→model", "embed→data")}


def test_operations_by_layer_and_phase():
    flops = {(work.layer, work.phase): work.flops for work in trained().work}
    product = 3 * 2 * 8 * 16 * 32 / 8
    assert flops["blocks.up", "forward"] == flops["blocks.down", "forward"] == product
    assert flops["blocks.up", "backward"] == flops["blocks.down", "backward"] == 2 * product
    assert trained().totals["flops"] == 6 * product


def test_a_module_is_called():
    model, _, x = abstract()
    report = axn.cost(model, {"batch": "data"}, {"data": 8}, x)
    assert report.communication == ()
    assert report.memory.parameters == 3 * 2 * 16 * 32 * 4
    assert report.memory.data == 8 * 16 * 4 // 8


def test_a_compiled_function_keeps_its_own_mappings():
    compiled = axn.named_jit(perceptron, {"mlp": "model"})
    own = axn.cost(compiled, None, {"model": 8}, UP, DOWN, X)
    assert own.by_axis.keys() == {"mlp"}
    with axn.axis_mapping({"mlp": "model"}):
        current = axn.cost(perceptron, None, {"model": 8}, UP, DOWN, X)
    assert own.diff(current).changes == ()
    other = axn.cost(compiled, {"batch": "model"}, {"model": 8}, UP, DOWN, X)
    assert other.communication == ()


def test_arguments_that_lie_on_the_mesh_stay():
    mesh = jax.make_mesh((8,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    x = axn.shard(X, {"batch": "model"}, mesh)
    compiled = axn.named_jit(lambda x: x * 2, {"embed": "model"})
    report = axn.cost(compiled, None, mesh, x)
    assert report.arguments["parameters"][0].layout == ("batch→model",)
    assert {one.kind for one in report.communication} == {"all-to-all"}


def test_renamed_axes_cost_the_same():
    renamed = [x.rename({"mlp": "wide"} if "mlp" in x.names else {}) for x in (UP, DOWN, X)]

    def other(up, down, x):
        return axn.dot(axn.tanh(axn.dot(x, up, axis=Embed)), down, axis="wide")

    one = axn.cost(perceptron, {"mlp": "model"}, {"model": 8}, UP, DOWN, X)
    two = axn.cost(other, {"wide": "tensor"}, {"tensor": 8}, *renamed)
    assert one.totals == two.totals
    assert list(two.by_axis) == ["wide"]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: axn.cost(perceptron, {"mlp": "model"}, {"model": 8}, UP, DOWN, X, target="v5"),
            OperandError,
            f"cost: there is no target 'v5'\n  names: {NAMES}\n  hint: did you mean 'v5p'?",
        ),
        (
            lambda: axn.cost(perceptron, {"mlp": "model"}, {"model": 8}, UP, DOWN, X, target=5),
            OperandError,
            f"cost: a target must be a name or a Target, not 5\n  names: {NAMES}",
        ),
        (
            lambda: axn.cost(perceptron, {"mlp": "model"}, {"model": 8}, UP, DOWN, X, depth="guessed"),
            ArgumentError,
            "cost: there is no depth 'guessed'\n  depths: compiled, traced",
        ),
        (
            lambda: axn.cost({"up": UP}, {"mlp": "model"}, {"model": 8}),
            OperandError,
            "cost: it takes a function or a module, not dict\n  hint: axn.check tells how a tree is laid out",
        ),
        (
            lambda: axn.cost(perceptron, {"mlp": "model"}, 8, UP, DOWN, X),
            OperandError,
            "cost: a mesh must be a Mesh, an AbstractMesh or a dict of sizes, not 8\n"
            '  hint: write {"data": 64, "model": 8}',
        ),
        (
            lambda: axn.cost(perceptron, None, {"model": 8}, UP, DOWN, X),
            ShardingError,
            "cost: there is no axis mapping\n  hint: pass one, or use axn.axis_mapping",
        ),
        (
            lambda: axn.cost(perceptron, {"mlp": "model", "far": None}, {"model": 8}, UP, DOWN, X),
            ShardingError,
            "cost: the mapping has axis 'far', which no array here has\n"
            "  mapping: {'mlp': 'model', 'far': None}\n"
            "  axes of the arrays: batch, embed, mlp\n"
            "  hint: leave it out: the cost is that of these arrays",
        ),
        (
            lambda: axn.cost(perceptron, {"batch": "data"}, {"data": 3}, UP, DOWN, X),
            ShardingError,
            "cost: batch=8 cannot be split evenly in 3 over mesh axis data\n"
            "  array has: batch=8, embed=16\n"
            "  mapping: {'batch': 'data'}\n"
            "  mesh: data=3\n"
            "  at: x\n"
            "  hint: use a multiple of 3, as pad_axes and pad_batch do, or map 'batch' to None",
        ),
    ],
)
def test_mistakes(call, error, text):
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value) == text


def test_a_key_that_no_array_has_is_an_error():
    with pytest.raises(ShardingError, match="'mpl'"):
        axn.cost(perceptron, {"mpl": "model"}, {"model": 8}, UP, DOWN, X)


def test_halves_are_sent_as_halves():
    """The compiler for CPU computes with them, and sends them, as float32."""
    halves = [x.astype(jnp.bfloat16) for x in (UP, DOWN, X)]
    report = axn.cost(perceptron, {"mlp": "model"}, {"model": 8}, *halves)
    (one,) = report.communication
    assert (one.dtype, one.nbytes) == ("bf16", 8 * 16 * 2)


def test_explicit_mesh_axes(explicit_mesh):
    report = axn.cost(perceptron, {"batch": "data", "mlp": "model"}, explicit_mesh, UP, DOWN, X)
    assert list(report.by_axis) == ["mlp"]


def test_the_mesh_is_that_of_the_sizes():
    assert trained().mesh == (("data", 4), ("model", 2))
    assert trained().devices == 8
    assert dict(trained().mesh) == MESH
    assert MAPPINGS.compute != MAPPINGS.parameters


def test_what_jax_jit_compiles_keeps_what_it_donates():
    compiled = jax.jit(lambda x, y: (x * 2, y.sum(Batch)), donate_argnums=0)
    report = axn.cost(compiled, {"batch": "data"}, {"data": 8}, X, X)
    assert report.memory.donated == 16 * 4
    assert list(report.by_axis) == ["batch"]


def test_devices_along_an_unused_mesh_axis_change_nothing():
    few = axn.cost(perceptron, {"mlp": "model"}, {"model": 4}, UP, DOWN, X)
    many = axn.cost(perceptron, {"mlp": "model"}, {"data": 2, "model": 4}, UP, DOWN, X)
    assert few.totals == many.totals
    assert few.memory == many.memory
    assert few.communication == many.communication


def test_a_mesh_axis_of_one_device_changes_nothing():
    """Not even where devices that share classes would take their parts of each chunk, and look for NaN."""
    Rows, Vocab, Width = axn.make_axes(batch=2**19, vocab=2**15, embed=4096)

    def value(weight, x, targets):
        return nn.chunked_cross_entropy_loss(x, weight, Width, Vocab, targets, block_size=2**13).mean().scalar()

    def init():
        return axn.zeros((Width, Vocab)), axn.zeros((Rows, Width)), axn.zeros(Rows, dtype=jnp.int32)

    given = jax.eval_shape(init)
    few, many = (
        axn.cost(jax.grad(value), mappings, {"data": 16, "model": 1}, *given, target="v5e", depth="traced")
        for mappings in (
            axn.Mappings({"embed": "data"}, {"batch": "data"}),
            axn.Mappings({"embed": "data", "vocab": "model"}, {"batch": "data", "vocab": "model"}),
        )
    )
    assert few.totals["collectives"] == many.totals["collectives"]
    assert few.totals["bytes sent"] == many.totals["bytes sent"]
    assert few.totals["bytes accessed"] == pytest.approx(many.totals["bytes accessed"], rel=1e-3)


def test_the_order_of_mesh_axes_changes_nothing():
    mapping = {"batch": "data", "mlp": "model"}
    one = axn.cost(perceptron, mapping, {"data": 2, "model": 4}, UP, DOWN, X)
    other = axn.cost(perceptron, mapping, {"model": 4, "data": 2}, UP, DOWN, X)
    assert one.totals == other.totals
    assert one.by_axis == other.by_axis


@pytest.mark.parametrize("depth", ["traced", "compiled"])
def test_a_product_counts_at_the_rate_of_its_dtype_and_precision(depth):
    """A TPU takes six passes in bfloat16 for float32; numbers of 8 bits that a CPU widens have a rate of their own."""
    rows = jax.ShapeDtypeStruct((2048, 2048), jnp.float32), jax.ShapeDtypeStruct((2048, 2048), jnp.float8_e4m3fn)

    def seconds(dtype, target, **options):
        def product(x, w):
            return jax.lax.dot(x, w, preferred_element_type=jnp.float32, **options)

        report = axn.cost(product, {}, simulated({"data": 1}), rows[dtype], rows[dtype], target=target, depth=depth)
        assert report.totals["flops"] == 2 * 2048**3
        return sum(work.computing for work in report.work)

    assert seconds(0, "v5p", precision="highest") == pytest.approx(6 * 2 * 2048**3 / 459e12)
    assert seconds(1, "h100") == pytest.approx(2 * 2048**3 / 1979e12)


@pytest.mark.parametrize(
    ("depth", "target", "products"), [("traced", "v5p", 3), ("traced", "h100", 4), ("compiled", "h100", 4)]
)
def test_products_of_complex_numbers(depth, target, products):
    """By the definition, four products of real numbers; the compiler for TPU makes three."""
    x = jax.ShapeDtypeStruct((64, 64), jnp.complex64)
    report = axn.cost(lambda x: x @ x, {}, simulated({"data": 1}), x, target=target, depth=depth)
    assert report.totals["flops"] == products * 2 * 64**3
    assert not report.notes


@pytest.mark.parametrize("depth", ["traced", "compiled"])
def test_a_convolution_of_complex_numbers_is_three_of_real_ones(depth):
    x, k = jax.ShapeDtypeStruct((2, 4, 9, 9), jnp.complex64), jax.ShapeDtypeStruct((5, 4, 2, 2), jnp.complex64)

    def convolve(x, k):
        return jax.lax.conv_general_dilated(x, k, (1, 1), "VALID")

    report = axn.cost(convolve, {}, simulated({"data": 1}), x, k, target="v5p", depth=depth)
    assert report.totals["flops"] == 3 * 2 * (2 * 5 * 8 * 8) * (4 * 2 * 2)
