"""xarray: names and sizes there and back, coordinates beside; and pandas, which comes with it."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import axonym as axn
from axonym.errors import OperandError

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)
DATA = xr.DataArray(
    VALUES,
    dims=("time", "lat"),
    coords={
        "time": pd.date_range("2026-01-01", periods=3),
        "lat": [1.0, 2.0, 3.0, 4.0],
        "area": ("lat", [1, 2, 3, 4]),
        "both": (("lat", "time"), VALUES.T),
        "height": 2,
    },
)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint16, bool, np.complex64])
def test_an_array_comes_back_as_it_was(dtype: Any) -> None:
    data = DATA.copy(data=VALUES.astype(dtype))
    x = axn.from_xarray(data)
    assert (x.names, x.dtype) == (("time", "lat"), dtype)
    np.testing.assert_array_equal(x.array, data.values)
    xr.testing.assert_identical(axn.to_xarray(x, data.coords), data)
    xr.testing.assert_identical(axn.to_xarray(x), data.drop_vars(data.coords))


def test_the_coordinates_of_axes_that_are_left_stay() -> None:
    x = axn.from_xarray(DATA)
    xr.testing.assert_identical(axn.to_xarray(x.sum("time"), DATA.coords), DATA.sum("time").assign_coords(height=2))
    assert set(axn.to_xarray(x.mean(), DATA.coords).coords) == {"height"}
    turned = axn.to_xarray(x.rearrange(("lat", "time")), DATA.coords)
    xr.testing.assert_identical(turned, DATA.transpose("lat", "time"))
    by_dict = axn.to_xarray(x, {"lat": [9, 8, 7, 6], "area": ("lat", [1, 2, 3, 4])})
    assert by_dict.sel(lat=8)["area"].item() == 2
    several = DATA.stack(place=("time", "lat"))
    back = axn.to_xarray(axn.from_xarray(several) * 2, several.coords).unstack("place")
    np.testing.assert_array_equal(back.values, VALUES * 2)
    assert axn.to_xarray(x.astype(jnp.bfloat16)).dtype == jnp.bfloat16


def test_a_dataset_is_a_dict_and_a_tree_is_a_dataset() -> None:
    data = DATA.drop_vars("both")
    dataset = xr.Dataset({"t": data, "p": data.isel(lat=0, drop=True) * 2, "n": 3})
    arrays = axn.from_xarray(dataset)
    assert {name: x.names for name, x in arrays.items()} == {"t": ("time", "lat"), "p": ("time",), "n": ()}
    xr.testing.assert_equal(axn.to_xarray(arrays, dataset.coords), dataset)

    layer = axn.nn.Linear.init({"a": 2}, {"b": 3}, key=jax.random.key(0), use_bias=True)
    made = axn.to_xarray({"layers": [layer, None], "step": 7})
    assert {name: part.dims for name, part in made.data_vars.items()} == {
        "layers.0.weight": ("a", "b"), "layers.0.bias": ("b",), "step": (),
    }  # fmt: skip
    np.testing.assert_array_equal(made["layers.0.weight"].values, layer.weight.array)


X = axn.from_xarray(DATA)
NAME_IT = '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))'
BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: axn.from_xarray(VALUES), "from_xarray: expected a DataArray or a Dataset, got a plain array"),
    (
        lambda: axn.from_xarray(xr.DataArray(VALUES, dims=(0, "b"))),
        'from_xarray: the array has the dimension 0, but names are strings\n  hint: data.rename({...: "name"})',
    ),
    (
        lambda: axn.from_xarray(xr.Dataset({"who": ("x", ["a", "b"])})),
        "from_xarray: 'who' has elements of <U1, which JAX has no arrays of\n"
        "  hint: convert them, as data.astype(float) does, or leave them out",
    ),
    (lambda: axn.to_xarray(VALUES), f"to_xarray: the array has no names\n{NAME_IT}"),
    (lambda: axn.to_xarray({"w": jnp.ones(3)}), f"to_xarray: 'w' has no names\n{NAME_IT}"),
    (
        lambda: axn.to_xarray({"f": jnp.sin, "w": X}),
        "to_xarray: 'f' is no array, but of type PjitFunction\n"
        "  hint: leave out what is none: eqx.filter(model, eqx.is_array)",
    ),
    (
        lambda: axn.to_xarray(X.untag("lat")),
        "to_xarray: the array has anonymous dimensions\n"
        '  array has: anonymous (4,), time=3\n  hint: name them: x.tag("batch")',
    ),
]


@pytest.mark.parametrize(("call", "text"), BAD, ids=[text.splitlines()[0] for _, text in BAD])
def test_bad_input_is_explained(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(OperandError) as raised:
        call()
    assert str(raised.value) == text


def test_sizes_that_differ_are_errors_of_xarray() -> None:
    with pytest.raises(ValueError, match="conflicting sizes for dimension 'time'"):
        axn.to_xarray(X["time", 1:], DATA.coords)
    with pytest.raises(ValueError, match="conflicting"):
        axn.to_xarray({"x": X, "y": X["time", 1:]})
    with pytest.raises(OperandError, match="no values yet"):
        jax.eval_shape(axn.to_xarray, X)


def test_a_named_array_is_data_of_xarray_and_pandas_as_any_array() -> None:
    xr.testing.assert_identical(xr.DataArray(X, dims=X.names), DATA.drop_vars(DATA.coords))
    xr.testing.assert_identical(xr.Dataset({"x": (X.names, X)})["x"].rename(None), DATA.drop_vars(DATA.coords))
    row = X["time", 1]
    np.testing.assert_array_equal(pd.Series(row), VALUES[1])
    frame = pd.DataFrame({"one": row, "two": row * 2})
    np.testing.assert_array_equal(frame, np.stack([VALUES[1], VALUES[1] * 2], 1))
    np.testing.assert_array_equal(pd.DataFrame(X, columns=list("abcd"), index=[5, 6, 7]), VALUES)
    np.testing.assert_array_equal(frame.assign(three=row + 1)["three"], VALUES[1] + 1)
    assert pd.DataFrame([{"loss": row.mean()}])["loss"].astype(float).tolist() == [5.5]


def test_holes_are_no_variables() -> None:
    tree = {"x": X, "ids": axn.arange(axn.Axis("time", 3)), "f": jnp.tanh}
    xr.testing.assert_identical(axn.to_xarray(eqx.filter(tree, eqx.is_inexact_array)), axn.to_xarray({"x": X}))
