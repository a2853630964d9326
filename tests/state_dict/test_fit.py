"""What is said, and not done, where a state dict does not fit a model."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, OperandError
from axonym.state_dict import (
    Stored,
    from_state_dict,
    from_torch_compatible_state_dict,
    in_first,
    load_state_dict,
    save_state_dict,
    to_state_dict,
    to_torch_compatible_state_dict,
)

E, M, S, T = axn.make_axes(embed=4, mlp=6, source=5, target=5)
KEY = jax.random.key(0)
BACK = {"plain": from_state_dict, "torch": from_torch_compatible_state_dict}
TO = {"plain": to_state_dict, "torch": to_torch_compatible_state_dict}


def error_of(function, *args, **options):
    with pytest.raises(ArgumentError) as error:
        function(*args, **options)
    return str(error.value)


def opened(state, folder, max_bytes=None):
    save_state_dict(state, folder / "model.safetensors", max_bytes=max_bytes)
    return load_state_dict(folder)


def numbered(*axes):
    shape = [axis.size for axis in axes]
    return axn.named(np.arange(np.prod(shape), dtype="f4").reshape(shape), axes)


@pytest.mark.parametrize("max_bytes", [None, 100])
def test_axes_in_another_order_are_transposed(tmp_path, max_bytes):
    tree = {"square": numbered(S, T), "more": numbered(E, S, T)}
    template = {"square": axn.zeros((T, S)), "more": axn.zeros((T, E, S))}
    loaded = from_state_dict(template, opened(to_state_dict(tree), tmp_path, max_bytes))
    np.testing.assert_array_equal(loaded["square"].array, np.arange(25).reshape(5, 5).T)
    np.testing.assert_array_equal(loaded["more"].array, np.arange(100).reshape(4, 5, 5).transpose(2, 0, 1))
    memory = from_state_dict(template, to_state_dict(tree))
    np.testing.assert_array_equal(memory["square"].array, loaded["square"].array)
    # What knows no names is taken as it is.
    plain = {key: np.asarray(array) for key, array in to_state_dict(tree).items()}
    loaded = from_state_dict({"square": axn.zeros((T, S))}, {"square": plain["square"]})
    np.testing.assert_array_equal(loaded["square"].array, plain["square"])


@pytest.fixture(scope="module")
def layers():
    stack = nn.Stacked.init(E, nn.Linear)((S, M), (T, M.alias("out")), key=KEY)
    up = nn.ConvTranspose.init("width", S, T, 3, key=KEY)
    return {"layers": stack, "square": nn.Linear.init(S, T, key=KEY), "up": up}


@pytest.mark.parametrize("saved", TO)
@pytest.mark.parametrize("read", BACK)
def test_names_tell_the_layout(layers, tmp_path, saved, read):
    model = dict(layers)
    state = opened(TO[saved](model), tmp_path)
    if (saved, read) == ("torch", "plain"):  # which parts an axis was split in is not known without the layout
        assert error_of(from_state_dict, model, state).splitlines()[1:] == [
            "  wrong axes: up.weight: saved as groups of target=1 * source=5, target=5, kernel.width=3, "
            "but the model has target=5, source=5, kernel.width=3",
            "  hint: call from_torch_compatible_state_dict: 12 of 12 arrays fit then",
        ]
        del model["up"], state["up.weight"], state["up.bias"]
    loaded = BACK[read](jax.eval_shape(lambda: model), state)
    for found, expected in zip(jax.tree.leaves(loaded), jax.tree.leaves(model), strict=True):
        np.testing.assert_array_equal(found, expected)


class Own(eqx.Module):
    weight: axn.NamedArray


def test_reversed_and_split_axes_are_known(tmp_path):
    own = Own(numbered(E))
    state = opened(to_state_dict(own, layouts={Own: lambda _: {"weight": Stored((E,), ("embed",))}}), tmp_path)
    np.testing.assert_array_equal(state["weight"], [3, 2, 1, 0])
    np.testing.assert_array_equal(from_state_dict(own, state).weight.array, [0, 1, 2, 3])
    split = {Own: lambda _: {"weight": Stored((("embed", "half"),), (), {"embed": ("half", 2)})}}
    state = opened(to_state_dict(own, layouts=split), tmp_path)
    np.testing.assert_array_equal(state["weight"], [0, 2, 1, 3])
    np.testing.assert_array_equal(from_state_dict(own, state, layouts=split).weight.array, [0, 1, 2, 3])
    assert error_of(from_state_dict, own, state).splitlines()[1] == (
        "  wrong axes: weight: saved as embed=2 * half=2, but the model has embed=4"
    )


def test_axes_with_other_names_are_refused(tmp_path):
    state = opened(to_state_dict({"a": numbered(S, T), "b": numbered(S), "c": jnp.ones(5)}), tmp_path)
    template = {"a": axn.zeros((E.resize(5), T)), "b": axn.zeros(E.resize(5)), "c": axn.zeros(T)}
    assert error_of(from_state_dict, template, state) == (
        "from_state_dict: the state dict does not fit: 2 wrong axes\n"
        "  wrong axes: a: saved as source=5, target=5, but the model has embed=5, target=5\n"
        "  wrong axes: b: saved as source=5, but the model has embed=5\n"
        "  hint: if these are the same axes, pass rename_axes={'embed': 'source'}; numpy.asarray(array) of a value has "
        "no names to compare"
    )
    turned = {"a": axn.zeros((T, E.resize(5)))}
    text = error_of(from_state_dict, turned, {"a": state["a"]}, rename_axes={"target": "target"})
    assert "pass rename_axes={'target': 'target', 'embed': 'source'}; " in text  # what both have is not renamed
    loaded = from_state_dict(template, state, rename_axes={"embed": "source"})
    np.testing.assert_array_equal(loaded["a"].array, numbered(S, T).array)
    loaded = from_state_dict(
        {"a": axn.zeros((S, T))}, {"a": state["a"]}, rename_axes={"source": "target", "target": "source"}
    )
    np.testing.assert_array_equal(loaded["a"].array, np.asarray(numbered(S, T).array).T)
    bare = {key: np.asarray(array) for key, array in state.items()}
    np.testing.assert_array_equal(from_state_dict(template, bare)["b"].array, np.arange(5))
    # Without a name for each axis there, there is no such table.
    text = error_of(from_state_dict, {"a": axn.zeros(E.resize(25))}, {"a": state["a"]})
    assert text.splitlines()[1:] == [
        "  wrong axes: a: saved as source=5, target=5, but the model has embed=25",
        "  hint: numpy.asarray(array) of a value has no names to compare",
    ]


def test_derived_names_follow_their_base(tmp_path):
    wide = axn.Axis("wide", 4)
    state = opened(to_state_dict({"w": numbered(wide, wide.derive("out"))}), tmp_path)
    template = {"w": axn.zeros((E.derive("out"), E))}
    loaded = from_state_dict(template, state, rename_axes={"embed": "wide"})
    np.testing.assert_array_equal(loaded["w"].array, np.arange(16).reshape(4, 4).T)
    assert error_of(from_state_dict, template, state, rename_axes={"embd": "wide"}) == (
        "from_state_dict: rename_axes has 'embd', which no array of the model has\n"
        "  axes of the model: embed, embed.out\n"
        "  hint: did you mean 'embed'?"
    )
    with pytest.raises(OperandError) as error:
        from_state_dict(template, state, rename_axes={"embed": 3})
    assert str(error.value) == (
        "from_state_dict: rename_axes must be a dict from names of the model to names of the state dict, not "
        "{'embed': 3}\n"
        '  hint: write rename_axes={"embed": "hidden"}'
    )


def test_sizes_are_told_with_their_names(tmp_path):
    state = opened(to_torch_compatible_state_dict({"x": nn.Linear.init(E, (S, M), key=KEY)}), tmp_path)
    template = {"x": nn.Linear.init(E, (S.resize(6), M.resize(5)), key=KEY)}  # the same number in all
    assert error_of(from_torch_compatible_state_dict, template, state).splitlines()[1:] == [
        "  wrong shape: x.weight: saved as source=5 * mlp=6, embed=4, but the model has source=6 * mlp=5, embed=4",
        "  wrong shape: x.bias: saved as source=5 * mlp=6, but the model has source=6 * mlp=5",
    ]


def test_dimensions_without_names_have_places(tmp_path):
    some = axn.NamedArray(jnp.ones((5, 4)), ("embed",))
    state = opened(to_state_dict({"x": some}), tmp_path)
    assert from_state_dict({"x": axn.ones((S, E))}, state)["x"].names == ("source", "embed")
    assert from_state_dict({"x": jnp.ones((5, 4))}, state)["x"].shape == (5, 4)
    flat = opened(to_torch_compatible_state_dict(nn.Linear.init(E, (S, M), key=KEY)), tmp_path)
    assert from_state_dict({"bias": jnp.ones(30)}, {"bias": flat["bias"]})["bias"].shape == (30,)
    state = opened(to_state_dict({"x": some}), tmp_path)
    text = error_of(from_state_dict, {"x": axn.ones((S, M.resize(4)))}, state)
    assert text.splitlines()[1] == "  wrong axes: x: saved as 5, embed=4, but the model has source=5, mlp=4"


def foreign(model, folder, in_first_too=False):
    """Write a model as a file of torch, which knows no axes."""
    layouts = {nn.Linear: in_first} if in_first_too else None
    state = {key: np.asarray(array) for key, array in to_torch_compatible_state_dict(model, layouts=layouts).items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return load_state_dict(folder)


def test_shapes_of_another_layout_are_recognised(tmp_path):
    model = nn.MLP.init(E, (S, M), M, 2, key=KEY)
    state = foreign(model, tmp_path)
    assert error_of(from_state_dict, model, state).splitlines()[-1] == (
        "  hint: call from_torch_compatible_state_dict: 6 of 6 arrays fit then"
    )
    state = foreign(model, tmp_path, in_first_too=True)
    call = "layouts={axn.nn.Linear: axn.state_dict.in_first}"
    assert error_of(from_torch_compatible_state_dict, model, state).splitlines()[-1] == (
        f"  hint: pass {call}: 6 of 6 arrays fit then"
    )
    assert error_of(from_state_dict, model, state).splitlines()[-1] == (
        f"  hint: call from_torch_compatible_state_dict with {call}: 6 of 6 arrays fit then"
    )
    own = {key: np.asarray(array) for key, array in to_state_dict(model).items()}
    assert error_of(from_torch_compatible_state_dict, model, own).splitlines()[-1] == (
        "  hint: call from_state_dict: 6 of 6 arrays fit then"
    )
    assert "hint" not in error_of(from_state_dict, {"w": axn.ones(E)}, {"w": np.ones(9, "f4")})


class Tensor(np.ndarray):
    __module__ = "torch"


def test_squares_of_torch_are_not_transposed_without_a_word(tmp_path):
    model = {
        "a": nn.Linear.init(S, T, key=KEY),
        "one": nn.Linear.init(S, T.resize(1), key=KEY),
        "n": nn.LayerNorm.init(S),
    }
    square = {"a": model["a"], "n": model["n"]}
    of_file = foreign(square, tmp_path)
    of_torch = {key: np.asarray(array).view(Tensor) for key, array in of_file.items()}
    for state in (of_file, of_torch):
        with pytest.warns(UserWarning, match="seem to be from torch") as told:
            from_state_dict(square, state)
        assert [str(each.message) for each in told] == [
            "from_state_dict: 1 arrays, which seem to be from torch, fit in its layout as well, with axes exchanged\n"
            "  they are: a.weight\n"
            "  hint: call from_torch_compatible_state_dict; or pass layouts={} to read them as they are"
        ]
        assert told[0].filename == __file__
        loaded = from_torch_compatible_state_dict(square, state)
        np.testing.assert_array_equal(loaded["a"].weight.array, model["a"].weight.array)
        from_state_dict(square, state, layouts={})
    norms = {"n": model["n"]}
    from_state_dict(norms, foreign(norms, tmp_path))  # the same in both
    from_state_dict(square, {key: np.asarray(array) for key, array in of_file.items()})  # of nobody knows whom


def keys(*names):
    return {name: np.ones(4, "f4") for name in names}


def test_prefixes_are_recognised():
    model = {"a": axn.ones(E), "b": axn.ones(E), "c": axn.ones(E)}
    under = keys("model.net.a", "model.net.b", "model.net.c", "head")

    def hint(*args, **options):
        return error_of(from_state_dict, *args, **options).rpartition("hint: ")[2]

    assert hint(model, under) == "pass prefix='model.net': 3 of 3 keys are there after 'model.net'"
    assert hint(model, under, "model") == "pass prefix='model.net': 3 of 3 keys are there after 'model.net'"
    assert hint(model, keys("a", "b"), "net") == "leave the prefix out: 2 of 3 keys are there without a prefix"
    assert hint({"net": {"x": model}}, keys("a", "b", "c")) == (
        "pass rename=lambda key: key.removeprefix('net.x.'): 3 of 3 keys are there without it"
    )
    layers = keys(*(f"layers.{i}.{name}" for i in range(3) for name in "abc"))
    assert hint(model, layers) == ("there are 3 prefixes with such keys; pass one of them, as in prefix='layers.0'")
    # Most arrays are found without one.
    assert hint(model, keys("a", "b", "old.c")) == "pass strict=False to ignore missing and unexpected keys"
    loaded = from_state_dict({"net": {"x": model}}, keys("a", "b", "c"), rename=lambda key: key.removeprefix("net.x."))
    assert loaded["net"]["x"]["a"].names == ("embed",)
    from_state_dict(model, under, "model.net")


def test_nothing_loaded_is_an_error():
    model = {"a": axn.ones(E), "b": axn.ones(E)}
    assert error_of(from_state_dict, model, keys("net.a", "net.b"), strict=False) == (
        "from_state_dict: nothing would be loaded: the state dict has none of the 2 arrays of the model\n"
        "  the model has: a, b\n"
        "  the state dict has: net.a, net.b\n"
        "  hint: pass prefix='net': 2 of 2 keys are there after 'net'"
    )
    assert error_of(from_state_dict, model, {}, strict=False).splitlines()[2] == "  the state dict has: nothing"
    text = error_of(
        from_torch_compatible_state_dict, {"weight": axn.ones(E)}, keys("weights", "x", "y", "z"), strict=False
    )
    assert text.splitlines()[2:] == [
        "  the state dict has: weights, x, y and 1 more",
        "  hint: for 'weight': did you mean 'weights'?",
    ]
    assert from_state_dict({"f": jnp.tanh}, keys("a"), strict=False) == {"f": jnp.tanh}


def test_a_part_is_loaded_with_a_warning_if_there_is_another_part():
    model = {"a": axn.ones(E), "bias": axn.ones(E)}
    with pytest.warns(UserWarning, match="stay as they are") as told:
        from_state_dict(model, keys("a", "biass"), strict=False)
    assert [str(each.message) for each in told] == [
        "from_state_dict: 1 of 2 arrays stay as they are, and 1 keys are not used\n"
        "  they stay: bias\n"
        "  not used: biass\n"
        "  hint: for 'bias': did you mean 'biass'?"
    ]
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_state_dict(model, keys("a"), strict=False)  # all that is there
        from_state_dict(model, keys("a", "bias", "more"), strict=False)  # all that is needed
        from_state_dict(model, keys("net.a", "more"), "net", strict=False)


@pytest.mark.parametrize(
    ("given", "kept", "values", "fits"),
    [
        ("i4", "i1", [-128, 127], True),
        ("i4", "i1", [300], False),
        ("i4", "i1", [-129], False),
        ("i1", "u1", [-1], False),
        ("u8", "i8", [2**63], False),
        ("i8", "i4", [2**31], False),
        ("i8", "i4", [2**31 - 1], True),
        ("i8", "int4", [7, -8], True),
        ("i8", "int4", [8], False),
        ("int4", "u1", [7], True),
        ("int4", "u1", [-8], False),
        ("i8", "i1", [], True),
    ],
)
def test_integers_that_do_not_fit_are_not_wrapped(given, kept, values, fits):
    kinds = [jnp.dtype(jnp.int4) if each == "int4" else np.dtype(each) for each in (given, kept)]
    array = np.array(values, np.int64 if given != "u8" else np.uint64).astype(kinds[0])
    template = {"x": np.zeros(len(values), kinds[1])}
    if fits:
        loaded = from_state_dict(template, {"x": array}, cast=True)["x"]
        assert loaded.dtype == kinds[1]
        assert loaded.astype("i8").tolist() == values
        return
    limits = jnp.iinfo(kinds[1])
    assert error_of(from_state_dict, template, {"x": array}, cast=True) == (
        "from_state_dict: the state dict does not fit: 1 wrong values\n"
        f"  wrong values: x: {min(values)} to {max(values)} in {kinds[0]}, "
        f"but {kinds[1]} has {limits.min} to {limits.max}"
    )
