"""What hides collectives: in schedules that are written by hand, and by assumption."""

import dataclasses

import pytest

import axonym as axn
from axonym.costs.compiled.program import Program
from axonym.costs.compiled.schedule import estimate_operations, find_concurrent, find_windows
from axonym.costs.shared.places import find_place
from axonym.costs.shared.rows import Collective
from axonym.partitioning import TARGETS, Link, Target
from tests.costs.made import SUM, made

# A million operations and a million bytes take a second; a product of 100 x 100 x 100 takes two.
SLOW = Target("slow", {"float32": 1e6}, memory=2**30, memory_bandwidth=1e6, link=Link(1e6))
GROUPS = "replica_groups={{0,1}}"
DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
TYPE = "f32[100,100]{1,0}"

# The first gather spans both products, the second one the last; the third one blocks.
PAIRED = f"""HloModule jit_f, is_scheduled=true, num_partitions=2

ENTRY %main (x: f32[100,100], y: f32[100,100]) -> f32[100,100] {{
  %x = {TYPE} parameter(0)
  %y = {TYPE} parameter(1)
  %g = (f32[50]{{0}}, f32[100]{{0}}) all-gather-start(%x), {GROUPS}
  %p = {TYPE} dot(%x, %y), {DOT}, metadata={{op_name="jit(f)/first/dot"}}
  %h = (f32[50]{{0}}, f32[100]{{0}}) all-gather-start(%y), {GROUPS}
  %q = {TYPE} dot(%p, %y), {DOT}, metadata={{op_name="jit(f)/second/dot"}}
  %gd = f32[100]{{0}} all-gather-done(%g)
  %hd = f32[100]{{0}} all-gather-done(%h)
  ROOT %last = {TYPE} all-gather(%q), {GROUPS}
}}
"""

# As the compiler for TPU has it: a fusion begins, one goes on beside a product, one ends.
CHAINED = f"""HloModule jit_f, is_scheduled=true, num_partitions=2

%begins (a: f32[50]) -> f32[100] {{
  %a = f32[50]{{0}} parameter(0)
  ROOT %one = f32[100]{{0}} all-gather(%a), channel_id=1, {GROUPS}, frontend_attributes={{chain_id="0"}}
}}

%beside (b: f32[50], x: f32[100,100]) -> f32[100,100] {{
  %b = f32[50]{{0}} parameter(0)
  %x = {TYPE} parameter(1)
  %two = f32[100]{{0}} all-gather(%b), channel_id=1, {GROUPS}, frontend_attributes={{chain_id="0"}}
  ROOT %p = {TYPE} dot(%x, %x), {DOT}, metadata={{op_name="jit(f)/first/dot"}}
}}

%ends (c: f32[50]) -> f32[100] {{
  %c = f32[50]{{0}} parameter(0)
  ROOT %three = f32[100]{{0}} all-gather(%c), channel_id=1, {GROUPS}, frontend_attributes={{chain_id="0"}}
}}

ENTRY %main (d: f32[50], y: f32[100,100]) -> f32[100] {{
  %d = f32[50]{{0}} parameter(0)
  %y = {TYPE} parameter(1)
  %before = {TYPE} dot(%y, %y), {DOT}, metadata={{op_name="jit(f)/before/dot"}}
  %start = f32[100]{{0}} fusion(%d), kind=kLoop, calls=%begins
  %middle = {TYPE} fusion(%d, %y), kind=kOutput, calls=%beside, metadata={{op_name="jit(f)/first/dot"}}
  ROOT %end = f32[100]{{0}} fusion(%d), kind=kLoop, calls=%ends
}}
"""

# Two permutes are under way at once, each one way, and one alone after them.
AROUND = """HloModule jit_f, is_scheduled=true, num_partitions=3

ENTRY %main (x: f32[50], y: f32[50]) -> f32[50] {
  %x = f32[50]{0} parameter(0)
  %y = f32[50]{0} parameter(1)
  %a = (f32[50]{0}, f32[50]{0}) collective-permute-start(%x), source_target_pairs={{0,1},{1,2},{2,0}}
  %b = (f32[50]{0}, f32[50]{0}) collective-permute-start(%y), source_target_pairs={{0,2},{1,0},{2,1}}
  %ad = f32[50]{0} collective-permute-done(%a)
  %bd = f32[50]{0} collective-permute-done(%b)
  %sum = f32[50]{0} add(%ad, %bd)
  %c = (f32[50]{0}, f32[50]{0}) collective-permute-start(%sum), source_target_pairs={{0,1},{1,2},{2,0}}
  ROOT %cd = f32[50]{0} collective-permute-done(%c)
}
"""
UP, DOWN = {(0, 1), (1, 2), (2, 0)}, {(0, 2), (1, 0), (2, 1)}


def read(text):
    program = Program(text)
    return program, find_windows(program, lambda source: find_place(source, has_gradient=False), SLOW)


def test_what_is_between_start_and_end_hides_a_collective():
    _, found = read(PAIRED)
    # Of 2 s for the second product, both have a half.
    assert found["main", "g"].seconds == pytest.approx(2.0 + 1.0, rel=1e-2)
    assert found["main", "g"].layers[:2] == ("first", "second")
    assert found["main", "h"].seconds == pytest.approx(1.0, rel=1e-2)
    assert ("main", "last") not in found


def test_fusions_that_carry_a_collective_on_hide_it():
    program, found = read(CHAINED)
    (transfer,) = program.list_transfers()
    window = found[transfer.computation, transfer.instruction.name]
    assert window.seconds == pytest.approx(2.0, rel=1e-2)
    assert window.layers[0] == "first"
    assert "before" not in window.layers


def test_operations_follow_each_other_and_what_is_started_is_beside_them():
    # Two products of 2 s each; no gather takes time of theirs.
    assert estimate_operations(Program(PAIRED), SLOW) == pytest.approx(4.0, rel=1e-6)
    # A product in a fusion, and one before it; around them, 100 and 150 floats are read and written.
    assert estimate_operations(Program(CHAINED), SLOW) == pytest.approx(4.0, rel=1e-3)
    copying = PAIRED.replace("%gd = f32[100]{0} all-gather-done(%g)", f"%c = ({TYPE}, {TYPE}) copy-start(%q)")
    assert estimate_operations(Program(copying), SLOW) == estimate_operations(Program(PAIRED), SLOW)


def test_a_step_as_scheduled_takes_what_its_operations_take_and_what_nothing_hides():
    sent = dataclasses.replace(SUM, seconds=3.0, hidden=2.0)
    assert made(communication=(sent,), operations=5.0).time.scheduled == 6.0
    # Copies beside operations are limited by the memory, 0.2 ms here.
    assert made(communication=(sent,), operations=0.0).time.scheduled == pytest.approx(1.0 + 2.01e-4)


@pytest.mark.parametrize("is_split", [True, False])
def test_permutes_that_are_under_way_at_once(is_split):
    text = AROUND
    if not is_split:
        # As in programs for CPU: each permute is one instruction, and nothing tells when it is under way.
        text = text.replace("(f32[50]{0}, f32[50]{0}) collective-permute-start", "f32[50]{0} collective-permute")
        text = text.replace("collective-permute-done", "copy")
    program = Program(text)
    found = find_concurrent(program, program.list_transfers())
    assert found["main", "a"] == found["main", "b"] == {frozenset(UP), frozenset(DOWN)}
    alone = {frozenset(UP)} if is_split else {frozenset(UP), frozenset(DOWN)}
    assert found["main", "c"] == alone


def test_programs_for_cpu_hide_nothing_and_those_for_another_target_tell_nothing():
    def layer(w, x):
        return axn.dot(x, w, axis="embed")

    arrays = axn.ones(axn.make_axes(embed=16, mlp=8)), axn.ones(axn.make_axes(batch=8, embed=16))
    own = axn.cost(layer, {"embed": "model"}, {"model": 2}, *arrays, target=TARGETS["cpu"])
    assert own.is_scheduled
    assert [one.hidden for one in own.communication] == [0.0]
    assert own.time.scheduled == own.time.serial
    assert "as the program is scheduled: it sends nothing while it computes" in str(own)
    assert isinstance(own.communication[0], Collective)
    table = str(own).split("\n\n")[2].splitlines()
    assert table[0].split()[-2:] == ["hidden", "by"]
    assert table[1].split()[-2:] == ["0", "nothing"]

    other = axn.cost(layer, {"embed": "model"}, {"model": 2}, *arrays, target="h100")
    assert not other.is_scheduled
    assert other.time.scheduled == pytest.approx(other.time.seconds)
    assert other.communication[0].hidden > 0
