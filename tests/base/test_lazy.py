"""Names are loaded at their first use, and are then what they always were."""

import importlib
import pickle
import subprocess
import sys

import jax
import pytest

import axonym as axn
from axonym.base.places import NAMES

HEAVY = (
    *("jax", "equinox", "numpy"),
    *(
        "axonym.array",
        "axonym.compat",
        "axonym.costs",
        "axonym.engine",
        "axonym.nn",
        "axonym.ops",
        "axonym.partitioning",
    ),
)


def run(program: str, given: bytes = b"") -> str:
    """Run a program in a fresh process, and return what it prints."""
    done = subprocess.run([sys.executable, "-c", program], input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def test_import_loads_nothing_else() -> None:
    program = f"import axonym, sys; print([name for name in {HEAVY} if name in sys.modules])"
    assert run(program) == "[]"


def test_a_named_array_needs_no_layer() -> None:
    program = "import sys, axonym as axn; axn.NamedArray; print(*sys.modules)"
    loaded = run(program).split()
    assert "axonym.array" in loaded
    rooms = ("costs", "debug", "nn", "partitioning", "quant", "report", "state_dict", "transform", "ops.linalg")
    assert [room for room in rooms if f"axonym.{room}" in loaded] == []


# All modules are loaded first, by their paths, and Python puts each into its package. All of this in a traced function,
# which a module would leak values of, if it made arrays.
EVERY = """
import jax
from importlib import import_module
from axonym.base.places import BELOW, NAMES

def load(x):
    for package, modules in BELOW.items():
        for name in modules.split():
            import_module(f"{package}.{name}")
    for package, places in NAMES.items():
        for place, names in places.items():
            for name in names.split():
                right = vars(import_module(place)).get(name) or import_module(f"{place}.{name}")
                if getattr(import_module(package), name) is not right:
                    print(package, name)
    return x

with jax.checking_leaks():
    jax.jit(load)(1.0)
from axonym import *
from axonym.nn import *
print(sin, Linear)
"""


def test_every_name_is_there_in_a_fresh_process() -> None:
    *wrong, last = run(EVERY).splitlines()
    assert wrong == []
    assert last.startswith("<function sin")
    assert last.endswith("<class 'axonym.nn.linear.Linear'>")


def test_pickles_load_where_nothing_was_used_before() -> None:
    layer = axn.nn.Linear.init({"x": 2}, {"y": 3}, key=jax.random.key(0))
    layer = jax.tree.map(lambda array: jax.device_get(array), layer)
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer))"
    assert run(program, pickle.dumps(layer)) == str(layer)


def test_a_name_that_was_used_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert axn.nn.Linear is axn.nn.Linear
    assert vars(axn.nn)["Linear"] is importlib.import_module("axonym.nn.linear").Linear
    monkeypatch.delattr(axn.nn, "Linear")
    assert axn.nn.Linear is importlib.import_module("axonym.nn.linear").Linear


@pytest.mark.parametrize("package", NAMES)
def test_a_package_lists_its_names_and_reloads(package: str) -> None:
    module = importlib.import_module(package)
    before = {name: getattr(module, name) for name in module.__all__}
    assert importlib.reload(module) is module
    assert dir(module) == sorted(module.__all__)
    assert all(getattr(module, name) is value for name, value in before.items())


def test_a_name_that_is_missing_says_so() -> None:
    with pytest.raises(AttributeError) as raised:
        axn.partitioning.shcedule  # noqa: B018  # misspelt
    assert str(raised.value) == "axonym.partitioning: there is no 'shcedule'\n  hint: did you mean 'schedule'?"
