"""Sums, texts and tables of a cost."""

import dataclasses

import pytest

from axonym.costs.shared.rows import Memory, Work
from axonym.partitioning import Efficiency
from tests.costs.made import GATHER, KEPT, MEMORY, SUM, TARGET, made


def test_what_is_sent_is_summed_by_axis_and_layer():
    cost = made()
    gathered, summed = 6 * 3 * 1024, 6 * 2 * 4096 * 3 // 4
    assert cost.by_axis == {
        "batch": (6, summed, 4e-5),
        "embed": (6, gathered, 2e-5),
        "unattributed": (1, 6, 0.0),
    }
    assert list(cost.by_layer) == ["blocks.up", ""]
    assert cost.unattributed == pytest.approx(6 / (summed + gathered + 6))
    assert made(communication=()).unattributed == 0
    assert cost.totals["bytes sent"] == summed + gathered + 6
    assert (cost.totals["flops"], cost.totals["collectives"]) == (3e6, 13)


def test_time_with_and_without_overlap():
    time = made().time
    memory = 2e5 / TARGET.memory_bandwidth
    assert time.seconds == pytest.approx(GATHER.seconds + memory)
    assert time.serial == pytest.approx(1e-6 + GATHER.seconds + memory + SUM.seconds)
    assert time.utilisation == pytest.approx(3e6 / TARGET.peak / time.seconds)
    waiting = made(bubble=0.2).time
    assert waiting.seconds == time.seconds
    assert waiting.utilisation == pytest.approx(0.8 * time.utilisation)
    assert made(work=()).time.utilisation == 0


def test_the_expectation_divides_each_time_by_the_share_that_is_reached():
    shares = Efficiency(products=0.5, attention=0.25, links=0.8, memory=0.1)
    target = dataclasses.replace(TARGET, efficiency=shares)
    work = (
        Work("a", "forward", 1e6, 0.0, computing=6.0, moving=0.5, sending=4.0, copying=8.0, attending=2.0),
        Work("a", "backward", 1e6, 0.0, computing=1.0, moving=1.0, sending=4.0, copying=12.0),
    )
    time = made(target=target, work=work).time
    # Forwards, products take 4 / 0.5 and attention 2 / 0.25; backwards, memory takes longest, and copies longer.
    assert (time.seconds, time.expected) == (pytest.approx(6 + 4 + 2 + 8), pytest.approx(16 + 10 + 12 / 0.8 - 10))
    assert time.compared == time.expected
    # A schedule has operations of the same layers, and what nothing hides.
    sent = dataclasses.replace(GATHER, seconds=3.0, hidden=1.0)
    planned = made(target=target, work=work[:1], communication=(sent,), operations=9.0).time
    assert planned.expected == pytest.approx(9 * 16 / 6 + 2 / 0.8)
    text = "expected: 31 s, if t1 reaches of its peaks 50% in products, 25% in attention, 80% in links, 10% in memory"
    assert text in str(made(target=target, work=work))


def test_what_is_computed_twice_does_not_count_for_the_model():
    cost = made()
    again = dataclasses.replace(cost.work[0], phase="recomputed")
    more = dataclasses.replace(cost, work=(*cost.work, again))
    assert more.totals["flops"] == 4e6
    assert more.time.utilisation * more.time.seconds == pytest.approx(3e6 / TARGET.peak)


def test_what_does_not_fit_comes_with_what_to_change():
    large = Memory(4 * 49152, 0, 0, 4 * 49152, 0, 2**20)
    assert made(memory=large).problems == (
        "1.4 MiB at the peak do not fit into the 1.0 MiB of t1, by 384.0 KiB",
        "to save 512.0 KiB: half the batch of a device, by more microbatches or devices, or keep less for the "
        "backward pass",
        "to save 192.0 KiB: donate the arguments that the results replace",
        "to save 144.0 KiB: split parameters over all mesh axes",
    )
    assert "error: 1.4 MiB at the peak" in str(made(memory=large))


def test_it_prints():
    kept = dataclasses.replace(MEMORY, kept=(KEPT,))
    assert str(made(memory=kept, bubble=0.25)) == TEXT


def test_without_collectives():
    assert "nothing is sent" in str(made(communication=()))


def test_notebooks_have_tables():
    assert made()._repr_html_().count("<table>") == 4


TEXT = """\
step on the mesh data=4, for t1; compiled for cpu

sent because of  runs      sent  share   time
batch               6  36.0 KiB    67%  40 µs
embed               6  18.0 KiB    33%  20 µs
unattributed        1       6 B     0%      0

collective  over  because of    layer              phase     runs      sent   time  hidden  by
all-reduce  data  batch         blocks.up          backward     6  36.0 KiB  40 µs       0  nothing
all-gather  data  embed         blocks.up          forward      6  18.0 KiB  20 µs       0  nothing
all-reduce  data  unattributed  outside of layers  other        1       6 B      0       0  nothing
all                                                            13  54.0 KiB  60 µs       0

memory                  per device  of t1
parameters                48.0 KiB   4.7%
state of the optimiser    96.0 KiB   9.4%
data                       1.0 KiB   0.1%
temporaries               19.5 KiB   1.9%
results in new memory        848 B   0.1%
peak                     165.4 KiB  16.1%

kept for the backward pass  axes        arrays                 per device
blocks.up                   batch, mlp  3 x bfloat16[16, 256]    24.0 KiB

layer              phase     FLOPs  read, written  computing  memory  sending  bound
blocks.up          backward    2 M      195.3 KiB       2 µs  200 µs    40 µs  memory
blocks.up          forward     1 M         1000 B       1 µs    1 µs    20 µs  links
outside of layers  other         0            0 B          0       0        0  compute

bound: 220 µs if within each layer, computing, reading and sending overlap; 261 µs if sending does not
expected: not known, since t1 says no shares of its peaks
1.0% of the peak of t1 for the model
25% of the time, a stage of the pipeline waits
0.0% of the bytes sent are unattributed"""
