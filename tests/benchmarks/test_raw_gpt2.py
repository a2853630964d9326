import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks import measure, raw_gpt2
from benchmarks.raw_gpt2 import GPT2Config, Params

CFG = GPT2Config(vocab=64, layers=2, embed=32, heads=4, positions=16)
# Not Adam, which blows up the rounding errors of gradients that are zero in exact arithmetic.
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.5, momentum=0.9))


# Jitted, because compiling one program is faster than dispatching a hundred small ones for the first time.
init = jax.jit(raw_gpt2.init, static_argnums=1)
loss = jax.jit(raw_gpt2.loss, static_argnames=("cfg", "compute_dtype", "unrolled"))
init_optimizer = jax.jit(OPTIMIZER.init)


@pytest.fixture(scope="module")
def params() -> Params:
    """Draw parameters without zeros and ones, so that none of them can be forgotten."""
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda key: raw_gpt2.init(key, CFG), jax.random.key(0))
    return jax.tree.map(lambda x: jnp.asarray(0.2 * rng.standard_normal(x.shape, np.float32)), shapes)


def draw_tokens(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, CFG.vocab, shape).astype(np.int32)


def reference(params: Params, tokens: np.ndarray) -> np.ndarray:
    """Write GPT-2 once more: one sequence, one layer and one head at a time, in float64."""
    p: Any = jax.tree.map(lambda x: np.asarray(x, np.float64), params)

    def norm(p: Any, x: np.ndarray, *layer: int) -> np.ndarray:
        x = (x - x.mean(1)[:, None]) / np.sqrt(x.var(1)[:, None] + 1e-5)
        return x * p["weight"][layer] + p["bias"][layer]

    def sequence(tokens: np.ndarray) -> np.ndarray:
        x = p["wte"][tokens] + p["wpe"][: len(tokens)]
        blocks = p["blocks"]
        for i in range(CFG.layers):
            h = norm(blocks["ln_1"], x, i)
            attended = np.tile(blocks["proj"]["bias"][i], (len(tokens), 1))
            for j in range(CFG.heads):
                weight, bias = blocks["qkv"]["weight"][i, :, :, j], blocks["qkv"]["bias"][i, :, j]
                q, k, v = (h @ weight[:, n] + bias[n] for n in range(3))
                scores = np.exp(q @ k.T / np.sqrt(CFG.head_dim))
                scores *= np.tri(len(tokens))
                scores /= scores.sum(1)[:, None]
                attended += scores @ v @ blocks["proj"]["weight"][i, j]
            x = x + attended
            h = norm(blocks["ln_2"], x, i) @ blocks["fc"]["weight"][i] + blocks["fc"]["bias"][i]
            h = h / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
            x = x + h @ blocks["out"]["weight"][i] + blocks["out"]["bias"][i]
        return norm(p["ln_f"], x) @ p["wte"].T

    return np.stack([sequence(t) for t in tokens])


@pytest.mark.parametrize("unrolled", [False, True])
def test_forward_and_loss_equal_an_independent_reference(params: Params, unrolled: bool) -> None:
    tokens = draw_tokens(2, 13)
    expected = reference(params, tokens[:, :-1])
    params = raw_gpt2.unstack(params, CFG) if unrolled else params
    logits = jax.jit(raw_gpt2.forward, static_argnames=("cfg", "unrolled"))(
        params, tokens[:, :-1], cfg=CFG, unrolled=unrolled
    )
    np.testing.assert_allclose(logits, expected, atol=2e-5)
    losses = np.log(np.exp(expected).sum(-1)) - np.take_along_axis(expected, tokens[:, 1:, None], 2)[..., 0]
    found = loss(params, tokens, CFG, unrolled=unrolled)
    assert float(found) == pytest.approx(losses.mean(), rel=1e-6)


def test_bfloat16_stays_near_float32(params: Params) -> None:
    tokens = draw_tokens(2, 13)
    found = loss(params, tokens, CFG, compute_dtype=jnp.bfloat16)
    assert found.dtype == jnp.float32
    assert float(found) == pytest.approx(float(loss(params, tokens, CFG)), rel=0.01)
    grads = jax.eval_shape(jax.grad(lambda p: loss(p, tokens, CFG, compute_dtype=jnp.bfloat16)), params)
    assert {g.dtype for g in jax.tree.leaves(grads)} == {jnp.dtype(jnp.float32)}


def run(step: Any, state: tuple[Params, optax.OptState], tokens: np.ndarray) -> tuple[list[float], Params]:
    """Take one step per leading index of `tokens`; return the losses and the last parameters."""
    losses = []
    for batch in tokens:
        *state, loss = step(*state, batch)
        losses.append(float(loss))
    return losses, state[0]


@pytest.fixture(scope="module")
def expected(params: Params) -> tuple[list[float], Params]:
    """Three plain steps."""
    step = jax.jit(raw_gpt2.train_step(CFG, OPTIMIZER))
    return run(step, (params, init_optimizer(params)), draw_tokens(3, 8, 17))


def assert_same(found: tuple[list[float], Params], expected: tuple[list[float], Params], start: Params) -> None:
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found[1], expected[1])
    # The tolerance means something: every parameter has moved much further.
    jax.tree.map(lambda a, b: np.testing.assert_array_less(2e-3, np.abs(np.subtract(a, b)).max()), expected[1], start)


def test_microbatches_and_remat_take_the_same_steps(params: Params, expected: tuple[list[float], Params]) -> None:
    remat = jax.checkpoint_policies.nothing_saveable
    step = jax.jit(raw_gpt2.train_step(CFG, OPTIMIZER, remat=remat))
    tokens = draw_tokens(3, 8, 17).reshape(3, 2, 4, 17)
    assert_same(run(step, (params, init_optimizer(params)), tokens), expected, params)


def test_recomputation_takes_the_same_steps(params: Params, expected: tuple[list[float], Params]) -> None:
    step = jax.jit(raw_gpt2.train_step(CFG, OPTIMIZER, recompute=True))
    assert_same(run(step, (params, init_optimizer(params)), draw_tokens(3, 8, 17)), expected, params)


@pytest.mark.parametrize("strategy", raw_gpt2.STRATEGIES)
def test_sharded_steps(
    params: Params, expected: tuple[list[float], Params], auto_mesh: jax.sharding.Mesh, strategy: str
) -> None:
    shardings = raw_gpt2.state_shardings(CFG, OPTIMIZER, auto_mesh, strategy)
    # Copies, because device_put may share a buffer with `params`, and the step donates its arguments.
    state = jax.device_put(jax.tree.map(np.array, (params, init_optimizer(params))), shardings)
    tokens = draw_tokens(3, 8, 17)
    step = raw_gpt2.sharded_train_step(CFG, OPTIMIZER, auto_mesh, strategy).lower(*state, tokens[0]).compile()
    weight, moment = (p["blocks"]["fc"]["weight"] for p in (state[0], state[1][1][0].trace))
    parts = {"dp": 1, "fsdp": 4, "tp": 2, "fsdp+tp": 8}[strategy]
    assert weight.nbytes == parts * weight.addressable_shards[0].data.nbytes
    assert moment.sharding == weight.sharding

    batches = [jax.device_put(batch, step.input_shardings[0][-1]) for batch in tokens]
    assert_same(run(step, state, batches), expected, params)

    counts = {kind: total.count for kind, total in measure.totals(measure.collectives(step)).items()}
    assert counts.keys() <= {"all-gather", "all-reduce"}
    # Four weights per layer, forward and backward; once, two embeddings, two vectors of ln_f, six of blocks.
    assert counts.get("all-gather", 0) == (2 * 4 * CFG.layers + 10 if "fsdp" in strategy else 0)


@pytest.mark.parametrize(("strategy", "per_block"), [("dp", 0), ("fsdp", 0), ("tp", 2), ("fsdp+tp", 2)])
def test_all_reduces_of_the_forward_pass(
    params: Params, auto_mesh: jax.sharding.Mesh, strategy: str, per_block: int
) -> None:
    shardings, _ = raw_gpt2.state_shardings(CFG, OPTIMIZER, auto_mesh, strategy)
    constrain = raw_gpt2.constrain_on(auto_mesh, strategy)
    tokens = jax.sharding.NamedSharding(auto_mesh, jax.sharding.PartitionSpec("data"))
    forward = jax.jit(lambda p, t: raw_gpt2.forward(p, t, CFG, constrain=constrain), in_shardings=(shardings, tokens))
    compiled = forward.lower(params, draw_tokens(8, 16)).compile()
    counts = {kind: total.count for kind, total in measure.totals(measure.collectives(compiled)).items()}
    assert counts.get("all-reduce", 0) == per_block * CFG.layers
    assert ("all-gather" in counts) == ("fsdp" in strategy)


def test_init_has_the_scales_of_the_paper_on_any_layout(auto_mesh: jax.sharding.Mesh) -> None:
    cfg = GPT2Config(vocab=512, layers=2, embed=128, heads=4, positions=128)
    key = jax.random.key(0)
    params = init(key, cfg)
    weights = {name: p["weight"] for name, p in params["blocks"].items() if not name.startswith("ln")}
    std = {name: float(x.std()) for name, x in (params | weights).items() if isinstance(x, jax.Array)}
    expected = {"wte": 0.02, "wpe": 0.01, "qkv": 0.02, "fc": 0.02, "proj": 0.01, "out": 0.01}
    assert std == pytest.approx(expected, rel=0.03)
    assert not any(np.any(p["bias"]) for p in params["blocks"].values())

    sharded, _ = raw_gpt2.sharded_init(key, cfg, OPTIMIZER, auto_mesh, "fsdp+tp")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), sharded, params)
    specs = raw_gpt2.parameter_specs("fsdp+tp")
    assert sharded["blocks"]["qkv"]["weight"].sharding.spec == specs["blocks"]["qkv"]["weight"]


def test_errors() -> None:
    def raises(message: str) -> pytest.RaisesExc:
        return pytest.raises(ValueError, match=f"^{re.escape(message)}$")

    with raises("heads must divide embed, got embed=768 and heads=7"):
        raw_gpt2.init(jax.random.key(0), GPT2Config(heads=7))
    with raises("17 tokens per sequence, but the model has 16 positions"):
        raw_gpt2.forward({}, draw_tokens(1, 17), CFG)
    with raises("no strategy 'zero'; there are dp, fsdp, tp, fsdp+tp"):
        raw_gpt2.parameter_specs("zero")
