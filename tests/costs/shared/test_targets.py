"""What devices can do."""

import pytest

from axonym.errors import ArgumentError, OperandError
from axonym.partitioning import TARGETS, Link, Target


def test_the_table_has_what_the_data_sheets_say():
    assert {"v5e", "v5p", "v6e", "h100", "cpu"} == set(TARGETS)
    assert TARGETS["v5e"].flops_of("bfloat16") == 197e12
    assert TARGETS["h100"].memory == 80e9
    for name, target in TARGETS.items():
        assert target.name == name
        assert target.peak >= target.flops_of("float32") > 0


def test_a_dtype_that_is_not_listed_counts_as_the_slowest():
    assert TARGETS["h100"].flops_of("float64") == TARGETS["h100"].flops_of("float32")


def test_links_differ_by_mesh_axis():
    target = TARGETS["h100"].linked(data=Link(25e9))
    assert target.link_of(("model",)) == TARGETS["h100"].link
    assert target.link_of(("model", "data")).bandwidth == 25e9
    assert target.link_of(()) == target.link


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Link(0.0), ArgumentError, "Link: bandwidth must be positive, not 0.0"),
        (lambda: Link(1.0, one_way=0.0), ArgumentError, "Link: one_way must be positive, not 0.0"),
        (
            lambda: Target("t", {}, 1, 1.0, Link(1.0)),
            OperandError,
            'Target: a target needs operations per second of at least one dtype\n  hint: write {"bfloat16": 197e12}',
        ),
        (
            lambda: Target("t", {"float32": -1.0}, 1, 1.0, Link(1.0)),
            ArgumentError,
            "Target: float32 must be positive, not -1.0",
        ),
        (
            lambda: Target("t", {"float32": 1.0}, 0, 1.0, Link(1.0)),
            ArgumentError,
            "Target: memory must be positive, not 0",
        ),
    ],
)
def test_what_no_device_is(make, error, text):
    with pytest.raises(error) as raised:
        make()
    assert str(raised.value) == text
