"""Small pieces of typical Haliax: arrays, indices, shapes; each against NumPy."""

import axonym.compat.haliax  # noqa: F401

# isort: split

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis, NamedArray

from tests.compat.haliax.clients import same

X, Y, Z = hax.make_axes(X=2, Y=3, Z=4)
DATA = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.fixture
def x():
    return hax.arange((X, Y, Z)).astype(jnp.float32)


# Creation and conversion


def test_creation():
    same(hax.zeros((X, Y)), (X, Y), np.zeros((2, 3)), jnp.float32)
    same(hax.ones({"X": 2}), (X,), [1, 1], jnp.float32)
    same(hax.full((Y,), 7), (Y,), [7, 7, 7], jnp.int32)
    same(hax.full_like(hax.zeros(Y), 2.5), (Y,), [2.5] * 3)
    same(hax.arange(Z, start=1, step=2), (Z,), [1, 3, 5, 7], jnp.int32)
    same(hax.arange(Z, start=0.5), (Z,), [0.5, 1.5, 2.5, 3.5], jnp.float32)
    same(hax.linspace(Z, start=0, stop=1), (Z,), np.linspace(0, 1, 4))
    same(hax.named(DATA, ("X", "Y", "Z")), (X, Y, Z), DATA)
    same(hax.named([1, 2, 3], "Y"), (Y,), [1, 2, 3])
    same(hax.named(1.5, ()), (), 1.5)
    same(NamedArray(jnp.ones((2, 3)), (X, Y)), (X, Y), np.ones((2, 3)))
    same(NamedArray(jnp.ones((2, 3)), {"X": 2, "Y": 3}), (X, Y), np.ones((2, 3)))
    same(hax.zeros_like(hax.ones((X, Y)), dtype=jnp.int32), (X, Y), np.zeros((2, 3)), jnp.int32)


def test_what_does_not_fit_is_refused(x):
    with pytest.raises(ValueError, match="Y"):
        hax.named(jnp.ones((2, 4)), (X, Y))
    with pytest.raises(ValueError, match="does not match shape of axes"):
        NamedArray(jnp.ones((2, 4)), (X, Y))
    with pytest.raises(ValueError, match="Axes must be unique"):
        NamedArray(jnp.ones((2, 2)), (X, X))
    with pytest.raises(ValueError, match="Q"):
        x.sum("Q")
    with pytest.raises(ValueError, match="no operand has the axes"):
        hax.ones(X) + hax.ones(Y)
    with pytest.raises(ValueError, match="two sizes: 2 and 5"):
        hax.ones(X) + hax.ones(X.resize(5))
    with pytest.raises(ValueError, match="axis to sum over"):
        hax.ones(X) @ hax.ones(X)
    with pytest.raises(ValueError, match="plain array"):
        hax.ones(X) + jnp.ones(2)
    with pytest.raises(RuntimeError):
        x.axis_indices(Axis("X", 5))
    with pytest.raises(RuntimeError):
        x.take(Axis("X", 5), 0)
    with pytest.raises(TypeError):
        hash(x)
    with pytest.raises(TypeError):
        jnp.sin(x)
    with pytest.raises(ValueError, match="has dimensions"):
        x.scalar()


def test_facts_about_an_array(x):
    assert x.shape == {"X": 2, "Y": 3, "Z": 4}
    assert (x.ndim, x.size, x.nbytes, x.dtype) == (3, 24, 96, jnp.float32)
    assert x.axis_size("Y") == 3
    assert x.axis_size(("X", "Z")) == (2, 4)
    assert x.axis_indices("Z") == 2
    assert x.axis_indices("Q") is None
    assert x.axis_indices(("Z", "X")) == (2, 0)
    assert x.resolve_axis("Y") == Y
    assert x.resolve_axis(("Y", "X")) == (Y, X)
    assert x.has_axis(X)
    assert not x.has_axis("Q")
    assert hax.is_named_array(x)
    assert Y.alias("K") == Axis("K", 3)
    assert hax.axis_name((X, "Q")) == ("X", "Q")
    assert hax.axis_size((X, Y)) == 6
    assert isinstance(repr(x), str)
    assert isinstance(str(x["X", 0, "Y", 0, "Z", 0]), str)


def test_scalars_leave_the_named_world(x):
    assert x.sum().scalar() == DATA.sum()
    assert x.max().item() == 23
    assert float(x.mean()) == pytest.approx(11.5)
    assert int(hax.argmax(x, None).scalar()) == 23
    assert bool(hax.all(x >= 0))
    assert hax.ones(X).tolist() == [1.0, 1.0]
    assert x.tobytes() == DATA.tobytes()
    if x.sum() > 0:
        pass


# Indexing


def test_basic_indexing(x):
    same(x["X", 1], (Y, Z), DATA[1])
    same(x["X", 1, "Z", -1], (Y,), DATA[1, :, -1])
    same(x[{"X": 1, "Y": 0, "Z": 2}], (), DATA[1, 0, 2])
    same(x[X, 0, Y, 1:], (Y.resize(2), Z), DATA[0, 1:])
    same(x["Z", ::2], (X, Y, Z.resize(2)), DATA[:, :, ::2])
    same(x["Z", ::-1], (X, Y, Z), DATA[:, :, ::-1])
    same(x["Y", hax.ds(1, 2)], (X, Y.resize(2), Z), DATA[:, 1:3])
    same(x["Z", hax.dslice.block(1, 2)], (X, Y, Z.resize(2)), DATA[:, :, 2:])
    same(x["Z", hax.dblock(0, 2)], (X, Y, Z.resize(2)), DATA[:, :, :2])
    same(x["Z", [0, 3]], (X, Y, Z.resize(2)), DATA[:, :, [0, 3]])
    same(hax.index(x, {"X": jnp.array(1)}), (Y, Z), DATA[1])
    for wrong in ("X", 0, slice(None), ("X", 0, "Y")):
        with pytest.raises(ValueError, match="an index is a dict"):
            x[wrong]


def test_advanced_indexing(x):
    K, Q = Axis("K", 5), Axis("Q", 2)
    i, j = np.array([0, 2, 1, 1, 0]), np.array([1, 0])
    AtK, AtQ = hax.named(i, K), hax.named(j, Q)
    same(x["Y", AtK], (X, K, Z), DATA[:, i])
    same(x.take("Y", AtK), (X, K, Z), DATA[:, i])
    same(x["Y", AtK, "Z", hax.named(i % 4, K)], (X, K), DATA[:, i, i % 4])
    same(x["X", hax.named(i % 2, K), "Z", AtK], (K, Y), DATA[i % 2, :, i])
    same(x["X", AtQ, "Y", 2], (Q, Z), DATA[j, 2])
    same(
        x.take("Z", hax.named([[0, 1, 2], [3, 2, 1]], (X, Y))),
        (X, Y),
        DATA[[[0], [1]], np.arange(3), [[0, 1, 2], [3, 2, 1]]],
    )
    with pytest.raises(ValueError, match="axis 'Q' not found"):
        x.take("Q", 0)


def test_an_index_that_shares_an_axis_is_a_batched_gather(x):
    chosen = np.array([[2, 0, 1], [1, 1, 3]])
    same(x["Z", hax.named(chosen, (X, Y))], (X, Y), np.take_along_axis(DATA, chosen[..., None], -1)[..., 0])
    first = np.array([2, 0])
    same(x["Y", hax.named(first, X)], (X, Z), DATA[np.arange(2), first])
    labels = hax.argmax(x, "Z")
    same(hax.take(x, "Z", labels), (X, Y), DATA.max(-1))


def test_traced_indices(x):
    last = jax.jit(lambda x, i: x["Y", i])
    same(last(x, 2), (X, Z), DATA[:, 2])
    window = jax.jit(lambda x, start: x["Z", hax.ds(start, 2)])
    same(window(x, 1), (X, Y, Z.resize(2)), DATA[:, :, 1:3])
    start = jax.jit(lambda x, i: hax.slice(x, "Z", start=i, length=2))
    same(start(x, 2), (X, Y, Z.resize(2)), DATA[:, :, 2:])


def test_slices(x):
    same(hax.slice(x, "Z", start=1, length=2), (X, Y, Z.resize(2)), DATA[:, :, 1:3])
    same(hax.slice(x, Z, Axis("W", 3), 1), (X, Y, Axis("W", 3)), DATA[:, :, 1:4])
    same(x.slice({"X": 1, "Z": 2}, {"X": 1, "Z": 2}), (X.resize(1), Y, Z.resize(2)), DATA[1:, :, 2:])
    same(x.slice({"Z": 1}, {"Z": Axis("W", 2)}), (X, Y, Axis("W", 2)), DATA[:, :, 1:3])
    expected = DATA.copy()
    expected[:, 1:, 2] = -1
    update = hax.full((X, Y.resize(2), Z.resize(1)), -1.0)
    same(hax.updated_slice(x, {"Y": 1, "Z": 2}, update), (X, Y, Z), expected)


def test_updates(x):
    def updated(change):
        array = DATA.copy()
        change(array)
        return array

    K = Axis("K", 3)
    rows = np.array([0, 2, 2])
    same(x.at["X", 0].set(0), (X, Y, Z), updated(lambda a: a.__setitem__(0, 0)))
    same(
        x.at[{"Y": 1, "Z": 2}].add(hax.named([1.0, 2.0], X)),
        (X, Y, Z),
        updated(lambda a: np.add.at(a, (slice(None), 1, 2), [1, 2])),
    )
    same(x.at["Y", hax.named(rows, K)].add(1.0), (X, Y, Z), updated(lambda a: np.add.at(a, (slice(None), rows), 1)))
    same(x.at["Z", 1:3].mul(2), (X, Y, Z), updated(lambda a: a.__setitem__(np.s_[:, :, 1:3], a[:, :, 1:3] * 2)))
    same(x.at["Z", 0].multiply(3), (X, Y, Z), updated(lambda a: np.multiply.at(a, np.s_[:, :, 0], 3)))
    same(x.at["Y", 0].max(5.0), (X, Y, Z), updated(lambda a: np.maximum.at(a, np.s_[:, 0], 5)))
    same(x.at["Y", 0].min(5.0), (X, Y, Z), updated(lambda a: np.minimum.at(a, np.s_[:, 0], 5)))
    same(x.at["X", 1].divide(2.0), (X, Y, Z), updated(lambda a: np.divide.at(a, 1, 2)))
    same(x.at["X", 1].power(2), (X, Y, Z), updated(lambda a: np.power.at(a, 1, 2)))
    same(x.at["X", 1].apply(jnp.negative), (X, Y, Z), updated(lambda a: np.negative.at(a, 1)))
    same(x.at["X", 1].get(), (Y, Z), DATA[1])
    same(
        x.at["Y", hax.named([0, 9], "K")].get(mode="fill", fill_value=-1),
        (X, Axis("K", 2), Z),
        np.stack([DATA[:, 0], np.full((2, 4), -1)], 1),
    )
    same(x.at["Y", 9].set(0.0, mode="drop"), (X, Y, Z), DATA)
    with pytest.raises(ValueError, match="plain array of shape"):
        x.at["X", 0].set(jnp.zeros((3, 4)))


# Shapes


def test_rearrange(x):
    same(x.rearrange(("Z", "X", "Y")), (Z, X, Y), DATA.transpose(2, 0, 1))
    same(x.rearrange((..., "X")), (Y, Z, X), DATA.transpose(1, 2, 0))
    same(x.rearrange((Z, ..., Y)), (Z, X, Y), DATA.transpose(2, 0, 1))
    same(hax.rearrange(x, "a b c -> c b a"), (Z, Y, X), DATA.transpose(2, 1, 0))
    same(hax.rearrange(x, "{Z} -> Z ..."), (Z, X, Y), DATA.transpose(2, 0, 1))
    same(hax.rearrange(x, "{X Z} -> ... (W: X Z)"), (Y, Axis("W", 8)), DATA.transpose(1, 0, 2).reshape(3, 8))
    same(hax.rearrange(x, "a b c -> (Q: a b) c"), (Axis("Q", 6), Z), DATA.reshape(6, 4))
    same(
        hax.rearrange(x, "a b (c d) -> d a b c", c=2),
        (Axis("d", 2), X, Y, Axis("c", 2)),
        DATA.reshape(2, 3, 2, 2).transpose(3, 0, 1, 2),
    )
    same(
        hax.rearrange(x, "{(Z: p q)} -> ... q p", p=Axis("P", 2)),
        (X, Y, Axis("q", 2), Axis("P", 2)),
        DATA.reshape(2, 3, 2, 2).transpose(0, 1, 3, 2),
    )
    same(x.rearrange("... c -> c ..."), (Z, X, Y), DATA.transpose(2, 0, 1))
    for wrong in (("X", "Y"), ("X", "Q", ...), ("X", "X", ...)):
        with pytest.raises(ValueError, match=r"leaves out Z|axis 'Q' not found|'X' would appear twice"):
            x.rearrange(wrong)


def test_merging_and_splitting_of_axes(x):
    same(x.flatten_axes(("Y", "Z"), "YZ"), (X, Axis("YZ", 12)), DATA.reshape(2, 12))
    same(x.flatten_axes(("Z", "X"), "W"), (Axis("W", 8), Y), DATA.transpose(2, 0, 1).reshape(8, 3))
    same(hax.flatten_axes(x, (X, Y), Axis("XY", 6)), (Axis("XY", 6), Z), DATA.reshape(6, 4))
    same(x.flatten("all"), (Axis("all", 24),), DATA.ravel())
    same(x.ravel("all"), (Axis("all", 24),), DATA.ravel())
    same(
        x.unflatten_axis("Z", (Axis("a", 2), Axis("b", 2))),
        (X, Y, Axis("a", 2), Axis("b", 2)),
        DATA.reshape(2, 3, 2, 2),
    )
    same(x["Y", 0:1].unflatten_axis("Y", ()), (X, Z), DATA[:, 0])
    with pytest.raises(ValueError, match="multiply to 6"):
        x.unflatten_axis("Z", (Axis("a", 3), Axis("b", 2)))


def test_joining_and_cutting(x):
    same(hax.stack("K", [x, x * 2]), (Axis("K", 2), X, Y, Z), np.stack([DATA, DATA * 2]))
    same(hax.stack(Axis("K", 2), (x, x.rearrange(("Z", "Y", "X")))), (Axis("K", 2), X, Y, Z), np.stack([DATA, DATA]))
    same(hax.concatenate("Y", [x, x]), (X, Y.resize(6), Z), np.concatenate([DATA, DATA], 1))
    same(hax.concatenate(Y.resize(4), (x, x["Y", 0:1])), (X, Y.resize(4), Z), np.concatenate([DATA, DATA[:, :1]], 1))
    with pytest.raises(ValueError, match="add up to 6"):
        hax.concatenate(Y.resize(7), [x, x])
    parts = hax.split(x, "Z", [Axis("Z1", 1), Axis("Z3", 3)])
    assert isinstance(parts, list)
    same(parts[0], (X, Y, Axis("Z1", 1)), DATA[..., :1])
    same(parts[1], (X, Y, Axis("Z3", 3)), DATA[..., 1:])
    rows = x.unbind("Y")
    assert isinstance(rows, list)
    same(rows[2], (X, Z), DATA[:, 2])
    same(hax.repeat(x, 2, "X"), (X.resize(4), Y, Z), DATA.repeat(2, 0))
    same(hax.tile(x["X", 0], {"Z": 2, "K": 3}), (Axis("K", 3), Y, Z.resize(8)), np.tile(DATA[0], (3, 1, 2)))
    same(hax.roll(x, 1, "Z"), (X, Y, Z), np.roll(DATA, 1, -1))
    same(hax.roll(x, (1, -1), ("Z", "Y")), (X, Y, Z), np.roll(DATA, (1, -1), (2, 1)))
    same(
        hax.pad(x, {"Y": (1, 0)}, constant_values=-1),
        (X, Y.resize(4), Z),
        np.pad(DATA, ((0, 0), (1, 0), (0, 0)), constant_values=-1),
    )
    same(hax.pad_left(x["X", 0, "Y", 0], Z, Axis("W", 6), value=9), (Axis("W", 6),), [9, 9, 0, 1, 2, 3])


def test_renaming_and_broadcasting(x):
    same(x.rename({"X": "A", Y: Axis("B", 3)}), (Axis("A", 2), Axis("B", 3), Z), DATA)
    same(x.rename({"X": "Y", "Y": "X"}), (Axis("Y", 2), Axis("X", 3), Z), DATA)
    same(x.rename({"Q": "W"}), (X, Y, Z), DATA)
    with pytest.raises(ValueError, match="'Y' would appear twice"):
        x.rename({"X": "Y"})
    row = x["X", 0, "Y", 0]
    same(row.broadcast_axis(X), (X, Z), np.broadcast_to(DATA[0, 0], (2, 4)))
    same(row.broadcast_axis((X, Y)), (X, Y, Z), np.broadcast_to(DATA[0, 0], (2, 3, 4)))
    same(hax.broadcast_to(row, (Z, X)), (Z, X), np.broadcast_to(DATA[0, 0][:, None], (4, 2)))
    same(row.broadcast_to((X, "Z")), (X, Z), np.broadcast_to(DATA[0, 0], (2, 4)))
    same(hax.broadcast_to(2.0, (X, Y)), (X, Y), np.full((2, 3), 2.0))
    a, b = hax.broadcast_arrays(row, x)
    same(b, (X, Y, Z), DATA)
    same(a, (X, Y, Z), np.broadcast_to(DATA[0, 0], (2, 3, 4)))
    a, b = hax.broadcast_arrays(hax.ones(X), hax.ones(Y), require_subset=False)
    assert a.axes == b.axes
    same(row + x, (X, Y, Z), DATA[0, 0] + DATA)
    same(x.rearrange(("Z", "Y", "X")) * x, (Z, Y, X), (DATA * DATA).T)
    same(2 - x, (X, Y, Z), 2 - DATA)
    same(x**2 // 3 % 5, (X, Y, Z), DATA**2 // 3 % 5)
    same(jnp.float32(2) * x, (X, Y, Z), 2 * DATA)
    same(x > x.mean(), (X, Y, Z), DATA.mean() < DATA, jnp.bool_)
    same(-x, (X, Y, Z), -DATA)
    same(abs(-x), (X, Y, Z), DATA)
    same(~(x > 3) & (x == 1) | (x != 2), (X, Y, Z), ~(DATA > 3) & (DATA == 1) | (DATA != 2))
