"""Settings that come after JAX has been imported are not lost in silence."""

import os
import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).parents[3] / "src"

LATE = """
import os
os.environ["JAX_ENABLE_X64"] = "1"
os.environ["JAX_COORDINATOR_ADDRESS"] = "host:1"  # read when it is needed
import jax
from haliax import nn
import haliax
import haliax.nn.scan
"""


def test_a_setting_that_comes_too_late_is_a_warning_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(LATE)
    env = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-m", "axonym.compat.haliax", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=env | {"PYTHONPATH": str(SRC)})
    assert done.stderr == (
        f"{file}:6: RuntimeWarning: the program has set JAX_ENABLE_X64=1 in os.environ, without effect: JAX had been "
        "imported with Axonym. Set it in the environment of the command, or call jax.config.update\n"
        "  from haliax import nn\n"
    )
