"""Attention by Tokamax, by its kernel in XLA: against NumPy, `jax.nn`, and ours without it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError
from tests.nn.attending import by_hand, with_gradients
from tests.nn.layouts import COMPUTE, draw, lies, same, same_trees

B, H, G, Q, K, D, F = axn.make_axes(batch=4, heads=2, group=2, pos=16, key_pos=24, head_dim=8, out=6)
Square = Q.alias("key_pos")
NAMES = ("batch", "heads", "group", "pos", "out")
IDS = axn.named(np.random.default_rng(1).integers(0, 2, (4, 16)), ("batch", "pos"))
KEY_IDS = axn.named(np.random.default_rng(2).integers(0, 2, (4, 24)), ("batch", "key_pos"))
OWN = nn.causal() & nn.segments(IDS)


def attend(q, k, v, **options):
    return nn.dot_product_attention("pos", "key_pos", "head_dim", q, k, v, **options)


def inputs(KPos=K):
    return draw(B, H, G, Q, D), draw(B, H, KPos, D, seed=1), draw(B, H, KPos, F, seed=2)


CASES = {
    "all": (K, {}),
    "causal": (Square, {"mask": nn.causal()}),
    "causal, more keys": (K, {"mask": nn.causal()}),
    "window": (Square, {"mask": nn.causal() & nn.window(5)}),
    "window, more keys": (K, {"mask": nn.causal() & nn.window(5)}),
    "window to both sides": (Square, {"mask": nn.window(5)}),
    "lengths": (K, {"mask": nn.causal() & nn.prefix(axn.named([1, 9, 16, 30], "batch"))}),
    "segments": (Square, {"mask": OWN}),
    "array": (K, {"mask": nn.causal() & nn.segments(IDS, KEY_IDS) | nn.prefix(3), "q_start": 8}),
    "cap": (K, {"soft_cap": 2.0, "mask": nn.causal(), "scale": 8**-0.5}),
    "bias": (K, {"bias": draw(H, Q, K, seed=3)}),
}


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradients(case):
    KPos, options = CASES[case]
    given, mask, bias = inputs(KPos), options.get("mask"), options.get("bias")
    seen = None
    if mask is not None:
        seen = mask.materialize(Q, KPos, options.get("q_start", 0)).broadcast_axis(B).rearrange(("batch", ...)).array
        seen = np.asarray(seen)[:, None, None]
    bias = 0.0 if bias is None else np.asarray(bias.array)[:, None]

    def theirs(*x, xp=jnp):
        return by_hand(*x, seen, bias, cap=options.get("soft_cap"), xp=xp)

    run = with_gradients(lambda *x: attend(*x, implementation="tokamax", **options))
    out, gradients = run(*given)
    same(out, NAMES, theirs(*(np.asarray(x.array) for x in given), xp=np))
    _, others = with_gradients(theirs)(*(x.array for x in given))
    for mine, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(mine.array, other, rtol=1e-4, atol=2e-5)


def test_gradients_by_the_bias():
    given = (*inputs(), draw(H, Q, K, seed=3))
    ways = [with_gradients(lambda q, k, v, b: attend(q, k, v, bias=b, implementation=way)) for way in ("tokamax", None)]  # noqa: B023
    same_trees(*(way(*given) for way in ways), rtol=1e-4, atol=2e-5)


def test_axes_in_any_number_and_order():
    cases = (
        (draw(Q, D), draw(K, D, seed=1), draw(F, K, seed=2)),
        (draw(D, G, Q, H), draw(K, D, seed=1), draw(K, F, seed=2)),
        (draw(H, D, G, Q, B), draw(B, D, K, H, seed=1), draw(K, H, B, F, seed=2)),
    )
    for case in cases:
        expected, out = (attend(*case, mask=nn.causal(), implementation=way) for way in ("plain", "tokamax"))
        same(out, expected.names, expected.array)


def test_half_precision_is_that_of_jax_nn():
    q, k, v = (x.astype(jnp.bfloat16) for x in (draw(B, Q, H, D), draw(B, Square, H, D, seed=1), draw(B, Square, H, D)))
    out = attend(q, k, v, mask=nn.causal(), implementation="tokamax")
    expected = jax.nn.dot_product_attention(q.array, k.array, v.array, is_causal=True)
    assert out.dtype == jnp.bfloat16
    same(out, ("batch", "pos", "heads", "head_dim"), expected, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_on_a_mesh(kind):
    """Each device computes its own batch and heads, also where a mesh axis is idle."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))
    given = inputs(Square)
    run = with_gradients(lambda *x: attend(*x, mask=OWN, implementation="tokamax"))
    expected = with_gradients(lambda *x: attend(*x, mask=OWN, implementation="plain"))(*given)
    for mapping in (COMPUTE, {"batch": "data"}):
        with axn.set_mesh(mesh), axn.axis_mapping(mapping):
            placed = axn.shard(given, mapping, strict=False)
            program = run.lower(*placed).compile()
            results = program(*placed)
            assert lies(results[0], mesh, mapping)
        same_trees(results, expected, rtol=1e-4, atol=2e-5)
        assert "all-gather" not in program.as_text()
        assert "all-reduce" not in program.as_text()


def test_in_vmap_and_shard_map():
    given = inputs()
    expected = attend(*given, mask=nn.causal())
    call = lambda *x: attend(*x, mask=nn.causal(), implementation="tokamax")  # noqa: E731
    same(axn.vmap(call, "batch")(*given).rearrange(NAMES), NAMES, expected.array)
    with axn.set_mesh(jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)):
        same(axn.shard_map(call, mapping=COMPUTE, strict=False, check=False)(*given), NAMES, expected.array)
        with pytest.raises(ArgumentError, match="it runs in a shard_map only with check=False"):
            axn.shard_map(call, mapping=COMPUTE, strict=False)(*given)


def test_errors():
    q, k, v = inputs()
    for problem, given, options in (
        ("it does not support sinks", (q, k, v), {"sinks": draw(H)}),
        (
            "it adds the bias before soft_cap, and this function after it",
            (q, k, v),
            {"soft_cap": 2.0, "bias": draw(H)},
        ),
        ("it does not support dropout", (q, k, v), {"dropout": 0.1, "key": jax.random.key(0)}),
        ("it computes scores in float32 only, with a fixed precision", (q, k, v), {"precision": "highest"}),
        ("queries, keys and values have different dtypes", (q, k.astype(jnp.bfloat16), v), {}),
    ):
        with pytest.raises(ArgumentError) as caught:
            attend(*given, **options, implementation="tokamax")
        text = f"dot_product_attention: implementation 'tokamax' does not support this: {problem}"
        assert str(caught.value) == f'{text}\n  hint: "plain" and "blockwise" do'


def test_it_is_used_on_request_only(monkeypatch):
    import tokamax

    monkeypatch.setattr(tokamax, "dot_product_attention", None)
    for backend in ("cpu", "gpu", "tpu"):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        jax.eval_shape(lambda *x: attend(*x, soft_cap=2.0), *inputs())
