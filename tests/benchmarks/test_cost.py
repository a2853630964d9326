"""What the accuracy of traced costs is compared by."""

import dataclasses

import pytest
from cost import MIXTURE, in_short, of_run, rows_of, sums

from tests.costs.made import made

TINY = {"layers": 2, "vocab": 32, "embed": 16, "mlp": 32, "heads": 2, "kv_heads": 2, "head_dim": 8, "positions": 8}


def test_rows_compare_two_reports() -> None:
    rows = {row["what"]: row for row in rows_of("both", made(), made(), (1.0, 2.0))}
    assert rows["bytes sent"]["ratio"] == rows["memory: peak"]["ratio"] == "1.000"
    assert rows["seconds to count"]["ratio"] == "0.500"
    assert sum(sums(made()).values()) == made().totals["bytes sent"]


def test_split_positions_and_experts_are_counted_like_the_compiler() -> None:
    config = dataclasses.replace(MIXTURE, **TINY)
    mesh = "context=2,expert=2,data=2"
    traced, compiled = (of_run(config, mesh, "cpu", fsdp=False, depth=depth)[0] for depth in ("traced", "compiled"))
    for what in ("flops", "bytes sent"):
        assert traced.totals[what] == pytest.approx(compiled.totals[what], rel=0.05)
    assert max(traced.unattributed, compiled.unattributed) < 0.05
    row = in_short(mesh, traced, compiled, (1.0, 2.0))
    assert (row["of"], row["seconds, compiled"]) == (mesh, "2.0")
