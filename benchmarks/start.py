"""Measure what `import axonym` adds to `import equinox`: CPU time in fresh processes that take turns.

    python benchmarks/start.py              the table
    python benchmarks/start.py --rounds 30  more rounds

Bytecode is cached as it is for an installed package. Each process imports Equinox, and with it JAX, and then takes the
CPU time, of the system too, of one program. Names are loaded at their first use, so that rows show what
a program pays that uses more of the library. After `import equinox`, Python's collector is a few objects short of a
full pass, which any program triggers then, such as the first row; the last column is without the collector.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile

from measure import table

BAR = 40.0
PROGRAMS = {
    "nothing but 1000 lists": "kept = [[] for _ in range(1000)]",
    "import axonym": "import axonym",
    "and a named array": "import axonym as axn; axn.NamedArray",
    "and a linear layer": "import axonym as axn; axn.NamedArray, axn.nn.Linear",
    "and a compiled transformer": "import axonym as axn; axn.named_jit, axn.nn.TransformerBlock, axn.nn.Stacked",
    "every name of axonym and axonym.nn": "from axonym import *; from axonym.nn import *",
}
CODE = """
{first}
import equinox, time
start = time.process_time()
{program}
print(time.process_time() - start)
"""


def cpu_milliseconds(program: str, collector: bool, environment: dict[str, str]) -> float:
    """Return the CPU time that a program takes in a fresh interpreter, on top of importing Equinox."""
    code = CODE.format(first="" if collector else "import gc; gc.disable()", program=program)
    return 1000.0 * float(subprocess.check_output([sys.executable, "-c", code], env=environment))


def measured(rounds: int) -> dict[tuple[str, bool], list[float]]:
    """Return the times of all programs by label, with and without the collector, one a round."""
    labels = [(label, collector) for label in PROGRAMS for collector in (True, False)]
    times: dict[tuple[str, bool], list[float]] = {label: [] for label in labels}
    shuffle = random.Random(0).shuffle
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for program in PROGRAMS.values():  # writes the bytecode
            cpu_milliseconds(program, True, environment)
        for _ in range(rounds):
            shuffle(labels)
            for label, collector in labels:
                times[label, collector].append(cpu_milliseconds(PROGRAMS[label], collector, environment))
    return times


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="processes of each kind")
    times = measured(parser.parse_args().rounds)
    lines = []
    for label in PROGRAMS:
        line = {"after import equinox": label}
        for collector, column in ((True, ""), (False, ", no collector")):
            line[f"minimum, ms{column}"] = f"{min(times[label, collector]):.1f}"
            line[f"median, ms{column}"] = f"{statistics.median(times[label, collector]):.1f}"
        lines.append(line)
    print(table(lines))
    print(f"\nThe bar of `import axonym` is {BAR:.0f} ms.")


if __name__ == "__main__":
    main()
