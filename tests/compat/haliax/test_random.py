"""Random arrays over named axes, against the functions of `jax.random` with their names."""

import axonym.compat.haliax  # noqa: F401 # isort: skip
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax.random import generate_sharded

A, B, D = hax.make_axes(a=4, b=3, d=2)
KEY = jax.random.PRNGKey(7)

PLAIN = ["cauchy", "exponential", "gumbel", "laplace", "logistic", "normal", "rademacher"]
# name, arguments behind the shape, how jax.random takes the same
WITH_PARAMETERS = [
    ("bernoulli", (0.3,), lambda key, shape: jax.random.bernoulli(key, 0.3, shape)),
    ("beta", (0.5, 2.0), lambda key, shape: jax.random.beta(key, 0.5, 2.0, shape)),
    ("gamma", (0.5,), lambda key, shape: jax.random.gamma(key, 0.5, shape)),
    ("loggamma", (0.5,), lambda key, shape: jax.random.loggamma(key, 0.5, shape)),
    ("pareto", (2.0,), lambda key, shape: jax.random.pareto(key, 2.0, shape)),
    ("poisson", (3.0,), lambda key, shape: jax.random.poisson(key, 3.0, shape)),
    ("randint", (-2, 9), lambda key, shape: jax.random.randint(key, shape, -2, 9)),
    ("t", (3.0,), lambda key, shape: jax.random.t(key, 3.0, shape)),
    ("truncated_normal", (-1.0, 2.0), lambda key, shape: jax.random.truncated_normal(key, -1.0, 2.0, shape)),
    ("uniform", (), jax.random.uniform),
    ("uniform", (float, -1.0, 2.0), lambda key, shape: jax.random.uniform(key, shape, float, -1.0, 2.0)),
    ("weibull_min", (2.0, 0.5), lambda key, shape: jax.random.weibull_min(key, 2.0, 0.5, shape)),
]
CASES = [(name, (), getattr(jax.random, name)) for name in PLAIN] + WITH_PARAMETERS


@pytest.mark.parametrize(("name", "args", "reference"), CASES, ids=[case[0] for case in CASES])
def test_the_numbers_are_those_of_jax(name, args, reference):
    found = []

    def drawn(key):
        found.append(getattr(hax.random, name)(key, (A, B), *args))
        return found[0].array

    dtype = {"bernoulli": bool, "poisson": np.int32, "randint": np.int32}.get(name, np.float32)
    rest = [float] * (name == "rademacher")
    result, expected = jax.jit(lambda key: (drawn(key), reference(key, (4, 3), *rest)))(KEY)
    np.testing.assert_array_equal(result, expected)
    assert (type(found[0]), found[0].axes, found[0].dtype) == (hax.NamedArray, (A, B), dtype)


def test_shapes_and_dtypes():
    expected = jax.random.normal(KEY, (4, 3))
    for shape in ((A, B), [A, B], {"a": 4, "b": 3}):
        np.testing.assert_array_equal(hax.random.normal(KEY, shape).array, expected)
    assert hax.random.normal(KEY, A).axes == (A,)
    assert hax.random.normal(jax.random.key(7), ()).axes == ()
    np.testing.assert_array_equal(hax.random.normal(jax.random.key(7), (A, B)).array, expected)
    assert hax.random.normal(KEY, shape=A, dtype=jnp.bfloat16).dtype == jnp.bfloat16
    assert hax.random.randint(KEY, A, 0, 5, dtype=jnp.uint8).dtype == jnp.uint8
    with pytest.raises(ValueError, match="'a'"):
        hax.random.uniform(KEY, (A, A))


def test_parameters_line_up_by_name():
    low, high = hax.named([0.0, 10.0, 20.0], "b"), hax.named([1.0, 2.0, 3.0, 4.0], "a")
    out = hax.random.uniform(KEY, (A, B), minval=low, maxval=low + 1)
    base = jax.random.uniform(KEY, (4, 3), float, low.array, low.array + 1)
    np.testing.assert_array_equal(out.array, base)
    cases = [
        (hax.random.randint(KEY, (A, B), 0, high), jax.random.randint(KEY, (4, 3), 0, high.array[:, None])),
        (hax.random.bernoulli(KEY, (A, B), high / 5), jax.random.bernoulli(KEY, high.array[:, None] / 5, (4, 3))),
    ]
    for got, expected in cases:
        assert (type(got), got.axes) == (hax.NamedArray, (A, B))
        np.testing.assert_array_equal(got.array, expected)
    with pytest.raises(ValueError, match="'c'"):
        hax.random.gamma(KEY, (A, B), hax.ones(hax.Axis("c", 2)))


def test_vectors_in_a_ball():
    out = jax.eval_shape(lambda: hax.random.ball(KEY, (A, B), D, p=3.0))
    assert (type(out), out.axes, out.dtype) == (hax.NamedArray, (A, B, D), np.float32)
    draw = jax.jit(lambda key: (hax.random.ball(key, (A,), D).array, jax.random.ball(key, 2, 2.0, (4,))))
    np.testing.assert_array_equal(*draw(KEY))


def test_categorical():
    logits = hax.named(np.log([[1.0, 2.0, 3.0]] * 4), ("a", "b"))
    out = hax.random.categorical(KEY, logits, "b")
    assert (type(out), out.axes) == (hax.NamedArray, (A,))
    np.testing.assert_array_equal(out.array, jax.random.categorical(KEY, logits.array, axis=-1))
    first = hax.random.categorical(KEY, logits, A)
    np.testing.assert_array_equal(first.array, jax.random.categorical(KEY, logits.array, axis=0))
    assert first.axes == (B,)
    more = hax.random.categorical(KEY, logits, axis=B, shape=(D, A))
    assert more.axes == (D, A)
    np.testing.assert_array_equal(more.array, jax.random.categorical(KEY, logits.array, -1, (2, 4)))


def test_categorical_draws_what_jax_does_for_the_stored_array():
    stored = np.log(np.arange(1.0, 13).reshape(3, 4))  # the choices come first
    logits = hax.named(stored, ("b", "a"))
    assert hax.random.categorical(KEY, logits, "b", shape=A).axes == (A,)
    for shape, spread in (((A,), stored), ((D, A), stored[None]), ((A, D), stored.T[:, None])):
        full = jnp.broadcast_to(spread, {1: (3, 4), 2: (2, 3, 4)}[len(shape)] if shape[-1] == A else (4, 2, 3))
        at = list(full.shape).index(3)
        drawn = hax.random.categorical(KEY, logits, "b", shape=shape)
        assert drawn.axes == shape
        np.testing.assert_array_equal(drawn.array, jax.random.categorical(KEY, full, at))


def test_choice_and_permutation():
    a = hax.named(np.arange(12).reshape(4, 3), ("a", "b"))
    p = hax.named([0.1, 0.2, 0.3, 0.4], "a")
    got = hax.random.choice(KEY, D, a, "a", p=p)
    assert (type(got), got.axes) == (hax.NamedArray, (D, B))
    np.testing.assert_array_equal(got.array, jax.random.choice(KEY, a.array, (2,), True, p.array))
    columns = hax.random.choice(KEY, (D,), a, B, replace=False)
    assert columns.axes == (D, A)
    np.testing.assert_array_equal(columns.array, jax.random.choice(KEY, a.array, (2,), False, axis=1).T)
    for independent in (False, True):
        for axis, name in enumerate("ab"):
            shuffled = hax.random.permutation(KEY, a, name, independent)
            assert (type(shuffled), shuffled.axes) == (hax.NamedArray, a.axes)
            np.testing.assert_array_equal(
                shuffled.array, jax.random.permutation(KEY, a.array, axis=axis, independent=independent)
            )


def test_results_are_laid_out_by_the_mapping(auto_mesh, explicit_mesh):
    for mesh in (auto_mesh, explicit_mesh):
        with hax.set_mesh(mesh), hax.axis_mapping({"a": "data"}):
            out = hax.random.normal(KEY, (B, A))
            assert out.array.sharding.spec[1] == "data"
            np.testing.assert_array_equal(out.array, jax.random.normal(KEY, (3, 4)))
            chosen = hax.random.categorical(KEY, hax.zeros((B, A)), B)
            shuffled = hax.random.permutation(KEY, out, B, independent=True)
            assert (chosen.array.sharding.spec[0], shuffled.array.sharding.spec[1]) == ("data", "data")


@pytest.mark.filterwarnings("ignore:.*context manager has been deprecated:DeprecationWarning")
def test_results_are_laid_out_on_a_mesh_that_was_entered_later():
    with hax.axis_mapping({"a": "data"}), jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",)):
        assert hax.random.uniform(KEY, A).array.sharding.spec == jax.P("data")


def test_keys_can_be_split_along_an_axis(auto_mesh):
    expected = jax.vmap(lambda key: jax.random.normal(key, (3,)))(jax.random.split(KEY, 4))
    out = generate_sharded(hax.random.normal, axis=A)(KEY, (A, B))
    assert (type(out), out.axes) == (hax.NamedArray, (A, B))
    np.testing.assert_array_equal(out.array, expected)
    turned = hax.random.generate_sharded(hax.random.normal, "a")(KEY, {"b": 3, "a": 4}, dtype=jnp.float32)
    assert turned.axes == (B, A)
    np.testing.assert_array_equal(turned.array, expected.T)
    bounds = hax.random.generate_sharded(hax.random.uniform, A)(
        KEY, (A, B), minval=hax.named([0.0, 1, 2, 3], "a"), maxval=4
    )
    assert (bounds.array >= np.arange(4)[:, None]).all()
    unsplit = generate_sharded(hax.random.normal)
    np.testing.assert_array_equal(unsplit(KEY, (A, B)).array, jax.random.normal(KEY, (4, 3)))
    with hax.set_mesh(auto_mesh), hax.axis_mapping({"a": "data"}):
        split = unsplit(KEY, (A, B))
        assert split.array.sharding.spec[0] == "data"
        np.testing.assert_array_equal(split.array, expected)
    with pytest.raises(ValueError, match="'c'"):
        generate_sharded(hax.random.normal, "c")(KEY, A)
