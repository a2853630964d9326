import gc
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks import measure
from benchmarks.measure import Collective, Timing, Total


@pytest.fixture(scope="module")
def compiled(auto_mesh: jax.sharding.Mesh) -> jax.stages.Compiled:
    """Every kind of collective, in loops of known lengths; x is float32[8, 4] on every device."""

    def f(x: jax.Array) -> jax.Array:
        def inner(x, _):
            return lax.psum(x, "data") * 0.1, None

        def outer(x, _):
            x, _ = lax.scan(inner, x, length=3)
            gathered = lax.all_gather(x, "model", tiled=True).sum()
            scattered = lax.psum_scatter(x, "data", tiled=True).sum()
            shifted = lax.ppermute(x, "data", [(0, 1), (1, 0)])
            swapped = lax.all_to_all(x, "model", 0, 1, tiled=True).sum()
            return x + gathered + scattered + shifted + swapped, None

        x, _ = lax.scan(outer, x, length=5)
        return lax.cond(x.sum() > 0, lambda: lax.psum(x, ("data", "model")), lambda: x)

    sharded = jax.shard_map(f, mesh=auto_mesh, in_specs=P(), out_specs=P(), check_vma=False)
    return jax.jit(sharded).lower(jnp.ones((8, 4))).compile()


def test_collectives_in_nested_loops(compiled: jax.stages.Compiled) -> None:
    found = measure.collectives(compiled)
    assert found == measure.collectives(compiled.as_text())
    assert {(c.kind, c.bytes, c.count, c.group) for c in found} == {
        ("all-reduce", 128, 15, 4),
        ("all-gather", 128, 5, 2),
        ("reduce-scatter", 128, 5, 4),
        ("collective-permute", 128, 5, 2),
        ("all-to-all", 128, 5, 2),
        ("all-reduce", 128, 1, 8),
    }
    assert {c.name.rsplit("/", 1)[1] for c in found} == {
        *("psum", "all_gather", "reduce_scatter", "ppermute", "all_to_all")
    }


def test_totals_by_kind(compiled: jax.stages.Compiled) -> None:
    totals = measure.totals(measure.collectives(compiled))
    assert list(totals) == list(measure.KINDS)
    assert totals["all-gather"] == Total(5, pytest.approx(5 * 128e-6), pytest.approx(5 * 128e-6))
    wire = 15 * 2 * 128e-6 * 3 / 4 + 2 * 128e-6 * 7 / 8
    assert totals["all-reduce"] == Total(16, pytest.approx(16 * 128e-6), pytest.approx(wire))


def test_loop_of_unknown_length(auto_mesh: jax.sharding.Mesh) -> None:
    def f(x: jax.Array, n: jax.Array) -> jax.Array:
        return lax.fori_loop(0, n, lambda _, x: lax.psum(x, "data"), x)

    sharded = jax.shard_map(f, mesh=auto_mesh, in_specs=P(), out_specs=P(), check_vma=False)
    compiled = jax.jit(sharded).lower(jnp.ones(4), 3).compile()
    message = (
        r"cannot count the executions of \S+ \(all-reduce\): it is inside the loop while\S*, "
        r"whose trip count XLA does not know; pass unknown_trip_count="
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        measure.collectives(compiled)
    assert [c.count for c in measure.collectives(compiled, unknown_trip_count=7)] == [7]


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", 4),
        ("[4,2]<=[8]", 2),
        ("[1,8]<=[2,4]T(1,0)", 8),
        ("mesh['data'=4,'model'=2] {'data','model'}", 8),
        ("mesh['data'=4,'model'=2] {'data':(1)2,'model'}", 4),
        ("{}", 8),
    ],
)
def test_notations_of_groups(groups: str, size: int) -> None:
    text = f"""HloModule jit_f, num_partitions=8

%wrapped (p: bf16[2,3]) -> bf16[2,3] {{
  %p = bf16[2,3]{{1,0:T(8,128)}} parameter(0)
  %q = (pred[5]{{0}}, s4[3]{{0}}) custom-call()
  ROOT %ar = (bf16[2,3]{{1,0}}, /*index=1*/pred[5]{{0}}) all-reduce-start(%p, %q), replica_groups={groups}
}}

ENTRY %main (p.1: bf16[2,3]) -> bf16[2,3] {{
  %p.1 = bf16[2,3]{{1,0}} parameter(0)
  %start = ((bf16[2,3]{{1,0}}), bf16[2,3]{{1,0}}) async-start(%p.1), calls=%wrapped
  ROOT %done = bf16[2,3]{{1,0}} async-done(%start), calls=%wrapped
}}
"""
    # 6 bfloat16, 5 booleans, and 3 integers of 4 bits, which round up to 2 bytes
    assert measure.collectives(text) == [Collective("all-reduce", 12 + 5 + 2, 1, "ar", size)]


def test_fusions_and_loops_of_the_compiler_for_tpu() -> None:
    text = """HloModule jit_f, num_partitions=8

%start (p: f32[2]) -> f32[8] {
  %p = f32[2]{0:T(128)} parameter(0)
  ROOT %a = f32[8]{0:T(128)} all-gather(%p), channel_id=1, replica_groups=[2,4]<=[8], frontend_attributes={chain_id="3"}
}

%done (q: f32[2]) -> f32[8] {
  %q = f32[2]{0:T(128)} parameter(0)
  ROOT %b = f32[8]{0:T(128)} all-gather(%q), channel_id=1, replica_groups=[2,4]<=[8], frontend_attributes={chain_id="3"}
}

%all-reduce-scatter.3 (r: f32[8]) -> f32[2] {
  %r = f32[8]{0:T(128)} parameter(0)
  %zero = s32[]{:T(128)} constant(0)
  %c = f32[8]{0:T(128)} all-reduce(%r), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %part = f32[2]{0:T(128)} dynamic-slice(%c, %zero), dynamic_slice_sizes={2}
}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[]{:T(128)} parameter(0)
  %y = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%x, %y)
}

%body (s: (s32[], f32[2])) -> (s32[], f32[2]) {
  %s = (s32[]{:T(128)}, f32[2]{0:T(128)}) parameter(0)
  %x.1 = f32[2]{0:T(128)} get-tuple-element(%s), index=1
  %f = f32[8]{0:T(128)} fusion(%x.1), kind=kCustom, calls=%start
  %g = f32[8]{0:T(128)} fusion(%x.1), kind=kCustom, calls=%done
  %h = f32[2]{0:T(128)} fusion(%g), kind=kCustom, calls=%all-reduce-scatter.3
  %before = s32[]{:T(128)} get-tuple-element(%s), index=0
  %one = s32[]{:T(128)} constant(1)
  %i = s32[]{:T(128)} add(%before, %one)
  ROOT %t = (s32[]{:T(128)}, f32[2]{0:T(128)}) tuple(%i, %h)
}

%condition (u: (s32[], f32[2])) -> pred[] {
  %u = (s32[]{:T(128)}, f32[2]{0:T(128)}) parameter(0)
  %end = s32[]{:T(128)} constant(6)
  %i.1 = s32[]{:T(128)} get-tuple-element(%u), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i.1, %end), direction=LT
}

ENTRY %main (v: (s32[], f32[2])) -> (s32[], f32[2]) {
  %v = (s32[]{:T(128)}, f32[2]{0:T(128)}) parameter(0)
  ROOT %w = (s32[]{:T(128)}, f32[2]{0:T(128)}) while(%v), condition=%condition, body=%body
}
"""
    assert measure.collectives(text) == [
        Collective("reduce-scatter", 32, 6, "c", 4),
        Collective("all-gather", 8, 6, "a", 4),
    ]


def test_other_text() -> None:
    message = "this is not the text of a compiled HLO module: it has no ENTRY computation"
    with pytest.raises(ValueError, match=f"^{message}$"):
        measure.collectives("module @jit_f {}")


def test_wire_bytes_of_a_ring() -> None:
    wire = {kind: measure.wire_bytes(Collective(kind, 100, 2, "", 4)) for kind in measure.KINDS}
    assert wire == {
        "all-gather": 600,
        "all-reduce": 300,
        "reduce-scatter": 150,
        "collective-permute": 200,
        "all-to-all": 150,
    }


def test_flops_and_bytes_of_a_product() -> None:
    x = jnp.ones((64, 64))
    cost = measure.flops_bytes(jax.jit(jnp.matmul).lower(x, x).compile())
    assert cost == (2 * 64**3, 3 * 64**2 * 4)


def test_interleaved_takes_turns() -> None:
    turns: list[str] = []
    candidates = {label: lambda label=label: turns.append(label) or jnp.zeros(()) for label in "abc"}
    timings = measure.interleaved(candidates, rounds=4, calls=2)
    assert list(timings) == ["a", "b", "c"]
    assert all(len(t.rounds) == 4 and t.minimum > 0 for t in timings.values())
    assert turns[:3] == ["a", "b", "c"]
    rounds = ["".join(turns[3 + 6 * i : 9 + 6 * i]) for i in range(4)]
    assert all(sorted(r) == sorted("aabbcc") and re.search("aa.*", r) for r in rounds)
    assert len(set(rounds)) > 1


def test_garbage_is_collected_between_measurements_only() -> None:
    events: list[str] = []

    def collected(phase: str, _: object) -> None:
        if phase == "start":
            events.append("collection")

    def call() -> None:
        events.append("call")

    gc.callbacks.append(collected)
    try:
        measure.interleaved({"call": call}, rounds=2, calls=2)
    finally:
        gc.callbacks.remove(collected)
    assert events[-6:] == ["collection", "call", "call"] * 2
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_a_failure_leaves_the_garbage_collector_on() -> None:
    calls: list[None] = []

    def call() -> None:
        calls.append(None)
        if len(calls) > 1:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        measure.interleaved({"call": call}, rounds=1, calls=1)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(("rounds", "calls"), [(0, 1), (1, 0)])
def test_interleaved_needs_something_to_time(rounds: int, calls: int) -> None:
    message = f"rounds and calls must be at least 1, got rounds={rounds} and calls={calls}"
    with pytest.raises(ValueError, match=f"^{message}$"):
        measure.interleaved({}, rounds=rounds, calls=calls)


def test_ratios() -> None:
    a, b = Timing((2.0, 8.0, 3.0)), Timing((1.0, 2.0, 3.0))
    assert measure.ratio_of_minima(a, b) == 2
    assert measure.median_ratio(a, b) == 2
    assert (a.minimum, a.median) == (2, 3)


def test_table() -> None:
    rows = [{"name": "add", "us": 1.23456, "n": 10}, {"name": "dot", "us": 1234.5}]
    assert measure.table(rows) == (
        "| name | us   | n  |\n"  #
        "|------|------|----|\n"
        "| add  | 1.23 | 10 |\n"
        "| dot  | 1234 |    |"
    )
    assert measure.table([]) == ""
