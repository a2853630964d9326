"""The layouts of torch and Hugging Face, against what these compute with them, written in numpy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn, state_dict
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError, OperandError
from axonym.state_dict import Stored
from benchmarks.gpt2 import Gpt2, Gpt2Config
from tests.nn.layouts import draw

pytestmark = pytest.mark.sampled

B, E, M, H, D, V, X = axn.make_axes(batch=3, embed=4, mlp=6, heads=2, head_dim=5, vocab=7, experts=2)
KEY = jax.random.key(0)


def filled(make, **options):
    """Make a layer of random numbers, and the state dict of these."""
    layer = eqx.filter_eval_shape(make)
    rng = np.random.default_rng(0)
    specs = state_dict.to_torch_compatible_state_dict(layer, **options)
    state = {key: rng.normal(size=specs.spec(key).shape).astype(np.float32) for key in specs}
    layer = state_dict.from_torch_compatible_state_dict(layer, state, **options)
    back = state_dict.to_torch_compatible_state_dict(layer, **options)
    assert list(back) == list(state)
    for key, array in state.items():
        np.testing.assert_array_equal(back[key], array)
    return layer, state


def close(x, expected):
    np.testing.assert_allclose(np.asarray(x.array).reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("In", "Out"), [(E, (H, D)), ((H, D), E), (E, E), ((H, E), (M, E)), (E, ())], ids=lambda axes: str(axes)
)
@pytest.mark.parametrize("layout", [state_dict.out_first, state_dict.in_first])
@pytest.mark.parametrize("stored_out_first", [False, True])
def test_linear(In, Out, layout, stored_out_first):
    make = lambda: nn.Linear.init(In, Out, key=KEY, out_first=stored_out_first)  # noqa: E731
    layer, state = filled(make, layouts={nn.Linear: layout})
    x = draw(B, *((In,) if isinstance(In, axn.Axis) else In))
    weight = state["weight"].T if layout is state_dict.out_first else state["weight"]
    expected = np.asarray(x.array).reshape(3, -1) @ weight + state["bias"]
    close(layer(x), expected)


def test_experts_keep_an_axis_of_their_own():
    layer, state = filled(lambda: nn.MoELinear.init(X, E, M, key=KEY))
    x = draw(B, X, E)
    close(layer(x), np.einsum("bxe,xme->bxm", x.array, state["weight"]) + state["bias"])


def test_tables_and_norms():
    table, state = filled(lambda: nn.Embedding.init(V, (H, D), key=KEY))
    assert state["weight"].shape == (7, 10)
    close(table(axn.named(jnp.array([4, 0, 6]), "batch")), state["weight"][[4, 0, 6]])
    positions, state = filled(lambda: nn.PositionEmbedding.init(V, (H, D), key=KEY))
    close(positions(axn.named(jnp.array([4, 0, 6]), "batch")), state["weight"][[4, 0, 6]])

    norm, state = filled(lambda: nn.LayerNorm.init((H, D)))
    x = draw(B, H, D)
    flat = np.asarray(x.array, np.float64).reshape(3, -1)
    normal = (flat - flat.mean(1, keepdims=True)) / np.sqrt(flat.var(1, keepdims=True) + 1e-5)
    close(norm(x), normal * state["weight"] + state["bias"])

    norm, state = filled(lambda: nn.BatchNorm.init((H, D), "batch"))
    running, statistics = filled(lambda: nn.BatchNorm.init((H, D), "batch").initial_state())
    running = axn.tree.map(abs, running)
    normal = (flat - np.abs(statistics["mean"])) / np.sqrt(np.abs(statistics["var"]) + 1e-5)
    close(norm(x, running, inference=True)[0], normal * state["weight"] + state["bias"])


def convolved(x, weight, groups):
    """Compute a strided convolution as torch defines it: [in, t], [out, in / groups, k]."""
    out, inputs, k = weight.shape
    y = np.zeros((out, (x.shape[1] - k) // 2 + 1))
    for o in range(out):
        first = o // (out // groups) * inputs
        for t in range(y.shape[1]):
            y[o, t] = (weight[o] * x[first : first + inputs, 2 * t : 2 * t + k]).sum()
    return y


def spread(x, weight, groups):
    """Compute a strided transposed convolution as torch defines it: [in, t], [in, out / groups, k]."""
    inputs, outs, k = weight.shape
    y = np.zeros((outs * groups, 2 * (x.shape[1] - 1) + k))
    for i in range(inputs):
        first = i // (inputs // groups) * outs
        for t in range(x.shape[1]):
            y[first : first + outs, 2 * t : 2 * t + k] += x[i, t] * weight[i]
    return y


@pytest.mark.parametrize(("layer", "reference"), [(nn.Conv, convolved), (nn.ConvTranspose, spread)])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions(layer, reference, groups):
    make = lambda: layer.init("time", E, M, 3, stride=2, groups=groups, key=KEY)  # noqa: E731
    conv, state = filled(make)
    x = draw(E, axn.Axis("time", 7))
    close(conv(x), reference(np.asarray(x.array), state["weight"], groups) + state["bias"][:, None])


def test_layouts_of_own_modules_and_of_subclasses():
    class Scale(eqx.Module):
        factor: axn.NamedArray
        rest: list

    class Finer(Scale):
        pass

    given = {Scale: lambda module: {"factor": Stored((("head_dim", "heads"),), flipped=("heads",))}}
    tree = Finer(draw(X, H, D), [draw(H, D)])
    state = state_dict.to_state_dict(tree, layouts=given)
    expected = np.asarray(tree.factor.array)[:, ::-1].transpose(0, 2, 1).reshape(2, 10)
    np.testing.assert_array_equal(state["factor"], expected)
    assert state["rest.0"].shape == (2, 5)
    back = state_dict.from_state_dict(tree, state, layouts=given)
    np.testing.assert_array_equal(back.factor.array, tree.factor.array)


def test_layouts_that_do_not_fit():
    layer = eqx.filter_eval_shape(lambda: {"a": nn.Embedding.init(V, E, key=KEY)})
    with pytest.raises(AxisNotFoundError) as error:
        state_dict.to_state_dict(layer, layouts={nn.Embedding: lambda _: {"weight": Stored(("vocab", "embedd"))}})
    assert str(error.value) == (
        "layout of a.weight: there is no axis 'embedd'\n"
        "  the array has: vocab=7, embed=4\n"
        "  hint: did you mean 'embed'?"
    )
    with pytest.raises(AxisClashError) as error:
        state_dict.to_state_dict(layer, layouts={nn.Embedding: lambda _: {"weight": Stored((V, (E, V)))}})
    assert str(error.value) == "layout of a.weight: axis 'vocab' would appear twice"


HAS = "  the array has: vocab=7, embed=4"


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        (
            {"weight": Stored((V, E), flipped=("vocabs",))},
            AxisNotFoundError,
            f"a.weight: there is no axis 'vocabs'\n{HAS}\n  hint: did you mean 'vocab'?",
        ),
        (
            {"weight": Stored((V, E), split={"mlp": ("groups", 2)})},
            AxisNotFoundError,
            f"a.weight: there is no axis 'mlp'\n{HAS}",
        ),
        (
            {"weight": Stored((V, E), split={"vocab": ("groups", 2)})},
            AxisSizeError,
            f"a.weight: vocab=7 cannot be split evenly in groups=2\n{HAS}",
        ),
        (
            {"weight": Stored((V, E), split={"vocab": ("groups", 0)})},
            AxisSizeError,
            f"a.weight: vocab=7 cannot be split evenly in groups=0\n{HAS}",
        ),
        (
            {"weight": Stored(("vocab",), split={"vocab": ("embed", 1)})},
            AxisClashError,
            "a.weight: axis 'embed' would appear twice",
        ),
        (
            {"weigth": Stored((V, E))},
            ArgumentError,
            "a.weigth: Embedding has no such field\n  it has: weight\n  hint: did you mean 'weight'?",
        ),
        (
            {"weight": ("vocab", "embed")},
            OperandError,
            'a.weight: the form of a field must be a Stored, not tuple\n  hint: write Stored(("mlp", "embed"))',
        ),
        (
            Stored((V, E)),
            OperandError,
            "Embedding: a layout must return a dict from fields to Stored, not Stored\n"
            '  hint: write {"weight": Stored(...)}',
        ),
    ],
)
def test_layouts_that_say_what_cannot_be(given, kind, text):
    layer = eqx.filter_eval_shape(lambda: {"a": nn.Embedding.init(V, E, key=KEY)})
    with pytest.raises(kind) as error:
        state_dict.to_state_dict(layer, layouts={nn.Embedding: lambda _: given})
    assert str(error.value) == f"layout of {text}"


def test_a_layout_may_tell_of_what_a_layer_has_no_array_for():
    layer = eqx.filter_eval_shape(lambda: nn.Linear.init(E, M, key=KEY, use_bias=False))
    assert list(state_dict.to_torch_compatible_state_dict(layer)) == ["weight"]


CONFIG = Gpt2Config(layers=2, embed=8, heads=2, positions=6, vocab=11, dropout=0.0)
KEYS = {
    "embed": "wte",
    "positions": "wpe.weight",
    "blocks": "h",
    "attention.qkv": "attn.c_attn",
    "attention.proj": "attn.c_proj",
    "mlp.fc": "mlp.c_fc",
    "mlp.out": "mlp.c_proj",
}
SHAPES = {
    "ln_1.weight": (8,),
    "ln_1.bias": (8,),
    "attn.c_attn.weight": (8, 24),
    "attn.c_attn.bias": (24,),
    "attn.c_proj.weight": (8, 8),
    "attn.c_proj.bias": (8,),
    "ln_2.weight": (8,),
    "ln_2.bias": (8,),
    "mlp.c_fc.weight": (8, 32),
    "mlp.c_fc.bias": (32,),
    "mlp.c_proj.weight": (32, 8),
    "mlp.c_proj.bias": (8,),
}


def gpt2(state, tokens, heads):
    """Compute the scores of a GPT-2 with the keys and layouts of Hugging Face."""
    p = {key.removeprefix("transformer."): array.astype(np.float64) for key, array in state.items()}

    def dense(x, name):
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    def norm(x, name):
        normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return normal * p[f"{name}.weight"] + p[f"{name}.bias"]

    def attention(x, name):
        q, k, v = (part.reshape(len(x), heads, -1) for part in np.split(dense(x, f"{name}.c_attn"), 3, axis=-1))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
        weights = np.exp(np.where(np.tri(len(x), dtype=bool), scores, -np.inf))
        mixed = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
        return dense(mixed.reshape(len(x), -1), f"{name}.c_proj")

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    x = p["wte.weight"][tokens] + p["wpe.weight"][: len(tokens)]
    for i in range(2):
        x = x + attention(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn")
        x = x + dense(gelu(dense(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")), f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ p["wte.weight"].T


def test_a_gpt2_of_hugging_face():
    rng = np.random.default_rng(0)
    shapes = {"wte.weight": (11, 8), "wpe.weight": (6, 8), "ln_f.weight": (8,), "ln_f.bias": (8,)}
    shapes |= {f"h.{i}.{name}": shape for i in range(2) for name, shape in SHAPES.items()}
    state = {f"transformer.{name}": 0.5 * rng.normal(size=shape).astype("f4") for name, shape in shapes.items()}
    options = {"prefix": "transformer", "rename": KEYS, "layouts": {nn.Linear: state_dict.in_first}}
    template = eqx.filter_eval_shape(Gpt2.init, CONFIG, key=KEY)
    model = state_dict.from_torch_compatible_state_dict(template, state, **options)

    tokens = rng.integers(0, 11, 5)
    scores = eqx.filter_jit(lambda model, tokens: model(tokens))(model, axn.named(jnp.asarray(tokens), "pos"))
    np.testing.assert_allclose(scores.array, gpt2(state, tokens, 2), rtol=1e-4, atol=1e-4)

    back = state_dict.to_torch_compatible_state_dict(model, **options)
    assert sorted(back) == sorted(state)
    for key, array in back.items():
        np.testing.assert_array_equal(array, state[key])


def test_a_memory_has_the_convolutions_and_vectors_of_torch():
    layer, state = filled(lambda: nn.GatedDeltaNet.init("pos", E, (X, H), D, KeyHeads=X, window=3, key=KEY))
    shapes = {key: array.shape for key, array in state.items() if "conv" in key or "decay" in key}
    own, values = 2 * 5, 2 * 2 * 5
    assert shapes == {
        **{f"convs.{i}.weight": (size, 1, 3) for i, size in enumerate((own, own, values))},
        **{f"decay.{name}": (4,) for name in ("log_rate", "bias")},
    }
    # As a sum over taps, of which the last one is that of the position itself.
    x = draw(axn.Axis("pos", 4), X, D)
    padded = np.pad(np.asarray(x.array).reshape(4, own), ((2, 0), (0, 0)))
    expected = sum(padded[tap : tap + 4] * state["convs.0.weight"][:, 0, tap] for tap in range(3))
    close(layer.convs[0](x, "pos")[0], expected)
