"""Reductions that ignore NaN; their laws are rows of the table of all reductions, in `test_reduce.py`."""

import jax.numpy as jnp
import numpy as np

import axonym as axn


def test_where_no_number_takes_part() -> None:
    x, none = axn.named([1.0, 2.0, jnp.nan], "a"), axn.named([False, False, True], "a")
    results = (
        x.sum(where=none & False),
        axn.nansum(x, where=none),
        axn.nanmax(x, where=none),
        axn.nanmin(x, where=none),
    )
    np.testing.assert_array_equal([r.item() for r in results], [0, 0, np.nan, np.nan])
    assert axn.nanmax(x, where=none, initial=-1).item() == -1
    assert axn.nanargmax(x["a", 2:], "a").item() == -1
