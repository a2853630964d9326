"""What needs no xarray; the rest is in `tests/neighbours`, which has the library."""

import subprocess
import sys

WITHOUT = """
import sys
sys.modules["xarray"] = None
import axonym as axn
try:
    axn.to_xarray(axn.ones({"a": 2}))
except ImportError as error:
    print(error)
"""


def test_without_xarray_the_error_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout == "to_xarray: the package xarray is missing\n  hint: pip install xarray\n"
