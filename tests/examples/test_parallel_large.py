"""The larger parallel examples: values and gradients of one device, and the communication and memory they promise."""

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
import pytest

import axonym as axn
from benchmarks.measure import collectives, totals, wire_bytes
from examples.parallel import fsdp_classifier as classifier, weight_gathered_2d as layer_2d, zero

KINDS = (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit)
SHARDED = {"hidden": "data"}


def mesh_of(kind: jax.sharding.AxisType, **axes: int) -> jax.sharding.Mesh:
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(kind,) * len(axes))


def arrays(tree: Any) -> list[np.ndarray]:
    return [np.asarray(array, np.float32) for array in jax.tree.leaves(tree)]


def held(array: jax.Array) -> set[int]:
    """Return the bytes that devices hold of an array."""
    return {shard.data.nbytes for shard in array.addressable_shards}


def one_step(loss: Callable[..., jax.Array], optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    @jax.jit
    def step(params: Any, moments: Any, *args: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, *args)
        updates, moments = optimizer.update(gradients, moments, params)
        return value, optax.apply_updates(params, updates), moments

    return step


# The classifier


@functools.cache
def reference_classifier(steps: int) -> Any:
    """Train on one device, with the dropout masks that eight devices draw for their rows of each microbatch."""
    k_init, k_step = jax.random.split(jax.random.key(1))
    state, data = jax.jit(classifier.init)(k_init), classifier.random_data(1)
    params, x, y = jax.tree.leaves(state.model), data.pixels.array, data.digits.array
    microbatches, rows, hidden = y.shape[0], y.shape[1] // 8, params[1].shape[0]

    def masks(key: jax.Array) -> jax.Array:
        keys = jax.vmap(lambda device: jax.random.split(jax.random.fold_in(key, device), microbatches))(jnp.arange(8))
        drawn = jax.vmap(jax.vmap(lambda key: jax.random.bernoulli(key, 0.9, (rows, hidden))))(keys)
        return drawn.swapaxes(0, 1).reshape(microbatches, 8 * rows, hidden)

    def loss(params: Any, key: jax.Array) -> jax.Array:
        w1, b1, w2, b2 = params
        dropped = jnp.where(masks(key), jax.nn.silu(x @ w1 + b1) / 0.9, 0)
        return optax.softmax_cross_entropy_with_integer_labels(dropped @ w2 + b2, y).mean()

    step = one_step(loss, optax.adamw(1e-3))
    moments, losses = optax.adamw(1e-3).init(params), []
    for i in range(steps):
        value, params, moments = step(params, moments, jax.random.fold_in(k_step, i))
        losses.append(float(value))
    return params, moments[0].mu, moments[0].nu, losses


@pytest.mark.parametrize("kind", KINDS)
def test_the_classifier_trains_as_on_one_device(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # In float32 the order of sums matters less.
    monkeypatch.setattr(classifier, "policy", jmp.get_policy("float32"))
    with axn.set_mesh(mesh_of(kind, data=8)):
        state, losses, metrics = classifier.train(SHARDED, steps=3, seed=1)
    *expected, wanted = reference_classifier(3)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    assert float(metrics.count) == 128
    adam, (params, *moments) = state.optimizer[0], expected
    for a, b in zip(arrays((adam.mu, adam.nu)), arrays(moments), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * abs(b).max())
    for a, b in zip(arrays(state.model), arrays(params), strict=True):
        # Adam divides a gradient by its size, so that rounding moves the few with a tiny one; a step is 1e-3.
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=5e-5)
        assert np.mean(abs(a - b)) < 1e-7


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    return classifier.main(steps=15)


def test_data_parallel_and_fully_sharded_runs_agree_in_losses_parameters_and_moments(runs: dict[str, Any]) -> None:
    _, losses, metrics = runs["data parallel"]
    assert losses[-1] < losses[0] / 100
    assert float(metrics.correct / metrics.count) == 1.0
    for a, b in zip(arrays(runs["data parallel"]), arrays(runs["fully sharded"]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_a_device_keeps_an_eighth_of_what_is_sharded(runs: dict[str, Any]) -> None:
    whole, parts = runs["data parallel"][0], runs["fully sharded"][0]
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        assert held(a) == {a.nbytes}
        assert held(b) == {b.nbytes if b.size <= 10 else b.nbytes // 8}  # the bias of ten digits, and the step count


def test_each_device_draws_only_its_part_of_the_parameters() -> None:
    shapes = jax.eval_shape(classifier.init, jax.random.key(0))
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    with axn.set_mesh(mesh_of(KINDS[0], data=8)):
        compiled = axn.named_jit(classifier.init, SHARDED).lower(jax.random.key(0)).compile()
    assert collectives(compiled) == []
    assert compiled.memory_analysis().output_size_in_bytes < whole / 7.9
    assert compiled.memory_analysis().temp_size_in_bytes < whole / 2


def compiled_classifier_step(mapping: dict[str, str]) -> Any:
    with axn.set_mesh(mesh_of(KINDS[0], data=8)):
        state = jax.eval_shape(classifier.init, jax.random.key(0))
        data = classifier.random_data(0)
        metrics = classifier.Metrics(*[jax.ShapeDtypeStruct((), jnp.float32)] * 3)
        key = jax.eval_shape(jax.random.key, 0)
        return classifier.compiled_step(mapping).lower(state, metrics, data, key).compile()


def test_devices_talk_once_per_step_and_not_once_per_microbatch() -> None:
    split, bias, metrics = 4 * (784 * 512 + 512 + 512 * 10), 4 * 10, 3 * 4
    compiled = compiled_classifier_step({})
    plain = collectives(compiled)
    assert re.search(r'known_trip_count":\{"n":"4"', compiled.as_text())  # microbatches are a loop
    assert {(c.kind, c.count) for c in plain} == {("all-reduce", 1)}
    assert sum(c.bytes for c in plain) == split + bias + metrics
    assert compiled.memory_analysis().alias_size_in_bytes >= 3 * (split + bias)  # the state is donated
    sharded = collectives(compiled_classifier_step(SHARDED))
    assert {(c.kind, c.count) for c in sharded} == {("all-gather", 1), ("reduce-scatter", 1), ("all-reduce", 1)}
    sent = {kind: sum(c.bytes for c in sharded if c.kind == kind) for kind in totals(sharded)}
    assert sent == {"all-gather": split // 8, "all-reduce": bias + metrics, "reduce-scatter": split}


# The layer in two dimensions

FORMS = (
    pytest.param(layer_2d.STATIONARY_2D, False, id="stationary"),
    pytest.param(layer_2d.STATIONARY_2D, True, id="stationary, manual"),
    pytest.param(layer_2d.X_GATHERED, False, id="gathered"),
)


def reference_layer(params: Any, x: jax.Array) -> jax.Array:
    """Compute the layer on one device, by positions."""
    scale, into, key_value, out = params
    normed = x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale
    query, gate, linear = jnp.split(jnp.einsum("bte,ehd->bthd", normed, into), (8, 40), axis=-1)
    key, value = jnp.split(jnp.einsum("bte,ed->btd", normed, key_value), 2, axis=-1)
    scores = jnp.einsum("bthd,bsd->bhts", query, key) / math.sqrt(8)
    weights = jax.nn.softmax(jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -jnp.inf), axis=-1)
    both = jnp.concatenate([jnp.einsum("bhts,bsd->bthd", weights, value), jax.nn.silu(gate) * linear], axis=-1)
    return x + jnp.einsum("bthd,hde->bte", both, out)


@functools.cache
def numbers() -> tuple[layer_2d.Layer, Any, Any]:
    """Draw a layer, an input, and weights for its result."""
    k_layer, k_x, k_weights = jax.random.split(jax.random.key(0), 3)
    axes = (layer_2d.Batch, layer_2d.Time, layer_2d.Embed)
    draw = jax.jit(lambda: (layer_2d.Layer.init(k_layer), *(axn.random.normal(k, axes) for k in (k_x, k_weights))))
    return jax.tree.map(np.asarray, draw())


@functools.cache
def expected_of_layer() -> Any:
    layer, x, weights = numbers()

    def weighted(params: Any, x: jax.Array) -> Any:
        y = reference_layer(params, x)
        return (y * weights.array).sum(), y

    graded = jax.jit(jax.value_and_grad(weighted, argnums=(0, 1), has_aux=True))
    (_, y), gradients = graded(jax.tree.leaves(layer), x.array)
    return arrays((y, gradients))


@axn.named_jit
def value_and_gradients(layer: Any, x: Any, weights: Any, layout: Any, manual: bool) -> Any:
    def weighted(layer: Any, x: Any) -> Any:
        y = layer(x, layout, manual=manual)
        return (y * weights).sum().scalar(), y

    return jax.value_and_grad(weighted, argnums=(0, 1), has_aux=True)(layer, x)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("layout", "manual"), FORMS)
def test_the_layer_has_the_value_and_the_gradients_of_one_device(layout: Any, manual: bool, kind: Any) -> None:
    layer, x, weights = numbers()
    with axn.set_mesh(mesh_of(kind, x=2, y=2, z=2)):
        (_, y), found = value_and_gradients(axn.shard(layer, layer_2d.WEIGHTS), x, weights, layout, manual)
    for a, b in zip(arrays((y, found)), expected_of_layer(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * abs(b).max())
    assert y.sharding.spec == axn.pspec_for(y, layout.residual, strict=False)


def test_every_axis_of_the_mesh_has_its_part_of_the_weights() -> None:
    layer = axn.shard(numbers()[0], layer_2d.WEIGHTS, mesh_of(KINDS[0], x=2, y=2, z=2))
    for weight, ways in ((layer.into, 8), (layer.out, 8), (layer.key_value, 2)):
        assert held(weight.array) == {weight.array.nbytes // ways}


@pytest.mark.parametrize("kind", KINDS)
def test_the_manual_form_scatters_its_sums_and_sends_less(kind: Any) -> None:
    def run(layer: Any, x: Any, manual: bool) -> Any:
        return layer(x, layer_2d.STATIONARY_2D, manual=manual)

    with axn.set_mesh(mesh_of(kind, x=2, y=2, z=2)):
        layer = axn.shard(numbers()[0], layer_2d.WEIGHTS)
        x = axn.shard(numbers()[1], layer_2d.STATIONARY_2D.residual, strict=False)
        left, manual = (collectives(axn.named_jit(run).lower(layer, x, form).compile()) for form in (False, True))
    positions = 4 * 8 * 16  # bytes of one number for each batch and time
    sent = {kind: sorted((c.bytes, c.group) for c in manual if c.kind == kind) for kind in totals(manual)}
    sums = [size for size, _ in sent.pop("all-reduce")]
    assert sums == [positions // 2, positions * 16]  # the squares of the norm, before z is gathered; keys and values
    assert sent == {
        # the residual stream over z and y, then what heads have computed, to where their weights are
        "all-gather": [(positions // 2 * 64 // 4, 2), (positions * 64 // 4, 2), (positions * 40, 2)],
        # the first product into heads over x; the second one into embed over y and batch over z
        "reduce-scatter": [(positions * 16, 2), (positions * 32, 2), (positions * 2 * 72, 2)],
    }
    assert sum(map(wire_bytes, manual)) < 0.7 * sum(map(wire_bytes, left))


def test_the_program_of_the_layer_gives_the_same_in_all_forms(capsys: pytest.CaptureFixture[str]) -> None:
    first, *others = map(np.asarray, (y.array for y in layer_2d.main()))
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-5, atol=1e-5)
    assert "heads→(y, z)" in capsys.readouterr().out


# ZeRO


@functools.cache
def reference_zero(steps: int) -> list[float]:
    """Train on one device, with a plain list of arrays."""
    stage = zero.STAGES["data parallel"]
    with axn.set_mesh(mesh_of(KINDS[0], data=8)):
        model, _ = zero.compiled_init(jax.random.key(0), stage)
    params = [np.asarray(leaf) for leaf in jax.tree.leaves(model)]
    x = axn.random.normal(jax.random.key(1), (zero.Microbatch, zero.Batch, zero.Embed)).array

    def loss(params: Any) -> jax.Array:
        w1, b1, w2, b2 = params
        return ((jax.nn.gelu(x @ w1 + b1) @ w2 + b2 - jnp.roll(x, 1, -1)) ** 2).mean()

    step = one_step(loss, optax.adam(1e-2))
    moments, losses = optax.adam(1e-2).init(params), []
    for _ in range(steps):
        value, params, moments = step(params, moments)
        losses.append(float(value))
    return losses


def test_all_stages_train_as_on_one_device_and_keep_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    for losses in zero.main(6).values():
        np.testing.assert_allclose(losses, reference_zero(6), rtol=2e-5)
    table = [line.split()[-4:-1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert table == [  # parameters, gradients, optimiser state
        ["132.4", "132.4", "264.7"],
        ["132.4", "132.4", "33.5"],
        ["132.4", "16.8", "33.5"],
        ["16.8", "16.8", "33.5"],
    ]


def test_on_an_explicit_mesh_compiled_steps_take_the_memory_of_their_stage() -> None:
    embed = 64 * 4  # bytes of the one array that is not split: the bias without the axis mlp
    whole = (64 * 256 + 256 + 256 * 64) * 4 + embed
    split = (whole - embed) // 8 + embed
    memory = {}
    with axn.set_mesh(mesh_of(KINDS[1], data=8)):
        x = axn.shard(axn.zeros((zero.Microbatch, zero.Batch, zero.Embed)), {"batch": "data"})
        for name, stage in zero.STAGES.items():
            state, losses = zero.train(stage, 6)
            np.testing.assert_allclose(losses, reference_zero(6), rtol=2e-5)
            assert zero.bytes_per_device(state.model) == (split if stage.parameters else whole)
            assert zero.bytes_per_device(state.optimizer[0].mu) == (split if stage.optimizer else whole)
            compiled = zero.compiled_step.lower(state, x, stage).compile()
            memory[name] = compiled.memory_analysis()
            assert memory[name].argument_size_in_bytes - zero.bytes_per_device((state, x)) in range(64)  # alignment
            sums = [c for c in collectives(compiled) if c.kind == "all-reduce"]
            assert [(c.count, c.bytes) for c in sums] == [(4, whole + 4)]  # XLA for CPU forms no reduce-scatter
            gathered = sum(c.bytes for c in collectives(compiled) if c.kind == "all-gather")
            assert gathered == (0 if name == "data parallel" else (whole - embed) // 8)
    saved = memory["ZeRO-1"].temp_size_in_bytes - memory["ZeRO-2"].temp_size_in_bytes
    assert saved >= 0.95 * (whole - split)  # the gradients that are added up
