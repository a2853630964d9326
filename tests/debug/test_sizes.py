"""Sizes of the arrays of trees, by name."""

import jax
import jax.numpy as jnp

import axonym as axn
from axonym import debug

B = axn.Axis("batch", 4)


def test_a_table_and_metrics():
    x = axn.named([[0.0, 3.0], [4.0, 0.0]], ("batch", "embed"))
    found = debug.statistics(
        {"x": x, "ids": axn.arange(B), "half": jnp.array([2, 2], jnp.float16)}, by=("batch", "pos")
    )
    assert str(found).splitlines() == [
        "what       rms   largest  zeros",
        "half       2     2        0",
        "x batch=0  2.12  3        0.5",
        "x batch=1  2.83  4        0.5",
    ]
    metrics = found.metrics()
    assert set(metrics) == {f"x/{name} batch={i}" for name in ("rms", "largest", "zeros") for i in range(2)} | {
        "half/rms",
        "half/largest",
        "half/zeros",
    }
    assert float(metrics["x/largest batch=1"]) == 4
    texts = []
    jax.jit(lambda x: texts.append(str(debug.statistics(x))))(x)
    assert texts == ["statistics of 1 arrays, inside of a transformation"]
    assert str(debug.statistics({"none": axn.zeros({"none": 0})})).splitlines()[1].split() == [
        "none",
        "nan",
        "0",
        "nan",
    ]
