"""Steps with values to choose, and their mistakes."""

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym.costs.search.step import Step, find_state_patterns, parse_pipeline
from axonym.costs.shared.targets import TARGETS
from axonym.errors import OperandError, ShardingError
from axonym.models import Decoder, DecoderConfig
from axonym.partitioning.options import MICROBATCHES
from axonym.report import abstract_mesh
from tests.costs.programs import MESH, Layers, abstract, step

BOTH = {"policy": [True, "nested"], "parts": (1, 2)}


def made(choices, **kwargs):
    return Step(len, (), kwargs, "cpu", choices)


def test_values_are_chosen_by_their_numbers():
    assert made(BOTH).choose((1, 0)) == {"policy": "nested", "parts": 1}


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        (
            {"policy": "full"},
            "plan: choices['policy'] must be a list of values, not 'full'\n  hint: write choices={'policy': [...]}",
        ),
        (
            {"policy": []},
            "plan: choices['policy'] must be a list of values, not []\n  hint: write choices={'policy': [...]}",
        ),
        (
            {"width": [8]},
            "plan: 'width' is an argument, and in choices, too\n  hint: leave one of the two out",
        ),
    ],
)
def test_mistakes_in_choices(choices, text):
    with pytest.raises(OperandError) as raised:
        made(choices, width=8)
    assert str(raised.value) == text


def test_the_axes_of_a_pipeline_have_names():
    assert parse_pipeline(None) is None
    assert parse_pipeline((Layers, "batch")) == ("layers", "batch")


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        ("layers", "plan: pipelined must be the axis of the layers and the axis that is cut, not 'layers'"),
        (("batch", "batch"), "plan: pipelined has 'batch' twice"),
    ],
)
def test_mistakes_in_pipelines(pair, text):
    with pytest.raises(OperandError) as raised:
        parse_pipeline(pair)
    assert str(raised.value) == f'{text}\n  hint: write pipelined=("layers", "batch")'


def test_a_step_is_cut_into_microbatches_where_it_is_counted():
    seen = []

    def look(x):
        seen.append(MICROBATCHES.get())
        return x

    cut = Step(look, (axn.ones({"batch": 4}),), {}, "cpu", {}, ("layers", "batch"))
    cut.cost(axn.Mappings({}, {"batch": "data"}), {"data": 2}, {}, 4, "traced")
    cut.cost(axn.Mappings({}, {"batch": "data"}), {"data": 2}, {}, None, "traced")
    assert [one and (one.axis, one.count) for one in seen] == [("batch", 4), None]


def test_the_paths_of_the_state_are_known():
    report = axn.cost(step, {"batch": "data"}, MESH, *abstract(), depth="traced")
    assert find_state_patterns(report) == ("0.mu", "0.nu")


def test_a_mapping_that_is_not_legal_is_traced_once():
    traced = []

    def total(x):
        traced.append(x)
        raise OperandError("total: no")

    own = Step(total, (axn.ones({"batch": 8}),), {}, "cpu", {})
    arguments = axn.Mappings({"batch": "data"}), MESH, {}, None
    with pytest.raises(ShardingError):
        own.count(*arguments)
    assert len(traced) == 1
    with pytest.raises(OperandError, match="total: no"):
        own.cost(*arguments, "traced")
    assert len(traced) == 3


def test_axes_of_size_1_keep_no_step_from_a_template():
    """Each key head has one query head, and JAX drops the mesh axis of such a dimension from some gradients."""
    sizes = {"embed": 8, "mlp": 16, "heads": 2, "kv_heads": 2, "head_dim": 4}
    config = DecoderConfig(vocab=16, layers=2, positions=8, **sizes)
    model = jax.eval_shape(lambda key: Decoder.init(config, key=key), jax.random.key(0))
    tokens = axn.NamedArray(jax.ShapeDtypeStruct((8, 8), jnp.int32), ("batch", "pos"))
    step = Step(jax.grad(lambda model, tokens: model.loss(tokens).scalar()), (model, tokens), {}, "cpu", {})
    names = ("layers", "vocab", "embed", "mlp", "kv_heads", "group", "head_dim")
    template = step.make_template((), names, ())
    mappings = axn.Mappings({"embed": "data"}, {"batch": "data"})
    estimate = template.estimate(mappings, abstract_mesh(MESH, "plan"), TARGETS["cpu"])
    traced = step.count(mappings, MESH, {}, None)
    assert estimate.memory.parameters == traced.memory.parameters
    assert estimate.time.compared == pytest.approx(traced.time.compared, rel=0.02)


def test_a_cache_that_is_updated_in_place_is_not_written_in_the_bound():
    cache, token = jax.eval_shape(lambda: [axn.zeros({"places": size, "batch": 8}) for size in (2**20, 1)])

    def write(cache, token):
        return cache.updated_slice({"places": 3}, token)

    found = []
    for donated in (False, True):
        run = axn.named_jit(write, {}, donate_args=(donated, False))
        found.append(Step(run, (cache, token), {}, "cpu", {}).find_bound(4, [{}], 1))
    # Each of 4 devices reads its quarter at 20 GB/s, and writes it only if the old cache is kept.
    once = 4 * 8 * 2**20 / 20e9 / 4
    assert found == pytest.approx([2 * once, once], rel=1e-4)
