"""What takes longest in a layer."""

from axonym.costs.shared.events import Amount
from axonym.costs.shared.roofline import Sums, list_unrated, make_work
from tests.costs.made import GATHER, SUM, TARGET, made


def test_each_layer_and_phase_has_a_row():
    rows = {(work.layer, work.phase): work for work in made().work}
    assert list(rows) == [("blocks.up", "forward"), ("blocks.up", "backward"), ("", "other")]
    forward, backward = rows["blocks.up", "forward"], rows["blocks.up", "backward"]
    assert (forward.computing, forward.moving, forward.sending) == (1e-6, 1e-6, GATHER.seconds)
    assert (forward.bound, forward.seconds) == ("links", GATHER.seconds)
    assert (backward.bound, backward.seconds) == ("memory", 2e5 / TARGET.memory_bandwidth)


def test_what_only_computes():
    (work,) = make_work({("", "forward"): Sums(1e9, 1e-3, 10.0)}, (), TARGET)
    assert (work.bound, work.sending, work.seconds) == ("compute", 0.0, 1e-3)
    (work,) = make_work({}, (SUM,), TARGET)
    assert (work.bound, work.flops, work.seconds) == ("links", 0.0, SUM.seconds)


def test_dtypes_without_a_rate_are_told():
    def tell(*dtypes, flops=1.0):
        return list_unrated([Amount("", flops, dtype, 1.0) for dtype in dtypes], TARGET)

    assert not tell("float32", "bfloat16", "float32_highest")
    assert not tell("int32", flops=0.0)
    assert tell("float64", "float32", "int8") == (
        "products in float64, int8 count at the slowest rate of t1, which lists none for them",
    )
