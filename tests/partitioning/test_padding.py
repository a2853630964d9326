"""Padded axes: a model whose parameters are padded computes, learns and draws what it does without padding.

The reference is the model without padding on one device. All sizes are such that the mesh does not divide them.
"""

import copy
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from measure import collectives

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisSizeError, OperandError, ShardingError
from axonym.partitioning import PaddedArray, Padding, first_fitting, pad_axes, unpad_axes
from tests.nn.layouts import made

Batch, Pos, Embed, Vocab, Mlp, Layers = axn.make_axes(batch=4, pos=6, embed=8, vocab=37, mlp=9, layers=2)
MULTIPLES = {"vocab": 8, "mlp": 4}
LEAST = {"vocab": 2, "mlp": 2}  # for two devices: with more, neighbours exchange columns of logits
MAPPING = {"batch": "data", "vocab": first_fitting("model", None), "mlp": first_fitting("model", None)}
OPTIMIZERS = {
    "adamw": optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2)),
    "adafactor": axn.optim.per_layer(optax.adafactor(1e-2, min_dim_size_to_factor=4)),
    "muon": axn.optim.muon(1e-2),
}


def mix(x: axn.NamedArray) -> axn.NamedArray:
    return axn.softmax(x, "mlp")


class Model(eqx.Module):
    """A decoder without attention, of which every product has a padded axis."""

    table: nn.Embedding
    gated: nn.Stacked[nn.GatedMLP]
    plain: nn.MLP
    deep: nn.MLP
    mixing: nn.MLP
    head: nn.Linear

    @staticmethod
    def init(key: jax.Array) -> "Model":
        keys = iter(jax.random.split(key, 6))
        return Model(
            nn.Embedding.init(Vocab, Embed, key=next(keys)),
            nn.Stacked.init(Layers, nn.GatedMLP)(Embed, Embed, Mlp, key=next(keys)),
            # The sigmoid of zero is not zero: padding that counted would change the next product's gradient.
            nn.MLP.init(Embed, Embed, Mlp, 1, activation=nn.sigmoid, key=next(keys)),
            nn.MLP.init(Embed, Embed, Mlp, 2, activation=nn.gelu, key=next(keys)),
            # Not a function of elements: the hidden axis has to be cut before it.
            nn.MLP.init(Embed, Embed, Mlp, 1, activation=mix, key=next(keys)),
            nn.Linear.init(Embed, Vocab, key=next(keys)),
        )

    def __call__(self, ids: axn.NamedArray) -> axn.NamedArray:
        x = self.gated.fold(self.table(ids))
        for layer in (self.plain, self.deep, self.mixing):
            x = x + layer(x)
        return x


make_model = jax.jit(Model.init)  # in one program, where each array would be several


def compute_loss(model: Model, ids: axn.NamedArray, targets: axn.NamedArray) -> tuple[jax.Array, Any]:
    x = model(ids)
    logits, tied = model.head(x), model.table.unembed(x)
    options = {"label_smoothing": 0.1, "z_loss": 0.01}
    losses = (
        nn.cross_entropy_loss(logits, Vocab, targets, **options),
        nn.cross_entropy_loss(tied, Vocab, targets),
        nn.chunked_cross_entropy_loss(x, model.table.weight, Embed, Vocab, targets, block_size=8, **options),
    )
    return sum(loss.scalar() * weight for weight, loss in enumerate(losses, 1)), logits


def learn(
    model: Model, ids: axn.NamedArray, targets: axn.NamedArray, key: jax.Array, names: Iterable[str] = OPTIMIZERS
) -> dict[str, Any]:
    """Compute values, gradients, updates of several optimisers, and draws."""
    (loss, logits), gradients = jax.value_and_grad(compute_loss, has_aux=True)(model, ids, targets)
    found = {"loss": loss, "logits": logits, "gradients": gradients}
    # Its size decides a draw, and each position counts.
    scores = logits["pos", -1]
    found["reductions"] = (scores.mean("vocab"), scores.argmax("vocab"), axn.top_k(scores, "vocab", 3))
    kept = nn.keep_top_p(nn.keep_top_k(scores, "vocab", 5), "vocab", 0.9)
    found["samples"] = (nn.sample(kept, "vocab", key=key), nn.Dropout(0.5)(scores, key=key))
    for name in names:
        optimizer = OPTIMIZERS[name]
        state = optimizer.init(model)
        _, state = optimizer.update(gradients, state, model)
        found[name], _ = optimizer.update(gradients, state, model)  # the state counts, too
    return found


@jax.jit
def draw() -> tuple[axn.NamedArray, axn.NamedArray, jax.Array]:
    k_ids, k_targets, k_draws = jax.random.split(jax.random.key(1), 3)
    ids = axn.random.randint(k_ids, (Batch, Pos), -Vocab.size, Vocab.size)  # negative ids count from the end
    return ids, axn.random.randint(k_targets, (Batch, Pos), 0, Vocab.size), k_draws


def list_padded(tree: Any) -> list[PaddedArray]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, PaddedArray))
    return [leaf for leaf in leaves if isinstance(leaf, PaddedArray)]


def assert_same(got: Any, expected: Any, place: str) -> None:
    """Compare trees without padding, and check that all padding is zero."""
    got = jax.device_get(got)
    for leaf in list_padded(got):
        for own in leaf.padding:
            dim = leaf.stored.names.index(own.name)
            assert not np.split(leaf.stored.array, [own.size], dim)[1].any(), f"{place}: {leaf}"
    pairs = zip(jax.tree.leaves_with_path(expected), jax.tree.leaves(jax.jit(unpad_axes)(got)), strict=True)
    for (path, one), other in pairs:
        where = f"{place}: {jax.tree_util.keystr(path)}"
        largest = np.abs(one).max(initial=1)  # of sums that cancel, the rest is rounded as their terms are
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6 * largest, err_msg=where)


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    result: dict[str, Any] = jax.jit(learn)(make_model(jax.random.key(0)), *draw())
    return result


def test_padding_changes_nothing_on_one_device(expected: dict[str, Any]) -> None:
    model = jax.jit(lambda key: pad_axes(Model.init(key), MULTIPLES))(jax.random.key(0))
    got = jax.jit(learn)(model, *draw())
    assert len(list_padded(got["gradients"])) == 1 + 3 + 3 + 5 + 3 + 2
    assert_same(got, expected, "one device")


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_padding_changes_nothing_on_a_mesh(expected: dict[str, Any], kind: str, request: pytest.FixtureRequest) -> None:
    with axn.set_mesh(request.getfixturevalue(kind)):
        # Initial values are those of the real sizes, wherever they are made.
        model = axn.named_jit(lambda key: pad_axes(Model.init(key), LEAST), out_axis_resources=MAPPING, strict=False)(
            jax.random.key(0)
        )
        step = axn.named_jit(partial(learn, names=("adafactor",)), MAPPING)
        got = step(model, *axn.shard(draw(), {"batch": "data"}))
    assert_same(got, {name: expected[name] for name in got}, kind)
    table = got["gradients"].table.weight.stored
    assert table.sharding.shard_shape(table.array.shape) == (19, 8)


def test_a_file_has_the_real_size_and_loads_with_another_padding(auto_mesh: Mesh) -> None:
    model, other = (make_model(jax.random.key(seed)) for seed in range(2))
    plain, padded = map(axn.state_dict.to_state_dict, (model, pad_axes(model, MULTIPLES)))
    assert list(padded) == list(plain)
    assert all(padded.spec(key) == plain.spec(key) and np.array_equal(padded[key], plain[key]) for key in plain)
    torch = axn.state_dict.to_torch_compatible_state_dict(pad_axes(model, MULTIPLES))
    assert torch["head.weight"].shape == (37, 8)

    expected = pad_axes(model, {"vocab": 16, "mlp": 2})
    template = eqx.filter_eval_shape(pad_axes, other, {"vocab": 16, "mlp": 2})
    with axn.set_mesh(auto_mesh):
        loaded = (
            axn.state_dict.from_state_dict(template, padded),
            axn.state_dict.from_state_dict(template, plain, mapping=MAPPING, strict=False),
            axn.state_dict.from_torch_compatible_state_dict(template, torch),
        )
    for got in loaded:
        assert jax.tree.all(jax.tree.map(np.array_equal, got, expected))
        assert jax.tree.structure(got) == jax.tree.structure(expected)
    assert loaded[1].table.weight.stored.sharding.shard_shape((48, 8)) == (24, 8)


def test_an_id_in_the_padding_is_out_of_range() -> None:
    table = pad_axes(made(nn.Embedding.init, Vocab, Embed), {"vocab": 8})
    for dtype in (jnp.int8, jnp.uint8, jnp.int32, jnp.uint32):
        found = table(axn.named(jnp.array([0, 36, 37, 39, 40, 255 % 128], dtype), "pos"))
        assert axn.isnan(found).all("embed").tolist() == [False, False, True, True, True, True], dtype
    negative = table(axn.named([-1, -37, -38, -40], "pos"))
    np.testing.assert_array_equal(negative["pos", :2].array, unpad_axes(table.weight)["vocab", [-1, 0]].array)
    assert axn.isnan(negative["pos", 2:]).all().item()
    with pytest.raises(AxisSizeError, match=r"^Embedding: id 39 .* vocab=37"), axn.debug.checks():
        table(axn.named([39], "pos"))
    targets = axn.named([36, 37, 39], "pos")
    x = axn.ones((axn.Axis("pos", 3), Embed))
    losses = nn.chunked_cross_entropy_loss(x, table.weight, Embed, Vocab, targets, reduction=None)
    assert axn.isnan(losses).tolist() == [False, True, True]


def test_padding_costs_no_more_than_its_positions() -> None:
    Large, Wide, Tokens = axn.Axis("vocab", 1000), axn.Axis("embed", 64), axn.Axis("pos", 64)
    x, ids = axn.ones((Tokens, Wide)), axn.zeros(Tokens, dtype=jnp.int32)

    def loss(table: nn.Embedding, Label: axn.Axis) -> jax.Array:
        chunked = nn.chunked_cross_entropy_loss(x, table.weight, Wide, Label, ids, block_size=256)
        return (nn.cross_entropy_loss(table.unembed(x + table(ids)), Label, ids) + chunked).scalar()

    def count(table: nn.Embedding, Label: axn.Axis) -> float:
        lowered = jax.jit(jax.value_and_grad(loss), static_argnums=1).lower(table, Label)
        flops: float = lowered.cost_analysis()["flops"]
        return flops

    make = eqx.filter_eval_shape(lambda Vocab: nn.Embedding.init(Vocab, Wide, key=jax.random.key(0)), Large)
    padded = eqx.filter_eval_shape(pad_axes, make, {"vocab": 64})
    as_large = eqx.filter_eval_shape(lambda: nn.Embedding.init(Large.resize(1024), Wide, key=jax.random.key(0)))
    assert count(padded, Large) <= 1.01 * count(as_large, Large.resize(1024))


def test_what_a_padded_vocabulary_sends(auto_mesh: Mesh, explicit_mesh: Mesh) -> None:
    x, ids = axn.ones((Batch, Pos, Embed)), axn.zeros((Batch, Pos), dtype=jnp.int32)

    def chunked(layers: tuple[nn.MLP, nn.Embedding], x: axn.NamedArray, ids: axn.NamedArray) -> jax.Array:
        mlp, table = layers
        return nn.chunked_cross_entropy_loss(mlp(x), table.weight, Embed, Vocab, ids).scalar()

    def at_once(layers: tuple[nn.MLP, nn.Embedding], x: axn.NamedArray, ids: axn.NamedArray) -> jax.Array:
        mlp, table = layers
        return nn.cross_entropy_loss(table.unembed(mlp(x)), Vocab, ids).scalar()

    model = make_model(jax.random.key(0))
    for mesh, gathers in ((auto_mesh, 0), (explicit_mesh, 1)):
        with axn.set_mesh(mesh):
            layers = axn.shard(pad_axes((model.plain, model.table), LEAST), MAPPING, strict=False)
            data = axn.shard((x, ids), {"batch": "data"})
            for loss, count in ((chunked, 0), (at_once, gathers)):
                step = axn.named_jit(jax.value_and_grad(loss), MAPPING)
                kinds = [one.kind for one in collectives(step.lower(layers, *data).compile())]
                assert set(kinds) <= {"all-reduce", "all-gather"}, f"{loss.__name__} on {mesh}"
                assert kinds.count("all-gather") == count, f"{loss.__name__} on {mesh}"


PADDED = PaddedArray(axn.ones({"vocab": 8, "embed": 4}), (Padding("vocab", 5, 8),))
READ = "\n  hint: read it without padding: x.cut(), or axn.partitioning.unpad_axes(model)"
NO_READERS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "an operation": (
        lambda: axn.softmax(PADDED, "vocab"),
        OperandError,
        "softmax: expected a NamedArray, got PaddedArray" + READ,
    ),
    "a layer that cannot read it": (
        lambda: pad_axes(nn.DiagonalSSM.init("pos", Embed, Mlp, key=jax.random.key(0)), {"mlp": 2})(
            axn.ones((Pos, Embed))
        ),
        AttributeError,
        "PaddedArray: a padded parameter has no 'astype'" + READ,
    ),
    "numpy": (lambda: np.sum(PADDED), OperandError, "PaddedArray: a padded parameter is no array" + READ),
    "an operator": (lambda: PADDED * 2, TypeError, "unsupported operand type(s) for *: 'PaddedArray' and 'int'"),
    "an index": (lambda: PADDED["vocab", 0], TypeError, "'PaddedArray' object is not subscriptable"),
    "a misspelt axis": (
        lambda: pad_axes({"x": axn.ones(Embed)}, {"emded": 4}),
        ArgumentError,
        "pad_axes: no array has axis 'emded'\n  axes of the arrays: embed\n  hint: did you mean 'embed'?",
    ),
    "a mesh axis": (
        lambda: pad_axes({"x": axn.ones(Embed)}, {"embed": "model"}),
        ArgumentError,
        "pad_axes: axis 'embed' cannot have a multiple of 'model' positions\n"
        "  hint: pass a positive int, such as {'embed': 64}",
    ),
}


@pytest.mark.parametrize("case", NO_READERS)
def test_what_does_not_know_of_padding_raises(case: str) -> None:
    call, kind, text = NO_READERS[case]
    with pytest.raises(kind) as error:
        call()
    assert str(error.value).startswith(text)


def test_a_padded_array_is_a_node_that_paths_do_not_show() -> None:
    tree = {"table": PADDED}
    assert repr(PADDED) == "PaddedArray(vocab=5 of 8, embed)"
    assert PADDED.axes == axn.make_axes(vocab=5, embed=4)
    assert repr(axn.parameters.select(tree, "table")["table"]) == "PaddedArray(True)"
    (own,) = axn.parameters.walk(tree)
    assert (own.path, own.sizes) == ("table", {"vocab": 5, "embed": 4})
    for copied in (copy.deepcopy(PADDED), pickle.loads(pickle.dumps(PADDED))):
        assert copied.padding == PADDED.padding
        assert axn.array_equal(copied.stored, PADDED.stored)
    # The same call suits all models of a family, and may follow another one.
    again = pad_axes(pad_axes({"x": axn.ones({"vocab": 5})}, {"vocab": 4}), {"vocab": 3})
    assert again["x"].padding == (Padding("vocab", 5, 6),)
    assert isinstance(pad_axes(again, {"vocab": 5})["x"], axn.NamedArray)


def test_a_shard_map_reads_padding_that_is_whole(explicit_mesh: Mesh) -> None:
    table = pad_axes(made(nn.Embedding.init, Vocab, Embed), {"vocab": 8})

    def logits(table: nn.Embedding, ids: axn.NamedArray) -> axn.NamedArray:
        return table.unembed(table(ids))

    ids = axn.arange(Batch)
    with axn.set_mesh(explicit_mesh):
        stored, split = axn.shard(table, {"vocab": "model"}), axn.shard(ids, {"batch": "data"})
        mappings = axn.Mappings({"vocab": "model"}, {"batch": "data"})
        gather = axn.shard_map(lambda table, ids: logits(axn.all_gather(table, "model", to="invarying"), ids), mappings)
        np.testing.assert_allclose(gather(stored, split).array, logits(table, ids).array, rtol=1e-5)
        with pytest.raises(ShardingError) as error:
            axn.shard_map(logits, mappings)(stored, split)
    assert str(error.value) == (
        "PaddedArray: a device has a part of the padded axis 'vocab'\n"
        "  part: vocab=20, embed=8\n"
        "  padded: PaddedArray(vocab=37 of 40, embed)\n"
        "  hint: gather it first, axn.all_gather(parameter, mesh_axis), or leave the axis whole"
    )


def mix_experts(x: axn.NamedArray) -> axn.NamedArray:
    return nn.sigmoid(x) + x.mean("mlp")


EXPERTS: dict[str, dict[str, Any]] = {
    # Without a gate, the sigmoid of the padding is not zero; a capacity counts choices of the experts that there are.
    "blocks": {"gated": False, "activation": nn.sigmoid, "use_bias": True, "capacity_factor": 1.0},
    "sorted": {"shared": 9, "use_choice_bias": True},
    "another function of the hidden axis": {"gated": False, "activation": mix_experts},
}


def test_padding_changes_no_mixture_of_experts(auto_mesh: Mesh, explicit_mesh: Mesh) -> None:
    Experts = axn.Axis("experts", 5)

    @jax.jit
    def make() -> tuple[dict[str, nn.MixtureOfExperts], axn.NamedArray, axn.NamedArray]:
        init = partial(nn.MixtureOfExperts.init, Embed, Experts, Mlp, 2, key=jax.random.key(0))
        layers = {name: init(**options) for name, options in EXPERTS.items()}
        x = axn.random.normal(jax.random.key(1), (Batch, Pos, Embed))
        return layers, x, axn.random.bernoulli(jax.random.key(2), (Batch, Pos), 0.7)

    layers, x, where = make()

    def run(layers: dict[str, nn.MixtureOfExperts], x: axn.NamedArray, where: axn.NamedArray) -> Any:
        def loss(layer: nn.MixtureOfExperts, x: axn.NamedArray) -> tuple[jax.Array, Any]:
            y, routing = layer(x, where=where)
            return (y**2).sum().scalar(), (y, routing)

        step = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
        return {name: step(layer, x) for name, layer in layers.items()}

    expected = jax.jit(run)(layers, x, where)
    got = jax.jit(run)(pad_axes(layers, {"experts": 4, "mlp": 4}), x, where)
    assert_same(got, expected, "one device")
    padded = pad_axes({name: layers[name] for name in ("blocks", "sorted")}, {"experts": 2, "mlp": 4})
    mapping = {"batch": "data", "experts": first_fitting("model", None), "mlp": None}
    for mesh in (auto_mesh, explicit_mesh):
        with axn.set_mesh(mesh):
            got = axn.named_jit(run, mapping)(*axn.shard((padded, x, where), mapping))
        assert_same(got, {name: expected[name] for name in got}, str(mesh.axis_types))
        weight = got["sorted"][1][0].up.weight.stored
        assert weight.sharding.shard_shape(weight.array.shape)[0] == 3
