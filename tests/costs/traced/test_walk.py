"""What a walk through a traced function finds."""

import math

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas
from jax.sharding import AbstractMesh, AxisType

from axonym.costs.traced.compilers import ACCELERATOR, CPU, TPU, find_compiler
from axonym.costs.traced.walk import Walk
from tests.costs.equations_made import SIZES, TYPED, array, program


def walked(fn, *args, compiler=ACCELERATOR):
    traced = program(fn, *args)
    walk = Walk(SIZES, compiler=compiler)
    walk.run(traced, [walk.find_value(variable) for variable in traced.invars])
    return walk


def sent(walk):
    return [(one.move.kind, one.move.mesh_axes, one.move.shape, one.runs) for one in walk.sent]


X, W = array((8, 16), "data"), array((16, 16), "data")


def test_a_loop_counts_each_turn():
    def loop(x, w):
        return jax.lax.scan(lambda x, w: (x @ jax.reshard(w, jax.P()), None), x, w)[0]

    walk = walked(loop, X, array((3, 16, 16), None, "data"))
    assert sent(walk) == [("all-gather", ("data",), (4, 16), 3)]
    assert sum(one.flops for one in walk.done) == 3 * 2 * 2 * 16 * 16


@pytest.mark.parametrize(("compiler", "kind"), [(ACCELERATOR, "reduce-scatter"), (CPU, "all-reduce")])
def test_a_sum_waits_for_the_one_who_uses_a_part(compiler, kind):
    def gradient(x):
        whole = jnp.einsum("bi,bj->ij", x, x, out_sharding=jax.P())
        return jax.reshard(whole.T, jax.P("data"))

    assert sent(walked(gradient, X, compiler=compiler)) == [(kind, ("data",), (16, 16), 1)]


@pytest.mark.parametrize(
    ("compiler", "expected"),
    [
        (ACCELERATOR, [("all-reduce", ("data", "model"), (16,), 1)]),
        (CPU, [("all-reduce", ("data",), (16,), 1), ("all-reduce", ("model",), (16,), 1)]),
    ],
)
def test_a_sum_over_two_dimensions(compiler, expected):
    def total(x):
        return jnp.einsum("abi,ab->i", x, x[..., 0], out_sharding=jax.P())

    walk = walked(total, array((8, 4, 16), "data", "model"), compiler=compiler)
    assert sent(walk) == expected


def test_what_is_computed_twice_counts_once():
    def twice(x, w):
        return x @ jax.reshard(w, jax.P()) + x @ jax.reshard(w, jax.P())

    walk = walked(twice, X, W)
    assert len(walk.sent) == 1
    assert sum(one.flops for one in walk.done) == 2 * 2 * 16 * 16


def test_what_a_loop_carries_for_nobody_is_not_computed():
    def loop(x, w):
        def turn(carry, w):
            x, y, z = carry
            return (x @ w, jnp.sin(y @ z), jnp.cos(z) @ z), None

        return jax.lax.scan(turn, (x, x, jnp.ones((16, 16))), w)[0]

    one = walked(lambda x, w: loop(x, w)[0], X, array((3, 16, 16)))
    assert sum(done.flops for done in one.done) == 3 * 2 * 2 * 16 * 16
    two = walked(lambda x, w: loop(x, w)[1], X, array((3, 16, 16)))
    assert sum(done.flops for done in two.done) == 3 * (2 * 2 + 2 * 16) * 16 * 16


def test_collectives_of_a_shard_map():
    def exchange(x):
        y = jax.lax.all_to_all(x, "data", 1, 0, tiled=True)
        return (
            jax.lax.ppermute(y, "data", [(0, 1)]),
            jax.lax.all_gather(x, "data"),
            jax.lax.psum_scatter(x, "data", scatter_dimension=1, tiled=True),
        )

    mapped = jax.shard_map(
        exchange, mesh=TYPED, in_specs=jax.P("data"), out_specs=(jax.P("data"), jax.P("data"), jax.P("data"))
    )
    kinds = {(kind, shape) for kind, _, shape, _ in sent(walked(mapped, X))}
    assert kinds == {
        ("all-to-all", (2, 16)),
        ("collective-permute", (8, 4)),
        ("all-gather", (2, 16)),
        ("reduce-scatter", (2, 16)),
    }


def test_of_a_ragged_exchange_the_rows_are_sent():
    def exchange(x, rows):
        room = jax.lax.pcast(jnp.zeros((16, 16)), "data", to="varying")
        return jax.lax.ragged_all_to_all(x, room, rows, rows, rows, rows, axis_name="data")

    mapped = jax.shard_map(exchange, mesh=TYPED, in_specs=jax.P("data"), out_specs=jax.P("data"))
    rows = jax.ShapeDtypeStruct((16,), jnp.int32, sharding=X.sharding.update(spec=jax.P("data")))
    assert sent(walked(mapped, X, rows)) == [("ragged-all-to-all", ("data",), (2, 16), 1)]


@pytest.mark.parametrize(
    ("compiler", "cut", "kind"),
    [
        (TPU, "rows", "reduce-scatter"),
        # Parts of 64 columns are no whole tiles.
        (TPU, "columns", "all-reduce"),
        (ACCELERATOR, "columns", "reduce-scatter"),
        (CPU, "rows", "all-reduce"),
        (TPU, "nothing", "all-reduce"),
        # A sum over both mesh axes, cut along one dimension and along two: what libtpu makes for a v5e 2x4.
        (TPU, "rows by both", "reduce-scatter"),
        (TPU, "rows and columns", "all-reduce"),
    ],
)
def test_a_sum_in_a_shard_map_is_scattered_if_each_device_uses_a_part(compiler, cut, kind):
    layouts = {
        "rows": jax.P(None, "data"),
        "columns": jax.P(None, None, "data"),
        "nothing": jax.P(),
        "rows by both": jax.P(None, ("data", "model")),
        "rows and columns": jax.P(None, "data", "model"),
    }
    axes = ("data", "model") if cut in ("rows by both", "rows and columns") else ("data",)

    def summed(x):
        whole = jax.shard_map(lambda x: jax.lax.psum(x, axes), mesh=TYPED, in_specs=jax.P(axes), out_specs=jax.P())
        return jax.reshard(whole(x), layouts[cut])

    walk = walked(summed, array((8, 192, 256), axes), compiler=compiler)
    assert sent(walk) == [(kind, axes, (8 // math.prod(SIZES[axis] for axis in axes), 192, 256), 1)]


@pytest.mark.parametrize(
    ("layout", "kind"),
    [(jax.P(("data", "model")), "reduce-scatter"), (jax.P("data", "model"), "all-reduce")],
)
def test_a_gradient_that_is_cut_along_two_dimensions_is_not_scattered(layout, kind):
    """So does libtpu for a v5e 2x4, with and without `shard_map`."""

    def gradient(x, g):
        return jnp.einsum("bi,bj->ij", x, g, out_sharding=layout)

    both = ("data", "model")
    walk = walked(gradient, array((8, 128), both), array((8, 256), both), compiler=TPU)
    assert sent(walk) == [(kind, both, (128, 256), 1)]


@pytest.mark.parametrize(("compiler", "itemsize"), [(TPU, 2), (ACCELERATOR, 4)])
def test_what_only_a_product_reads_is_exchanged_as_its_operand_is_rounded(compiler, itemsize):
    def exchanged(x, w):
        return jax.lax.all_to_all(x, "data", 1, 0, tiled=True) @ w

    mapped = jax.shard_map(exchanged, mesh=TYPED, in_specs=(jax.P("data"), jax.P()), out_specs=jax.P(None, "data"))
    (one,) = walked(mapped, X, array((4, 8)), compiler=compiler).sent
    assert (one.move.kind, one.itemsize) == ("all-to-all", itemsize)


def test_what_is_split_beside_a_shard_map_stays_so():
    """On Auto mesh axes types say nothing, and a `shard_map` tells of its own mesh axes alone."""

    def exchange(x):
        return jax.lax.ppermute(x, "model", [(0, 1)])

    def both(x):
        spec = jax.P(None, "model")
        return jax.shard_map(exchange, in_specs=spec, out_specs=spec, axis_names={"model"})(x)

    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(both).trace(jax.ShapeDtypeStruct((8, 16), jnp.float32)).jaxpr.jaxpr
    walk = Walk(SIZES, compiler=ACCELERATOR)
    given = walk.find_value(traced.invars[0])._replace(entries=(("data",), ("model",)))
    (result,) = walk.run(traced, [given])
    assert [one.move.shape for one in walk.sent] == [(2, 8)]
    assert result.entries == (("data",), ("model",))


@pytest.mark.parametrize(("is_auto", "count"), [(False, 1), (True, 2)])
def test_on_auto_mesh_axes_each_loop_gathers_the_layers_that_it_slices(is_auto, count):
    def fold(x, layers):
        return jax.lax.scan(lambda x, w: (x @ w, None), x, layers)[0]

    def twice(x, layers):
        whole = jax.reshard(layers, jax.P())
        return fold(fold(x, whole), whole)

    traced = program(twice, X, array((4, 16, 16), "data"))
    walk = Walk(SIZES, compiler=CPU, is_auto=is_auto)
    walk.run(traced, [walk.find_value(variable) for variable in traced.invars])
    assert sent(walk) == [("all-gather", ("data",), (1, 16, 16), 1)] * count


@pytest.mark.parametrize(("compiler", "kind"), [(CPU, "all-reduce"), (ACCELERATOR, "reduce-scatter")])
def test_a_sum_of_each_turn_is_scattered_if_what_they_are_stacked_to_is_split(compiler, kind):
    def stacked(x, w):
        def turn(carry, w):
            return carry, jax.checkpoint(lambda x, w: jnp.dot(x, w, out_sharding=jax.P()))(x, w)

        return jax.reshard(jax.lax.scan(turn, 0.0, w)[1].reshape(-1, 4), jax.P("data"))

    walk = walked(stacked, array((8, 16), None, "data"), array((3, 16, 4), None, "data"), compiler=compiler)
    assert sent(walk) == [(kind, ("data",), (8, 4), 3)]


@pytest.mark.parametrize(("platform", "products"), [("cpu", 3), ("tpu", 1), ("cuda", 2)])
def test_a_platform_has_its_own_branch(platform, products):
    def choose(x, w):
        own = {"cpu": lambda x, w: x @ w @ w @ w, "tpu": lambda x, w: x @ w, "default": lambda x, w: x @ w @ w}
        return jax.lax.platform_dependent(x, w, **own)

    walk = walked(choose, array((8, 16)), array((16, 16)), compiler=find_compiler(platform))
    assert sum(one.flops for one in walk.done) == products * 2 * 8 * 16 * 16


def test_a_kernel_of_pallas_counts_what_it_says():
    def double(x, **options):
        def kernel(x_ref, y_ref):
            y_ref[...] = 2 * x_ref[...]

        return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), **options)(x)

    x = jnp.ones((4, 8))
    said = pallas.CostEstimate(flops=100, bytes_accessed=5000, transcendentals=0)
    for fn, numbers in (
        (lambda x: double(x, cost_estimate=said), (100, 5000)),
        (jax.vmap(lambda x: double(x, cost_estimate=said)), (4 * 100, 4 * 5000)),
        (double, (0, 2 * 4 * 8 * 4)),
    ):
        walk = walked(fn, x)
        assert (sum(one.flops for one in walk.done), sum(one.nbytes for one in walk.done)) == numbers


def test_a_call_that_repeats_another_one_has_its_result():
    square = jax.jit(lambda x: x @ x)

    def step(x, y):
        # The product that is not used has no place among those that are.
        sine, _ = jax.jit(lambda x: (jnp.sin(x), jnp.cos(x) @ x))(x)
        first, second = square(x), jax.jit(lambda x: square(x))(x)
        return sine, first + y, second * y

    walk = walked(step, array((64, 64)), array((64, 64)))
    assert sum(one.flops for one in walk.done) == 2 * 64**3
    # A sine, a product, a sum and a product of elements, each with what it reads and writes.
    assert sum(one.nbytes for one in walk.done) == (2 + 2 + 3 + 3) * 4 * 64 * 64
