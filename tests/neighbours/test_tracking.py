"""W&B and trackio beside themselves on plain numbers. Nothing leaves the machine."""

import dataclasses
import json
import sqlite3
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trackio
import wandb
from metrics import Metrics, TrackerName, open_tracker

import axonym as axn

PLAIN = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)
X = axn.named(PLAIN, ("height", "width"))


def test_wandb_keeps_metrics_as_plain_ones(tmp_path: Path) -> None:
    with wandb.init(project="axonym", mode="offline", dir=tmp_path, config={"axes": dict(X.shape.items())}) as run:
        assert dict(run.config["axes"]) == {"height": 3, "width": 4}
        run.log({"mean": X.mean().item(), "expected": jnp.mean(PLAIN)})
        assert run.summary["mean"] == run.summary["expected"]
        histogram = wandb.Histogram(np.asarray(X)).histogram
        assert histogram == wandb.Histogram(PLAIN).histogram
        with pytest.raises(TypeError, match="NamedArray is not JSON serializable"):
            run.log({"mean": X.mean()})
    # The run was kept, and only here.
    assert len(list(tmp_path.glob("wandb/offline-run-*/*.wandb"))) == 1


def test_images_of_wandb_are_those_of_plain_arrays(tmp_path: Path) -> None:
    turned = X.rearrange(("width", "height"))
    image = wandb.Image(np.asarray(turned.rearrange(("height", "width"))))
    np.testing.assert_array_equal(np.asarray(image.image), np.asarray(wandb.Image(PLAIN).image))


def test_trackio_keeps_metrics_as_plain_ones() -> None:
    trackio.init(project="compared", name="run", auto_log_cpu=False, auto_log_gpu=False)
    trackio.log({"mean": X.mean().item(), "expected": float(jnp.mean(PLAIN))})
    with pytest.warns(UserWarning, match="skipped metric 'mean'"):
        trackio.log({"mean": X.mean(), "last": 1.0})
    with pytest.warns(UserWarning, match="skipped metric 'mean'"):
        trackio.log({"mean": jax.numpy.mean(PLAIN), "last": 2.0})
    trackio.finish()
    with sqlite3.connect(trackio.utils.TRACKIO_DIR / "compared.db") as database:
        first, *others = (json.loads(row) for (row,) in database.execute("select metrics from metrics order by step"))
    assert first["mean"] == first["expected"]
    assert others == [{"last": 1.0}, {"last": 2.0}]


@dataclasses.dataclass(frozen=True)
class Options:
    """Those of a program."""

    out: Path
    rate: float


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_run_of_the_language_model_goes_on_in_its_tracker(name: TrackerName, tmp_path: Path) -> None:
    kept = []
    for start in (0, 2):
        tracker = open_tracker(name, "resumed", tmp_path, Options(tmp_path, 0.1 + start), start)
        kept.append(wandb.run and (f"{tmp_path.name}-{wandb.run.id}", wandb.run.name, wandb.run.config["rate"]))
        metrics = Metrics(tmp_path / "metrics.jsonl", start, tracker=tracker)
        for step in (start, start + 1):
            metrics.add(step, loss=float(step))
        metrics.close()
    own = (tmp_path / "run-id.txt").read_text()
    if name == "wandb":
        assert kept == [(own, own, 0.1), (own, own, 2.1)]
        return
    with sqlite3.connect(trackio.utils.TRACKIO_DIR / "resumed.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics order by step").fetchall()
    found = [(run, step, json.loads(text)) for run, step, text in rows]
    assert [line for line in found if "loss" in line[2]] == [(own, step, {"loss": float(step)}) for step in range(4)]
