"""Queues of experts, against a plain loop."""

import numpy as np
import pytest

import axonym as axn
from axonym.nn.moe.layout import CHOICE, TokenLayout
from axonym.nn.moe.queues import build_queues
from tests.nn.layouts import compiled

pytestmark = pytest.mark.sampled

B, S, K, X = axn.Axis("batch", 8), axn.Axis("seq", 6), axn.Axis(CHOICE, 2), axn.Axis("experts", 4)
CHOSEN = np.random.default_rng(0).integers(0, 4, (8, 6, 2)).astype(np.int32)
TOKENS = ("batch", "seq")


def places(competing):
    """Count who came before: first choices before second ones, and earlier tokens before later ones."""
    found, counts = np.zeros_like(CHOSEN), {}
    for k, b, s in np.ndindex(2, 8, 6):
        group = () if "batch" in competing else (b,)
        group += () if "seq" in competing else (s,)
        queue = group, CHOSEN[b, s, k]
        found[b, s, k] = counts.get(queue, 0)
        counts[queue] = counts.get(queue, 0) + 1
    return found


@pytest.mark.parametrize("competing", [TOKENS, ("seq",), ("batch",)])
def test_first_choices_and_earlier_tokens_go_first(competing):
    queues = compiled(build_queues, TokenLayout(TOKENS, competing), axn.named(CHOSEN, (B, S, K)), X)
    np.testing.assert_array_equal(queues.place.rearrange((B, S, K)).array, places(competing))
    assert int(queues.sizes.sum()) == CHOSEN.size


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
@pytest.mark.parametrize(
    "mapping",
    [{"batch": "data"}, {"batch": "data", "seq": "model"}, {"batch": ("model", "data")}],
    ids=str,
)
def test_tokens_of_other_devices_count(mapping, kind, request):
    mesh = request.getfixturevalue(kind)
    entries = {name: (entry,) if isinstance(entry, str) else entry for name, entry in mapping.items()}
    layout = TokenLayout(TOKENS, TOKENS, entries=tuple(entries.items()), mesh_sizes=tuple(mesh.shape.items()))
    with axn.set_mesh(mesh):
        run = axn.shard_map(lambda chosen: build_queues(layout, chosen, X).place, mapping)
        found = run(axn.shard(axn.named(CHOSEN, (B, S, K)), mapping))
    np.testing.assert_array_equal(found.rearrange((B, S, K)).array, places(TOKENS))
