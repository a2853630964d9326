"""What layers demand of their settings, and that numbers of numpy become those of Python."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisNotFoundError, OperandError
from axonym.nn.settings import apply_activation, as_python, check_fraction, check_int, draw_parameter
from tests.nn.layouts import fails

E, M, X, T, K = axn.make_axes(embed=4, mlp=6, experts=3, time=4, key_pos=4)
KEY = jax.random.key(0)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), jnp.array(3)], ids=repr)
def test_integers_of_any_kind(value):
    assert type(check_int("f", "size", value)) is int
    assert check_int("f", "size", value, least=3) == 3


@pytest.mark.parametrize(
    ("value", "given"),
    [(2.0, "2.0"), ("2", "'2'"), (None, "None"), (np.float64(2), "float64"), (jnp.ones(2), "ArrayImpl")],
)
def test_what_is_no_integer(value, given):
    fails(ArgumentError, f"f: size must be an int, not {given}", lambda: check_int("f", "size", value))
    fails(ArgumentError, f"f: size must be an int of at least 1, not {given}", lambda: check_int("f", "size", value, 1))


def test_integers_that_are_too_small():
    fails(ArgumentError, "f: size must be an int of at least 1, not 0", lambda: check_int("f", "size", np.int64(0), 1))
    assert check_int("f", "size", -1) == -1


@pytest.mark.parametrize("value", [0.5, np.float64(0.5), np.float32(0.5), jnp.array(0.5)], ids=repr)
def test_fractions_of_any_kind(value):
    assert type(check_fraction("f", "rate", value)) is float
    assert check_fraction("f", "rate", value) == 0.5


def test_what_is_no_fraction():
    for value in (-1, 1.5, float("nan")):
        fails(
            ArgumentError,
            f"f: rate must be a probability from 0 to 1, not {value}",
            lambda v=value: check_fraction("f", "rate", v),
        )
    problem = "f: rate must be a static Python number from 0 to 1, not"
    for value, kind in (("0.1", "str"), (None, "NoneType"), (np.ones(2), "a plain array")):
        fails(OperandError, f"{problem} {kind}", lambda value=value: check_fraction("f", "rate", value))
    with pytest.raises(OperandError, match=r"must be a static Python number from 0 to 1, not a plain array"):
        jax.jit(lambda rate: check_fraction("f", "rate", rate))(0.5)


def test_only_numbers_of_numpy_are_converted():
    assert type(as_python(np.float32(0.5))) is float
    for value in (None, 2, True, jnp.ones(()), np.ones(2)):
        assert as_python(value) is value


LAYERS = {
    "Dropout": lambda i, f: nn.Dropout(f(0.5)),
    "LayerNorm": lambda i, f: nn.LayerNorm.init(E, f(0.25)),
    "GroupNorm": lambda i, f: nn.GroupNorm.init(E, i(2), eps=f(0.25)),
    "BatchNorm": lambda i, f: nn.BatchNorm.init(E, "batch", f(0.25), f(0.5)),
    "Conv": lambda i, f: nn.Conv.init(
        "time", E, M, i(3), stride=i(2), padding=i(1), dilation=i(1), groups=i(2), key=KEY
    ),
    "ConvTranspose": lambda i, f: nn.ConvTranspose.init(
        "time", E, M, [i(3)], stride=i(2), padding=[(i(1), i(0))], output_padding=i(1), key=KEY
    ),
    "MLP": lambda i, f: nn.MLP.init(E, M, i(8), i(2), key=KEY),
    "GatedMLP": lambda i, f: nn.GatedMLP.init(E, M, i(8), key=KEY),
    "MixtureOfExperts": lambda i, f: nn.MixtureOfExperts.init(E, X, i(8), i(2), key=KEY, capacity_factor=f(1.25)),
    "LoraLinear": lambda i, f: nn.LoraLinear.init(
        nn.Linear.init(E, M, key=KEY), i(2), key=KEY, alpha=f(4), dropout=f(0.5)
    ),
    "RotaryEmbedding": lambda i, f: nn.RotaryEmbedding.init(E, f(100), size=i(2)),
    "Recurrent": lambda i, f: nn.Recurrent(nn.GRUCell.init(E, M, key=KEY), "time", unroll=i(2)),
    "KVCache": lambda i, f: nn.KVCache.init("key_pos", (K, E), window=i(2)),
    "window": lambda i, f: nn.window(i(2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_keep_numbers_of_python(name):
    make = LAYERS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = make(np.int64, np.float64)
    # The structure has the static fields, whose texts differ where their types do.
    assert str(jax.tree.structure(made)) == str(jax.tree.structure(make(int, float)))


def test_activations():
    x = axn.named(jnp.array([-1.0, 2.0]), "mlp")
    for right in (nn.relu, axn.nmap(jax.nn.relu)):
        np.testing.assert_array_equal(apply_activation("MLP", right, x).array, [0.0, 2.0])
    hint = "\n  hint: use the one in axonym.nn, or axn.nmap(activation)"
    for raw, name in ((jax.nn.relu, "relu"), (jnp.tanh, "tanh"), (jax.nn.gelu, "gelu")):
        fails(
            OperandError,
            f"MLP: the activation {name} does not take a NamedArray{hint}",
            lambda raw=raw: apply_activation("MLP", raw, x),
        )
    with pytest.raises(AxisNotFoundError, match=r"^softmax: "):
        apply_activation("MLP", lambda x: axn.softmax(x, "other"), x)
    with pytest.raises(OperandError, match=r"^add: cannot combine a NamedArray and str"):
        apply_activation("MLP", lambda x: x + "x", x)
    with pytest.raises(TypeError, match=r"^bad operand type for abs\(\): 'NoneType'$"):
        apply_activation("MLP", lambda x: abs(None), x)


BY_ACTIVATION = {
    "MLP": lambda activation: nn.MLP.init(E, M, 8, 1, activation, key=KEY),
    "GatedMLP": lambda activation: nn.GatedMLP.init(E, M, 8, activation, key=KEY),
    "MixtureOfExperts": lambda activation: nn.MixtureOfExperts.init(E, X, 8, 2, activation, key=KEY),
}


@pytest.mark.parametrize("name", BY_ACTIVATION)
def test_layers_with_an_activation(name):
    fails(
        OperandError,
        f"{name}.init: activation must be a function, not 'relu'\n"
        "  hint: pass the function itself, such as axn.nn.relu",
        lambda: BY_ACTIVATION[name]("relu"),
    )
    fails(
        OperandError,
        f"{name}: the activation silu does not take a NamedArray\n"
        "  hint: use the one in axonym.nn, or axn.nmap(activation)",
        lambda: jax.eval_shape(lambda: BY_ACTIVATION[name](jax.nn.silu)(axn.ones((T, E)))),
    )


BY_INITIALIZER = {
    "Linear": lambda initializer: nn.Linear.init(E, M, key=KEY, initializer=initializer),
    "Embedding": lambda initializer: nn.Embedding.init(E, M, key=KEY, initializer=initializer),
    "MoELinear": lambda initializer: nn.MoELinear.init(X, E, M, key=KEY, initializer=initializer),
    "Conv": lambda initializer: nn.Conv.init("time", E, M, 3, key=KEY, initializer=initializer),
}
FOLLOW = (
    "\n  such as: axn.nn.initializer.normal(0.02)"
    "\n  hint: wrap an initializer of JAX: lambda key, axes: axn.named(f(key, [axis.size for axis in axes]), axes)"
)


@pytest.mark.parametrize("name", BY_INITIALIZER)
def test_layers_with_an_initializer(name):
    make, theirs = BY_INITIALIZER[name], jax.nn.initializers.constant(2.0)
    for wrong, text in (
        ("normal", "an initializer is a function, not str"),
        (nn.initializer.zeros, "the initializer does not take a key and axes: too many positional arguments"),
    ):
        fails(OperandError, f"{name}.init: {text}{FOLLOW}", lambda wrong=wrong: make(wrong))
    with pytest.raises(OperandError) as error:
        make(theirs)
    assert str(error.value).startswith(f"{name}.init: an initializer of JAX takes a key and a shape, not axes: ")
    assert str(error.value).endswith(FOLLOW)
    fails(
        OperandError,
        f"{name}.init: the initializer returned a plain array, not a NamedArray{FOLLOW}",
        lambda: make(lambda key, axes: jnp.ones([axis.size for axis in axes])),
    )
    layer = make(lambda key, axes: axn.named(theirs(key, [axis.size for axis in axes]), axes))
    assert (layer.weight.array == 2).all()


def test_errors_of_an_initializer_stay():
    fails(
        OperandError,
        'axis_size: 3 is a size without a name\n  hint: name it: Axis("name", 3), or {"name": 3}',
        lambda: draw_parameter("Linear.init", lambda key, axes: axn.axis_size(3), KEY, (E,)),
    )
    text = "unsupported operand type(s) for +: 'int' and 'str'"
    fails(TypeError, text, lambda: draw_parameter("Linear.init", lambda key, axes: 1 + "1", KEY, (E,)))
