"""Compiled programs as text: groups of devices, loops, and which mesh axes take part."""

import numpy as np
import pytest

from axonym.costs.compiled.program import Array, Program, find_mesh_axes, parse_arrays, parse_groups

pytestmark = pytest.mark.sampled

MESH = (("data", 4), ("model", 2))
PLACES = np.arange(8).reshape(4, 2)

# A loop of 5 that gathers along `data`, and a sum along `model` of two arrays outside.
TEXT = """HloModule jit_f, num_partitions=8

%body (s: (s32[], f32[2,16])) -> (s32[], f32[2,16]) {
  %s = (s32[], f32[2,16]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[2,16]{1,0} get-tuple-element(%s), index=1
  %g = f32[8,16]{1,0} all-gather(%x), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}
  %y = f32[2,16]{1,0} slice(%g), slice={[0:2], [0:16]}
  ROOT %t = (s32[], f32[2,16]{1,0}) tuple(%i, %y)
}

%condition (u: (s32[], f32[2,16])) -> pred[] {
  %u = (s32[], f32[2,16]{1,0}) parameter(0)
  %end = s32[] constant(5)
  %j = s32[] get-tuple-element(%u), index=0
  ROOT %lt = pred[] compare(%j, %end), direction=LT
}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (v: (s32[], f32[2,16]), w: bf16[3]) -> f32[2,16] {
  %v = (s32[], f32[2,16]{1,0}) parameter(0)
  %w = bf16[3]{0} parameter(1)
  %loop = (s32[], f32[2,16]{1,0}) while(%v), condition=%condition, body=%body
  %z = f32[2,16]{1,0} get-tuple-element(%loop), index=1
  %r = (f32[2,16]{1,0}, bf16[3]{0}) all-reduce(%z, %w), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add
  ROOT %out = f32[2,16]{1,0} get-tuple-element(%r), index=0
}
"""


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("replica_groups={{0,2,4,6},{1,3,5,7}}", PLACES.T),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", PLACES.T),
        ("replica_groups=[4,2]<=[8]", PLACES),
        ("replica_groups=mesh['data'=4,'model'=2] {'data'}", PLACES.T),
        ("replica_groups=mesh['axis_0'=1,'axis_1'=4,'axis_2'=2] {'axis_1'}", PLACES.T),
        ("replica_groups=mesh['data'=4,'model'=2] {'data','model'}", PLACES.reshape(1, 8)),
        ("replica_groups=mesh['all'=8] {'all':(1)4}", PLACES.T),
        ("replica_groups=mesh['all'=8] {'all':(4)2}", PLACES),
        ("replica_groups=mesh['a'=1,'b'=4,'c'=2], device_ids=([2,4]T(1,0)) {'b'}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("replica_groups=mesh['a'=2,'b'=4], device_ids=(7,6,5,4,3,2,1,0) {'a'}", [[7, 3], [6, 2], [5, 1], [4, 0]]),
        ("replica_groups={}", PLACES.reshape(1, 8)),
        ("source_target_pairs={{0,2},{2,4},{4,6},{6,0}}", [[0, 2], [2, 4], [4, 6], [6, 0]]),
    ],
)
def test_notations_of_groups(written, expected):
    groups = parse_groups(f"  %x = f32[2] all-gather(%y), {written}, dimensions={{0}}", 8)
    assert sorted(groups.tolist()) == sorted(np.asarray(expected).tolist())


def test_another_notation_is_an_error():
    with pytest.raises(ValueError, match=r"^cannot read the groups of devices in %x = f32\[2\] all-gather"):
        parse_groups("  %x = f32[2] all-gather(%y), replica_groups=<new>, dimensions={0}", 8)


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        (PLACES.T, ("data",)),
        (PLACES, ("model",)),
        (PLACES.reshape(1, 8), ("data", "model")),
        (PLACES.reshape(2, 4), ("data:2", "model")),
        (PLACES[:2].T, ("data:2",)),
        (np.array([[0, 2], [2, 4], [4, 6], [6, 0]]), ("data",)),
        (np.array([[0, 9]]), ()),
    ],
)
def test_mesh_axes_of_groups(groups, axes):
    assert find_mesh_axes(groups, MESH) == axes


def test_a_mesh_of_one_device_has_no_groups():
    assert find_mesh_axes(np.array([[0]]), ()) == ()


def test_loops_count_and_arrays_that_are_sent_together():
    gather, total = Program(TEXT).list_transfers()
    assert (gather.kind, gather.count, gather.group, gather.nbytes) == ("all-gather", 5, 4, 128)
    assert gather.results == (Array("f32", 32, (8, 16)),)
    assert (total.kind, total.count, total.group, total.name) == ("all-reduce", 1, 2, "r")
    assert total.operands == (Array("f32", 32, (2, 16)), Array("bf16", 16, (3,)))


def test_sizes_of_types():
    found = parse_arrays("(pred[5]{0}, /*index=1*/s4[3]{0:T(8)}, f8e4m3fn[2,2]{1,0}, f32[])")
    assert [array.nbytes for array in found] == [5, 2, 4, 4]
    assert [array.space for array in parse_arrays("(f32[2]{0:T(128)S(1)}, f32[2]{0})")] == [1, 0]
    assert [array.dtype for array in found] == ["pred", "s4", "f8e4m3fn", "f32"]


@pytest.mark.parametrize(("step", "runs"), [(1, 5), (2, 3), (5, 1)])
def test_a_loop_that_is_unrolled_counts_by_more_than_one(step, runs):
    counted = f"  %step = s32[] constant({step})\n  %next = s32[] add(%i, %step)\n  ROOT %t"
    text = TEXT.replace("  ROOT %t", counted, 1).replace("tuple(%i, %y)", "tuple(%next, %y)")
    assert [one.count for one in Program(text).list_transfers()] == [runs, 1]


# What the loop begins with is behind a copy, as in programs for TPU; the argument is a number that is not known.
BEGUN = TEXT.replace("while(%v)", "while(%in)").replace(
    "  %loop =",
    """  %x0 = f32[2,16]{1,0} get-tuple-element(%v), index=1
  %i0 = s32[] get-tuple-element(%v), index=0
  %two = s32[] constant(2)
  %copied = s32[]{:S(6)} copy(%two)
  %in = (s32[], f32[2,16]{1,0}) tuple(START, %x0)
  %loop =""",
)


@pytest.mark.parametrize(("start", "runs"), [("%copied", 3), ("%i0", 1)])
def test_a_loop_counts_from_where_it_starts(start, runs):
    program = Program(BEGUN.replace("START", start), unknown_trip_count=1)
    assert program.list_transfers()[0].count == runs
    assert bool(program.unknown) == (start == "%i0")


# Rows are sent into an array that has room for them; three arrays say which rows go where.
RAGGED = """HloModule jit_f, num_partitions=8

ENTRY %main (x: f32[16,4], y: f32[32,4], z: s32[8]) -> f32[32,4] {
  %x = f32[16,4]{1,0} parameter(0)
  %y = f32[32,4]{1,0} parameter(1)
  %z = s32[8]{0} parameter(2)
  ROOT %r = f32[32,4]{1,0} ragged-all-to-all(%x, %y, %z, %z, %z, %z), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}
}
"""


def test_of_a_ragged_exchange_the_rows_are_sent():
    (one,) = Program(RAGGED).list_transfers()
    assert one.operands == (Array("f32", 32, (16, 4)),)
