"""Run programs in many settings: one device or a mesh of eight, eagerly, compiled, differentiated, in a shard_map."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import axonym as axn
from axonym.errors import ShardingError
from tests.fuzz.compare import Result, difference, slope_difference, weights_of
from tests.fuzz.generate import Style, generate, reference
from tests.fuzz.program import Program
from tests.fuzz.table import Table

__all__ = ["SETTINGS", "Finding", "Setting", "check", "programs_of"]

_MESH = {"data": 4, "model": 2}
_WHOLE = Style()
_SPLIT = Style(
    sizes=(0, 1, 2, 3, 4, 4, 8, 8, 8, 16),
    mesh=_MESH,
    dtypes=("float32",) * 6 + ("int32", "bool", "bfloat16", "complex64"),
)
_BLOCKS = dataclasses.replace(_WHOLE, sizes=(1, 2, 3, 4, 5, 7), kept={"s": 8}, special=0.0)
Auto, Explicit = AxisType.Auto, AxisType.Explicit


@dataclasses.dataclass(frozen=True)
class Setting:
    """How programs are run.

    Attributes:
        style: what they are made of.
        kinds: the types of the two axes of the mesh; None without a mesh.
        compiled: whether many programs are compiled as one.
        slopes: whether they are differentiated.
        blocks: whether they run in a shard_map.
    """

    style: Style
    kinds: tuple[AxisType, AxisType] | None = None
    compiled: bool = True
    slopes: bool = False
    blocks: bool = False


def _smooth(style: Style) -> Style:
    return dataclasses.replace(style, dtypes=("float32",) * 8 + ("int32", "bool"), special=0.0, smooth=True)


SETTINGS = {
    "eager": Setting(_WHOLE, compiled=False),
    "jit": Setting(_WHOLE),
    "grad": Setting(_smooth(_WHOLE), slopes=True),
    "auto": Setting(_SPLIT, (Auto, Auto)),
    "explicit": Setting(_SPLIT, (Explicit, Explicit)),
    "mixed": Setting(_SPLIT, (Explicit, Auto)),
    "auto-eager": Setting(_SPLIT, (Auto, Auto), compiled=False),
    "explicit-eager": Setting(_SPLIT, (Explicit, Explicit), compiled=False),
    "mixed-eager": Setting(_SPLIT, (Explicit, Auto), compiled=False),
    "auto-grad": Setting(_smooth(_SPLIT), (Auto, Auto), slopes=True),
    "explicit-grad": Setting(_smooth(_SPLIT), (Explicit, Explicit), slopes=True),
    "mixed-grad": Setting(_smooth(_SPLIT), (Explicit, Auto), slopes=True),
    "shard_map": Setting(_BLOCKS, (Auto, Auto), blocks=True),
    "shard_map-explicit": Setting(_BLOCKS, (Explicit, Explicit), blocks=True),
    "shard_map-grad": Setting(_smooth(_BLOCKS), (Auto, Auto), slopes=True, blocks=True),
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """A program whose result is wrong, or that fails."""

    setting: str
    program: Program
    problem: str

    @property
    def kind(self) -> str:
        """Return what findings with one cause most likely share."""
        return self.problem.split(":")[0]


def programs_of(setting: Setting, seeds: Sequence[int]) -> list[Program]:
    """Make the programs of some seeds; a seed may give none."""
    made = [generate(seed, setting.style) for seed in seeds]
    return [program for program in made if program.outs]


def check(name: str, programs: Sequence[Program]) -> list[Finding]:
    """Run programs in a setting, and return those that differ from the reference."""
    setting = SETTINGS[name]
    found = []
    with _mesh(setting):
        jobs = [_job(setting, program) for program in programs]
        for program, job, outcome in zip(programs, jobs, _run(setting, jobs), strict=True):
            problem = _judged(setting, program, job, outcome)
            if problem is not None:
                found.append(Finding(name, program, problem))
    return found


@contextlib.contextmanager
def _mesh(setting: Setting) -> Iterator[None]:
    if setting.kinds is None:
        yield
        return
    mesh = jax.make_mesh(tuple(_MESH.values()), tuple(_MESH), axis_types=setting.kinds)
    with axn.set_mesh(mesh):
        yield


@dataclasses.dataclass(frozen=True)
class _Job:
    expected: tuple[Table, ...]
    arguments: list[Any]
    call: Callable[..., Any]
    weights: list[np.ndarray | None]


def _job(setting: Setting, program: Program) -> _Job:
    expected = reference(program)
    function = program.function()
    weights = weights_of(program, expected)

    def whole(*inputs: Any) -> Any:
        with axn.axis_mapping(program.mapping or {}) if program.mapping else contextlib.nullcontext():
            return function(axn, *inputs)

    call = _in_blocks(program, function) if setting.blocks else whole
    if setting.slopes:
        call = _slope(program, call, expected, weights)
    arguments = [_placed(given) for given in program.inputs.values()]
    return _Job(expected, arguments, call, weights)


def _placed(given: Any) -> Any:
    named = axn.named(given.array(), given.names)
    return named if given.layout is None else axn.shard(named, given.layout, strict=False)


def _in_blocks(program: Program, function: Any) -> Callable[..., Any]:
    """Return the program in a shard_map that splits the axis `s` over one mesh axis, or over both."""
    over = ("data", ("data", "model"), "model")[program.seed % 3]
    manual = None if program.seed % 2 else {over} if isinstance(over, str) else set(over)
    if "bfloat16" in program.source() or any(given.dtype == "bfloat16" for given in program.inputs.values()):
        manual = None
    return axn.shard_map(lambda *inputs: function(axn, *inputs), {"s": over}, manual_axes=manual, strict=False)


def _slope(program: Program, call: Any, expected: Sequence[Table], weights: Sequence[np.ndarray | None]) -> Any:
    smooth = [given.dtype == "float32" for given in program.inputs.values()]

    def loss(floats: Any, others: Any) -> Any:
        parts, rest = iter(floats), iter(others)
        outs = call(*(next(parts) if is_smooth else next(rest) for is_smooth in smooth))
        total = jnp.zeros(())
        for out, table, weight in zip(outs, expected, weights, strict=True):
            if weight is not None:
                named = axn.named(jnp.asarray(weight, "float32"), table.names)
                total += (axn.real(out).astype("float32") * named).sum().scalar()
        return total

    def slope(*inputs: Any) -> Any:
        floats = [x for x, is_smooth in zip(inputs, smooth, strict=True) if is_smooth]
        others = [x for x, is_smooth in zip(inputs, smooth, strict=True) if not is_smooth]
        return jax.grad(loss)(floats, others)

    return slope


def _run(setting: Setting, jobs: Sequence[_Job]) -> list[Any]:
    """Return what each job returns or raises."""
    if not setting.compiled:
        return [_outcome(job) for job in jobs]

    def together(arguments: Any) -> Any:
        return [job.call(*own) for job, own in zip(jobs, arguments, strict=True)]

    try:
        return list(jax.block_until_ready(jax.jit(together)([job.arguments for job in jobs])))
    except Exception as error:
        if len(jobs) == 1:
            return [error]
        half = len(jobs) // 2
        return _run(setting, jobs[:half]) + _run(setting, jobs[half:])


def _outcome(job: _Job) -> Any:
    try:
        return job.call(*job.arguments)
    except Exception as error:
        return error


def _judged(setting: Setting, program: Program, job: _Job, outcome: Any) -> str | None:
    if isinstance(outcome, ShardingError) and program.mapping and "cannot be split evenly" in str(outcome):
        return None  # an operation gave a mapped axis another size
    if isinstance(outcome, Exception):
        return f"{type(outcome).__name__}: {outcome}"
    try:
        results = [_result(x) for x in outcome]
    except Exception as error:
        return f"fetching {type(error).__name__}: {error}"
    if setting.slopes:
        return _slopes_judged(program, job, results)
    return difference(program, results, job.expected)


def _result(x: Any) -> Result:
    values = np.asarray(x.array)
    wide = {"b": bool, "i": np.int64, "u": np.int64, "c": np.complex128}.get(values.dtype.kind, np.float64)
    return Result(x.names, str(x.dtype), values.astype(wide))


def _slopes_judged(program: Program, job: _Job, results: Sequence[Result]) -> str | None:
    rest = iter(results)
    gradients: list[np.ndarray | None] = []
    for given in program.inputs.values():
        if given.dtype != "float32":
            gradients.append(None)
            continue
        result = next(rest)
        if (result.names, result.values.shape) != (given.names, given.values.shape):
            return f"form: a gradient is {result.names}{result.values.shape}, its input {given.shape}"
        gradients.append(result.values)
    return slope_difference(program, gradients, job.weights)
