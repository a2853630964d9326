"""The command line: what it prints, its status, and what it refuses."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym.__main__ import _make_parser, main

PAGE = Path(__file__).parents[1] / "docs/guides/costs.md"

SMALL_SUM = """
import axonym as axn
import jax

def small():
    x = axn.NamedArray(jax.ShapeDtypeStruct((16, 4), "float32"), ("batch", "embed"))
    return lambda x: x.sum("batch"), {"batch": "data"}, x
"""

SAMPLE = """
import axonym as axn
import jax
import jax.numpy as jnp
from sample_sizes import MLP

def array(**sizes):
    return axn.NamedArray(jax.ShapeDtypeStruct(tuple(sizes.values()), jnp.float32), tuple(sizes))

def layer(up, down, x):
    return axn.dot(axn.dot(x, up, axis="embed"), down, axis="mlp")

ARRAYS = array(embed=32, mlp=MLP), array(mlp=MLP, embed=32), array(batch=64, embed=32)

def small():
    return layer, {"mlp": "model"}, *ARRAYS

def wrong():
    return layer, {"mlp": "model"}, array(mlp=MLP), *ARRAYS[1:]

def nothing():
    return layer

def swapped():
    return {"mlp": "model"}, layer, *ARRAYS

def repeated(up, down, x, *, times):
    for _ in range(times):
        x = layer(up, down, x)
    return x

def chosen():
    return repeated, {"mlp": "model"}, *ARRAYS

tiny = axn.partitioning.Target(
    "tiny", {"float32": 1e9}, memory=4096, memory_bandwidth=1e9, link=axn.partitioning.Link(1e9, 1e-6)
)
"""


@pytest.fixture
def sample(tmp_path, monkeypatch):
    """Return a file with functions; it imports a neighbour."""
    (tmp_path / "sample_sizes.py").write_text("MLP = 128\n")
    (tmp_path / "sample_layer.py").write_text(SAMPLE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("sample_sizes", "sample_layer"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path / "sample_layer.py"


def small():
    """Return what the function of that name returns, and a mesh."""

    def array(**sizes):
        return axn.NamedArray(jax.ShapeDtypeStruct(tuple(sizes.values()), jnp.float32), tuple(sizes))

    def layer(up, down, x):
        return axn.dot(axn.dot(x, up, axis="embed"), down, axis="mlp")

    arrays = array(embed=32, mlp=128), array(mlp=128, embed=32), array(batch=64, embed=32)
    return layer, {"mlp": "model"}, {"model": 8}, arrays


def test_plan_keeps_the_mapping_of_the_function(sample, capsys):
    command = ["plan", f"{sample}:small", "--mesh", "model=8", "--target", "v5e", "--limit", "4"]
    assert main(command) == 0
    layer, mapping, mesh, arrays = small()
    assert capsys.readouterr().out == f"{axn.plan(layer, mesh, *arrays, target='v5e', fixed=mapping, limit=4)}\n"


def test_plan_chooses_values_of_arguments(sample, capsys):
    command = ["plan", f"{sample}:chosen", "--mesh", "model=8", "--target", "v5e", "--verify", "0", "--limit", "6"]
    assert main([*command, "--choose", "times=2,1"]) == 0
    (best,) = [line for line in capsys.readouterr().out.splitlines() if line.endswith("best")]
    assert "times=1" in best
    for wrong, problem in (("times", "'times'"), ("times=one", "'times=one'")):
        with pytest.raises(SystemExit):
            main([*command, "--choose", wrong])
        assert f"expected ARGUMENT=VALUE,... with literals of Python, got {problem}" in capsys.readouterr().err


def test_plan_tries_pipelines_of_axes_that_are_there(sample, capsys):
    command = ["plan", f"{sample}:small", "--mesh", "model=8", "--verify", "0"]
    assert main([*command, "--pipelined", "layers,batch"]) == 1
    assert "pipelined=('layers', 'batch'), and no parameters have an axis 'layers'" in capsys.readouterr().err


def test_plan_compiles_as_many_as_are_asked_for(sample, capsys):
    command = ["plan", f"{sample}:small", "--mesh", "model=8", "--limit", "20"]
    assert main([*command, "--verify", "1"]) == 0
    assert "1 mapping compiled for cpu" in capsys.readouterr().out
    assert main([*command, "--verify", "0"]) == 0
    assert "not verified by a compiler: verify=0" in capsys.readouterr().out


def test_cost_prints_the_report_and_keeps_it(sample, tmp_path, capsys):
    lock = tmp_path / "layout.json"
    command = ["cost", f"{sample}:small", "--mesh", "model=8", "--target", "v5e"]
    assert main([*command, "--save", str(lock)]) == 0
    layer, mapping, mesh, arrays = small()
    report = axn.cost(layer, mapping, mesh, *arrays, target="v5e")
    assert capsys.readouterr().out == f"{report}\n"
    axn.partitioning.assert_layout(report, lock)

    # Of another mapping, all is different.
    written = json.loads(lock.read_text())
    written["layouts"]["up"] = "float32 embed→model"
    lock.write_text(json.dumps(written))
    assert main([*command, "--lock", str(lock)]) == 1
    told = capsys.readouterr().out
    assert told.startswith(f"{report}\n\nerror: assert_layout: layer, mapping {mapping} is not what {lock} says\n")
    assert "  layouts: up: float32 embed→model -> float32 mlp→model\n" in told


def test_cost_fails_where_memory_is_too_small(sample, capsys):
    command = ["cost", f"{sample}:small", "--mesh", "model=8", "--target", f"{sample}:tiny"]
    assert main(command) == 1
    assert "error: 28.0 KiB at the peak do not fit into the 4.0 KiB of tiny" in capsys.readouterr().out


def test_a_traced_cost_needs_no_devices(sample, capsys):
    layer, mapping, _, arrays = small()
    assert main(["cost", f"{sample}:small", "--mesh", "data=64,model=8", "--depth", "traced"]) == 0
    report = axn.cost(layer, mapping, {"data": 64, "model": 8}, *arrays, depth="traced")
    assert capsys.readouterr().out == f"{report}\n"


def test_check_fails_where_there_are_errors(sample, capsys):
    layer, mapping, mesh, arrays = small()
    assert main(["check", f"{sample}:small", "--mesh", "model=8"]) == 0
    report = axn.check(layer, mapping, mesh, *arrays, quiet=True)
    assert capsys.readouterr().out == f"{report}\n"
    # A module by its name, from the folder of its file.
    assert main(["check", "sample_layer:small", "--mesh", "data=2,model=3"]) == 1
    assert "error: mlp=128 cannot be split evenly in 3 over mesh axis model" in capsys.readouterr().out


def test_an_error_of_the_function_tells_its_line(sample, capsys):
    assert main(["cost", f"{sample}:wrong", "--mesh", "model=8"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: dot: ")
    assert told.endswith("  in layer, sample_layer.py line 11\n")


@pytest.mark.parametrize(
    ("function", "mesh", "problem"),
    [
        ("{}:small", "8", "argument --mesh: '8' should be a mesh axis and its size, each once, such as data=4"),
        ("{}:small", "a=2,a=4", "argument --mesh: 'a=4' should be a mesh axis and its size, each once, such as data=4"),
        ("{}:small", "a=0", "argument --mesh: 'a=0' should be a mesh axis and its size, each once, such as data=4"),
        ("{}", "a=2", "'{}' should be MODULE:NAME or FILE.py:NAME"),
        ("{}:large", "a=2", "{} has nothing of the name 'large'"),
        ("{}:ARRAYS", "a=2", "{}:ARRAYS should be a function, not tuple"),
        (
            "{}:nothing",
            "a=2",
            "{}:nothing should return a tuple of a function or a tree, its mapping, and arguments, not function",
        ),
        (
            "{}:swapped",
            "a=2",
            "{}:swapped should return a mapping second, a dict, axn.Mappings or None, not function",
        ),
        (
            "{}:repeated",
            "a=2",
            "{}:repeated should take no arguments and return a tuple of a function or a tree,"
            " its mapping, and arguments; it takes up, down, x, times",
        ),
        ("no_such_module:small", "a=2", "there is no module 'no_such_module'"),
        ("no_such_file.py:small", "a=2", "there is no file no_such_file.py"),
    ],
)
def test_a_command_that_makes_no_sense(function, mesh, problem, sample, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check", function.format(sample), "--mesh", mesh])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: {problem.format(sample)}\n")


def test_a_file_with_the_name_of_another_module(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "json.py"
    path.write_text("def small():\n    pass\n")
    with pytest.raises(SystemExit):
        main(["check", f"{path}:small", "--mesh", "a=2"])
    told = f"error: {path} has the name of another module, {json.__file__}: rename it\n"
    assert capsys.readouterr().err.endswith(told)


def test_the_commands_of_the_guide_make_sense():
    commands = re.findall(r"^python -m axonym (.*)$", PAGE.read_text(), re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["cost", "check", "plan", "cost", "cost"]
    for command in commands:
        given = _make_parser().parse_args(shlex.split(command))
        assert given.mesh == {"data": 4, "model": 2}
        assert given.function == "train.py:fitted"


def test_a_process_simulates_the_devices_of_the_mesh(tmp_path):
    (tmp_path / "small_sum.py").write_text(SMALL_SUM)
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", "axonym", "cost", "small_sum:small", "--mesh", "data=16"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "on the mesh data=16, for cpu; compiled for cpu" in ran.stdout
