"""The command line as a process of its own."""

import os
import subprocess
import sys

SAMPLE = """
import axonym as axn
import jax

def small():
    x = axn.NamedArray(jax.ShapeDtypeStruct((16, 4), "float32"), ("batch", "embed"))
    return lambda x: x.sum("batch"), {"batch": "data"}, x
"""


def test_a_process_simulates_the_devices_of_the_mesh(tmp_path):
    (tmp_path / "small_sum.py").write_text(SAMPLE)
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", "axonym", "cost", "small_sum:small", "--mesh", "data=16"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "on the mesh data=16, for cpu; compiled for cpu" in ran.stdout
