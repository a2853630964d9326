"""What tests of mixtures share: models, references, and a run on a mesh against one without."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import axonym as axn
from axonym import nn
from tests.nn.layouts import draw, halved, made

B, S, E, M, X, T = axn.make_axes(batch=8, seq=3, embed=4, mlp=6, experts=4, token=7)
KEY = jax.random.key(0)


def part(layer, e, row):
    return row @ layer.weight.array[e] + (0 if layer.bias is None else layer.bias.array[e])


def choices(model, x):
    scores = np.asarray(x.array).reshape(-1, 4) @ np.asarray(model.router.weight.array)
    return np.argsort(-scores, axis=1, kind="stable")[:, : model.top_k]


def looped(model, x, act, chosen, capacity=None, groups=1):
    """Send one token after the other to its experts; a position in a full queue counts nothing."""
    rows = x.reshape(-1, x.shape[-1])
    scores = rows @ model.router.weight.array
    probabilities = jax.nn.softmax(scores)
    group = np.arange(len(rows)) * groups // len(rows)
    taken = {}
    total = [jnp.zeros(rows.shape[1]) for _ in rows]
    weights = [probabilities[i, chosen[i]] for i in range(len(rows))]
    weights = [w / w.sum() if model.normalize else w for w in weights]
    for choice in range(model.top_k):
        for i, row in enumerate(rows):
            e = int(chosen[i, choice])
            queue = taken.setdefault((group[i], e), [])
            queue.append(i)
            if capacity is not None and len(queue) > capacity:
                continue
            inner = part(model.up, e, row)
            inner = act(inner) if model.gate is None else act(part(model.gate, e, row)) * inner
            total[i] = total[i] + weights[i][choice] * part(model.down, e, inner)
    return jnp.stack(total).reshape(x.shape), probabilities, scores


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer, how it is stored, and how it is computed."""

    options: dict[str, Any]
    mapping: dict[str, Any]
    kind: str
    one_sided: bool = False
    stored: dict[str, Any] | None = None  # otherwise as it is computed
    masked: axn.NamedArray | None = None  # which tokens there are


Long = S.resize(6)


def inputs(case: Case) -> tuple[nn.MixtureOfExperts, axn.NamedArray]:
    """Make a layer of eight experts, and tokens; with `one_sided`, all tokens choose the same experts."""
    model = made(nn.MixtureOfExperts.init, E, X.resize(8), M, 2, use_bias=True, **case.options)
    model = halved(model)
    if case.one_sided:
        model = eqx.tree_at(lambda model: model.router.weight.array, model, jnp.zeros((4, 8)))
    x = halved(draw(B, Long, E))
    if case.masked is not None:  # what is elsewhere may be anything
        x = axn.where(case.masked, x, np.nan)
    return model, x


def run(both: Any, where: axn.NamedArray | None = None) -> Any:
    """Return result and statistics, and gradients by the layer and the tokens."""

    def loss(both: Any) -> Any:
        y, routing = both[0](both[1], where=where)
        total = axn.sin(y).sum() + routing.load_balance + routing.router_z
        return total.scalar(), (y, routing)

    (_, found), gradients = eqx.filter_value_and_grad(loss, has_aux=True)(both)
    return found, gradients


def on_mesh(case: Case, mesh: jax.sharding.Mesh) -> tuple[Any, str]:
    """Run on a mesh; return what was found, and the compiled program."""
    model, x = inputs(case)
    with axn.set_mesh(mesh):
        given = axn.shard(model, case.stored or case.mapping, strict=False), axn.shard(x, case.mapping, strict=False)
        given = given, axn.shard(case.masked, case.mapping, strict=False)
        program = axn.named_jit(run, case.mapping, strict=False).lower(*given).compile()
        return program(*given), program.as_text()


def all_experts(
    model: nn.MixtureOfExperts, x: jax.Array, numbers: np.ndarray, kept: np.ndarray, real: np.ndarray
) -> Any:
    """Apply all experts to all tokens, and keep what the router chose; return also which choices were dropped."""
    rows = x.reshape(-1, 4)
    scores = rows @ model.router.weight.array
    probabilities = jax.nn.softmax(scores)
    _, chosen = jax.lax.top_k(probabilities, 2)
    weights = jnp.take_along_axis(probabilities, chosen, 1)
    weights = weights / weights.sum(1, keepdims=True)
    of_expert = jnp.einsum("tc,tce->te", weights * kept * real[:, None], jax.nn.one_hot(chosen, 8))

    def layer(own: Any, rows: jax.Array, spelled: str) -> jax.Array:
        return jnp.einsum(spelled, rows, own.weight.array) + own.bias.array[:, None]

    inner = layer(model.up, rows, "td,edm->etm") * jax.nn.silu(layer(model.gate, rows, "td,edm->etm"))
    y = jnp.einsum("te,etd->td", of_expert, layer(model.down, inner, "etm,emd->etd"))
    load = np.bincount(numbers[real].ravel(), minlength=8) / numbers[real].size
    z = jax.nn.logsumexp(scores, axis=1)
    losses = 8 * (load * probabilities[real].mean(0)).sum() + (z * z)[real].mean()
    return jnp.sin(y).sum() + losses, (y.reshape(x.shape), load, 1 - kept[real].mean())


def kept_choices(case: Case, chosen: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Tell which choices an expert takes: first choices before second ones, and earlier tokens before later ones."""
    factor, tokens = case.options.get("capacity_factor"), case.options.get("tokens")
    kept = np.ones(chosen.shape)
    if factor is None:
        return kept
    groups = 1 if tokens is None else B.size
    size = len(chosen) // groups
    capacity = int(np.ceil(factor * chosen.size / groups / 8))
    taken: dict[tuple[int, int], int] = {}
    for choice in range(chosen.shape[1]):
        for token in range(len(chosen)):
            queue = token // size, int(chosen[token, choice])
            kept[token, choice] = taken.get(queue, 0) < capacity
            taken[queue] = taken.get(queue, 0) + real[token]
    return kept


def check(case: Case, found: Any) -> None:
    """Compare results, statistics and gradients with those of all experts on one device, to 1e-6 of the largest."""
    model, x = inputs(case)
    real = np.ones(B.size * Long.size, bool)
    if case.masked is not None:
        real, x = np.asarray(case.masked.broadcast_axis(x.axes[:2]).array).ravel(), axn.where(case.masked, x, 0)
    numbers = choices(model, x)
    (y, routing), gradients = found
    by_hand = functools.partial(all_experts, numbers=numbers, kept=kept_choices(case, numbers, real), real=real)
    differentiated = jax.jit(jax.value_and_grad(by_hand, (0, 1), has_aux=True))
    (_, (theirs, load, dropped)), others = differentiated(model, x.array)
    near(y.rearrange(x.names).array, theirs)
    near(routing.load.array, load)
    assert routing.load.names == ("experts",)
    assert float(routing.dropped) == np.float32(dropped)
    for gradient, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(others), strict=True):
        near(gradient, other)


def near(x: Any, y: Any) -> None:
    """Compare two arrays relative to the largest number."""
    y = np.asarray(y)
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-6 * np.abs(y).max())


def apply_model(model: nn.MixtureOfExperts, x: axn.NamedArray) -> axn.NamedArray:
    """Return the result of a layer alone."""
    return model(x)[0]
