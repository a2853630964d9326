"""Which positions are split, and what each method sends."""

import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ShardingError
from benchmarks.measure import collectives, totals
from tests.nn.attending import with_gradients
from tests.nn.layouts import compiled, draw, fails, lies
from tests.nn.split import CAUSAL, MAPPING, MASKS, ROW, SEEN, B, D, H, P, attend, check, expected, inputs, on

pytestmark = pytest.mark.sampled

QUERY, KEYS = 4 * 2 * 8 * 4 * 4, 4 * 8 * 4 * 4  # bytes of the queries, and of the keys, of one device
SENT = {
    # keys and values in both passes, and their gradients
    ("ring", "causal"): 3 * 6 * KEYS,
    ("ring", "causal window"): 6 * KEYS,
    ("all-gather", "causal"): 3 * 6 * KEYS,
    # queries, result, keys and values in both passes
    ("all-to-all", "causal"): 2 * (2 * QUERY + 2 * KEYS) * 3 // 4,
}
# XLA for CPUs may send once what both passes receive alike, where no loop is between.
JOINED = {("ring", "causal window"): 2 * KEYS, ("all-gather", "causal"): 3 * 2 * KEYS}
KINDS = {
    "ring": ["collective-permute"],
    "all-gather": ["all-gather", "reduce-scatter"],
    "all-to-all": ["all-to-all"],
}


@pytest.mark.parametrize(("method", "case"), SENT)
def test_bytes_are_those_of_the_formula(method, case, auto_mesh, explicit_mesh):
    mesh = explicit_mesh if case == "causal" else auto_mesh
    run = with_gradients(lambda *x: attend(*x, mask=MASKS[case][0](), implementation=method))
    found = totals(collectives(on(mesh, MAPPING, run, *inputs())[1]))
    found.pop("all-reduce", None)  # of the loss
    assert list(found) == KINDS[method]
    sent = round(sum(total.wire_megabytes for total in found.values()) * 1e6)
    assert sent in (SENT[method, case], SENT[method, case] - JOINED.get((method, case), 0))


def test_without_a_mesh_it_is_computed_block_by_block():
    given = inputs()
    found = with_gradients(lambda *x: attend(*x, mask=nn.causal(), implementation="ring"))(*given)
    check(found, expected(CAUSAL, *(x.array for x in given)))


def test_a_query_that_sees_no_key_gets_the_mean_of_all(auto_mesh):
    q, k, v = inputs()
    seen = SEEN & (ROW > 2)
    mask = nn.AttentionMask.of(axn.named(seen, ("pos", "pos.key")))
    for run in (
        lambda *x: attend(*x, mask=mask, implementation="ring"),
        axn.shard_map(lambda q, k, v, seen: attend(q, k, v, mask=seen, implementation="ring"), MAPPING, strict=False),
    ):
        given = (q, k, v) if not isinstance(run, axn.ShardMap) else (q, k, v, mask.explicit)
        out, _ = on(auto_mesh, MAPPING, run, *given)
        means = np.broadcast_to(v.array.mean(2)[:, :, None, None], (2, 4, 2, 3, 8))
        np.testing.assert_allclose(out["pos", :3].array, means, atol=2e-6)


def test_errors(auto_mesh):
    q, k, v = inputs()
    with axn.set_mesh(auto_mesh), axn.axis_mapping(MAPPING):
        other = [x.rename({"pos.key": "key_pos"}) for x in (k, v)]
        start = "dot_product_attention: implementation"
        lines = (
            "\n  query has: batch=2, heads=4, group=2, pos=16, head_dim=8"
            "\n  keys have: batch=2, heads=4, {}=16, head_dim=8\n  positions: pos over data, {} over {}\n  hint: "
        )
        fails(
            ShardingError,
            f"{start} 'ring' does not support this: each device has all keys, so that there is nothing to send around"
            + lines.format("key_pos", "key_pos", "nothing")
            + 'call their axis "pos.key", which is split like \'pos\'; or implementation="all-gather"',
            lambda: nn.dot_product_attention("pos", "key_pos", "head_dim", q, *other, implementation="ring"),
        )
        fails(
            ShardingError,
            f"{start} 'all-to-all' does not support this: no axis that queries, keys and values share can be split "
            "in 4 more parts"
            + lines.replace("heads=4, {}", "{}").format("pos.key", "pos.key", "data")
            + 'implementation="ring" needs no heads',
            lambda: attend(q, k["heads", 0], v["heads", 0], implementation="all-to-all"),
        )


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_a_cache_that_is_split_along_positions_is_not_gathered(kind, auto_mesh, explicit_mesh):
    """A prompt is read in parts of the positions too, and then tokens one by one."""
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    Long = axn.Axis("pos.key", 256)
    prompt, token = draw(B, H, P, D), draw(B, H, D, seed=1)

    def start():
        return nn.KVCache.init("pos.key", (B, H, Long, D), lengths=B)

    def read(pos):
        return lambda cache, x: cache.attend(pos, "head_dim", x, x, x)

    wanted = []
    cache = start()
    for pos, x in (("pos", prompt), (None, token), (None, token)):
        out, cache = compiled(read(pos), cache, x)
        wanted.append(out)
    with axn.set_mesh(mesh):
        cache = axn.named_jit(start, MAPPING, strict=False)()
        for i, (pos, x) in enumerate((("pos", prompt), (None, token), (None, token))):
            (out, cache), program = on(mesh, MAPPING, read(pos), cache, x)
            np.testing.assert_allclose(out.array, wanted[i].array, atol=2e-6)
            assert lies(cache.key, mesh, MAPPING)
            sent = sum(total.wire_megabytes for total in totals(collectives(program)).values()) * 1e6
            if pos is None:
                assert sent < cache.key.nbytes / 8 / 10
