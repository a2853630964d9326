"""The GPT-2 that is timed, against the one in plain JAX."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from benchmarks import raw_gpt2
from benchmarks.gpt2 import Gpt2, Gpt2Config

SIZES = {"layers": 2, "embed": 32, "heads": 4, "positions": 16, "vocab": 64}
RAW = raw_gpt2.GPT2Config(**SIZES)
PARAMETERS = {"embed": "data", "heads": "model", "mlp": "model"}
COMPUTE = {"batch": "data", "heads": "model", "mlp": "model"}


def config(**options):
    return Gpt2Config(**(SIZES | {"dropout": 0.0} | options))


@functools.cache
def make(**options):
    return jax.jit(lambda key: Gpt2.init(config(**options), key=key))(jax.random.key(0))


@functools.cache
def shapes(**options):
    return jax.eval_shape(lambda key: Gpt2.init(config(**options), key=key), jax.random.key(0))


@pytest.fixture(scope="module")
def params():
    """Draw parameters without zeros and ones, so that none of them can be forgotten."""
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda key: raw_gpt2.init(key, RAW), jax.random.key(0))
    return jax.tree.map(lambda x: jnp.asarray(0.2 * rng.standard_normal(x.shape, np.float32)), shapes)


def scanned(params):
    """Spell parameters of the plain model as the leaves of the named one are, by path."""
    spelled = {".embed.weight": params["wte"], ".positions": params["wpe"]}
    spelled |= {f".ln_f.{name}": params["ln_f"][name] for name in ("weight", "bias")}
    rooms = {"qkv": "attention.qkv", "proj": "attention.proj", "fc": "mlp.fc", "out": "mlp.out"}
    for name, p in params["blocks"].items():
        room = f".blocks.stacked.{rooms.get(name, name)}"
        spelled |= {f"{room}.{part}": p[part] for part in p}
    return spelled


def spell(path):
    return jax.tree_util.keystr(path).removesuffix(".array")


def filled(params, **options):
    """Make a named model with the weights of the plain one."""
    table = scanned(params)

    def leaf(path, old):
        name = spell(path)
        layer = re.match(r"\.blocks\.blocks\[(\d+)\](.*)", name)
        new = table[f".blocks.stacked{layer[2]}"][int(layer[1])] if layer else table[name]
        assert new.shape == old.shape
        return new

    return jax.tree_util.tree_map_with_path(leaf, shapes(**options))


def positional(gradients, params):
    """Check named gradients against plain ones."""
    table = scanned(params)
    found = {spell(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(gradients)[0]}
    if any(".blocks.blocks" in name for name in found):
        names = [name.removeprefix(".blocks.stacked") for name in table if name.startswith(".blocks")]
        for name in names:
            layers = [found.pop(f".blocks.blocks[{i}]{name}") for i in range(RAW.layers)]
            found[f".blocks.stacked{name}"] = jnp.stack(layers)
    assert found.keys() == table.keys()
    for name, leaf in found.items():
        np.testing.assert_allclose(leaf, table[name], atol=2e-5, rtol=2e-4, err_msg=name)


def tokens(*shape):
    return np.random.default_rng(0).integers(0, RAW.vocab, shape).astype(np.int32)


@pytest.fixture(scope="module")
def expected(params):
    batch = tokens(4, 13)
    logits = jax.jit(lambda p, t: raw_gpt2.forward(p, t, RAW))(params, batch[:, :-1])
    loss, gradients = jax.jit(jax.value_and_grad(lambda p: raw_gpt2.loss(p, batch, RAW)))(params)
    return logits, loss, gradients


def run(model, batch):
    return jax.value_and_grad(lambda model: model.loss(batch).scalar())(model)


@pytest.mark.parametrize(("unrolled", "checkpointing"), [(False, False), (False, True), (True, True)])
def test_equals_plain_jax(params, expected, unrolled, checkpointing):
    model = filled(params, unrolled=unrolled, checkpointing=checkpointing)
    loss, gradients = jax.jit(run)(model, axn.named(tokens(4, 13), ("batch", "pos")))
    assert float(loss) == pytest.approx(float(expected[1]), rel=1e-6)
    positional(gradients, expected[2])


@pytest.mark.parametrize(("kind", "unrolled"), [("auto", False), ("explicit", False), ("explicit", True)])
def test_equals_plain_jax_on_a_mesh(params, expected, kind, unrolled, auto_mesh, explicit_mesh):
    model = filled(params, unrolled=unrolled)
    with axn.set_mesh({"auto": auto_mesh, "explicit": explicit_mesh}[kind]):
        spread = axn.shard(model, PARAMETERS)
        batch = axn.shard(axn.named(tokens(4, 13), ("batch", "pos")), {"batch": "data"})
        loss, gradients = axn.named_jit(run, COMPUTE, out_axis_resources=PARAMETERS)(spread, batch)
    assert float(loss) == pytest.approx(float(expected[1]), rel=1e-5)
    positional(gradients, expected[2])


@jax.jit
def score(model, batch):
    return model(batch)


@pytest.mark.parametrize("unrolled", [False, True], ids=["scanned", "unrolled"])
def test_logits_equal_plain_jax(params, expected, unrolled):
    logits = score(filled(params, unrolled=unrolled), axn.named(tokens(4, 13)[:, :-1], ("batch", "pos")))
    assert logits.names == ("batch", "pos", "vocab")
    np.testing.assert_allclose(logits.array, expected[0], atol=2e-5)


def test_the_order_of_axes_and_single_sequences(params, expected):
    model = filled(params)
    batch = axn.named(tokens(4, 13)[:, :-1], ("batch", "pos"))
    np.testing.assert_allclose(score(model, batch["batch", 1]).array, expected[0][1], atol=2e-5)
    swapped = score(model, batch.rearrange(("pos", "batch")))
    np.testing.assert_allclose(swapped.rearrange(("batch", "pos", "vocab")).array, expected[0], atol=2e-5)


def test_no_position_sees_a_later_one(params):
    model = filled(params)
    first = tokens(4, 12)
    second = first.copy()
    second[:, 7] = (second[:, 7] + 1) % 64
    one, two = (score(model, axn.named(t, ("batch", "pos"))).array for t in (first, second))
    np.testing.assert_array_equal(one[:, :7], two[:, :7])
    assert not np.allclose(one[:, 7:], two[:, 7:])


@pytest.mark.parametrize("unrolled", [False, True], ids=["scanned", "unrolled"])
def test_initialisation_is_that_of_the_paper(unrolled):
    cfg = Gpt2Config(layers=8, embed=128, heads=4, positions=128, vocab=512, unrolled=unrolled)
    model = jax.jit(lambda key: Gpt2.init(cfg, key=key))(jax.random.key(0))
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(model)[0]:
        found.setdefault(re.sub(r"\.blocks\.(stacked|blocks\[\d+\])", "", spell(path)), []).append(np.ravel(leaf))
    values = {name: np.concatenate(parts) for name, parts in found.items()}
    std = {name: float(x.std()) for name, x in values.items() if name.endswith("weight") and "ln" not in name}
    residual = 0.02 / np.sqrt(2 * 8)
    assert std == pytest.approx(
        {
            ".embed.weight": 0.02,
            ".attention.qkv.weight": 0.02,
            ".attention.proj.weight": residual,
            ".mlp.fc.weight": 0.02,
            ".mlp.out.weight": residual,
        },
        rel=0.03,
    )
    assert float(values[".positions"].std()) == pytest.approx(0.01, rel=0.03)
    for name, x in values.items():
        if name.endswith("bias"):
            assert not x.any()
        if "ln" in name and name.endswith("weight"):
            assert (x == 1).all()
        assert abs(x.mean() - (1 if "ln" in name and name.endswith("weight") else 0)) < 1e-3


def test_dropout_depends_on_the_key_alone_and_is_the_same_in_both_forms():
    batch = axn.named(tokens(4, 12), ("batch", "pos"))
    stacked, unrolled = (make(dropout=0.2, unrolled=unrolled) for unrolled in (False, True))
    run = jax.jit(lambda model, key: model(batch, key=key).array)
    one = run(stacked, jax.random.key(1))
    np.testing.assert_allclose(one, run(unrolled, jax.random.key(1)), atol=1e-5)
    assert not np.allclose(one, run(stacked, jax.random.key(2)))
    assert not np.allclose(one, run(stacked, None))


def test_bad_sizes(params):
    with pytest.raises(ValueError, match=r"^heads must divide embed: embed=768 is not a multiple of heads=7$"):
        Gpt2Config(heads=7)
    model = filled(params)
    with pytest.raises(axn.errors.AxisError):
        model(axn.zeros(axn.make_axes(batch=2, pos=17), int))
    with pytest.raises(axn.errors.AxisNotFoundError, match="no axis named 'pos'"):
        model(axn.zeros(axn.Axis("batch", 2), int))
