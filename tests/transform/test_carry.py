"""What loops carry has one layout: each loop, with operands of any layout, on each kind of mesh."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import axonym as axn
from axonym import nn
from tests.nn.layouts import draw as draw_normal, halved, made

pytestmark = pytest.mark.sampled

B, E, H, M = axn.make_axes(batch=8, embed=4, hidden=4, mlp=8)
STEPS = axn.Axis("steps", 4)
MAPPING = {"batch": "data", "mlp": "model"}


class Block(eqx.Module):
    norm: nn.RmsNorm
    up: nn.Linear
    down: nn.Linear

    @staticmethod
    def init(E, *, key):
        keys = jax.random.split(key)
        return Block(nn.RmsNorm.init(E), nn.Linear.init(E, M, key=keys[0]), nn.Linear.init(M, E, key=keys[1]))

    def __call__(self, x):
        return x + self.down(axn.tanh(self.up(self.norm(x))))


KEY = jax.random.key(0)


STACK = halved(made(nn.Stacked.init(axn.Axis("layers", 4), Block, gradient_checkpointing="nested"), E))
KINDS = (Block, lambda E, *, key: nn.RmsNorm.init(E))
MIXED = halved(made(nn.Interleaved.init(axn.Axis("layers", 3), KINDS, gradient_checkpointing=True), E))
RECURRENT = nn.Recurrent(halved(made(nn.LSTMCell.init, E, H)), "steps")
W = halved(draw_normal(E, E.derive("out")))


def product(x):
    return axn.tanh(axn.dot(x, W, axis="embed")).rename({"embed.out": "embed"})


def exchanged(carry, y):
    first, second, third = carry
    return second, third, product(first) + y


def accumulated(x, y):
    """Sum the gradients of parts of a batch, and follow them."""
    loss = lambda w, part: (axn.dot(part, w, axis="embed") ** 2).sum()  # noqa: E731
    total = axn.fold(lambda total, part: total + axn.grad(loss)(W, part), "steps")(axn.zeros_like(W), y)
    return axn.dot(x, total, axis="embed")


LOOPS = {
    "fold": lambda x, y: axn.fold(lambda carry, y: product(carry) + y, "steps")(x, y),
    "fold, checkpointed": lambda x, y: axn.fold(lambda c, y: product(c) + y, "steps", remat="nested")(x, y),
    "scan": lambda x, y: axn.scan(lambda c, y: (c + product(y), product(c)), "steps")(axn.zeros((B, E)), x * y),
    "scan of a number": lambda x, y: axn.scan(lambda c, y: (c + y.sum().array, y * c), "steps")(0.5, x * y),
    "map": lambda x, y: axn.map(lambda y: product(x * y), "steps")(y),
    "entries that exchange": lambda x, y: axn.fold(exchanged, "steps")((x, x * 2, axn.zeros((B, E))), y),
    "a loop in a loop": lambda x, y: axn.fold(
        lambda c, y: axn.fold(lambda d: product(d) + y, axn.Axis("inner", 2))(c), "steps"
    )(x, y),
    "plain arrays": lambda x, y: axn.fold(lambda c, y: jnp.sin(c) * y, STEPS)(x.array, y.array),
    "gradients of parts": accumulated,
    "Stacked": lambda x, y: STACK.fold(x),
    "Interleaved": lambda x, y: MIXED.fold(x),
    "Recurrent": lambda x, y: RECURRENT(y)[0],
    "Recurrent with a state": lambda x, y: RECURRENT(y, (x.rename({"embed": "hidden"}),) * 2)[0],
    "associative_scan": lambda x, y: axn.associative_scan(lambda a, b: axn.auto_sharded(a * b), "steps")(x * y),
}


def squared(tree: Any) -> Any:
    return sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree))


def derived(x: Any, y: Any) -> dict[str, Any]:
    """Return the value and both gradients of each loop."""
    return {case: jax.value_and_grad(lambda x, y, f=f: squared(f(x, y)), (0, 1))(x, y) for case, f in LOOPS.items()}


def draw(*axes):
    rng = np.random.default_rng(len(axes))
    return axn.named(jax.device_put(rng.uniform(0.5, 1.5, [axis.size for axis in axes]).astype(np.float32)), axes)


X, Y = draw(B, E), draw(STEPS, B, E)


def copied(x):
    return axn.named(jnp.asarray(np.asarray(x.array)), x.names)


PLACED = {
    "on one device": lambda: (X, Y),
    "on each device": lambda: (copied(X), copied(Y)),
    "split": lambda: axn.shard((X, Y), {"batch": "data"}),
    "split otherwise": lambda: (axn.shard(X, {"batch": "model", "embed": "data"}), axn.shard(Y, {"steps": "data"})),
    "the carry on one device": lambda: (X, axn.shard(Y, {"batch": "data"})),
    "the arguments on one device": lambda: (axn.shard(X, {"batch": "data"}), Y),
}
COMPILED = {"auto_mesh": None, "explicit_mesh": "on one device", "mixed_mesh": "split otherwise"}


@pytest.fixture(scope="module")
def expected():
    return jax.jit(derived)(X, Y)


@pytest.mark.parametrize("placed", PLACED)
@pytest.mark.parametrize("kind", COMPILED)
def test_values_and_gradients_are_those_without_a_mesh(kind, placed, expected, request):
    with axn.set_mesh(request.getfixturevalue(kind)), axn.axis_mapping(MAPPING):
        traced = jax.jit(derived).trace(*PLACED[placed]())  # layouts are types: errors about them need no more
        if placed != COMPILED[kind]:
            return
        results = traced.lower().compile()(*PLACED[placed]())
    for case, (value, gradients) in expected.items():
        np.testing.assert_allclose(results[case][0], value, rtol=1e-4, err_msg=case)
        for mine, theirs in zip(results[case][1], gradients, strict=True):
            np.testing.assert_allclose(mine.array, theirs.array, rtol=1e-3, atol=1e-4, err_msg=case)


def layouts(step, init):
    seen = []

    def counted(carry):
        seen.append([jax.typeof(leaf).sharding.spec for leaf in jax.tree.leaves(carry)])
        return step(carry)

    jax.jit(lambda init: axn.fold(counted, axn.Axis("n", 3))(init)).trace(init)
    return seen


def test_a_step_is_traced_again_only_if_it_changes_the_layout(explicit_mesh):
    spec = PartitionSpec
    with axn.set_mesh(explicit_mesh), axn.axis_mapping(MAPPING):
        split, replicated = axn.shard(X, {"batch": "data"}), copied(X)
        assert layouts(product, split) == [[spec("data", None)]]
        assert layouts(product, replicated) == [[spec(None, None)], [spec("data", None)]]
        assert layouts(axn.sin, replicated) == [[spec(None, None)]]
        # what a step leaves whole stays split
        kept = axn.shard(X, {"embed": "data"})
        assert layouts(lambda x: axn.sort(x, "embed"), kept) == [[spec(None, "data")]]
    assert len(layouts(product, X)) == 1


def test_a_layout_that_changes_with_each_step_is_that_of_the_start(explicit_mesh):
    with axn.set_mesh(explicit_mesh):
        square = axn.shard(draw(B, axn.Axis("other", 8)), {"batch": "data"}).array
        turned = jax.jit(lambda x: axn.fold(lambda x: x.T + 1, axn.Axis("n", 3))(x))(square)
    np.testing.assert_allclose(turned, np.asarray(square).T + 3, rtol=1e-6)


def test_without_jit_each_step_runs_once(explicit_mesh):
    seen = []

    def step(carry):
        seen.append(1)
        return product(carry)

    with axn.set_mesh(explicit_mesh), axn.axis_mapping(MAPPING), jax.disable_jit():
        last = axn.fold(step, axn.Axis("n", 3))(X)
    assert len(seen) == 3
    np.testing.assert_allclose(last.array, product(product(product(X))).array, rtol=1e-5)


def test_what_a_step_writes_to_a_reference_is_written_once(explicit_mesh):
    with axn.set_mesh(explicit_mesh), axn.axis_mapping(MAPPING):
        count = axn.new_ref(axn.zeros(()))

        def step(carry):
            count[...] = count[...] + 1
            return product(carry)

        jax.jit(lambda x: axn.fold(step, axn.Axis("n", 3))(x))(copied(X))
        assert count[...].item() == 3
