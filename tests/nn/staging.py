"""What tests of pipelines share: layers, the same layers with plain arrays, and one run with a pipeline."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import axonym as axn

L, B, P, E = axn.make_axes(layers=8, batch=16, pos=3, embed=4)
KEY = jax.random.key(0)
MICROBATCHES = 8
# The four stages are on the mesh axis `data`; the rows of a microbatch are split over `model`.
STORED = {"layers": "data"}
COMPUTED = {"layers": "data", "batch": ("model", "data")}


class Residual(eqx.Module):
    weight: axn.NamedArray
    scale: jax.Array

    @staticmethod
    def init(*, key):
        return Residual(axn.random.normal(key, (E, E.derive("out"))) / 2, jnp.asarray(0.5))

    def __call__(self, x, mask=1.0, shift=0.0, *, key=None):
        hidden = axn.tanh(axn.dot(x, self.weight, axis=E)).rename({"embed.out": "embed"})
        if key is not None:
            hidden = hidden * axn.random.bernoulli(key, hidden.axes, 0.7)
        return x + axn.auto_sharded(hidden * mask * self.scale + shift)


class Tilted(Residual):
    """Layers of another kind."""

    @staticmethod
    def init(*, key):
        return Tilted(*jax.tree.leaves(Residual.init(key=key), is_leaf=lambda x: isinstance(x, axn.NamedArray)))

    def __call__(self, x, mask=1.0, shift=0.0, *, key=None):
        return super().__call__(x, mask, shift, key=key) * 1.25


def apply_by_hand(weight, scale, x, mask, shift, keep, tilt=1.0):
    """Apply one layer with plain arrays."""
    hidden = jnp.tanh(jnp.einsum("bpe,ef->bpf", x, weight)) * keep
    return tilt * (x + hidden * mask[..., None] * scale + shift)


def microbatch_of_rows(ways):
    """Return the number of the microbatch of each row: every part of the batch on a device is cut into all of them."""
    return np.tile(np.repeat(np.arange(MICROBATCHES), B.size // ways // MICROBATCHES), ways)


def kept_by_hand(ways, depth):
    """Draw what dropout keeps in each layer: each microbatch has a key of its own."""
    shape = (B.size // MICROBATCHES, P.size, E.size)

    def draw(key, microbatch):
        return jax.random.bernoulli(jax.random.fold_in(key, microbatch), 0.7, shape)

    each = jax.vmap(jax.vmap(draw, (None, 0)), (0, None))
    drawn = each(jax.random.split(KEY, depth), jnp.arange(MICROBATCHES))
    order = np.argsort(microbatch_of_rows(ways), kind="stable")
    return drawn.reshape(depth, B.size, P.size, E.size)[:, np.argsort(order)]


def loss_of(stack, x, mask, shift):
    """Use all that a stack takes and returns."""

    def step(layer, carry, mask, shift, *, key):
        x, total = carry
        x = layer(x, mask, shift, key=key)
        return (x, total + x.mean()), (x.mean("pos"), x.mean())

    (x, total), (means, mean) = stack.scan_via(step)((x, axn.named(0.0, ())), mask, shift, key=KEY)
    rows, layers = axn.arange(B) / 8, axn.arange(stack.Block) / 4
    return ((x * x * rows).sum() + total + (means * means * layers).sum() + (mean * layers).sum()).scalar()


def loss_by_hand(parameters, x, mask, shift, tilts, ways):
    total, loss = 0.0, 0.0
    kept = kept_by_hand(ways, len(parameters))
    for i, (weight, scale) in enumerate(parameters):
        x = apply_by_hand(weight, scale, x, mask, shift[i], kept[i], tilts[i % len(tilts)])
        total += x.mean()
        means = x.mean(1)
        loss += (means * means).sum() * i / 4 + x.mean() * i / 4
    return (x * x * jnp.arange(B.size)[:, None, None] / 8).sum() + total + loss


@functools.partial(jax.jit, static_argnums=(4, 5))
def gradients_by_hand(*args):
    """Return the loss and its gradients by the layers, the input, the mask and the shifts."""
    return jax.value_and_grad(loss_by_hand, (0, 1, 2, 3))(*args)


def mean_square(stack, x):
    x = stack.fold(x)
    return (x * x).mean().scalar()


def pipeline(fn, mesh, *args, stored=STORED, computed=COMPUTED, axis="batch", microbatches=MICROBATCHES):
    """Run a function with a pipeline."""
    with axn.set_mesh(mesh):
        run = axn.named_jit(fn, axn.Mappings(stored, computed))
        with axn.pipelined(axis, microbatches):
            return run(*axn.shard(args, axn.Mappings(stored, computed)))


def close(tree, other):
    """Compare with one part in a million of the largest number, since sums over the batch cancel."""
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    pairs = list(zip(jax.tree.leaves(tree), map(np.asarray, jax.tree.leaves(other)), strict=True))
    largest = max(np.abs(y).max() for _, y in pairs)
    for x, y in pairs:
        assert np.abs(np.asarray(x) - y).max() <= 1e-6 * largest
