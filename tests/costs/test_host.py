"""Memory of the host: what is there takes none of a device, and copies take the time of the link."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import axonym as axn
import axonym.nn as nn
from axonym.partitioning import TARGETS

Batch, Embed, Mlp, Layers = axn.make_axes(batch=64, embed=256, mlp=512, layers=8)
CARRIES = 8 * 32 * 256 * 4  # of a device: half of the batch, in float32
LINK = TARGETS["v5p"].host_bandwidth


class Block(eqx.Module):
    up: nn.Linear
    down: nn.Linear

    @staticmethod
    def init(*, key):
        linear = functools.partial(nn.Linear.init, use_bias=False, key=key)
        return Block(linear(Embed, Mlp), linear(Mlp, Embed))

    def __call__(self, x):
        return x + self.down(axn.sin(self.up(x)))


def count(fn, mapping, *args, **options):
    return axn.cost(fn, mapping, {"data": 2}, *args, target="v5p", depth="traced", **options)


def train(policy):
    stack = nn.Stacked.init(Layers, Block, gradient_checkpointing=policy)
    model = jax.eval_shape(lambda key: stack(key=key), jax.random.key(0))
    x = axn.NamedArray(jax.ShapeDtypeStruct((64, 256), jnp.float32), (Batch, Embed))
    step = jax.grad(lambda model, x: (model.fold(x) ** 2).mean().scalar())
    return count(step, {"batch": "data"}, model, x)


def test_carries_that_are_offloaded_are_on_the_host():
    kept, offloaded = train(True), train("offload")
    assert (kept.memory.host, offloaded.memory.host) == (0, CARRIES)
    # A device holds one layer's carry in place of all, and frees it before the peak, which is in the backward pass.
    assert kept.memory.temporary - offloaded.memory.temporary == pytest.approx(CARRIES, rel=0.01)
    assert [one.nbytes for one in offloaded.memory.kept if one.is_on_host] == [CARRIES]
    # There and back.
    assert (kept.time.copying, offloaded.time.copying) == (0, pytest.approx(2 * CARRIES / LINK))
    assert f"the host holds {CARRIES // 1024}.0 KiB for a device; copies take" in str(offloaded)


def test_copies_are_hidden_by_the_pass_that_they_belong_to():
    cost = train("offload")
    forward = sum(work.seconds for work in cost.work if work.phase == "forward")
    # What a layer computes again overlaps with the rest of its backward pass.
    again = [work for work in cost.work if work.phase in ("backward", "recomputed")]
    backward = 0.0
    for layer in {work.layer for work in again}:
        own = [work for work in again if work.layer == layer]
        backward += max(sum(getattr(work, what) for work in own) for what in ("computing", "moving", "sending"))
    each = CARRIES / LINK
    assert cost.time.copied == pytest.approx(max(0, each - forward) + max(0, each - backward))
    assert cost.time.seconds == pytest.approx(max(each, forward) + max(each, backward), rel=0.01)


ADAM = optax.adam(1e-3)


def update(model, state, x):
    grads = jax.grad(lambda model: (model(x) ** 2).mean().scalar())(model)
    updates, state = ADAM.update(grads, jax.device_put(state, jax.memory.Space.Device))
    return optax.apply_updates(model, updates), jax.device_put(state, jax.memory.Space.Host)


def test_the_state_of_an_optimiser_is_on_the_host():
    """Of Adam: two arrays like the parameters, and a counter, which come to the device and go back."""
    mappings = axn.Mappings({"embed": "data"}, {"batch": "data"})
    layer = functools.partial(nn.Linear.init, Embed, Mlp, use_bias=False)
    model = jax.eval_shape(lambda key: layer(key=key), jax.random.key(0))
    x = axn.NamedArray(jax.ShapeDtypeStruct((64, 256), jnp.float32), (Batch, Embed))
    there = NamedSharding(jax.make_mesh((2,), ("data",)), PartitionSpec(), memory_kind="pinned_host")
    state = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=there),
        jax.eval_shape(ADAM.init, model),
    )
    size = 2 * (256 * 512 * 4 // 2) + 4
    for fn in (update, axn.named_jit(update, mappings, donate_args=(True, True, False))):
        cost = count(fn, mappings, model, state, x)
        assert cost.memory.optimizer == 0
        assert cost.memory.host == (size if cost.memory.donated else 2 * size)
        assert cost.memory.results == 256 * 512 * 4 // 2
        assert cost.time.copying == pytest.approx(2 * size / LINK)
        assert cost.time.copied > 0
    # The rows say where, and totals of a check are those of devices.
    report = axn.check(update, mappings, {"data": 2}, model, state, x)
    rows = [row for row in report.arguments if row.memory]
    assert {row.layout[-1] for row in rows} == {"in pinned_host"}
    assert report.totals["state"][1] == 0
    # A plan needs no memory of the device for it, either.
    best = axn.plan(update, {"data": 2}, model, state, x, target="v5p", verify=0, limit=4).best
    assert best.cost.memory.optimizer == 0 < best.cost.memory.host
