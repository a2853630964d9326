"""Attack axonym with random programs: `python -m tests.fuzz --programs 1000 --seed 0 --setting explicit`."""

import argparse
import os
import time
from collections import Counter

# JAX reads these once, when it is first imported.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    f"--xla_backend_optimization_level=0 {os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
)

import jax

from tests.fuzz.run import SETTINGS, check, programs_of
from tests.fuzz.shrink import shrunk


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=1000, help="how many in each setting")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--setting", choices=[*SETTINGS, "all"], action="append", help="where to run them")
    parser.add_argument("--batch", type=int, default=25, help="how many are compiled as one")
    parser.add_argument("--show", type=int, default=3, help="how many findings of a kind to make small and print")
    parser.add_argument("--raw", action="store_true", help="print findings as they are")
    given = parser.parse_args()
    names = given.setting or ["all"]
    total = 0
    for name in SETTINGS if "all" in names else names:
        total += attack(name, given)
    return int(total > 0)


def attack(name: str, given: argparse.Namespace) -> int:
    """Run programs in one setting, print what is found and how much was run, and return the number of findings."""
    started, run, kinds = time.monotonic(), 0, Counter[str]()
    for first in range(given.seed, given.seed + given.programs, given.batch):
        programs = programs_of(SETTINGS[name], range(first, min(first + given.batch, given.seed + given.programs)))
        found = check(name, programs)
        run += len(programs)
        for finding in found:
            kinds[finding.kind] += 1
            if kinds[finding.kind] <= given.show:
                small = finding if given.raw else shrunk(finding)
                print(f"--- seed {finding.program.seed}: {small.problem}\n{small.program.script(name)}\n", flush=True)
        if (first // given.batch) % 20 == 19:
            jax.clear_caches()
    seconds = time.monotonic() - started
    print(f"{name}: {run} programs, {sum(kinds.values())} findings {dict(kinds)}, {seconds:.0f} s", flush=True)
    return sum(kinds.values())


if __name__ == "__main__":
    raise SystemExit(main())
