"""What is proven of layers and of families of models, how much of what they claim, and how an answer reads."""

import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import AxisNotFoundError
from axonym.models import Decoder, read_config
from axonym.models.decoder import Within
from axonym.nn import activation
from axonym.testing.proof.claims import Claim, Kind, check, prove
from tests.models.test_families import LLAMA, LLAMA3_SCALING, PUBLISHED, sizes
from tests.nn.test_every_layer import ROWS, Row
from tests.sample import in_ninth
from tests.testing.faults import FAULTS
from tests.testing.proof.dependence import compile_programs, refute, trace_call

B, S, T, E, M = axn.make_axes(batch=8, seq=2, time=3, embed=4, mlp=6)
KEY = jax.random.key(0)


def masked(layer: Any, x: axn.NamedArray) -> axn.NamedArray:
    return layer(x, mask=nn.causal())


# Layers along positions, in the form that is causal.
LAYERS: dict[str, Row] = {
    **ROWS,
    "Attention": Row(ROWS["Attention"].make, (T, E), masked),
    "Conv": Row(lambda: nn.Conv.init("time", E, M, 3, padding=[(2, 0)], key=KEY), (T, E)),
    "LatentAttention": Row(ROWS["LatentAttention"].make, (T, E), masked),
    "TransformerBlock": Row(ROWS["TransformerBlock"].make, (T, E), masked),
}
# What is not so, and by design: examples of a batch norm see each other, a mask of dropout differs by position, and
# the others look ahead.
NOT_SO = {
    ("BatchNorm", "independent", "batch"),
    ("BatchNorm", "equivariant", "batch"),
    ("ConvTranspose", "causal", "time"),
    ("Dropout", "equivariant", "batch"),
    ("GroupNorm", "causal", "time"),
}
# Causality of values, False, and of gradients, True. By halves, the gradient of a scan adds single positions, whose
# distance nothing says; nor does it of the chunks that positions are cut into.
NOT_PROVEN = {"DiagonalSSM": [True], "GatedDeltaNet": [False, True], "Mamba2": [False, True]}
KINDS: list[tuple[Kind, str]] = [("independent", "batch"), ("equivariant", "batch"), ("causal", "time")]


def judge(name: str) -> dict[tuple[str, str, bool], bool]:
    """Return for each claim of a layer that is so, of values and of gradients, whether it is proven."""
    row = LAYERS[name]
    given = eqx.filter_eval_shape(row.make), row.input(B, S)
    found: dict[tuple[str, str, bool], bool] = {}
    for kind, axis in KINDS if T in row.axes else KINDS[:2]:
        # Integers have no gradient.
        for is_gradient in [False] if row.integers else [False, True]:
            verdict = prove(row.call, given, Claim(kind, axis), is_gradient=is_gradient)
            if (name, kind, axis) in NOT_SO:
                assert not verdict, (name, kind, is_gradient)
            else:
                found[kind, axis, is_gradient] = bool(verdict)
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_what_their_axes_mean(name: str) -> None:
    found = judge(name)
    missing = {claim for claim, is_proven in found.items() if not is_proven}
    assert missing == {("causal", "time", is_gradient) for is_gradient in NOT_PROVEN.get(name, ())}


def attend_twice(x: axn.NamedArray) -> Any:
    """Attend to a cache of tokens, and then once more."""
    cache = nn.KVCache.init("key", (B, axn.Axis("key", 8), E))
    first, cache = cache.attend("time", "embed", x, x, x)
    second, cache = cache.attend("time", "embed", x, x, x)
    return first, second, cache


X, IDS, V = axn.ones((B, T, E)), axn.zeros((B, T), dtype="int32"), axn.Axis("vocab", 7)
# Functions of one array, and of others beside it.
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    **{name: (getattr(nn, name), X) for name in activation.__all__ if name != "glu"},
    "binary_cross_entropy_loss": (lambda x, y: nn.binary_cross_entropy_loss(x, y, reduction=None), X, X),
    "chunked_cross_entropy_loss": (
        lambda x, w, y: nn.chunked_cross_entropy_loss(x, w, "embed", "vocab", y, reduction=None),
        X,
        axn.ones((V, E)),
        IDS,
    ),
    "cross_entropy_loss": (lambda x, y: nn.cross_entropy_loss(x, "embed", y, reduction=None), X, IDS),
    "glu": (lambda x: nn.glu(x, "embed"), X),
    "keep_min_p": (lambda x: nn.keep_min_p(x, "embed", 0.1), X),
    "keep_top_k": (lambda x: nn.keep_top_k(x, "embed", 2), X),
    "keep_top_p": (lambda x: nn.keep_top_p(x, "embed", 0.5), X),
    "max_pool": (lambda x: nn.max_pool({"time": 2}, x), X),
    "mean_pool": (lambda x: nn.mean_pool({"time": 2}, x), X),
    "penalize_repetition": (lambda x: nn.penalize_repetition(x, x > 0, 1.5), X),
    "sample": (lambda x: nn.sample(x, "embed", 0.0), X),
    "KVCache": (attend_twice, X),
}


# Pools look ahead, and what attends a second time sees all tokens of the first time.
LOOK_AHEAD = {("KVCache", "causal"), ("max_pool", "causal"), ("mean_pool", "causal")}


def test_functions_are_what_their_axes_mean() -> None:
    missing: list[tuple[str, str]] = []
    for name, (function, *given) in FUNCTIONS.items():
        for traced in (trace_call(function, given, is_gradient=flag) for flag in (False, True)):
            missing += [(name, kind) for kind, axis in KINDS if not check(traced, Claim(kind, axis))]
    assert sorted(missing) == sorted(2 * [*LOOK_AHEAD])


def test_examples_with_caches_of_several_lengths_are_independent() -> None:
    """On some devices, each example is written by itself, in a loop."""
    cache = nn.KVCache.init("key", (B, axn.Axis("key", 8), E), lengths=B)
    attend = lambda x, cache: cache.attend("time", "embed", x, x, x)  # noqa: E731
    assert prove(attend, [X, cache], Claim("independent", "batch"))


def test_tokens_that_go_through_a_cache_one_by_one_are_causal() -> None:
    attention = eqx.filter_eval_shape(ROWS["Attention"].make)
    names = attention.key.Out
    cache = nn.KVCache.init("time.key", (B, axn.Axis("time.key", 4), *names))

    def follow(attention: Any, x: axn.NamedArray) -> axn.NamedArray:
        return axn.scan(lambda cache, x: attention.extend(x, cache)[::-1], "time")(cache, x)[1]

    for is_gradient in (False, True):
        assert prove(follow, [attention, X], Claim("causal", "time"), is_gradient=is_gradient)


def test_the_page_counts_what_is_decided() -> None:
    layers = [is_proven for name in LAYERS for is_proven in judge(name).values()]
    functions = 2 * (len(KINDS) * len(FUNCTIONS) - len(LOOK_AHEAD))
    models = 2 * len(KINDS) * len(PUBLISHED)
    counts = [(sum(layers), len(layers)), (functions, functions), (models, models)]
    page = (Path(__file__).parents[3] / "docs/design/proofs.md").read_text()
    assert re.findall(r"\| (\d+) \| (\d+) \|$", page, re.MULTILINE) == [(str(own), str(all_)) for own, all_ in counts]
    proven, claims = map(sum, zip(*counts, strict=True))
    assert f"In all, {100 * proven // claims} % are decided" in page


def test_what_is_proven_of_layers_is_so(pytestconfig: pytest.Config) -> None:
    """A ninth of them, forward and backward: each is a program to compile."""
    for name in LAYERS if pytestconfig.getoption("--all-rows") else filter(in_ninth, LAYERS):
        row = LAYERS[name]
        given = row.layer(), row.input(axn.Axis("batch", 3), S)
        several = [trace_call(row.call, given), trace_call(row.call, given, is_gradient=True)]
        rng = np.random.default_rng(0)
        leaves = jax.tree.leaves(given)
        for traced in several:
            program = traced.program.jaxpr
            more = [rng.normal(size=one.aval.shape).astype(one.aval.dtype) for one in program.invars[len(leaves) :]]
            run = compile_programs([traced])
            for axis in {"batch", "time"} & {axis for names in traced.arguments for axis in names}:
                assert refute(traced, axis, lambda arrays, run=run: run(arrays)[0], [*leaves, *more]) == [], name


def residual(model: Decoder, x: axn.NamedArray) -> axn.NamedArray:
    """Apply a decoder to embedded tokens, by which there are gradients."""
    return model.scores(
        model.blocks.scan(x, model.rotations(x.resolve_axis("pos")), Within(nn.causal(), None), None)[0]
    )


@pytest.mark.sampled
@pytest.mark.parametrize("name", PUBLISHED)
def test_families_are_what_their_axes_mean(name: str) -> None:
    """As published: examples are independent, and no token sees a later one, nor has a gradient by an earlier one."""
    cfg = read_config(PUBLISHED[name][1])
    model = eqx.filter_eval_shape(lambda key: Decoder.init(cfg, key=key), KEY)
    tokens = axn.NamedArray(jax.ShapeDtypeStruct((8, 512), jnp.int32), ("batch", "pos"))
    x = axn.NamedArray(jax.ShapeDtypeStruct((8, 512, cfg.embed), jnp.float32), ("batch", "pos", "embed"))
    forward, backward = (
        trace_call(model, [tokens]),
        trace_call(residual, [model, x], is_gradient=True),
    )
    for kind, axis in KINDS:
        for traced in (forward, backward):
            claim = Claim(kind, "pos" if axis == "time" else axis, has_totals=traced is backward)
            assert check(traced, claim)


def test_examples_of_a_large_model_are_independent() -> None:
    """Llama 3.1 with 70 billion parameters, at its longest context: values, and gradients of its blocks."""
    settings = {
        **LLAMA,
        **sizes(128256, 80, 8192, 28672, 64, 8, 131072, 1e-5),
        "rope_theta": 500000.0,
        "rope_scaling": LLAMA3_SCALING,
    }
    cfg = read_config(settings)
    model = eqx.filter_eval_shape(lambda key: Decoder.init(cfg, key=key), KEY)
    assert axn.parameters.count(model) == 70_553_706_496
    tokens = axn.NamedArray(jax.ShapeDtypeStruct((1024, 131072), jnp.int32), ("batch", "pos"))
    x = axn.NamedArray(jax.ShapeDtypeStruct((1024, 131072, 8192), jnp.float32), ("batch", "pos", "embed"))
    assert prove(model, [tokens], Claim("independent", "batch"))
    assert prove(residual, [model, x], Claim("independent", "batch"), is_gradient=True)


def test_no_published_fault_is_proven_right() -> None:
    """The repaired twins are, but for experts with a capacity, and for positions that a cache counts."""
    faults = {name: fault for name, fault in FAULTS.items() if fault.claim in ("causal", "independent")}
    proven: dict[bool, set[str]] = {False: set(), True: set()}
    for name, fault in faults.items():
        for is_repaired, found in proven.items():
            case = fault.make(is_repaired)
            if prove(case.f, case.args, Claim(fault.claim, fault.axis)):
                found.add(name)
    # Examples that share a key do not depend on each other: they are hidden alike.
    assert proven[False] == {"key shared by examples", "key shared by halves"}
    assert faults.keys() - proven[True] == {"examples mixed by capacity", "cache off by one"}


class Centred(eqx.Module):
    """A layer that subtracts the mean over positions."""

    norm: nn.RmsNorm

    def __call__(self, x: axn.NamedArray) -> axn.NamedArray:
        return self.norm(x - x.mean("time"))


def test_an_answer_says_where_a_dependence_begins() -> None:
    layer = eqx.filter_eval_shape(nn.Stacked.init(axn.Axis("layers", 2), lambda: Centred(nn.RmsNorm.init(E))))
    x = axn.ones((B, T, E))
    verdict = prove(lambda layers, x: layers.fold(x), [layer, x], Claim("causal", "time"))
    what = "not proven: the result may depend on later positions of 'time', first at Stacked: reduce_sum"
    assert re.fullmatch(re.escape(what) + r" \(test_claims.py:\d+\)", str(verdict))
    verdict = prove(lambda x: {"loss": x.sum()}, [x], Claim("independent", "batch"))
    assert verdict.reason == "result loss has no axis 'batch', and depends on its positions"
    assert prove(lambda x: {"loss": x.sum()}, [x], Claim("independent", "batch", has_totals=True)).reason == (
        "no result has axis 'batch'"
    )
    single = axn.ones((B.resize(1), T))
    assert prove(lambda x: x - x.mean("batch"), [single], Claim("independent", "batch")).reason == (
        "axis 'batch' has no two positions to tell apart"
    )
    assert prove(lambda x: x + axn.arange(T), [x], Claim("equivariant", "time")).reason == (
        "the result may depend on where along 'time' an element is"
    )


def test_an_axis_that_no_argument_has_is_refused() -> None:
    with pytest.raises(AxisNotFoundError) as error:
        prove(lambda x: x, [axn.ones((B, T))], Claim("independent", "bath"))
    assert str(error.value) == (
        "prove: no argument has axis 'bath'\n  arguments have: batch, time\n  hint: did you mean 'batch'?"
    )
