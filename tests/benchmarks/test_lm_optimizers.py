"""The guide to optimisers has the numbers of the runs with AdamW and Muon."""

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "benchmarks" / "lm_optimizers.jsonl").read_text().splitlines()
PAGE = " ".join((ROOT / "docs" / "performance" / "details.md").read_text().split())
TITLES = {"adamw": "AdamW", "muon": "Muon"}


def runs(name: str, steps: int) -> list[dict[str, Any]]:
    return [run for run in map(json.loads, LINES) if (run["optimizer"], run["steps"]) == (name, steps)]


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def test_the_page_has_the_losses_of_all_runs() -> None:
    counts, means, spreads = set(), {}, []
    for name, title in TITLES.items():
        tuned = {run["rate"]: run["held_out"]["100"] for run in runs(name, 100)}
        best = min(tuned, key=tuned.__getitem__)
        assert min(tuned) < best < max(tuned)
        counts.add(len(tuned))
        cells = [f"{tuned[rate]:.2f}" for rate in sorted(tuned)]
        assert row(title, ", ".join(f"{rate:g}" for rate in sorted(tuned)), ", ".join(cells)) in PAGE
        final = {run["seed"]: run["held_out"]["300"] for run in runs(name, 300)}
        assert {run["rate"] for run in runs(name, 300)} == {best}
        assert sorted(final) == [0, 1, 2]
        means[name], spread = statistics.mean(final.values()), max(final.values()) - min(final.values())
        spreads.append(spread)
        numbers = [*(f"{final[seed]:.3f}" for seed in sorted(final)), f"{means[name]:.3f}", f"{spread:.3f}"]
        assert row(title, f"{best:g}", *numbers) in PAGE
    assert len(counts) == 1
    apart = means["adamw"] - means["muon"]
    deviation = statistics.stdev(run["held_out"]["300"] for run in runs("adamw", 300))
    assert f"the means are {apart:.2f} apart" in PAGE
    assert f"{apart / max(spreads):.1f} times the spread of AdamW" in PAGE
    assert f"{apart / deviation:.1f} times the standard deviation" in PAGE
