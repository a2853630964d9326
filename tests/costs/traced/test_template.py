"""Costs that a program gives which was traced once, compared with programs that are traced for each mapping."""

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym.costs.shared.targets import TARGETS
from axonym.costs.traced.reader import trace_cost
from axonym.costs.traced.template import Template
from axonym.errors import ShardingError
from axonym.models import Decoder, DecoderConfig, ExpertsConfig
from axonym.partitioning import if_free
from axonym.report import abstract_mesh
from tests.costs.programs import MESH, Batch, Embed, Mlp, abstract, step

TARGET = TARGETS["v5e"]
MESH_TYPES = abstract_mesh(MESH, "cost")
PARAMETERS = ("layers", "embed", "mlp")


def make_template(fn, *args, parameters=PARAMETERS, names=(*PARAMETERS, "batch")):
    return Template(fn, args, {}, TARGET, parameters=parameters, names=names, states=())


def list_numbers(cost):
    return cost.time.compared, cost.totals, cost.by_axis, cost.memory


LAYOUTS = (
    ({}, {}),
    ({}, {"batch": ("data", "model")}),
    ({"embed": "data"}, {"batch": "data"}),
    ({"embed": ("data", "model")}, {"batch": ("data", "model")}),
    ({"mlp": "model"}, {"mlp": "model"}),
    ({"embed": "data", "mlp": "model"}, {"batch": "data", "mlp": "model"}),
    ({"mlp": "data"}, {"batch": "model", "mlp": "data"}),
)


def make_mappings(stored, computed):
    parameters = {name: stored.get(name) for name in {*stored, *computed} & {*PARAMETERS}}
    return axn.Mappings(parameters, computed)


@pytest.mark.parametrize(("stored", "computed"), LAYOUTS)
def test_an_estimate_of_a_training_step_equals_its_traced_cost(stored, computed):
    mappings = make_mappings(stored, computed)
    estimate = make_template(step, *abstract()).estimate(mappings, MESH_TYPES, TARGET)
    traced = trace_cost(step, mappings, MESH_TYPES, TARGET, abstract(), {})
    assert list_numbers(estimate) == list_numbers(traced)


def test_an_estimate_does_not_depend_on_the_ones_before():
    template = make_template(step, *abstract())
    first, again = (
        [list_numbers(template.estimate(make_mappings(*own), MESH_TYPES, TARGET)) for own in several]
        for several in (LAYOUTS, LAYOUTS[::-1])
    )
    assert first == again[::-1]


def test_the_bytes_of_a_gathered_weight_follow_from_its_size():
    weight, x = jax.eval_shape(lambda: (axn.ones((Embed, Mlp)), axn.ones((Batch, Embed))))
    template = make_template(
        lambda weight, x: axn.nn.Linear(weight, None, (Embed,), (Mlp,))(x),
        weight,
        x,
        parameters=("embed", "mlp"),
        names=("embed", "mlp", "batch"),
    )
    mappings = axn.Mappings({"embed": "data", "mlp": None}, {"batch": "data"})
    (gather,) = template.estimate(mappings, MESH_TYPES, TARGET).communication
    # Each of 4 devices sends its quarter of the weight to 3 others, rounded to two bytes as the product rounds it.
    assert (gather.kind, gather.axes, gather.sent) == ("all-gather", ("embed",), 3 * 2 * Embed.size * Mlp.size / 4)


def decode():
    """Return a step of decoding, with abstract arguments that are larger than its activations by far."""
    sizes = {"embed": 2048, "mlp": 8192, "heads": 16, "kv_heads": 8, "head_dim": 128}
    config = DecoderConfig(vocab=16384, layers=4, positions=1024, **sizes)
    model = jax.eval_shape(lambda key: Decoder.init(config, key=key), jax.random.key(0))
    cache = jax.eval_shape(lambda: model.cache(1024, Batch))
    tokens = jax.eval_shape(lambda: axn.zeros((Batch, axn.Axis("pos", 1)), dtype=int))
    run = axn.named_jit(lambda model, cache, tokens: model.extend(cache, tokens), {}, donate_args=(False, True, False))
    return run, (model, cache, tokens)


@pytest.mark.parametrize("target", ["v5e", "h100"])
def test_an_estimate_of_decoding_takes_as_long_as_its_trace(target):
    run, args = decode()
    known = TARGETS[target]
    parameters = ("vocab", "layers", "embed", "mlp", "kv_heads", "group", "head_dim")
    # Without the axes along which a step of decoding reads and writes single places.
    names = ("vocab", "embed", "mlp", "kv_heads", "group", "batch")
    template = Template(run, args, {}, known, parameters=parameters, names=names, states=())
    heads = {"kv_heads": ("data", "model"), "mlp": ("data", "model")}
    mappings = axn.Mappings(heads, heads)
    estimate = template.estimate(mappings, MESH_TYPES, known)
    traced = trace_cost(run, mappings, MESH_TYPES, known, args, {})
    assert estimate.time.seconds == pytest.approx(traced.time.seconds, rel=0.02)
    assert estimate.totals["bytes sent"] == traced.totals["bytes sent"]
    assert estimate.memory.peak == pytest.approx(traced.memory.peak, rel=0.02)


def descend(loss):
    """Return a step that trains the first argument of a loss by gradient descent."""

    def train(model, batch):
        grads = jax.grad(lambda model: loss(model, batch).scalar())(model)
        return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, model, grads)

    return train


def check_estimates(fn, args, parameters, layouts):
    """Compare estimates of one template with traces."""
    template = make_template(fn, *args, parameters=parameters, names=(*parameters, "batch", "pos"))
    for stored, computed in layouts:
        mappings = axn.Mappings({**dict.fromkeys(parameters), **stored}, computed)
        estimate = template.estimate(mappings, MESH_TYPES, TARGET)
        traced = trace_cost(fn, mappings, MESH_TYPES, TARGET, args, {})
        text = f"{stored} {computed}"
        assert estimate.totals["flops"] == traced.totals["flops"], text
        assert estimate.totals["bytes sent"] == pytest.approx(traced.totals["bytes sent"], rel=0.03), text
        assert estimate.time.compared == pytest.approx(traced.time.compared, rel=0.03), text
        assert estimate.memory.peak == pytest.approx(traced.memory.peak, rel=0.03), text


ROUTED = [
    # Experts on no mesh axis, on one and on two, with and without tokens.
    ({}, {"batch": ("data", "model")}),
    ({"embed": "data"}, {"batch": "data", "mlp": "model"}),
    ({}, {"batch": "data", "experts": "model"}),
    ({"embed": "data", "experts": "model"}, {"batch": ("data", "model"), "experts": "model"}),
    ({"experts": "data"}, {"batch": "data", "experts": "data", "mlp": "model"}),
    ({}, {"batch": "model", "experts": ("data", "model")}),
    ({"mlp": "data"}, {"batch": ("model", "data"), "experts": ("data", "model")}),
]
SPLIT = [
    *ROUTED,
    ({}, {"batch": "data", "pos": "model", "experts": "model"}),
    ({"embed": "data"}, {"batch": "data", "pos": if_free("model"), "mlp": "model"}),
    ({}, {"pos": ("data", "model"), "experts": "data"}),
]


def test_an_estimate_of_a_decoder_with_experts_takes_as_long_as_its_trace():
    sizes = {"embed": 256, "mlp": 512, "heads": 8, "kv_heads": 8, "head_dim": 32}
    config = DecoderConfig(vocab=1024, layers=2, positions=64, experts=ExpertsConfig(8, 2, 512), **sizes)
    model = jax.eval_shape(lambda key: Decoder.init(config, key=key), jax.random.key(0))
    batch = jax.eval_shape(lambda: axn.zeros({"batch": 16, "pos": 65}, dtype=int))
    names = ("vocab", "embed", "kv_heads", "head_dim", "mlp", "experts")
    check_estimates(descend(lambda model, batch: model.loss(batch)), (model, batch), names, ROUTED[1::2])


@pytest.mark.sampled
@pytest.mark.parametrize("layout", SPLIT, ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"capacity_factor": 1.25}, {"capacity_factor": 1.25, "tokens": "pos"}], ids=str
)
def test_an_estimate_of_experts_takes_as_long_as_its_trace(options, layout):
    Routed, Experts = axn.make_axes(embed=256, experts=8)
    init = axn.nn.MixtureOfExperts.init
    layer = jax.eval_shape(lambda key: init(Routed, Experts, 512, 2, key=key, **options), jax.random.key(0))
    x = jax.eval_shape(lambda: axn.ones({"batch": 16, "pos": 64, "embed": 256}))

    def loss(layer, x):
        y, _ = layer(x)
        return (y * y).sum()

    check_estimates(descend(loss), (layer, x), ("embed", "mlp", "experts"), [layout])


@pytest.mark.parametrize("vocab", [32, 4096])
def test_an_estimate_of_a_lookup_takes_as_long_as_its_trace(vocab):
    Vocab, Columns = axn.make_axes(vocab=vocab, embed=256)
    layer = jax.eval_shape(lambda key: axn.nn.Embedding.init(Vocab, Columns, key=key), jax.random.key(0))
    ids = jax.eval_shape(lambda: axn.zeros({"batch": 16, "pos": 32}, dtype=int))
    layouts = [
        ({}, {"batch": "data"}),
        # The table is stored along the mesh axes of ids, along others, along some of them, or by rows.
        ({"embed": "data"}, {"batch": "data"}),
        ({"embed": "model"}, {"batch": "data"}),
        ({"embed": "data"}, {"batch": ("data", "model")}),
        ({"embed": ("data", "model")}, {"batch": "model", "pos": "data"}),
        ({"vocab": "data"}, {"batch": "data"}),
        ({"vocab": "model"}, {"batch": "data", "vocab": "model"}),
    ]
    loss = descend(lambda layer, ids: (layer(ids) * layer(ids)).sum())
    check_estimates(loss, (layer, ids), ("vocab", "embed"), layouts)


@pytest.mark.parametrize("target", ["v5e", "h100"])
def test_one_device_reads_weights_and_cache_once_for_a_token(target):
    run, args = decode()
    cost = trace_cost(run, axn.Mappings({}, {}), abstract_mesh({"data": 1}, "cost"), TARGETS[target], args, {})
    model, cache, _ = args
    held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((model.blocks, model.unembedding, cache)))
    # Activations are small beside them.
    assert held < cost.totals["bytes accessed"] < 1.1 * held
    # The cache is updated in place.
    assert cost.memory.temporary < cache_bytes(cache) / 2


def cache_bytes(cache):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))


@pytest.mark.parametrize("target", ["v5p", "h100"])
@pytest.mark.parametrize(
    "computed", [{}, {"batch": "data"}, {"kv_heads": "model"}, {"batch": "data", "group": "model"}]
)
def test_an_estimate_has_the_kernels_of_the_target(computed, target):
    axes = {"batch": 4, "kv_heads": 4, "group": 2, "pos": 256, "head_dim": 64}
    shapes = [{name: axes[name] for name in axes if name not in left} for left in ((), ("group",), ("group",))]
    q, k, v = jax.eval_shape(lambda: [axn.ones(shape, jnp.bfloat16) for shape in shapes])

    def run(q, k, v):
        def loss(q, k, v):
            keys = k.rename({"pos": "key_pos"}), v.rename({"pos": "key_pos"})
            out = axn.nn.dot_product_attention("pos", "key_pos", "head_dim", q, *keys)
            return out.sum().scalar().astype(jnp.float32)

        return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)

    known = TARGETS[target]
    names = ("batch", "kv_heads", "group")
    template = Template(run, (q, k, v), {}, known, parameters=(), names=names, states=())
    estimate = template.estimate(axn.Mappings({}, computed), MESH_TYPES, known)
    traced = trace_cost(run, axn.Mappings({}, computed), MESH_TYPES, known, (q, k, v), {})
    assert estimate.attention == traced.attention
    assert [*dict(traced.attention)] == [{"v5p": "splash", "h100": "cudnn"}[target]]
    for key in ("flops", "bytes sent"):
        assert estimate.totals[key] == traced.totals[key]
    assert estimate.time.seconds == pytest.approx(traced.time.seconds, rel=1e-6)


@pytest.mark.parametrize("computed", [{"height": "data"}, {"batch": "model", "width": "data"}])
def test_an_estimate_divides_the_rows_and_columns_of_images(computed):
    Channels, Features = axn.make_axes(channels=16, features=32)
    conv = jax.eval_shape(
        lambda key: axn.nn.Conv.init(("height", "width"), Channels, Features, 3, padding=1, key=key), jax.random.key(0)
    )
    x = jax.eval_shape(lambda: axn.ones({"batch": 4, "height": 64, "width": 64, "channels": 16}))
    run = jax.grad(lambda conv, x: axn.square(conv(x)).mean().scalar())
    names = {"parameters": ("channels", "features"), "names": ("batch", "height", "width", "channels", "features")}
    template = Template(run, (conv, x), {}, TARGET, **names, states=())
    mappings = axn.Mappings({}, computed)
    estimate = template.estimate(mappings, MESH_TYPES, TARGET)
    traced = trace_cost(run, mappings, MESH_TYPES, TARGET, (conv, x), {})
    # The trace also counts the edges of blocks, which devices exchange, and the copies that have them.
    assert 0.9 * traced.totals["flops"] <= estimate.totals["flops"] <= traced.totals["flops"]
    assert 0.75 * traced.memory.peak <= estimate.memory.peak <= 1.1 * traced.memory.peak
    assert estimate.time.seconds <= 1.01 * traced.time.seconds


def test_an_axis_yields_the_mesh_axes_that_other_axes_take():
    x = jax.eval_shape(lambda: axn.ones({"batch": 8, "pos": 8, "mlp": 32}))
    template = make_template(lambda x: 2 * x, x, parameters=(), names=("batch", "pos", "mlp"))
    mappings = axn.Mappings({}, {"batch": "data", "mlp": "model", "pos": if_free("model")})
    estimate = template.estimate(mappings, MESH_TYPES, TARGET)
    assert estimate.memory.results == 4 * 8 * 8 * 32 // 8


@pytest.mark.parametrize(
    ("computed", "text"),
    [
        ({"batch": "data", "pos": "data"}, "cost: mesh axis 'data' would shard both 'batch' and 'pos' of one array"),
        ({"batch": ("data", "model")}, "plan: mesh axes data, model do not divide 4"),
    ],
)
def test_mappings_that_do_not_fit_are_refused(computed, text):
    x = jax.eval_shape(lambda: axn.ones({"batch": 8, "pos": 4}))
    # Eight devices divide the argument, but not its slice.
    template = make_template(
        lambda x: axn.concatenate("batch", (x, x["batch", :4])), x, parameters=(), names=("batch", "pos")
    )
    with pytest.raises(ShardingError) as raised:
        template.estimate(axn.Mappings({}, computed), MESH_TYPES, TARGET)
    assert str(raised.value).startswith(text)


def test_a_shard_map_is_refused():
    x = jax.eval_shape(lambda: axn.ones({"batch": 8}))
    template = make_template(
        lambda x: axn.shard_map(lambda x: 2 * x, {"batch": "batch computed"})(x), x, parameters=(), names=("batch",)
    )
    with pytest.raises(NotImplementedError) as raised:
        template.estimate(axn.Mappings({}, {"batch": "data"}), MESH_TYPES, TARGET)
    assert str(raised.value) == "a shard_map is written for other mesh axes"
