"""Compare the estimates of `axn.plan` with the traces that they spare, for a small decoder on 4 x 2 devices.

    python benchmarks/estimates.py

One search traces all of its mappings, and each is estimated as well; another one uses its estimates. All is counted for
a mesh without devices. Times are those of the processor.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from measure import table

import axonym as axn
from axonym.costs.report import Cost
from axonym.costs.search.estimates import Estimates
from axonym.models import Decoder, DecoderConfig

MESH = {"data": 4, "model": 2}
# Among mappings that are slower by more than this factor, errors do not matter.
GOOD = 1.2


def step(model: Decoder, batch: axn.NamedArray) -> tuple[Decoder, jax.Array]:
    """Train a model by gradient descent."""
    loss, grads = jax.value_and_grad(lambda model: model.loss(batch).scalar())(model)
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, model, grads), loss


def make_arguments() -> tuple[Any, ...]:
    """Return a decoder of four layers and a batch of tokens, which need no memory."""
    sizes = {"embed": 256, "mlp": 1024, "heads": 8, "kv_heads": 8, "head_dim": 32}
    config = DecoderConfig(vocab=1024, layers=4, positions=64, **sizes)
    model = jax.eval_shape(lambda key: Decoder.init(config, key=key), jax.random.key(0))
    return model, axn.NamedArray(jax.ShapeDtypeStruct((16, 64), jnp.int32), ("batch", "pos"))


def search() -> tuple[axn.partitioning.Plan, float]:
    """Plan the step; return the plan and its processor time."""
    start = time.process_time()
    found = axn.plan(step, MESH, *make_arguments(), verify=0)
    return found, time.process_time() - start


@contextmanager
def tracing_all(pairs: list[tuple[Cost, Cost]]) -> Iterator[None]:
    """Trace all mappings, and collect their traced costs with their estimates."""
    learn = Estimates.learn

    def note(self: Estimates, choice: Any, mesh: Any, cost: Cost, estimate: Cost | None) -> None:
        if estimate is not None:
            pairs.append((cost, estimate))
        learn(self, choice, mesh, cost, estimate)

    with mock.patch.object(Estimates, "is_enough", return_value=False), mock.patch.object(Estimates, "learn", note):
        yield


def main() -> None:
    pairs: list[tuple[Cost, Cost]] = []
    with tracing_all(pairs):
        everything, _ = search()
    # A search as it was before there were estimates.
    with mock.patch.object(Estimates, "estimate", return_value=None):
        _, before = search()
    found, seconds = search()
    ratios = [estimate.time.compared / cost.time.compared for cost, estimate in pairs]
    best = min(cost.time.compared for cost, _ in pairs)
    good = [ratio for ratio, (cost, _) in zip(ratios, pairs, strict=True) if cost.time.compared <= GOOD * best]
    traced = sum(not one.is_estimated for one in (found.best, *found.others))
    rows = [
        ("estimated mappings", str(len(pairs))),
        ("of which within 1.3 % of the trace", f"{sum(abs(one - 1) <= 0.013 for one in ratios) / len(ratios):.0%}"),
        (f"most above the trace, of {len(good)} good ones", f"{max(good) - 1:.1%}"),
        ("most above the trace, of all", f"{max(ratios) - 1:.1%}"),
        ("traced mappings of a search", f"{traced} of {found.counted}"),
        ("the best one is as fast", f"{found.best.cost.time.compared / everything.best.cost.time.compared:.3f}"),
        ("processor time, s", f"{seconds:.0f} instead of {before:.0f}"),
    ]
    print(table([{"what": what, "value": value} for what, value in rows]))


if __name__ == "__main__":
    main()
