"""A row of the table of plans."""

import argparse
import dataclasses
from types import SimpleNamespace
from typing import Any

import plan
from cost import SMALL

from tests.costs.made import made

TINY = {"layers": 2, "vocab": 64, "embed": 32, "mlp": 64, "heads": 4, "kv_heads": 2, "head_dim": 8, "positions": 16}


def test_a_plan_is_as_good_as_the_rules(monkeypatch, capsys) -> None:
    def row(case: str, what: str, cost: Any) -> dict[str, Any]:
        return {"case": case, "what": what.partition(":")[0], "cost": cost}

    monkeypatch.setattr(plan, "row", row)
    case = plan.Case(dataclasses.replace(SMALL, **TINY), 2, "v5e")
    # With fewer, the starts of published rules do not all have their turn.
    options = argparse.Namespace(limit=40, verify=0)
    planned, *rules = plan.rows_of("tiny-4", case, 4, options)
    assert "tiny-4, " in capsys.readouterr().out
    # No expert is in it.
    expected = ["data parallel", "FSDP", "FSDP in groups", "FSDP + TP, 2 axes", "FSDP + TP", "TP"]
    assert [each["what"] for each in (planned, *rules)] == ["planned", *expected]
    best = planned["cost"]
    for rule in rules:
        slower = rule["cost"].time.seconds / best.time.compared - 1
        assert slower >= -0.01
        assert slower > 0.01 or best.totals["bytes sent"] <= rule["cost"].totals["bytes sent"]


def test_a_row_is_text() -> None:
    row = plan.row("tiny-4", "planned", made())
    assert (row["mesh"], row["fits"], row["GB at the peak"]) == ("4", "yes", "0.0")


def test_what_fits_goes_before_what_is_fast() -> None:
    def cost(peak: int, seconds: float) -> SimpleNamespace:
        memory, time = SimpleNamespace(peak=peak), SimpleNamespace(compared=seconds)
        return SimpleNamespace(memory=memory, time=time, target=SimpleNamespace(memory=10))

    assert plan.rank(cost(10, 2.0)) < plan.rank(cost(11, 1.0)) < plan.rank(cost(12, 0.5))
