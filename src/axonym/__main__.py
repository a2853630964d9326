"""Check mappings, report their costs, and search for them: `python -m axonym cost train.py:small --mesh data=8`."""

import argparse
import ast
import contextlib
import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from .base.kinds import Tree, type_text
from .costs.cost import cost
from .costs.plan import plan
from .costs.report.lock import assert_layout
from .costs.shared.targets import TARGETS
from .errors import AxonymError, ShardingError
from .layout.assignment import Mappings, ResourceMapping
from .report.check import check
from .report.target import place_of

CONTRACT = """\
FUNCTION takes no arguments, and returns what to look at, its mapping, and the
arguments of a call:

    def small():
        model = jax.eval_shape(Model.init, jax.random.key(0))
        return step, {"batch": "data", "mlp": "model"}, model, batch

Arrays need only shapes and dtypes: jax.eval_shape and jax.ShapeDtypeStruct make
arrays that take no memory. MODULE may be the path of a file, such as
examples/train.py:small.
"""
PLANNED = """
The entries of the mapping stay as they are; {} leaves all open.
"""
DEVICES = """
Programs are compiled for as many simulated CPU devices as the mesh has, or, with
the package libtpu, for the TPUs v5e, v5p and v6e. Where JAX_PLATFORMS is set, they
are compiled for the devices of this machine.
"""


class _Refused(Exception):  # noqa: N818  # argparse makes an error of it
    """Something that the command line names does not exist."""


class _Call(NamedTuple):
    """The result of FUNCTION."""

    target: Tree
    mapping: ResourceMapping | Mappings | None
    args: tuple[Tree, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: of the command line; by default those of the process.

    Returns:
        The status of the process: 1 if something is wrong with the mapping, otherwise 0.

    Raises:
        SystemExit: with status 2, if the command is not valid.
    """
    parser = _make_parser()
    given = parser.parse_args(arguments)
    try:
        return int(given.run(given))
    except _Refused as refused:
        parser.error(str(refused))
    except AxonymError as error:
        print(f"error: {error}", file=sys.stderr)
        # A traceback through JAX would be longer than the report, and the user's line is what matters.
        place = place_of(error)
        if place != "JAX":
            print(f"  in {place}", file=sys.stderr)
        return 1


def _make_parser() -> argparse.ArgumentParser:
    """Describe the commands."""
    parser = argparse.ArgumentParser(
        "python -m axonym", description=_read_first_line(sys.modules[__name__])
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    # A parent of all commands, with their arguments in common; the help is that of each command.
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("function", metavar="MODULE:FUNCTION", help="what to look at, see below")
    common.add_argument(
        "--mesh",
        type=_parse_sizes,
        required=True,
        metavar="AXIS=SIZE,...",
        help="sizes of the mesh axes, such as data=64,model=4",
    )
    plain = argparse.RawDescriptionHelpFormatter

    checks = commands.add_parser(
        "check",
        parents=[common],
        help="find what is wrong with a mapping; compiles nothing",
        epilog=CONTRACT,
        formatter_class=plain,
    )
    checks.set_defaults(run=_check)

    costs = commands.add_parser(
        "cost",
        parents=[common],
        help="tell what a mapping costs: what is sent, memory and time",
        epilog=CONTRACT + DEVICES,
        formatter_class=plain,
    )
    _add_target(costs)
    costs.add_argument(
        "--depth", default="compiled", help="compiled or traced, see axn.cost (default: compiled)"
    )
    files = costs.add_mutually_exclusive_group()
    files.add_argument("--save", type=Path, metavar="FILE", help="write a lock for layouts")
    files.add_argument(
        "--lock",
        type=Path,
        metavar="FILE",
        help="fail if the cost is not what this file of --save says;"
        " with AXONYM_UPDATE_LAYOUTS=1, write it anew",
    )
    costs.add_argument(
        "--tolerance",
        type=float,
        default=0.05,
        help="by which share numbers may differ from --lock (default: 0.05)",
    )
    costs.set_defaults(run=_cost)

    _add_plan(commands, common)
    return parser


def _add_plan(commands: Any, common: argparse.ArgumentParser) -> None:
    plans = commands.add_parser(
        "plan",
        parents=[common],
        help="find the mapping that takes the least time and fits",
        epilog=CONTRACT + PLANNED + DEVICES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_target(plans)
    plans.add_argument(
        "--limit",
        type=int,
        default=200,
        help="how many mappings to trace, of which a compiled one counts as 10 (default: 200)",
    )
    plans.add_argument(
        "--verify", type=int, default=3, help="how many of the best to compile (default: 3)"
    )
    plans.add_argument(
        "--pipelined",
        type=lambda text: tuple(text.split(",")),
        metavar="LAYERS,ROWS",
        help="try pipelines: the axis of layers, and the axis that is cut into microbatches",
    )
    plans.add_argument(
        "--choose",
        type=_parse_values,
        action="append",
        default=[],
        metavar="ARGUMENT=VALUE,...",
        help="values of a keyword argument to choose from, such as checkpointing=False,True",
    )
    plans.set_defaults(run=_plan)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target",
        default="cpu",
        help=f"the device: {', '.join(TARGETS)}, or MODULE:NAME of a Target (default: cpu)",
    )


def _check(given: argparse.Namespace) -> int:
    """Print the report of a check."""
    call = _call_function(given.function)
    report = check(call.target, call.mapping, given.mesh, *call.args, quiet=True)
    print(report)
    return int(bool(report.errors))


def _cost(given: argparse.Namespace) -> int:
    """Print the cost of a mapping, and save it, or compare it with a saved one."""
    if given.depth == "compiled":
        _simulate(math.prod(given.mesh.values()))
    call, target = _call_function(given.function), _find_target(given.target)
    report = cost(
        call.target, call.mapping, given.mesh, *call.args, target=target, depth=given.depth
    )
    print(report)
    status = int(bool(report.problems))
    if given.save is not None:
        report.save(given.save)
    if given.lock is not None:
        # The report is printed already: the error adds only what differs.
        try:
            assert_layout(report, given.lock, tolerance=given.tolerance)
        except ShardingError as error:
            print(f"\nerror: {error}")
            status = 1
    return status


def _plan(given: argparse.Namespace) -> int:
    """Print the best mapping, and why others lose."""
    if given.verify:
        _simulate(math.prod(given.mesh.values()))
    call, target = _call_function(given.function), _find_target(given.target)
    options: dict[str, Any] = {
        "target": target,
        "fixed": call.mapping,
        "limit": given.limit,
        "verify": given.verify,
        "pipelined": given.pipelined,
        "choices": dict(given.choose),
    }
    found = plan(call.target, given.mesh, *call.args, **options)
    print(found)
    return int(bool(found.problems))


def _find_target(text: str) -> Any:
    """Import the user's own target if the text has a colon; else return the text, the name of a known target."""
    return _import_name(text) if ":" in text else text


def _simulate(count: int) -> None:
    """Let JAX simulate devices on the CPU, unless the user chose a platform."""
    if "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", "cpu")
    # Once JAX has devices, it keeps them; where they are too few, the report says so.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", count)


def _parse_sizes(text: str) -> dict[str, int]:
    """Read the sizes of mesh axes."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if not name.isidentifier() or name in sizes or not size.isdecimal() or int(size) < 1:
            problem = f"{part!r} should be a mesh axis and its size, each once, such as data=4"
            raise argparse.ArgumentTypeError(problem)
        sizes[name] = int(size)
    return sizes


def _parse_values(text: str) -> tuple[str, tuple[object, ...]]:
    """Read a keyword argument and values for it."""
    name, _, values = text.partition("=")
    # The comma makes a tuple of a single value, too.
    try:
        return name, tuple(ast.literal_eval(f"{values},"))
    except (SyntaxError, ValueError):
        problem = f"expected ARGUMENT=VALUE,... with literals of Python, got {text!r}"
        raise argparse.ArgumentTypeError(problem) from None


def _call_function(text: str) -> _Call:
    """Call a function that returns the object to report on.

    Raises:
        _Refused: if there is no such function, or it returns another thing.
    """
    function = _import_name(text)
    if not callable(function):
        raise _Refused(f"{text} should be a function, not {type_text(function)}")
    # All is checked before the readers see it, whose errors would be about trees and tracers.
    wanted = "a tuple of a function or a tree, its mapping, and arguments"
    needed = _list_required(function)
    if needed:
        problem = f"{text} should take no arguments and return {wanted}"
        raise _Refused(f"{problem}; it takes {', '.join(needed)}")
    returned = function()
    if not isinstance(returned, tuple) or len(returned) < 2:
        raise _Refused(f"{text} should return {wanted}, not {type_text(returned)}")
    target, mapping, *args = returned
    if mapping is not None and not isinstance(mapping, Mappings | dict):
        wanted = "a dict, axn.Mappings or None"
        raise _Refused(f"{text} should return a mapping second, {wanted}, not {type_text(mapping)}")
    return _Call(target, mapping, tuple(args))


def _list_required(function: Callable[..., object]) -> list[str]:
    """Return the required arguments of a function."""
    parameters = inspect.signature(function).parameters.values()
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        each.name for each in parameters if each.default is each.empty and each.kind not in several
    ]


def _import_name(text: str) -> Any:
    """Return the object that a module has under a name.

    Raises:
        _Refused: if there is no such module, or it has nothing of that name.
    """
    place, colon, name = text.rpartition(":")  # the last one: a path of Windows has another
    if not (place and colon and name.isidentifier()):
        raise _Refused(f"{text!r} should be MODULE:NAME or FILE.py:NAME")
    is_file = place.endswith(".py")
    module = _import_file(Path(place)) if is_file else _import_module(place)
    if not hasattr(module, name):
        raise _Refused(f"{place} has nothing of the name {name!r}")
    return getattr(module, name)


def _import_module(name: str) -> Any:
    """Import a module, which may be in the current working directory."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The module is there, and something that it imports is missing.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise _Refused(f"there is no module {name!r}") from error


def _import_file(path: Path) -> Any:
    """Import a file as if Python ran it, so that it can import its neighbours.

    Raises:
        _Refused: if there is no file, or another module has its name.
    """
    if not path.is_file():
        raise _Refused(f"there is no file {path}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.import_module(path.stem)
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != path.resolve():
        raise _Refused(f"{path} has the name of another module, {found or path.stem}: rename it")
    return module


def _read_first_line(documented: object) -> str:
    return (documented.__doc__ or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
