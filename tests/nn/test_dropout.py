"""`Dropout`: what is dropped, what is scaled, and on what it depends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.base.kinds import type_text
from axonym.errors import ArgumentError, AxisNotFoundError, AxisSizeError, OperandError
from tests.nn.layouts import draw, fails, lies, same

pytestmark = pytest.mark.sampled

B, S, E = axn.make_axes(batch=8, seq=6, embed=4)
KEY = jax.random.key(0)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rate_and_scale(rate):
    x = axn.ones((axn.Axis("batch", 500), axn.Axis("embed", 200)))
    out = nn.Dropout(rate)(x, key=KEY)
    assert out.names == x.names
    kept = np.asarray(out.array) != 0
    assert kept.mean() == pytest.approx(1 - rate, abs=0.005)
    np.testing.assert_allclose(out.array[kept], 1 / (1 - rate), rtol=1e-6)
    assert float(out.mean()) == pytest.approx(1, rel=0.05)


def test_each_kept_element_is_scaled_and_no_other_depends_on_it():
    x = draw(B, S, E)
    out = np.asarray(nn.Dropout(0.25)(x, key=KEY).array)
    kept = out != 0
    np.testing.assert_allclose(out[kept], np.asarray(x.array)[kept] / 0.75, rtol=1e-6)
    other = np.asarray(nn.Dropout(0.25)(x * 100 + 1, key=KEY).array)
    np.testing.assert_array_equal(other != 0, kept)
    assert (np.asarray(nn.Dropout(0.25)(x, key=jax.random.key(1)).array) != 0).tolist() != kept.tolist()


def test_nothing_and_everything():
    x = draw(B, E)
    assert nn.Dropout(0.0)(x) is x
    out = nn.Dropout(1.0)(x / 0, key=KEY)
    same(out, ("batch", "embed"), np.zeros((8, 4)))
    gradient = jax.grad(lambda x: nn.Dropout(1.0)(x, key=KEY).sum().scalar())(x)
    same(gradient, ("batch", "embed"), np.zeros((8, 4)))


def test_inference_both_ways():
    x = draw(B, E)
    training, inference = nn.Dropout(0.5), nn.Dropout(0.5, inference=True)
    assert training(x, inference=True) is x
    assert inference(x) is x
    assert inference(x, key=KEY) is x
    dropped = training(x, key=KEY)
    np.testing.assert_array_equal(inference(x, inference=False, key=KEY).array, dropped.array)
    np.testing.assert_array_equal(training(x, inference=False, key=KEY).array, dropped.array)
    assert not np.array_equal(dropped.array, x.array)


@pytest.mark.parametrize("together", ["seq", S, ("seq",), (S, "batch")], ids=str)
def test_axes_along_which_elements_are_dropped_together(together):
    x = axn.ones((B, S, E))
    out = np.asarray(nn.Dropout(0.5, together)(x, key=KEY).array)
    np.testing.assert_array_equal(out, np.broadcast_to(out[:, :1], out.shape))
    if isinstance(together, tuple) and len(together) == 2:
        np.testing.assert_array_equal(out, np.broadcast_to(out[:1, :1], out.shape))
    else:
        assert len({row.tobytes() for row in out[:, 0]}) > 1
    assert {0.0, 2.0} == set(out.ravel().tolist())


def test_the_order_of_axes_to_drop_together_does_not_matter():
    x = draw(B, S, E)
    results = [nn.Dropout(0.5, axes)(x, key=KEY).array for axes in [("batch", "seq"), ("seq", "batch"), (S, B)]]
    for result in results:
        np.testing.assert_array_equal(result, results[0])


def test_elements_of_anonymous_dimensions_are_dropped_one_by_one():
    x = axn.ones((B, S, E))
    out = nn.Dropout(0.5)(x.untag("batch"), key=KEY)
    assert out.names == ("seq", "embed")
    assert len({row.tobytes() for row in np.asarray(out.array)}) == 8
    np.testing.assert_array_equal(out.array, nn.Dropout(0.5)(x, key=KEY).array)
    together = nn.Dropout(0.5, "seq")(x.untag("batch"), key=KEY)
    np.testing.assert_array_equal(together.array, nn.Dropout(0.5, "seq")(x, key=KEY).array)


@pytest.mark.parametrize("rate", [0.5, np.float64(0.5), np.float32(0.5), np.array(0.5)], ids=repr)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_the_dtype_stays(dtype, rate):
    x = axn.ones(E, dtype)
    expected = nn.Dropout(0.5)(x, key=KEY)
    for out in (nn.Dropout(rate)(x, key=KEY), nn.dropout(x, rate, key=KEY)):
        assert out.dtype == dtype
        np.testing.assert_array_equal(out.array, expected.array)


def test_a_rate_of_numpy_in_a_loop():
    drop = lambda x, _: nn.Dropout(np.float64(0.5))(x, key=KEY)  # noqa: E731
    x = axn.fold(drop, "seq")(axn.ones(E, jnp.bfloat16), axn.ones(S))
    assert x.dtype == jnp.bfloat16


def test_the_gradient_is_the_scaled_mask():
    x = draw(B, E)
    dropout = nn.Dropout(0.5)
    mask = np.asarray(dropout(axn.ones((B, E)), key=KEY).array)
    gradient = jax.jit(jax.grad(lambda x: (dropout(x, key=KEY) * 3).sum().scalar()))(x)
    same(gradient, ("batch", "embed"), mask * 3)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_what_is_dropped_does_not_depend_on_the_layout(kind, auto_mesh, explicit_mesh):
    x = draw(B, S, E)
    expected = [nn.Dropout(0.5, axes)(x, key=KEY) for axes in ((), "batch", "embed")]
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    with axn.set_mesh(mesh):
        for mapping in ({"batch": ("data", "model")}, {"batch": "data", "seq": "model"}, {"embed": "data"}):
            given = axn.shard(x, mapping)
            run = lambda x: [nn.Dropout(0.5, axes)(x, key=KEY) for axes in ((), "batch", "embed")]  # noqa: E731
            for out, other in zip(axn.named_jit(run, mapping)(given), expected, strict=True):
                assert lies(out, mesh, mapping)
                same(out, ("batch", "seq", "embed"), other.array)


def test_it_is_static_and_adds_no_leaves():
    assert jax.tree.leaves(nn.Dropout(0.5)) == []
    assert nn.Dropout(0.5, "seq") == nn.Dropout(0.5, (axn.Axis("seq", 6),))
    assert hash(nn.Dropout(0.1)) == hash(nn.Dropout(0.1))


def test_errors():
    fails(
        OperandError,
        "Dropout: dropout with probability 0.5 needs a key\n  hint: pass key=..., or inference=True",
        lambda: nn.Dropout()(axn.ones(E)),
    )
    fails(
        AxisNotFoundError,
        "Dropout: the input lacks axis 'sequ' of broadcast_axes\n"
        "  input has: seq=6, embed=4\n"
        "  hint: did you mean 'seq'?",
        lambda: nn.Dropout(0.5, "sequ")(axn.ones((S, E)), key=KEY),
    )
    for call in (lambda: nn.Dropout()(jnp.ones(4), key=KEY), lambda: nn.Dropout(0)(jnp.ones(4))):
        with pytest.raises(OperandError, match=r"^Dropout: expected a NamedArray, got a plain array\n  its shape"):
            call()
    for rate in (-0.1, 1.5, float("nan")):
        fails(
            ArgumentError,
            f"Dropout: pdrop must be a probability from 0 to 1, not {rate}",
            lambda rate=rate: nn.Dropout(rate),
        )


def test_the_function_does_what_the_layer_does():
    x = draw(B, S, E)
    for together in (None, "seq", (S, "batch")):
        expected = nn.Dropout(0.3, together)(x, key=KEY).array
        np.testing.assert_array_equal(nn.dropout(x, 0.3, together, key=KEY).array, expected)
    assert nn.dropout(x, 0.3, inference=True) is x
    assert nn.dropout(x, 0) is x
    fails(
        OperandError,
        "dropout: dropout with probability 0.3 needs a key\n  hint: pass key=..., or inference=True",
        lambda: nn.dropout(x, 0.3),
    )
    fails(
        AxisNotFoundError,
        "dropout: the input lacks axis 'seqs' of broadcast_axes\n"
        "  input has: batch=8, seq=6, embed=4\n"
        "  hint: did you mean 'seq'?",
        lambda: nn.dropout(x, 0.3, "seqs", key=KEY),
    )
    fails(
        AxisSizeError,
        "dropout: axis 'seq' was given with size 9, but the input has size 6\n  input has: batch=8, seq=6, embed=4",
        lambda: nn.dropout(x, 0.3, S.resize(9), key=KEY),
    )
    for key in (KEY, jax.random.PRNGKey(0)):
        fails(
            OperandError,
            f"dropout: broadcast_axes must be axes, not {type_text(key)}\n  hint: pass a key by its name: key=...",
            lambda key=key: nn.dropout(x, 0.3, key),
        )
    fails(
        OperandError,
        'Dropout: 0 is a position, but axes have names\n  hint: write the name of an axis, such as "batch"',
        lambda: nn.Dropout(0.3, 0),
    )
    fails(
        ArgumentError,
        "dropout: pdrop must be a probability from 0 to 1, not 2",
        lambda: nn.dropout(x, 2, key=KEY),
    )


def test_whether_it_is_active():
    assert nn.Dropout(0.1).is_active
    assert not nn.Dropout(0.1, inference=True).is_active
    assert not nn.Dropout(0).is_active
