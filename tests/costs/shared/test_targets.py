"""What devices can do."""

import pytest

from axonym.errors import ArgumentError, OperandError
from axonym.partitioning import TARGETS, Efficiency, Link, Target


def test_the_table_has_what_the_data_sheets_say():
    tpus, gpus = {"v4", "v5e", "v5p", "v6e", "v7x"}, {"a100", "h100", "h100-96gb", "h200", "b200", "gb200"}
    assert {*tpus, *gpus, "cpu"} == set(TARGETS)
    # Along all axes, there and back: the bidirectional bandwidth of the data sheets. Two devices of a v7x share it.
    for name, whole in {"v4": 540e9, "v5e": 400e9, "v5p": 1200e9, "v6e": 800e9, "v7x": 600e9}.items():
        assert 2 * TARGETS[name].torus.axes * TARGETS[name].link.bandwidth == whole
    assert TARGETS["v5e"].flops_of("bfloat16") == 197e12
    assert TARGETS["h100"].memory == 80e9
    for name, target in TARGETS.items():
        assert target.name == name
        assert target.peak >= target.flops_of("float32") > 0


@pytest.mark.parametrize(
    ("target", "dtype", "rate"),
    [
        # Data sheets: cores for double precision, and those for single precision, which make no TF32.
        ("a100", "float64", 19.5e12),
        ("h200", "float64", 67e12),
        ("h100", "float32_highest", 67e12),
        ("gb200", "float32_highest", 80e12),
        # Narrower numbers are computed as wider ones of their kind.
        ("v5p", "float8_e4m3fn", 459e12),
        ("a100", "float8_e5m2", 312e12),
        ("v5e", "int4", 393e12),
        # jax.lax.Precision: a TPU takes three or six passes in bfloat16, and TF32 is a high precision on a GPU.
        ("v5p", "float32_high", 459e12 / 3),
        ("v6e", "float32_highest", 918e12 / 6),
        ("h100", "float32_high", 494e12),
    ],
)
def test_rates_by_dtype_and_precision(target, dtype, rate):
    assert TARGETS[target].flops_of(dtype) == rate


def test_a_dtype_without_one_as_wide_of_its_kind_counts_as_the_slowest():
    target = Target("t", {"bfloat16": 4.0, "float32": 2.0, "int8": 8.0}, 1, 1.0, Link(1.0))
    assert target.flops_of("float32_highest") == 2.0
    for dtype in ("float64", "int32"):
        assert target.find_rate(dtype) is None
        assert target.flops_of(dtype) == 2.0


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Link(0.0), ArgumentError, "Link: bandwidth must be positive, not 0.0"),
        (lambda: Link(1.0, one_way=0.0), ArgumentError, "Link: one_way must be positive, not 0.0"),
        (
            lambda: Efficiency(0.5, 0.0, 0.8, 0.9),
            ArgumentError,
            "Efficiency: attention must be positive, not 0.0",
        ),
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
