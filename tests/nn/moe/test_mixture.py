"""Mixtures of experts, against a plain loop over tokens and experts."""

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from measure import collectives

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError, OperandError, ShardingError
from tests.nn.layouts import apply, draw, fails, lies, same, same_trees, value_and_gradients
from tests.nn.routed import KEY, B, E, M, S, T, X, choices, looped, made

pytestmark = pytest.mark.sampled

apply_compiled = jax.jit(apply)


def with_losses(model, x):
    y, routing = model(x)
    return y + routing.load_balance + routing.router_z


def reference_with_losses(model, x, act, chosen, **options):
    y, probabilities, scores = looped(model, x, act, chosen, **options)
    load = np.bincount(chosen.ravel(), minlength=4) / chosen.size
    balance = 4 * (load * probabilities.mean(0)).sum()
    z = (jnp.log(jnp.exp(scores).sum(1)) ** 2).mean()
    return y + balance + z, load


CASES = {
    "sorted": {"use_bias": True},
    "sorted, not gated, one choice": {"gated": False, "top_k": 1, "normalize": False},
    "capacity by sequence": {"capacity_factor": 2.0, "tokens": "seq", "normalize": False, "use_bias": True},
    "some dropped": {"capacity_factor": 0.5, "tokens": S.resize(2)},
}


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradients_are_those_of_a_loop(case):
    options = {"top_k": 2, **CASES[case]}
    act, jax_act = (nn.silu, jax.nn.silu) if options.get("gated", True) else (nn.relu, jax.nn.relu)
    model = made(nn.MixtureOfExperts.init, E, X, M, activation=act, **options)
    x = draw(axn.Axis("batch", 2), S.resize(2), E)
    count, groups = (2, 2) if "tokens" in options else (4, 1)
    factor = options.get("capacity_factor")
    capacity = None if factor is None else int(np.ceil(options["top_k"] * count * factor / 4))

    chosen = choices(model, x)

    def reference(both):
        y, load = reference_with_losses(both[0], both[1].array, jax_act, chosen, capacity=capacity, groups=groups)
        return jnp.sin(y).sum(), (y, load)

    (_, (y, load)), expected = jax.jit(jax.value_and_grad(reference, has_aux=True))((model, x))
    out, (gradients, (dx,)) = value_and_gradients(with_losses)(model, x)
    same(out, ("batch", "seq", "embed"), y, rtol=1e-4, atol=1e-4)
    same_trees((gradients, dx), expected, rtol=1e-3, atol=1e-3)
    again, routing = apply_compiled(model, x)
    same(routing.load, ("experts",), load)
    assert (float(routing.dropped) > 0) == ("dropped" in case)
    if "dropped" in case:
        turned = apply_compiled(model, x.rearrange(("seq", E, "batch")))[0]
        assert turned.names == ("seq", "embed", "batch")
        same(turned.rearrange(x.names), x.names, again.array)


@pytest.mark.parametrize("capacity_factor", [None, 4.0])
def test_tokens_may_be_one_or_anonymous(capacity_factor):
    model = made(nn.MixtureOfExperts.init, E, X, M, 2, capacity_factor=capacity_factor)
    x = draw(B, S, E)
    run = lambda model, x: apply_compiled(model, x)[0]  # noqa: E731
    expected = run(model, x)
    same(run(model, x["batch", 1, "seq", 2]), ("embed",), expected["batch", 1, "seq", 2].array)
    same(run(model, x.untag("batch", "seq")), ("embed",), expected.array)


def test_the_losses_are_one_and_the_square_of_a_logarithm_where_all_scores_are_equal():
    model = nn.MixtureOfExperts.init(E, X, M, 2, key=KEY, initializer=lambda key, axes: axn.zeros(axes))
    y, routing = apply_compiled(model, draw(T, E))
    assert not y.array.any()
    assert float(routing.load_balance) == pytest.approx(1)
    assert float(routing.router_z) == pytest.approx(np.log(4) ** 2)
    same(routing.load, ("experts",), [0.5, 0.5, 0, 0])
    assert float(routing.dropped) == 0


def test_the_router_is_exact_in_half_precision():
    model = jax.tree.map(lambda a: a.astype(jnp.bfloat16), made(nn.MixtureOfExperts.init, E, X, M, 2))
    x = draw(B, E).astype(jnp.bfloat16)
    y, routing = apply_compiled(model, x)
    full, expected = apply_compiled(*jax.tree.map(lambda a: a.astype(jnp.float32), (model, x)))
    assert y.dtype == jnp.bfloat16
    assert routing.router_z.dtype == jnp.float32
    same_trees(tuple(routing), tuple(expected))
    np.testing.assert_allclose(np.asarray(y.array, float), full.array, rtol=0.05, atol=0.2)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("capacity_factor", [2.0, 0.5])
def test_what_is_dropped_is_counted_whatever_the_dtype(capacity_factor, dtype):
    # All tokens choose experts 0 and 1: so many of them that narrow numbers cannot count them.
    model = made(nn.MixtureOfExperts.init, E, X, M, 2, capacity_factor=capacity_factor, tokens="seq")
    model = eqx.tree_at(lambda m: m.router.weight, model, axn.zeros(model.router.weight.axes))
    x = axn.ones((axn.Axis("batch", 8001), S.resize(4), E), dtype)
    dropped = jax.jit(lambda model, x: model(x)[1].dropped)(model, x)
    assert dropped.dtype == jnp.float32
    assert float(dropped) == {2.0: 0, 0.5: 0.75}[capacity_factor]


def test_layers_of_a_stack_return_their_losses():
    Layers = axn.Axis("layers", 2)
    stack = made(nn.Stacked.init(Layers, nn.MixtureOfExperts), E, X, M, 2)

    @jax.jit
    def both_ways(stack, x):
        out, routing = stack.scan(x)
        first, second = stack.unstacked()
        return out, routing, second(first(x)[0])[0]

    out, routing, expected = both_ways(stack, draw(B, E))
    assert routing.load.axes == (Layers, X)
    assert routing.load_balance.axes == (Layers,)
    same(out, ("batch", "embed"), expected.array)


# layout
MAPPINGS = [
    {"batch": "data", "experts": "data", "mlp": "model"},
    {"batch": "data", "experts": "model"},
]


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("capacity_factor", [None, 1.0])
def test_on_a_mesh(kind, capacity_factor, auto_mesh, explicit_mesh):
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    options = {"capacity_factor": capacity_factor, "tokens": "seq", "use_bias": True}
    model, x = made(nn.MixtureOfExperts.init, E, X, M, 2, **options), draw(B, S, E)
    value, gradients = value_and_gradients(with_losses)(model, x)
    # Each mesh has another mapping, where both make sense.
    mapping = MAPPINGS[kind == "explicit" and capacity_factor is not None]
    parameters = {"embed": "data"} if mapping["experts"] != "data" else {"experts": "data", "mlp": "model"}
    run = lambda model, x: eqx.filter_value_and_grad(loss, has_aux=True)((model, x))  # noqa: E731
    with axn.set_mesh(mesh):
        spread = axn.shard(model, parameters, strict=False)
        (_, out), others = axn.named_jit(run, mapping, strict=False)(spread, axn.shard(x, mapping, strict=False))
        assert lies(out, mesh, mapping)
    same(out, value.names, value.array, rtol=1e-4, atol=1e-4)
    same_trees(others, (gradients[0], gradients[1][0]), rtol=1e-3, atol=1e-3)


def loss(both):
    out = with_losses(*both)
    return axn.sin(out).sum().scalar(), out


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
@pytest.mark.parametrize(
    ("tokens", "mapping"),
    [
        ((B, axn.Axis("batch.key", 4)), {"batch": "data", "mlp": "model"}),
        # Nothing is left for the hidden axis.
        ((B, S), {"batch": ("data", "model"), "mlp": "model"}),
    ],
    ids=["tokens", "hidden"],
)
def test_derived_axes_take_mesh_axes_that_are_left(tokens, mapping, kind, request):
    model, x = made(nn.MixtureOfExperts.init, E, X, axn.Axis("mlp.inner", 6), 2), draw(*tokens, E)
    with axn.set_mesh(request.getfixturevalue(kind)):
        out = axn.named_jit(lambda model, x: model(x)[0], mapping, strict=False)(model, x)
    same(out, x.names, apply_compiled(model, x)[0].array, rtol=1e-4, atol=1e-4)


def test_experts_on_their_own_devices_are_reached_by_all_to_all_and_have_no_weights_of_others(auto_mesh):
    options = {"capacity_factor": 1.0, "tokens": "seq"}
    model, x = made(nn.MixtureOfExperts.init, E, X, M, 2, **options), draw(B, S, E)
    mapping = {"batch": "data", "experts": "data"}
    with axn.set_mesh(auto_mesh):
        run = axn.named_jit(lambda model, x: model(x)[0], mapping)
        compiled = run.lower(axn.shard(model, mapping, strict=False), axn.shard(x, mapping, strict=False)).compile()
    text = compiled.as_text()
    assert "all-to-all" in text
    assert "f32[4,4,6]" not in text, "the weights of all experts"


def test_sorting_stays_on_each_device(explicit_mesh):
    model, x = made(nn.MixtureOfExperts.init, E, X, M, 2), draw(B, S, E)
    mapping = {"batch": "data", "mlp": "model"}
    with axn.set_mesh(explicit_mesh), axn.axis_mapping(mapping):
        given = model, axn.shard(x, mapping, strict=False)
        sent = collectives(jax.jit(lambda model, x: model(x)[0]).lower(*given).compile())
    # The sum over the hidden axis alone.
    assert [(each.kind, each.group) for each in sent] == [("all-reduce", 2)]


def test_scores_of_the_router_stay_with_their_tokens(auto_mesh):
    model, x, mapping = made(nn.MixtureOfExperts.init, E, X, M, 2), draw(B, S, E), {"batch": "data"}
    with axn.set_mesh(auto_mesh):
        run = axn.named_jit(lambda model, x: model(x)[0], mapping)
        compiled = run.lower(model, axn.shard(x, mapping)).compile()
        out = compiled(model, axn.shard(x, mapping))
    same(out, ("batch", "seq", "embed"), apply_compiled(model, x)[0].array, rtol=1e-4, atol=1e-4)
    assert "all-gather" not in compiled.as_text()


def test_the_result_lies_as_the_mapping_says(auto_mesh):
    model, x = made(nn.MixtureOfExperts.init, E, X, M, 2), draw(B, S, E)
    with axn.set_mesh(auto_mesh), axn.axis_mapping({"batch": "data", "experts": "data"}):
        out, _ = jax.jit(lambda model, x: model(x))(model, x)
    assert lies(out, auto_mesh, {"batch": "data"})


# errors
@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_tokens_and_the_hidden_axis_share_no_mesh_axis(kind, request):
    model, x = made(nn.MixtureOfExperts.init, E, X, M, 2), draw(B, S, E)
    mapping = {"batch": ("data", "model"), "mlp": "model"}
    expected = (
        "shard: mesh axis 'model' would shard both 'batch' and 'mlp' of one array\n"
        "  array has: batch={}, seq=3, mlp=6\n"
        "  mapping: {{'batch': ('data', 'model'), 'mlp': 'model'}}\n"
        "  mesh: data=4, model=2\n"
        "  hint: map one of the two elsewhere, or rename it on this array: x.rename({{'mlp': ...}})"
    )
    call = lambda model, x: model(x)[0]  # noqa: E731
    with axn.set_mesh(request.getfixturevalue(kind)), axn.axis_mapping(mapping):
        fails(ShardingError, expected.format(8), lambda: call(model, x))
        fails(ShardingError, expected.format(8), lambda: jax.jit(call)(model, x))
        # On Manual axes, of a block of the tokens.
        fails(ShardingError, expected.format(1), lambda: axn.shard_map(call)(model, x))
    report = axn.check(model, mapping, {"data": 4, "model": 2}, x, quiet=True)
    assert [(found.kind, found.text) for found in report.problems] == [
        ("conflict", "mesh axis 'model' would shard both 'batch' and 'mlp' of one array")
    ]


def test_errors_of_a_mixture():
    fails(
        ArgumentError,
        "MixtureOfExperts.init: top_k is 5, but there are 4 experts",
        lambda: nn.MixtureOfExperts.init(E, X, M, 5, key=KEY),
    )
    fails(
        ArgumentError,
        "MixtureOfExperts.init: capacity_factor must be positive, not 0",
        lambda: nn.MixtureOfExperts.init(E, X, M, 1, key=KEY, capacity_factor=0),
    )
    fails(
        ArgumentError,
        "MixtureOfExperts.init: top_k must be an int, not 1.5",
        lambda: nn.MixtureOfExperts.init(E, X, M, 1.5, key=KEY),
    )
    fails(
        AxisSizeError,
        "MixtureOfExperts: axis 'seq' of the input has size 3, but the layer was made for 5\n"
        "  input has: batch=8, seq=3, embed=4",
        lambda: made(nn.MixtureOfExperts.init, E, X, M, 1, capacity_factor=1.0, tokens=S.resize(5))(draw(B, S, E)),
    )
    model = made(nn.MixtureOfExperts.init, E, X, 6, 2, capacity_factor=1.0, tokens="seq")
    fails(
        AxisNotFoundError,
        "MixtureOfExperts: the input lacks axis 'embed'\n  input has: batch=8, seq=3\n  the layer works over: embed=4",
        lambda: model(draw(B, S)),
    )
    fails(
        AxisClashError,
        "MixtureOfExperts: the input already has axis 'mlp', which the layer adds\n"
        "  input has: seq=3, mlp=6, embed=4\n"
        "  hint: rename it first: x.rename({'mlp': ...})",
        lambda: model(draw(S, M, E)),
    )
    fails(
        AxisNotFoundError,
        "MixtureOfExperts: the input lacks axis 'seq' of tokens\n  input has: batch=8, embed=4",
        lambda: model(draw(B, E)),
    )
    with pytest.raises(OperandError, match=r"^MixtureOfExperts: expected a NamedArray, got a plain array"):
        model(jnp.ones((3, 4)))


@pytest.mark.parametrize("options", [{"capacity_factor": 1.1}, {"capacity_factor": 0.7, "tokens": S.resize(2)}, {}])
def test_a_batch_whose_size_is_known_when_an_export_is_called(options):
    model = made(nn.MixtureOfExperts.init, E, X, M, 2, **options)
    (size,) = jax.export.symbolic_shape("batch")
    abstract = axn.NamedArray(jax.ShapeDtypeStruct((size, 2, E.size), jnp.float32), ("batch", S.name, E))
    exported = jax.export.export(jax.jit(lambda x: model(x)))(abstract)
    for batch in (1, 5):
        x = draw(axn.Axis("batch", batch), S.resize(2), E)
        (y, routing), (wanted, by_jit) = exported.call(x), apply_compiled(model, x)
        same(y, wanted.names, wanted.array)
        np.testing.assert_allclose(routing.dropped.array, by_jit.dropped.array, rtol=1e-6)
