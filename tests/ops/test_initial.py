"""Initial values of extrema: when one is required, and which elements it joins."""

import jax
import numpy as np
import pytest

import axonym as axn
from axonym.errors import ArgumentError, AxisSizeError

EXTREMA = ["max", "min", "nanmax", "nanmin", "ptp"]


@pytest.mark.parametrize("name", [*EXTREMA, "argmax", "argmin", "nanargmax", "nanargmin"])
def test_no_elements_have_no_extremum_as_in_numpy(name: str) -> None:
    fn, x = getattr(axn, name), axn.zeros(axn.make_axes(batch=2, time=0))
    hint = "\n  hint: give a value to start from: initial=..." if name in EXTREMA else ""
    text = f"{name}: there is no {name} of no elements: axis 'time' has size 0\n  array has: batch=2, time=0{hint}"
    for call in (lambda: fn(x, "time"), lambda: fn(x), lambda: jax.jit(fn)(x)):
        with pytest.raises(AxisSizeError) as caught:
            call()
        assert str(caught.value) == text
    with pytest.raises(ValueError, match=r"zero-size|empty|All-NaN"):
        getattr(np, name)(np.zeros((2, 0)), 1)
    assert fn(x, "batch").axes == (axn.Axis("time", 0),)


@pytest.mark.parametrize("name", EXTREMA)
def test_an_extremum_of_a_mask_has_an_initial_value_as_in_numpy(name: str) -> None:
    fn, x = getattr(axn, name), axn.arange(axn.make_axes(batch=2, time=3))
    dtype = "array has dtype: int32" if name.startswith("nan") else "array has: batch=2, time=3"
    with pytest.raises(ArgumentError) as caught:
        fn(x, "time", where=x > 3)
    assert str(caught.value) == (
        f"{name}: there is no {name} of no elements, and the mask might include none\n"
        f"  {dtype}\n  hint: give a value to start from: initial=..."
    )
    found = fn(x, "time", where=x > 3, initial=4).tolist()
    expected = np.arange(6).reshape(2, 3)
    largest, smallest = (f(expected, 1, where=expected > 3, initial=4) for f in (np.max, np.min))
    by_name = {"max": largest, "min": smallest, "ptp": largest - smallest}
    assert found == by_name[name.removeprefix("nan")].tolist()
