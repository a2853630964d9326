"""Kernels of attention, against attention by hand: XLA stands in for cuDNN, and splash attention is simulated."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measure import collectives

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError
from tests.nn.attending import by_hand, with_gradients
from tests.nn.layouts import COMPUTE, draw, lies, same, same_trees

pytestmark = pytest.mark.sampled

B, H, G, Q, K, D, F = axn.make_axes(batch=4, heads=2, group=2, pos=128, key_pos=256, head_dim=8, out=8)
NAMES = ("batch", "heads", "group", "pos", "out")
IDS = axn.named(np.random.default_rng(1).integers(0, 2, (4, 128)), ("batch", "pos"))
KEY_IDS = axn.named(np.random.default_rng(2).integers(0, 2, (4, 256)), ("batch", "key_pos"))
SENT = r"\b(all-gather|all-to-all|all-reduce|collective-permute|reduce-scatter)(-start)?\("


def attend(q, k, v, **options):
    return nn.dot_product_attention("pos", "key_pos", "head_dim", q, k, v, **options)


def inputs(KPos=K):
    return draw(B, H, G, Q, D), draw(B, H, KPos, D, seed=1), draw(B, H, KPos, F, seed=2)


CASES = {
    "xla, all": ("xla", {}),
    "xla, window": ("xla", {"mask": nn.causal() & nn.window(40)}),
    "xla, lengths": ("xla", {"mask": nn.causal() & nn.prefix(axn.named([1, 99, 128, 300], "batch"))}),
    "xla, array": ("xla", {"mask": nn.causal() & nn.segments(IDS, KEY_IDS) | nn.prefix(9), "q_start": 100}),
    "splash, all": ("splash", {"soft_cap": 2.0}),
    "splash, window": ("splash", {"mask": nn.window(40), "q_start": 67, "k_start": 3, "block_size": (128, 256)}),
    "splash, segments": ("splash", {"mask": nn.causal() & nn.segments(IDS, KEY_IDS), "q_start": 128}),
}


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradients(case):
    implementation, options = CASES[case]
    given = inputs()
    if implementation == "xla":
        given = (*given, draw(H, Q, K, seed=3))
    mask = options.get("mask")
    starts = options.get("q_start", 0), options.get("k_start", 0)
    seen = None if mask is None else mask.materialize(Q, K, *starts).broadcast_axis(B).rearrange(("batch", ...)).array
    # What a query without keys gets is not for a kernel to say.
    seen = None if seen is None else np.asarray(seen)[:, None, None]
    assert seen is None or seen.any(-1).all()

    def theirs(q, k, v, bias=None, xp=jnp):
        bias = 0.0 if bias is None else bias[:, None]
        return by_hand(q, k, v, seen, bias, cap=options.get("soft_cap"), xp=xp)

    def ours(q, k, v, bias=None):
        return attend(q, k, v, bias=bias, implementation=implementation, **options)

    out, gradients = with_gradients(ours)(*given)
    same(out, NAMES, theirs(*(np.asarray(x.array) for x in given), xp=np))
    _, others = with_gradients(theirs)(*(x.array for x in given))
    for mine, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(mine.array, other, rtol=1e-4, atol=2e-5)


def test_half_precision():
    given = inputs()
    expected, others = with_gradients(lambda *x: attend(*x, mask=nn.causal(), implementation="plain"))(*given)
    for implementation in ("xla", "splash"):
        run = with_gradients(lambda *x: attend(*x, mask=nn.causal(), implementation=implementation))  # noqa: B023
        out, gradients = run(*(x.astype(jnp.bfloat16) for x in given))
        assert {x.dtype for x in (out, *gradients)} == {jnp.dtype(jnp.bfloat16)}
        same(out, NAMES, expected.array, rtol=0.03, atol=0.03)
        for mine, other in zip(gradients, others, strict=True):
            same(mine, other.names, other.array, rtol=0.06, atol=0.06)


@pytest.mark.parametrize("implementation", ["xla", "splash"])
def test_axes_in_any_number_and_order(implementation):
    E = axn.Axis("out", 8 if implementation == "xla" else 16)
    cases = (
        (draw(Q, D), draw(K, D, seed=1), draw(E, K, seed=2)),
        (draw(D, G, Q, H), draw(K, D, seed=1), draw(K, E, seed=2)),
        (draw(H, D, G, Q, B), draw(B, D, K, H, seed=1), draw(K, H, B, E, seed=2)),
    )

    @jax.jit
    def run(cases):
        ways = "plain", implementation
        return [[attend(*case, mask=nn.causal(), implementation=way) for case in cases] for way in ways]

    for expected, out in zip(*run(cases), strict=True):
        same(out, expected.names, expected.array)


# layout
OWN = nn.causal() & nn.segments(IDS)


def with_and_without_heads(way):
    call = lambda *x: attend(*x, mask=OWN, implementation=way)  # noqa: E731
    return lambda many, one: (with_gradients(call)(*many), with_gradients(call)(*one))


@functools.cache
def many_and_one_head():
    many = inputs(Q.alias("key_pos"))
    one = draw(B, H, Q, D), *(x["heads", 0] for x in many[1:])
    return (many, one), jax.jit(with_and_without_heads("plain"))(many, one)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("implementation", ["xla", "splash"])
def test_on_a_mesh(kind, implementation, auto_mesh, explicit_mesh):
    """Each device computes its own batch and heads; keys without heads get the sum of what heads say of them."""
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    given, expected = many_and_one_head()
    with axn.set_mesh(mesh):
        given = axn.shard(given, COMPUTE, strict=False)
        with axn.axis_mapping(COMPUTE):
            compiled = jax.jit(with_and_without_heads(implementation)).lower(*given).compile()
        results = compiled(*given)
        assert lies(results[0][0], mesh, COMPUTE)
        same_trees(results, expected)
        sent = {found.group(1) for found in re.finditer(SENT, compiled.as_text())}
        assert sent == {"all-reduce"}  # of the gradients of keys and values without heads
        if implementation == "splash" and kind == "explicit":  # the types tell, without a mapping too
            out = jax.jit(lambda *x: attend(*x, mask=OWN, implementation=implementation))(*given[0])
            assert lies(out, mesh, COMPUTE)
            same(out, NAMES, expected[0][0].array)


@pytest.mark.parametrize(("implementation", "kind"), [("xla", "auto"), ("splash", "auto"), ("splash", "explicit")])
def test_nothing_is_sent_over_an_idle_mesh_axis(implementation, kind, auto_mesh, explicit_mesh):
    """Where the mapping leaves a mesh axis out, no gradient is summed over it."""
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    (given, _), (expected, _) = many_and_one_head()
    mapping = {"batch": "data"}
    run = with_gradients(lambda *x: attend(*x, mask=OWN, implementation=implementation))
    with axn.set_mesh(mesh):
        given = axn.shard(given, mapping)
        with axn.axis_mapping(mapping):
            compiled = jax.jit(run).lower(*given).compile()
        results = compiled(*given)
        assert lies(results[0], mesh, mapping)
        same_trees(results, expected)
        assert not re.search(SENT, compiled.as_text())


def test_positions_are_gathered_and_results_constrained(auto_mesh):
    mapping = {"batch": "data", "pos": "model", "key_pos": "model"}
    given = inputs()
    call = lambda *x: attend(*x, mask=nn.causal(), implementation="xla")  # noqa: E731
    with axn.set_mesh(auto_mesh):
        with axn.axis_mapping(mapping):
            program = jax.jit(call).lower(*axn.shard(given, mapping, strict=False)).compile()
        out = program(*axn.shard(given, mapping, strict=False))
        assert lies(out, auto_mesh, mapping)
    same(out, NAMES, attend(*given, mask=nn.causal()).array)
    assert {each.kind for each in collectives(program)} == {"all-gather"}


def test_in_a_shard_map(auto_mesh):
    given = inputs()
    for implementation in ("xla", "splash"):
        call = lambda *x: attend(*x, mask=nn.causal(), implementation=implementation)  # noqa: B023, E731
        with axn.set_mesh(auto_mesh):
            mapped = axn.shard_map(call, mapping=COMPUTE, strict=False, check=implementation == "xla")
            out = mapped(*given)
        same(out, NAMES, attend(*given, mask=nn.causal()).array)
    with axn.set_mesh(auto_mesh):
        refused(
            "splash", "it runs in a shard_map only with check=False", axn.shard_map(call, COMPUTE, strict=False), given
        )


# errors
def refused(implementation, problem, call, given):
    with pytest.raises(ArgumentError) as caught:
        call(*given)
    expected = f"dot_product_attention: implementation {implementation!r} does not support this: {problem}"
    assert str(caught.value) == f'{expected}\n  hint: "plain" and "blockwise" do'


def test_errors():
    q, k, v = inputs()
    other = axn.Axis("other", 2)
    masks = "it supports only causal masks, windows and segments, combined by &"
    for implementations, problem, given, options in (
        ("xla cudnn splash", "the keys have an axis that the queries lack", (q, k.broadcast_axis(other), v), {}),
        ("xla", "the values must have the axes of the keys, with one axis of features", (q, k, v["heads", 0]), {}),
        ("splash", "the values must have the axes of the keys, with one axis of features", (q, k, v["out", 0]), {}),
        ("xla", "an array has anonymous dimensions", (q.untag("batch"), k["batch", 0], v["batch", 0]), {}),
        ("splash", "queries, keys and values have different dtypes", (q, k.astype(jnp.bfloat16), v), {}),
        (
            "xla splash",
            "it computes scores in float32 only, with a fixed precision",
            (q, k, v),
            {"precision": "highest"},
        ),
        ("xla splash", "it does not support dropout", (q, k, v), {"dropout": 0.1, "key": jax.random.key(0)}),
        ("xla cudnn", "it does not support soft_cap or sinks", (q, k, v), {"sinks": draw(H)}),
        ("xla", "keys and values have different numbers of features", (q, k, v["out", :4]), {}),
        ("splash", "it supports only bfloat16 and float32", [x.astype(jnp.float16) for x in (q, k, v)], {}),
        ("splash", "it does not support a bias", (q, k, v), {"bias": draw(H)}),
        ("splash", "the sinks have the axis of positions", (q, k, v), {"sinks": draw(Q)}),
        ("splash", "the number of positions must be a multiple of 128", (q["pos", :100], k, v), {}),
        ("splash", masks, (q, k, v), {"mask": nn.causal() | nn.prefix(3)}),
        (
            "splash",
            "segment ids have an axis other than positions and batch",
            (q, k, v),
            {"mask": nn.segments(IDS.broadcast_axis(H), KEY_IDS)},
        ),
        ("splash", "a query sees no key", (q, k, v), {"mask": nn.causal(), "q_start": -1}),
        ("splash", "a query sees no key", (q, k, v), {"mask": nn.window(4), "q_start": -4}),
        ("splash", "a query sees no key", (q, k, v), {"mask": nn.causal() & nn.window(4), "q_start": 132}),
        ("splash", "q_start and k_start must be Python ints", (q, k, v), {"q_start": axn.named(1, ())}),
    ):
        for implementation in implementations.split():
            call = lambda *x: attend(*x, **options, implementation=implementation)  # noqa: B023, E731
            refused(implementation, problem, call, given)
    call = lambda q, *x: nn.dot_product_attention(None, K, D, q, *x, implementation="splash")  # noqa: E731
    refused("splash", "the queries have no axis of positions", call, (q["pos", 0], k, v))
