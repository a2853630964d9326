"""Programs of the kinds that large clients have, on one device and on eight, each against NumPy or plain JAX."""

import axonym.compat.haliax  # noqa: F401

# isort: split

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from haliax import Axis
from haliax.state_dict import save_state_dict, to_numpy_state_dict, to_torch_compatible_state_dict
from jax.sharding import Mesh

from tests.compat.haliax.clients import cross_entropy, draw, gelu, same, softmax
from tests.compat.haliax.programs import (
    accumulation,
    blending,
    decay,
    evaluation,
    loader,
    lora,
    paging,
    partial,
)

KEY = jax.random.PRNGKey(0)
LEGACY = pytest.mark.filterwarnings("ignore:.*context manager has been deprecated:DeprecationWarning")


@pytest.fixture(params=[(1, 1), (4, 2)], ids=["one device", "eight devices"])
def mesh(request) -> Mesh:
    count = np.prod(request.param)
    return Mesh(np.array(jax.devices()[:count]).reshape(request.param), ("data", "model"))


def norm(x, weight, bias):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


# A part of a checkpoint


def test_a_checkpoint_that_has_only_a_part_of_the_model(mesh, tmp_path):
    Tags, Batch = Axis("tags", 4), Axis("batch", 6)
    trained = partial.Body.init(2, key=jax.random.PRNGKey(7))
    path = str(tmp_path / "body.safetensors")
    state = to_numpy_state_dict(trained, "body")
    save_state_dict(state, path)
    mapping = {"mlp": "model", "embed": "data"}
    with hax.set_mesh(mesh):
        model = partial.start(2, Tags, path, mapping, key=KEY)
        x = draw(Batch, partial.Embed)
        found = hax.named_jit(lambda model, x: model(x), axis_resources={"batch": "data", "mlp": "model"})(model, x)
    fresh = partial.Tagger.init(2, Tags, key=KEY)
    assert jax.tree.structure(model) == jax.tree.structure(fresh)
    for have, wanted in ((model.body, trained), (model.head, fresh.head)):
        for one, other in zip(jax.tree.leaves(have), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
    y = np.asarray(x.array)
    for i in range(2):
        up, down = ([state[f"body.blocks.{i}.{layer}.{k}"] for k in ("weight", "bias")] for layer in ("up", "down"))
        y = y + gelu(y @ up[0].T + up[1]) @ down[0].T + down[1]
    y = norm(y, state["body.norm.weight"], state["body.norm.bias"])
    head = on_host(fresh.head)
    same(found, (Batch, Tags), y @ head.weight.array.T + head.bias.array, rtol=1e-4)


def on_host(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, tree)


# Low-rank updates


def test_low_rank_updates_of_a_loaded_model(mesh, tmp_path):
    Batch = Axis("batch", 8)
    path = str(tmp_path / "tagger.safetensors")
    base = partial.Tagger.init(2, Axis("tags", 4), key=KEY)
    save_state_dict(to_torch_compatible_state_dict(base), path)
    blank = jax.tree.map(lambda leaf: leaf * 0, base)
    loaded = hax.state_dict.from_torch_compatible_state_dict(blank, hax.state_dict.load_state_dict(path))
    model = lora.adapt(loaded, r"down|head", 3, 6.0, key=jax.random.PRNGKey(1))

    state = lora.adapter_state(model)
    keys = [f"body.blocks.{i}.down" for i in range(2)] + ["head"]
    assert sorted(state) == [f"base_model.model.{key}.lora_{part}.weight" for key in keys for part in "AB"]
    assert state["base_model.model.head.lora_A.weight"].shape == (3, 8)
    everything = to_numpy_state_dict(model)
    assert "head.weight" in everything  # the wrapped layer keeps its name
    assert not [key for key in everything if "wrapped" in key]

    x = draw(Batch, partial.Embed)
    optimizer = optax.adamw(1e-2)
    mask = lora.trainable(model)

    @hax.named_jit(axis_resources={"batch": "data", "mlp": "model"}, out_axis_resources={"mlp": "model"})
    def step(model, state):
        own, rest = eqx.partition(model, mask)

        def loss(own):
            return hax.sum(eqx.combine(own, rest)(x) ** 2).scalar()

        value, grads = eqx.filter_value_and_grad(loss)(own)
        updates, state = optimizer.update(grads, state, own)
        return value, eqx.apply_updates(model, updates), state

    with hax.set_mesh(mesh):
        opt_state = optimizer.init(eqx.filter(model, mask))
        values = []
        for _ in range(4):
            value, model, opt_state = step(model, opt_state)
            values.append(float(value))
    assert values == sorted(values, reverse=True)
    same_parts = eqx.filter(model, mask, inverse=True), eqx.filter(loaded, eqx.is_array)
    for name, value in to_torch_compatible_state_dict(same_parts[1]).items():
        np.testing.assert_array_equal(to_torch_compatible_state_dict(same_parts[0])[name], value)

    merged = on_host(lora.merge(model))
    assert jax.tree.structure(merged) == jax.tree.structure(base)
    out = on_host(model)(x)
    same(merged(x), out.axes, out.array, rtol=1e-4, atol=1e-4)
    low = on_host(model.head)
    wanted = low.wrapped.weight.array + 2.0 * (low.up.weight.array @ low.down.weight.array)
    np.testing.assert_allclose(merged.head.weight.array, wanted, rtol=1e-4, atol=1e-6)


# Weight decay by paths


def test_decay_by_paths():
    Batch = Axis("batch", 4)
    net = decay.Net.init(key=KEY)
    groups = decay.Groups(frozen=(r"^\.embed",))
    mask = decay.decay_mask(groups)(net)
    assert jax.tree.leaves(mask) == [False] * 4 + [True, False] * 2
    assert set(jax.tree.leaves(decay.labels(groups)(net))) == {"frozen", "trained"}

    tx = decay.optimizer(groups, 0.1, 0.5)
    ids, targets = hax.arange(Batch), hax.arange(Batch) % 3
    state = tx.init(eqx.filter(net, eqx.is_inexact_array))
    _, after, state = eqx.filter_jit(decay.step)(tx, net, state, ids, targets)

    def loss(arrays):
        weight, scale, shift, *layers = arrays
        x = weight[:4]
        x = x - x.mean(-1, keepdims=True)
        x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale + shift
        x = jax.nn.relu(x @ layers[0].T + layers[1]) @ layers[2].T + layers[3]
        return -jnp.take_along_axis(jax.nn.log_softmax(x), targets.array[:, None], -1).mean()

    before = [leaf for leaf in jax.tree.leaves(net) if eqx.is_array(leaf)]
    grads = jax.grad(loss)(before)
    found = [leaf for leaf in jax.tree.leaves(after) if eqx.is_array(leaf)]
    for i, (old, grad, new) in enumerate(zip(before, grads, found, strict=True)):
        direction = grad / (np.abs(grad) + 1e-8) + (0.5 * old if i in (3, 5) else 0)
        np.testing.assert_allclose(new, old if i == 0 else old - 0.1 * direction, rtol=1e-3, atol=1e-4)
    assert after.dropout.inference is False


# Data loading


@LEGACY
def test_batches_over_a_mesh_that_is_entered_with_with(mesh):
    documents = [[i + 1] * (i % 4 + 1) for i in range(9)]
    flat = [token for document in documents for token in (*document, 99)]
    Batch, Pos = Axis("batch", 3), Axis("position", 4)
    load = loader.Loader(mesh, {"batch": "data", "position": None}, Batch, Pos)
    size = -(-3 // mesh.shape["data"]) * mesh.shape["data"]
    assert load.Padded == Axis("batch", size)
    batches = list(loader.ReadAhead(load(documents, eos=99)))
    rows = [flat[i : i + 4] for i in range(0, len(flat), 4)]
    assert len(batches) == -(-len(rows) // 3)
    step = jax.jit(loader.statistics)
    for i, batch in enumerate(batches):
        own = rows[3 * i : 3 * i + 3]
        assert batch.tokens.axes == (load.Padded, Pos)
        assert batch.tokens.array.sharding.spec[0] == "data"
        assert batch.length.array.tolist() == [len(row) for row in own] + [0] * (size - len(own))
        with mesh:
            found = step(batch)
        assert found["tokens"].item() == sum(map(len, own))
        assert found["sum"].item() == sum(map(sum, own))
        assert found["by_row"].array.tolist() == [sum(row) for row in own] + [0] * (size - len(own))


def test_an_error_in_the_thread_of_a_loader_is_raised():
    def fail():
        yield 1
        raise ValueError("unreadable")

    items = iter(loader.ReadAhead(fail()))
    assert next(items) == 1
    with pytest.raises(ValueError, match="unreadable"):
        next(items)


# Decoding with pages


def plain_decode(first, steps, stop):
    known, out, xs = [[] for _ in first], np.zeros((steps, *first.shape), np.float32), first
    for i in range(steps):
        ys = np.zeros_like(first)
        for s, x in enumerate(xs):
            if stop[s] > i:
                known[s].append(x)
                past = np.stack(known[s])
                ys[s] = np.tanh(softmax(past @ x) @ past + x)
        out[i] = xs = ys
    return out


def test_decoding_with_pages(mesh):
    first, stop = draw(paging.Seq, paging.Head), hax.named(jnp.array([5, 2, 3]), paging.Seq)
    with hax.set_mesh(mesh):
        pool, out = hax.named_jit(paging.decode, axis_resources={"head": "model"})(paging.Pool.init(), first, 5, stop)
    expected = plain_decode(np.asarray(first.array), 5, stop.array)
    same(out, (Axis("step", 5), paging.Seq, paging.Head), expected, rtol=1e-4)
    assert np.all(np.asarray(pool.owner.array) == paging.FREE)
    assert np.all(np.asarray(pool.tables.array) == paging.FREE)
    assert not pool.failed.item()


def test_a_pool_that_is_full():
    step = jax.jit(paging.append_all)
    pool, active = paging.Pool.init(), hax.named(jnp.array([True, True, True]), paging.Seq)
    for i in range(7):  # 8 pages of 2 have no room for 3 sequences of 5
        assert pool.failed.item() == (i > 4)
        pool = step(pool, hax.full((paging.Seq, paging.Head), float(i)), active)
    assert pool.lengths.array.tolist() == [5, 5, 4]
    assert sorted(pool.owner.array.tolist()) == [0, 0, 0, 1, 1, 1, 2, 2]
    for s, pages in enumerate(pool.tables.array.tolist()):
        held = np.concatenate([pool.values.array[page, :, 0] for page in pages if page != paging.FREE])
        np.testing.assert_array_equal(held[: int(pool.lengths.array[s])], np.arange(int(pool.lengths.array[s])))


# Gradients in parts


@pytest.mark.parametrize("size", [3, 6, 12])
def test_gradients_in_parts_that_do_not_divide_the_mesh(mesh, size):
    Batch, In, Out = hax.make_axes(batch=12, inputs=8, outputs=4)
    model = hnn.Linear.init(In, Out, key=KEY)
    x, y = draw(Batch, In), draw(Batch, Out, seed=1)

    def loss_fn(model, x, y, key):
        return hax.mean((model(x) - y) ** 2).scalar()

    parameters, compute = {"inputs": "data"}, {"batch": "data", "outputs": "model"}
    step = accumulation.make_step(loss_fn, Batch, size, parameters, compute)
    with hax.set_mesh(mesh):
        loss, after, grads = step(model, x, y, key=KEY)

    def plain(weight, bias):
        return ((x.array @ weight.T + bias - y.array) ** 2).mean()

    expected, (weight, bias) = jax.value_and_grad(plain, (0, 1))(model.weight.array, model.bias.array)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    same(grads.weight, model.weight.axes, weight)
    same(after.bias, model.bias.axes, model.bias.array - 0.1 * bias)


# Evaluation


def test_evaluation(mesh):
    In, Batch = Axis("inputs", 6), Axis("batch", 8)
    model = hnn.Linear.init(In, evaluation.Classes, key=KEY)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 8, 6)).astype(np.float32)
    labels = rng.integers(0, 5, (3, 8)).astype(np.int32)
    labels[2, 5:] = -1
    tags = rng.integers(0, 2, (3, 8, 3)).astype(np.float32)
    batches = [
        (hax.named(a, (Batch, In)), hax.named(b, Batch), hax.named(c, (Batch, evaluation.Tag)))
        for a, b, c in zip(x, labels, tags, strict=True)
    ]
    with hax.set_mesh(mesh):
        found = evaluation.run(model, batches, {"batch": "data"})

    valid = labels.ravel() >= 0
    x, labels, tags = x.reshape(-1, 6)[valid], labels.ravel()[valid], tags.reshape(-1, 3)[valid]
    logits = x @ np.asarray(model.weight.array).T + np.asarray(model.bias.array)
    p, guess = softmax(logits), logits.argmax(-1)
    count = tags.sum(0)
    np.testing.assert_allclose(found["loss"], (tags * cross_entropy(logits, labels)).sum(0) / count, rtol=1e-5)
    np.testing.assert_allclose(found["accuracy"], (tags.T * (guess == labels)).sum(1) / count, rtol=1e-5)
    assert found["among_two"] == (np.argsort(-logits)[:, :2] == labels[:, None]).any(1).sum()
    confusion = np.zeros((5, 5))
    np.add.at(confusion, (labels, guess), 1)
    np.testing.assert_array_equal(found["confusion"], confusion)
    bins = np.minimum((p.max(-1) * 4).astype(int), 3)
    gaps = [abs((p.max(-1) - (guess == labels))[bins == i].sum()) for i in range(4)]
    np.testing.assert_allclose(found["calibration"], sum(gaps), rtol=1e-4)


# Mixtures of data


def test_training_on_a_mixture(mesh):
    Batch = Axis("batch", 8)
    data = {name: np.random.default_rng(i).normal(i, 0.1, (50, 4)) for i, name in enumerate("abc")}
    sources = {name: values.__getitem__ for name, values in data.items()}
    schedule = blending.Schedule(((0, {"a": 3, "b": 1}), (3, {"b": 1, "c": 2})))
    assert schedule.counts(0, list("abc"), 8) == [6, 2, 0]
    assert schedule.counts(4, list("abc"), 8) == [0, 3, 5]

    optimizer = optax.adam(0.05)
    step = blending.make_step(optimizer, {"embed": "data"}, {"batch": "data", "code": "model"})
    with hax.set_mesh(mesh):
        model = blending.Auto.init(key=KEY)
        state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
        losses, seen = [], []
        for _, (x, source) in zip(range(8), blending.blended(sources, schedule, Batch), strict=False):
            plain, old = (np.asarray(x.array), np.asarray(source.array)), on_host(model)
            loss, parts, model, state = step(model, state, x, source)
            rebuilt = plain[0] @ old.encode.weight.array.T @ old.decode.weight.array.T + old.offset.array[plain[1]]
            errors = ((rebuilt - plain[0]) ** 2).mean(-1)
            each = [errors[plain[1] == s].mean() if (plain[1] == s).any() else 0 for s in range(3)]
            np.testing.assert_allclose(parts["loss"].array, each, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(loss, np.sum(each) / len(set(plain[1].tolist())), rtol=1e-4)
            seen.append(parts["count"].array.tolist())
            losses.append(float(loss))
    assert seen == [[6, 2, 0]] * 3 + [[0, 3, 5]] * 5
    assert losses[2] < losses[0]
    assert losses[-1] < losses[3]
    later = next(iter(blending.blended(sources, schedule, Batch, start=7)))
    np.testing.assert_array_equal(later[0].array, plain[0])
