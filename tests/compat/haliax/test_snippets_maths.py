"""Small pieces of typical Haliax: contractions, reductions, searches, spectra, randomness; each against NumPy."""

import axonym.compat.haliax  # noqa: F401

# isort: split

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from jax.random import PRNGKey

from tests.compat.haliax.clients import drawn, same

X, Y, Z = hax.make_axes(X=2, Y=3, Z=4)
DATA = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.fixture
def x():
    return hax.arange((X, Y, Z)).astype(jnp.float32)


def test_dot():
    H, W, D = hax.make_axes(H=2, W=3, D=4)
    (a, A), (b, B) = drawn(H, W, D), drawn(D, W, seed=1)
    same(hax.dot(a, b, axis=D), (H, W), np.einsum("hwd,dw->hw", A, B))
    same(hax.dot(a, b, axis=(W, "D")), (H,), np.einsum("hwd,dw->h", A, B))
    same(a.dot(b, axis="W"), (H, D), np.einsum("hwd,dw->hd", A, B))
    same(hax.dot(a, b, axis=None), (), np.einsum("hwd,dw->", A, B))
    same(hax.dot(a, b, axis=()), (H, W, D), A * B.T)
    same(hax.dot(a, b, axis=D, out_axes=(W, ...)), (W, H), np.einsum("hwd,dw->wh", A, B))
    c, C = drawn(H, seed=2)
    same(hax.dot(a, b, c, axis=("D", "H")), (W,), np.einsum("hwd,dw,h->w", A, B, C))
    low = hax.dot(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), axis=D, preferred_element_type=jnp.float32)
    assert low.dtype == jnp.float32
    same(hax.dot(a, b, axis=D, precision=jax.lax.Precision.HIGHEST), (H, W), np.einsum("hwd,dw->hw", A, B))
    with pytest.raises(ValueError, match="no axis named 'Q'"):
        hax.dot(a, b, axis="Q")
    with pytest.warns(DeprecationWarning, match="axis"):
        same(hax.dot(D, a, b), (H, W), np.einsum("hwd,dw->hw", A, B))
    with pytest.warns(DeprecationWarning, match="axis"):
        same(a.dot("D", b), (H, W), np.einsum("hwd,dw->hw", A, B))


def test_einsum():
    H, W, D = hax.make_axes(H=2, W=3, D=4)
    (a, A), (b, B) = drawn(H, W, D), drawn(D, seed=1)
    same(hax.einsum("h w d, d -> h w", a, b), (H, W), A @ B)
    same(hax.einsum("a b c, c -> b a", a, b), (W, H), (A @ B).T)
    same(hax.einsum("{H D} -> H", a), (W, H), A.sum(-1).T)
    same(hax.einsum("{D} -> ", a, b), (H, W), A @ B)
    same(hax.einsum("{W D} -> W", a, b), (H, W), A @ B)
    same(hax.einsum("{...} -> H", a, b), (H,), (A @ B).sum(1))
    same(hax.einsum("-> W H", a, b), (W, H), (A @ B).T)
    same(hax.einsum("... d, d -> ...", a, b), (H, W), A @ B)
    same(hax.einsum("... x y -> ... y x", a), (H, D, W), A.transpose(0, 2, 1))
    same(hax.einsum("{x} -> ", a, b, x=D), (H, W), A @ B)
    with pytest.raises(ValueError, match="2 operands"):
        hax.einsum("h w d, q -> q", a)


def test_reductions(x):
    same(x.sum("Y"), (X, Z), DATA.sum(1))
    same(hax.sum(x, axis=("X", Z)), (Y,), DATA.sum((0, 2)))
    same(hax.mean(x, (), dtype=jnp.float32), (X, Y, Z), DATA)
    same(x.var("Z", ddof=1), (X, Y), DATA.var(-1, ddof=1))
    same(hax.std(x, "Z"), (X, Y), DATA.std(-1))
    same(x.prod("X"), (Y, Z), DATA.prod(0))
    same(hax.any(x > 20, "Z"), (X, Y), (DATA > 20).any(-1))
    same(x.ptp("Z"), (X, Y), np.ptp(DATA, -1))
    even = x % 2 == 0
    same(x.sum("Z", where=even), (X, Y), (DATA * (DATA % 2 == 0)).sum(-1))
    same(hax.mean(x, where=even), (), DATA[DATA % 2 == 0].mean())
    same(hax.max(x, "Z", where=even), (X, Y), np.where(DATA % 2 == 0, DATA, -np.inf).max(-1))
    same(hax.mean(x, "Z", where=hax.named([1.0, 0.0, 0.0, 1.0], Z)), (X, Y), DATA[..., [0, 3]].mean(-1))
    tree = hax.mean({"a": x, "b": hax.ones((X, Y))}, "Y")
    same(tree["a"], (X, Z), DATA.mean(1))
    with pytest.raises(TypeError):
        x.sum("Z", where=np.ones(4, bool))


def test_searches_and_sorts(x):
    noise, N = drawn(X, Z)
    same(hax.argmax(noise, "Z"), (X,), N.argmax(-1))
    same(noise.argmin("X"), (Z,), N.argmin(0))
    same(hax.sort(noise, "Z"), (X, Z), np.sort(N, -1))
    same(noise.argsort("Z"), (X, Z), N.argsort(-1))
    same(noise.cumsum("Z"), (X, Z), N.cumsum(-1))
    values, where = hax.top_k(noise, "Z", 2, "best")
    same(values, (X, Axis("best", 2)), np.sort(N, -1)[:, :-3:-1])
    same(noise["Z", where], (X, Axis("best", 2)), values.array)
    same(hax.top_k(noise, "Z", 3)[0], (X, Z.resize(3)), np.sort(N, -1)[:, :0:-1])
    same(hax.where(noise > 0, noise, 0.0), (X, Z), np.where(N > 0, N, 0))
    same(hax.where(noise > 0, noise, hax.zeros(Z)), (X, Z), np.where(N > 0, N, 0))
    (found,) = hax.where(noise["X", 0] > 0, fill_value=-1, new_axis=Axis("F", 6))
    expected = np.flatnonzero(N[0] > 0)
    same(found, (Axis("F", 6),), np.pad(expected, (0, 6 - len(expected)), constant_values=-1))
    same(hax.clip(noise, -0.5, 0.5), (X, Z), N.clip(-0.5, 0.5))
    same(noise.clip(a_max=0.0), (X, Z), N.clip(None, 0))
    same(hax.bincount(hax.named([0, 2, 2], "K"), Axis("C", 4)), (Axis("C", 4),), [1, 0, 2, 0])
    same(hax.searchsorted(hax.arange(Z), hax.named([1, 9], "K")), (Axis("K", 2),), [1, 4])
    values, counts = hax.unique_counts(hax.named([3, 1, 3], "K"), Axis("U", 2))
    same(values, (Axis("U", 2),), [1, 3])
    same(counts, (Axis("U", 2),), [1, 2])
    same(hax.tril(hax.ones((X, Y, Z)), Y, X), (Z, Y, X), np.broadcast_to(np.tri(3, 2), (4, 3, 2)))
    same(hax.triu(hax.ones((Y, Z)), Y, Z, k=1), (Y, Z), np.triu(np.ones((3, 4)), 1))
    same(hax.trace(hax.ones((X, Y, Z)), "Y", "Z"), (X,), [3, 3])
    assert hax.allclose(noise, noise + 1e-9) is True
    assert hax.array_equal(noise, noise.rearrange(("Z", "X"))) is True
    assert hax.array_equiv(hax.ones((X, Z)), hax.ones(Z)) is True
    same(hax.isclose(noise, noise), (X, Z), np.ones((2, 4), bool))


def test_spectra_and_polynomials():
    noise, N = drawn(X, Z)
    same(hax.fft(noise, axis="Z"), (X, Z), np.fft.fft(N))
    same(hax.rfft(noise), (X, Z.resize(3)), np.fft.rfft(N))
    same(hax.irfft(hax.rfft(noise, axis=Z), axis=Z), (X, Z), N)
    same(hax.fft(noise, axis={"X": None, "Z": None}), (X, Z), np.fft.fftn(N))
    same(hax.fftfreq(Z, d=0.5), (Z,), np.fft.fftfreq(4, 0.5))
    same(hax.fftshift(noise, "Z"), (X, Z), np.fft.fftshift(N, -1))
    p = hax.named([1.0, 2.0, 3.0], "degree")
    same(hax.polyval(p, noise), (X, Z), np.polyval([1, 2, 3], N))
    same(hax.polymul(p, p), (Axis("degree", 5),), np.polymul([1, 2, 3], [1, 2, 3]))
    same(hax.polyder(p), (Axis("degree", 2),), [2, 2])
    assert hax.roots(p).size == 2


def test_randomness():
    key = PRNGKey(0)
    raw = jax.random.normal(key, (2, 3))
    same(hax.random.normal(key, (X, Y)), (X, Y), raw, jnp.float32)
    same(
        hax.random.uniform(key, (X, Y), minval=1.0, maxval=2.0),
        (X, Y),
        jax.random.uniform(key, (2, 3), minval=1, maxval=2),
    )
    same(hax.random.randint(key, (X, Y), 0, 9), (X, Y), jax.random.randint(key, (2, 3), 0, 9), jnp.int32)
    same(hax.random.bernoulli(key, (X, Y), 0.3), (X, Y), jax.random.bernoulli(key, 0.3, (2, 3)), jnp.bool_)
    same(hax.random.bernoulli(key, (X, Y), hax.named([0.0, 1.0, 0.0], Y)), (X, Y), [[0, 1, 0]] * 2)
    same(hax.random.truncated_normal(key, (X, Y), -2, 2), (X, Y), jax.random.truncated_normal(key, -2.0, 2.0, (2, 3)))
    logits, L = drawn(X, Z)
    same(hax.random.categorical(key, logits, "Z"), (X,), jax.random.categorical(key, L, -1))
    same(hax.random.categorical(key, logits, Z, shape=(Y, X)), (Y, X), jax.random.categorical(key, L, -1, (3, 2)))
    same(hax.random.permutation(key, logits, "Z"), (X, Z), jax.random.permutation(key, L, -1))
    same(hax.random.gumbel(key, X), (X,), jax.random.gumbel(key, (2,)))
    same(hax.random.choice(key, (Y,), hax.arange(Z), "Z"), (Y,), jax.random.choice(key, jnp.arange(4), (3,)))
