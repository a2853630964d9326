"""GPT-2 and its training loops, by the calls of the text that most users of Haliax started from."""

import functools
import warnings

import axonym.compat.haliax  # noqa: F401

# isort: split

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import jax.random as jrandom
import jmp
import numpy as np
import pytest
from haliax import Axis
from haliax.partitioning import named_jit
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.compat.haliax.clients import cross_entropy, gelu, on_host, softmax
from tests.laws import count_kept

with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # Equinox deprecates static_field
    from tests.compat.haliax.programs import gpt2, loops

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CONFIG = gpt2.Gpt2Config()
KEY = jax.random.key(0, impl="rbg")  # its programs compile in no time
SeqLen = loops.SeqLen


@pytest.fixture(scope="module")
def alone():
    """One device: what all other loops must reproduce."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return loops.simplest(CONFIG, key=KEY, jit=eqx.filter_jit)


def check(result, alone, mapping=None, mesh=None, *, rtol=2e-4):
    losses, model, opt_state = result
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(losses, alone[0], rtol=rtol)
    if mapping is None:
        return
    checked = 0
    for leaf in jax.tree.leaves((model, opt_state), is_leaf=hax.util.is_named_array):
        if hax.util.is_named_array(leaf) and hax.util.is_jax_or_hax_array_like(leaf):
            assert type(leaf) is hax.NamedArray
            wanted = NamedSharding(mesh, PartitionSpec(*(mapping.get(axis.name) for axis in leaf.axes)))
            assert leaf.array.sharding.is_equivalent_to(wanted, leaf.ndim), leaf.axes
            checked += 1
    assert checked >= 3 * 15


def test_data_parallel(alone):
    check(loops.data_parallel(CONFIG, key=KEY), alone)


def test_fully_sharded(alone):
    result = loops.fully_sharded(CONFIG, key=KEY)
    check(result, alone, {"embed": "data"}, Mesh(np.array(jax.devices()), ("data",)))


@pytest.mark.filterwarnings("ignore:Some donated buffers:UserWarning")
@pytest.mark.parametrize(
    ("use_mesh", "policy", "checkpointing", "rtol"),
    [
        (lambda mesh: mesh, "compute=bfloat16,params=f32,output=f32", True, 3e-2),
        (jax.set_mesh, "f32", "recompute", 2e-4),
    ],
    ids=["mixed precision, legacy mesh", "full precision"],
)
def test_tensor_parallel_with_checkpointing(alone, use_mesh, policy, checkpointing, rtol):
    config = gpt2.Gpt2Config(gradient_checkpointing=checkpointing)
    result = loops.tensor_parallel(config, key=KEY, policy=jmp.get_policy(policy), use_mesh=use_mesh)
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    check(result, alone, {"embed": "data", "mlp": "model", "head": "model"}, mesh, rtol=rtol)
    assert {leaf.dtype for leaf in jax.tree.leaves(eqx.filter(result[1], eqx.is_array))} == {jnp.dtype("float32")}


def normalize(x, weight, bias):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def parameters(i, layer):
    return layer.weight.array[i], layer.bias.array[i]


def plain_gpt2(model, ids):
    """The same maths on positions; weights are {Out, In}, with the layers in front."""
    blocks, embeddings = model.transformer.blocks.stacked, model.embeddings
    x = embeddings.token_embeddings.weight.array[ids] + embeddings.position_embeddings.array
    for i in range(CONFIG.num_layers):
        get = functools.partial(parameters, i)
        w, b = get(blocks.attn.c_attn)
        q, k, v = np.moveaxis(np.einsum("bse,chde->bschd", normalize(x, *get(blocks.ln_1)), w) + b, 2, 0)
        scores = np.einsum("bshd,bthd->bhst", q, k) / np.sqrt(CONFIG.HeadDim.size) / (i + 1)
        scores = np.where(np.tri(SeqLen.size, dtype=bool), scores, -1e9)
        attended = np.einsum("bhst,bthd->bshd", softmax(scores), v)
        w, b = get(blocks.attn.c_proj)
        x = x + np.einsum("bshd,ehd->bse", attended, w) + b
        w, b = get(blocks.mlp.c_fc)
        hidden = gelu(normalize(x, *get(blocks.ln_2)) @ w.T + b)
        w, b = get(blocks.mlp.c_proj)
        x = x + hidden @ w.T + b
    x = normalize(x, model.transformer.ln_f.weight.array, model.transformer.ln_f.bias.array)
    return x @ embeddings.token_embeddings.weight.array.T


def test_forward_against_plain_jax(alone):
    model = alone[1]  # trained a little, so that no bias is zero
    ids = gpt2.batches(SeqLen, loops.Batch, CONFIG.Vocab, 1)[0]
    logits = eqx.filter_jit(model)(ids, inference=True, key=None)
    assert logits.axes == (loops.Batch, SeqLen, CONFIG.Vocab)
    expected = plain_gpt2(*on_host((model, ids.array)))
    np.testing.assert_allclose(logits.array, expected, rtol=2e-4, atol=2e-5)

    loss = gpt2.next_token_loss(SeqLen, CONFIG.Vocab, logits, ids)
    assert loss.axes == (loops.Batch,)
    np.testing.assert_allclose(loss.array, cross_entropy(expected[:, :-1], ids.array[:, 1:]).mean((1, 2)), rtol=2e-4)


def test_weights_have_the_order_of_haliax(alone):
    block = alone[1].transformer.blocks.stacked
    assert tuple(block.attn.c_attn.weight.shape) == ("layers", "qkv", "head", "head_dim", "embed")
    assert tuple(block.attn.c_proj.weight.shape) == ("layers", "embed", "head", "head_dim")
    assert tuple(block.mlp.c_fc.weight.shape) == ("layers", "mlp", "embed")
    assert tuple(block.ln_1.weight.shape) == ("layers", "embed")


def test_first_steps():
    Height, Width, Batch = Axis("Height", 3), Axis("Width", 4), Axis("Batch", 2)
    x = hax.random.normal(jrandom.PRNGKey(0), (Batch, Height, Width))
    assert hax.sum(x, Height).axes == (Batch, Width)
    assert hax.sum(x, (Height, Width)).axes == (Batch,)
    shares = x / hax.sum(x, Height)
    assert shares.axes == x.axes
    np.testing.assert_allclose(shares.array, x.array / x.array.sum(1, keepdims=True), rtol=1e-5)
    summed = hax.vmap(lambda x: hax.sum(x, Height), axis=Batch)(x)
    assert summed.axes == (Batch, Width)
    np.testing.assert_allclose(summed.array, x.array.sum(1), rtol=1e-5)
    by_hand = hax.named(x.array, (Batch, Height, Width))
    assert hax.array_equal(by_hand, x)


Rows, Embed, Mlp = Axis("batch", 8), Axis("embed", 8), Axis("intermediate", 16)


def operands():
    inputs = hax.random.normal(jrandom.PRNGKey(1), (Rows, Embed))
    weights = hax.random.normal(jrandom.PRNGKey(2), (Embed, Mlp))
    return inputs, weights, np.asarray(inputs.array) @ np.asarray(weights.array)


def test_matmul_with_an_axis_mapping():
    inputs, weights, expected = operands()
    with Mesh(np.array(jax.devices()), ("data",)) as mesh:

        @hax.named_jit(axis_resources={"embed": "data"})
        def matmul(y, x):
            return hax.dot("embed", x, y)

        z = matmul(weights, inputs)
    assert z.axes == (Rows, Mlp)
    assert z.array.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec()), 2)
    np.testing.assert_allclose(z.array, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pjit", [named_jit, hax.named_jit, hax.named_pjit, hax.partitioning.named_pjit])
def test_matmul_with_mappings_of_inputs_and_outputs(pjit):
    inputs, weights, expected = operands()
    mesh = Mesh(np.array(jax.devices()).reshape((4, 2)), ("model", "data"))

    def matmul(weights, inputs):
        return weights.dot(Embed, inputs)

    both = pjit(matmul, axis_resources={"intermediate": "model", "batch": "data"})
    apart = pjit(
        matmul,
        in_axis_resources={"intermediate": "model", "batch": "data"},
        out_axis_resources={"batch": "data"},
    )
    with mesh:
        z, other = both(weights, inputs), apart(weights, inputs)
    assert z.axes == other.axes == (Mlp, Rows)
    assert z.array.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec("model", "data")), 2)
    assert other.array.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(None, "data")), 2)
    np.testing.assert_allclose(z.array, expected.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(other.array, expected.T, rtol=1e-4, atol=1e-5)


def test_auto_sharded_in_a_layer_of_ones_own(auto_mesh):
    inputs, weights, expected = operands()

    class Affine(eqx.Module):
        weight: hax.NamedArray
        In: Axis = eqx.field(static=True)

        def __call__(self, inputs):
            return hax.auto_sharded(inputs.dot(self.In, self.weight))

    with auto_mesh, hax.axis_mapping({"batch": "data", "intermediate": "model"}):
        z = eqx.filter_jit(Affine(weights, Embed))(inputs)
    assert z.array.sharding.is_equivalent_to(NamedSharding(auto_mesh, PartitionSpec("data", "model")), 2)
    np.testing.assert_allclose(z.array, expected, rtol=1e-4, atol=1e-5)


def test_generate_sharded(auto_mesh):
    draw = hax.random.generate_sharded(hax.random.normal, axis=Embed)
    x = draw(jrandom.PRNGKey(0), (Embed, Mlp))
    assert type(x) is hax.NamedArray
    assert x.axes == (Embed, Mlp)
    assert len(np.unique(x.array)) == x.size
    with auto_mesh:
        spread = hax.named_jit(draw, axis_resources={"embed": "data"})(jrandom.PRNGKey(0), (Embed, Mlp))
    assert spread.array.sharding.is_equivalent_to(NamedSharding(auto_mesh, PartitionSpec("data")), 2)
    np.testing.assert_allclose(spread.array, x.array, rtol=1e-6)


def test_checkpointing_of_the_stack_recomputes():
    def numbers(setting):
        config = gpt2.Gpt2Config(gradient_checkpointing=setting, attn_pdrop=0.0, resid_pdrop=0.0, embed_pdrop=0.0)
        model = gpt2.Gpt2LMHeadModel(SeqLen, config, key=KEY)
        ids = hax.zeros(SeqLen, dtype=jnp.int32)

        def loss(model):
            return hax.sum(model(ids, inference=True, key=None)).scalar()

        arrays, rest = eqx.partition(model, eqx.is_inexact_array)
        return count_kept(lambda arrays: loss(eqx.combine(arrays, rest)), arrays)

    assert numbers(True) < numbers(False)
