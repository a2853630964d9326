"""Eight simulated devices, two meshes, and hypothesis settings that suit compiled functions."""

import gc
import itertools
import os
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path

# Until all tests are collected, next to nothing is garbage: to look for it would take a third of that time.
gc.disable()
# JAX reads these once, when it is first imported.
os.environ["JAX_PLATFORMS"] = "cpu"
# The lines of Python that programs carry are for dumps and profiles; errors and `locate` have their own.
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"
# The tests' programs are small and run once: what makes a program fast costs more than it saves. Optimisation takes a
# fifth of all time, the emitters of fused loops another quarter; releases after 0.10 do not know that flag, and XLA
# stops at a flag that it does not know. To compile the parts of a program side by side takes a sixth: the other cores
# are busy with tests. What the environment asks for comes later, and holds.
QUICKLY_COMPILED = "--xla_cpu_parallel_codegen_split_count=1"
RELEASE = tuple(map(int, version("jaxlib").split(".")[:2]))
if RELEASE <= (0, 10):
    QUICKLY_COMPILED += " --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    QUICKLY_COMPILED += " --xla_llvm_disable_expensive_passes=true"
else:
    # Without any optimisation, gradients of `jax.nn.dot_product_attention` are infinite there.
    QUICKLY_COMPILED += " --xla_backend_optimization_level=1"
if RELEASE >= (0, 12):
    QUICKLY_COMPILED += " --xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE"
os.environ["XLA_FLAGS"] = (
    f"{QUICKLY_COMPILED} {os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
)
# Runs that share a folder of compiled programs take less than half the time from the second on. Nothing else of the
# user's: tests count what is compiled. JAX finds a program by all that it is made of, and by these flags.
CACHE = os.environ.get("AXONYM_TEST_CACHE", "")
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "true" if CACHE else "false"
os.environ["JAX_COMPILATION_CACHE_DIR"] = CACHE
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax
import pytest
from hypothesis import HealthCheck, settings

from tests.sample import SEED, in_sample, in_share, part_of

# The flag says so already; pages write this line, which JAX refuses later, unless it changes nothing.
jax.config.update("jax_num_cpu_devices", 8)

# Suites that run when they are named: what they test is beside the library. Two need what the others do not: torch, and
# the libraries of `axonym[neighbours]`.
SUITES = ("benchmarks", "compat", "docs", "examples", "huggingface", "neighbours", "upstream")
APART = [Path(__file__).parent / name for name in SUITES]

settings.register_profile(
    "axonym",
    deadline=None,  # the first example of a shape compiles
    max_examples=25,
    derandomize="CI" in os.environ,  # elsewhere every run looks at new examples
    suppress_health_check=[HealthCheck.too_slow],  # the same first compilation
)
settings.load_profile("axonym")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run look at everything."""
    about = "run every law for every row; otherwise some laws look at a third of the rows of large tables"
    parser.addoption("--all-rows", action="store_true", help=about)
    about = "run one of so many shares of the files, another one at each commit"
    parser.addoption("--share", type=int, default=1, metavar="N", help=about)


def pytest_report_header() -> str:
    return f"sample {SEED}: AXONYM_TEST_SEED={SEED} repeats it"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave some suites out, unless they are asked for by their path, and files that are not in the share."""
    if collection_path.match("test_*.py"):
        return None if in_share(collection_path, config.getoption("--share")) else True
    if collection_path not in APART:
        return None
    asked = [(config.invocation_params.dir / arg.split("::")[0]).resolve() for arg in config.args]
    return None if any(path.is_relative_to(collection_path) for path in asked) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep some laws of large tables for the rows of the sample, and a part of the cases of tests marked `sampled`."""
    if config.getoption("--all-rows"):
        return
    out = {item.nodeid for item in items if _law_of_the_sample(item) and not in_sample(item.callspec.params["row"])}
    cases: dict[tuple[str, int | None], set[str]] = {}
    for item in items:
        if mark := item.get_closest_marker("sampled"):
            test = item.nodeid.partition("[")[0], *(mark.args or (None,))
            cases.setdefault(test, set()).add(item.nodeid)
    for (_, parts), own in cases.items():
        out |= own - part_of(own, parts)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in out])
    items[:] = [item for item in items if item.nodeid not in out]


def _law_of_the_sample(item: pytest.Item) -> bool:
    laws = getattr(getattr(item, "cls", None), "laws_of_the_sample", ())
    return getattr(item, "originalname", None) in laws


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector from going through JAX, all tests and all compiled programs again and again."""
    found = yield
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()
    return found


_files = itertools.count(1)


@pytest.fixture(scope="module", autouse=True)
def compiled_programs():
    """Let go of programs after some files: those of all files take 5 GB in each process, and few serve many files."""
    yield
    if next(_files) % 12 == 0:
        jax.clear_caches()


def _mesh(*axis_types: jax.sharding.AxisType) -> jax.sharding.Mesh:
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=axis_types)


@pytest.fixture(scope="session")
def auto_mesh() -> jax.sharding.Mesh:
    """4 x 2 devices (data, model); the compiler decides what constraints leave open."""
    return _mesh(jax.sharding.AxisType.Auto, jax.sharding.AxisType.Auto)


@pytest.fixture(scope="session")
def explicit_mesh() -> jax.sharding.Mesh:
    """4 x 2 devices (data, model); shardings are part of the types."""
    return _mesh(jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Explicit)


@pytest.fixture(scope="session")
def mixed_mesh() -> jax.sharding.Mesh:
    """4 x 2 devices (data, model), of which data is Explicit and model is Auto."""
    return _mesh(jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto)


@pytest.fixture
def compiles():
    """Collect what is compiled."""
    events = []
    jax.monitoring.register_event_duration_secs_listener(
        listener := lambda event, duration, **_: events.append(event) if "backend_compile" in event else None
    )
    yield events
    jax.monitoring.unregister_event_duration_listener(listener)
