"""Show that the tests look: `python tools/mutations.py [NAME ...]` plants one fault in each of many files.

Each fault is planted in a copy of the sources, on which the file of tests of that module runs as in a usual run, with
a sample of the large tables. A fault that no test reports is a failure; so is one whose text is no longer there.
NAME picks the faults of the files whose path contains it.
"""

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from touched_tests import tests_of

ROOT = Path(__file__).parent.parent


@dataclasses.dataclass(frozen=True)
class Fault:
    """A wrong text in place of a right one, which the file has once."""

    file: str
    right: str
    wrong: str
    tests: str = ""  # for an engine that is tested by what it drives


FAULTS = [
    # values
    Fault("axis.py", "return Axis(self.name, size)", "return Axis(self.name, size + 1)"),
    Fault("ops/contract.py", "lax.transpose(result, plan.order)", "lax.transpose(result, plan.order[::-1])"),
    Fault("ops/diagonal.py", "(max(k, 0), max(-k, 0))", "(max(-k, 0), max(k, 0))"),
    Fault("ops/fft.py", "ifftn(array, *_find_lengths(array, sizes), norm=norm)", "ifftn(array, norm=norm)"),
    Fault("ops/poly.py", "return jnp.polyint(p, m, k)", "return jnp.polyint(p, m)"),
    Fault("ops/nan_reduce.py", "(jnp.nanvar, x, axis, where, ddof=ddof,", "(jnp.nanvar, x, axis, where, ddof=0,"),
    Fault("ops/sets.py", "dims=len(names), invert=invert,", "dims=len(names), invert=False,"),
    Fault("ops/signal.py", '{"prepend": prepend, "append": append}', '{"prepend": append, "append": prepend}'),
    Fault("ops/sorting.py", "(_argsort, x, axis, stable=stable,", "(_argsort, x, axis, stable=not stable,"),
    Fault("ops/histogram.py", "to, (fweights, aweights), ddof=ddof)", "to, (None, aweights), ddof=ddof)"),
    Fault("nn/dropout.py", "x / keep if keep", "x * keep if keep"),
    Fault("nn/loss.py", "primitives.where(lax.is_finite(largest), largest, 0)", "largest"),
    Fault("nn/norm.py", "lax.rsqrt(primitives.add(squares, self.eps))", "lax.rsqrt(squares)"),
    Fault("nn/pool.py", "self.high + self.over - self.window)", "self.high - self.window)"),
    Fault("nn/recurrent.py", "return n + z * (state - n)", "return state + z * (n - state)"),
    Fault("quant/fp8.py", "return product * (left.scale * right.scale)", "return product * left.scale"),
    Fault("transform/associative_scan.py", "reverse=reverse, axis=place", "reverse=False, axis=place"),
    Fault(
        "transform/loop.py",
        "grouped, length=groups, reverse=plan.reverse)",
        "grouped, length=groups)",
        "transform/test_checkpoint.py",
    ),
    # layouts
    Fault("faults/gathered_moves.py", "own[-count:] == group", "own[:count] == group"),
    Fault(
        "layout/partition.py",
        "if axis in used and mapping.has_own(name) and not yields:",
        "if axis in used and not yields:",
    ),
    Fault("engine/prefixes.py", "edge = 0 if reverse else -1", "edge = 0"),
    Fault("ops/roll.py", "jnp.rot90, k=k, axes=axis", "jnp.rot90, k=-k, axes=axis"),
    Fault(
        "engine/auto.py",
        "entry if size and not size % partition.count_shards(mesh, entry) else ()",
        "entry if size else ()",
        "ops/test_pad.py",
    ),
    Fault("partitioning/collectives.py", "return jax.random.fold_in(key, lax.axis_index(axes))", "return key"),
    Fault("faults/uneven_scatters.py", "[-size % shards if", "[0 if"),
    Fault("layout/constraints.py", "if mesh is None or not wanted:", "if True:"),
    Fault("mup.py", "1 / math.sqrt(self.inputs)", "1 / self.inputs"),
]


def plant(fault: Fault, folder: Path) -> str | None:
    """Copy the sources with one fault; return what is wrong with it."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "src/axonym" / fault.file
    text = path.read_text(encoding="utf-8")
    found = text.count(fault.right)
    if found != 1:
        return f"its file has the text {found} times, not once: {fault.right}"
    path.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")
    return None


def outcome(fault: Fault) -> str | None:
    """Run the tests of a file with a fault in it; return what is wrong, or None where a test reports the fault."""
    tests = Path("tests", fault.tests) if fault.tests else tests_of(Path("src/axonym", fault.file))
    with tempfile.TemporaryDirectory() as temporary:
        problem = plant(fault, Path(temporary))
        if problem is not None:
            return problem
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(tests)]
        environment = os.environ | {"PYTHONPATH": str(Path(temporary, "src")), "PYTHONDONTWRITEBYTECODE": "1"}
        run = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if run.returncode == 0:
        return f"no test of {tests} reports it"
    # 1: a test failed. Whatever else ended the run says nothing about the tests.
    return (
        None if run.returncode == 1 else f"pytest ended with {run.returncode}:\n{run.stdout[-2000:]}{run.stderr[-500:]}"
    )


def main() -> int:
    """Try each fault, and return the exit status."""
    asked = [fault for fault in FAULTS if not sys.argv[1:] or any(name in fault.file for name in sys.argv[1:])]
    missed = 0
    for fault in asked:
        problem = outcome(fault)
        missed += problem is not None
        print(f"{'found' if problem is None else 'MISSED':<8}{fault.file:<32}{problem or fault.wrong}", flush=True)
    print(f"{len(asked) - missed} of {len(asked)} faults found")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
