"""What compiling changes in the order of mappings, and what is said where nothing can be compiled."""

import dataclasses
import functools

import jax
import pytest

import axonym as axn
from axonym.costs.search.result import Candidate
from axonym.costs.search.verifier import Verifier, sort_near
from axonym.costs.shared.rows import Memory
from axonym.errors import ArgumentError, OperandError
from axonym.partitioning import TARGETS
from tests.costs.made import GATHER, LOST, MEMORY, SUM, made
from tests.costs.programs import MESH, abstract, step

ON = (("data", 4),)
# Sent more, they take longer.
COSTS = {
    "none": made(communication=(LOST,)),
    "gather": made(communication=(GATHER, LOST)),
    "both": made(communication=(GATHER, SUM, LOST)),
}
LARGE = made(memory=dataclasses.replace(MEMORY, temporary=2**21))


def candidate(name):
    return Candidate(ON, axn.Mappings({}, {name: "data"}), COSTS[name])


RANKED = [candidate("none"), candidate("gather"), candidate("both")]
ROOMY = Verifier(wanted=2, limit=100, obstacle="")


def compiler(found):
    """Return what compiles: by the name of an axis, a cost, or an error."""

    def compiled(one):
        name = one.mappings.compute.entries[0][0]
        if isinstance(found[name], Exception):
            raise found[name]
        return found[name]

    return compiled


def names(candidates):
    return [one.mappings.compute.entries[0][0] for one in candidates]


def test_the_best_by_the_compiler_wins():
    swapped = {"none": COSTS["gather"], "gather": COSTS["none"]}
    (best, *others), text = ROOMY.run(RANKED, 50, compiler(swapped))
    assert names([best, *others]) == ["gather", "none", "both"]
    assert best.compiled is COSTS["none"]
    assert others[1].compiled is None
    assert text == ("2 mappings compiled for cpu; their order changes: the best one is not the best by its traced cost")


def timed(seconds, nbytes):
    """Return a candidate that sends so many bytes and takes so long."""
    sent = dataclasses.replace(SUM, count=1, kind="collective-permute", nbytes=nbytes, seconds=seconds)
    return dataclasses.replace(RANKED[0], cost=made(communication=(sent,), operations=1e-4))


def test_of_those_that_take_about_as_long_the_one_that_needs_least_memory_is_the_best():
    candidates = []
    for seconds, peak in ((1.0, 300), (1.004, 200), (1.009, 250), (1.02, 100)):
        one = timed(seconds, 100)
        cost = dataclasses.replace(one.cost, memory=Memory(peak, 0, 0, 0, 0, 0))
        candidates.append(dataclasses.replace(one, cost=cost))
    assert [one.cost.memory.peak for one in sort_near(candidates)] == [200, 250, 300, 100]


def test_where_nothing_fits_the_fastest_of_those_that_lack_about_the_least_is_the_best():
    large = []
    for peak, seconds in ((1000, 3.0), (1009, 2.0), (1011, 1.0)):
        one = timed(seconds, 100)
        memory = Memory(2**20 * peak, 0, 0, 0, 0, 0)
        large.append(dataclasses.replace(one, cost=dataclasses.replace(one.cost, memory=memory), refusal="too large"))
    assert sort_near(large) == [large[1], large[0], large[2]]


def test_an_order_that_compiling_keeps():
    (best, *_), text = ROOMY.run(RANKED, 50, compiler(COSTS))
    assert names([best]) == ["none"]
    assert text == "2 mappings compiled for cpu; the best one is the best by its traced cost, too"


def test_what_does_not_fit_by_the_compiler_loses_and_the_next_ones_are_compiled():
    refused = OperandError("the program does not fit", facts=("99 GB",), hint="a smaller one")
    found = {"none": LARGE, "gather": refused, "both": COSTS["both"]}
    (best, *others), text = ROOMY.run(RANKED, 50, compiler(found))
    assert names([best, *others]) == ["both", "gather", "none"]
    assert best.fits
    assert not others[0].fits
    assert others[0].refusal == "the program does not fit: 99 GB"
    assert others[0].problems[0] == others[0].refusal
    assert others[0].problems[1].startswith("to save ")
    assert text.startswith("3 mappings compiled for cpu; their order changes")


def test_where_all_compiled_ones_fail_the_next_one_is_the_best_and_not_verified():
    failing = {"none": LARGE, "gather": jax.errors.JaxRuntimeError("INTERNAL: no")}
    tight = dataclasses.replace(ROOMY, limit=20)
    (best, *others), text = tight.run(RANKED, 0, compiler(failing))
    assert names([best, *others]) == ["both", "gather", "none"]
    assert others[0].refusal == "INTERNAL: no"
    assert text == "2 mappings compiled for cpu, none of which fits; the best one is not verified by a compiler"


def test_the_limit_counts_what_is_compiled():
    assert [Verifier(2, limit, "").reserve for limit in (100, 40, 30, 3)] == [20, 20, 10, 0]
    (best, other, _), text = ROOMY.run(RANKED, 85, compiler(COSTS))
    assert best.compiled is not None
    assert other.compiled is None
    assert text.splitlines()[1] == "limit=100 leaves 1 of verify=2: a compiled mapping counts as 10"
    assert text.startswith("1 mapping compiled for cpu")
    (best, *_), text = ROOMY.run(RANKED, 95, compiler(COSTS))
    assert best.compiled is None
    assert text.startswith("not verified by a compiler\nlimit=100 leaves 0 of verify=2")


def test_what_is_the_same_on_another_mesh_is_compiled_once():
    twin = dataclasses.replace(RANKED[0], mesh=(("data", 2), ("model", 2)))
    (best, *others), text = ROOMY.run([RANKED[0], twin, *RANKED[1:]], 50, compiler(COSTS))
    assert names([best, *others]) == ["none", "gather", "none", "both"]
    assert [one.compiled is not None for one in (best, *others)] == [True, True, False, False]
    assert "limit" not in text


def test_an_obstacle_is_told():
    blocked = Verifier(3, 100, "no compiler")
    assert blocked.reserve == 0
    candidates, text = blocked.run(RANKED, 10, compiler({}))
    assert list(candidates) == RANKED
    assert text == "not verified by a compiler: no compiler"


def test_a_negative_number():
    with pytest.raises(ArgumentError) as raised:
        axn.plan(step, MESH, *abstract(), verify=-1)
    assert str(raised.value) == "plan: verify must not be negative, not -1\n  hint: verify=0 compiles nothing"


donating = axn.named_jit(step, {}, donate_args=(True, True))
# Slow links keep what is sent small, and little memory forbids to map nothing.
SLOW = dataclasses.replace(TARGETS["cpu"], memory=30000, link=axn.partitioning.Link(1e8))
FIXED = axn.Mappings({"embed": "data", "mlp": "model"}, {"batch": "data"})


@functools.cache
def planned():
    return axn.plan(donating, MESH, *abstract(), target=SLOW, fixed=FIXED, limit=20, verify=1)


def test_a_plan_has_the_numbers_of_the_compiled_program():
    found = planned()
    assert found.is_verified
    by_hand = axn.cost(donating, found.mappings, MESH, *abstract(), target=SLOW)
    assert found.best.compiled.totals == by_hand.totals
    assert found.best.compiled.depth == "compiled"
    assert found.best.cost.depth == "traced"
    text = str(found)
    assert "1 mapping compiled for cpu" in text
    last = text.splitlines()[-1]
    compiled = f"{by_hand.time.scheduled * 1e6:.3g} µs"
    assert compiled in last


def test_a_plan_for_devices_that_are_not_here_is_not_verified():
    found = axn.plan(donating, {"data": 16}, *abstract(), target="cpu", limit=2)
    assert not found.is_verified
    assert found.verification == "not verified by a compiler: the mesh has 16 devices, and this machine has 8"
