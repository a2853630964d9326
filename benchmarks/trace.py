"""Time the tracing of a thousand mixed operations, by name and in plain `jax.numpy`, and count their equations.

    python benchmarks/trace.py            the table
    python benchmarks/trace.py --fast     fewer rounds

Each candidate is a function that runs every operation of `operations.py` again and again, a thousand in all. It is
traced anew in each measurement; what JAX and Axonym remember between traces of the same process is warm for both.
"""

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import jax
from measure import equations, interleaved, median_ratio, ratio_of_minima, table
from operations import Arrays, named_arrays, operations, plain_arrays

OPERATIONS = 1000
BAR = 1.0


def program(calls: list[Callable[[Arrays], Any]]) -> Callable[[Arrays], list[Any]]:
    """Return a function that JAX has not seen before, of as many operations as asked for."""
    return lambda arrays: [call(arrays) for call in itertools.islice(itertools.cycle(calls), OPERATIONS)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="fewer rounds")
    rounds = 3 if parser.parse_args().fast else 15
    plain = plain_arrays()
    named = named_arrays(plain)
    rows = operations()
    calls = {
        "jax.numpy": (plain, [row.usual for row in rows.values()]),
        "axonym": (named, [row.named for row in rows.values()]),
    }
    counts = {
        label: [len(list(equations(jax.make_jaxpr(call)(arrays).jaxpr))) for call in spellings]
        for label, (arrays, spellings) in calls.items()
    }
    timed = interleaved(
        {
            label: lambda arrays=arrays, spellings=spellings: (
                jax.make_jaxpr(program(spellings))(arrays).in_avals[0].size
            )
            for label, (arrays, spellings) in calls.items()
        },
        rounds=rounds,
        calls=1,
    )
    ratio = ratio_of_minima(timed["axonym"], timed["jax.numpy"])
    print(f"jax {jax.__version__}, {OPERATIONS} operations of {len(rows)} kinds\n")
    print(
        table(
            [
                {
                    "spelling": label,
                    "milliseconds": f"{timed[label].minimum * 1e3:.1f}",
                    "equations": str(sum(itertools.islice(itertools.cycle(counts[label]), OPERATIONS))),
                }
                for label in calls
            ]
        )
    )
    verdict = "" if ratio <= BAR else " missed"
    print(f"\nratio of minima {ratio:.2f} (bar {BAR}{verdict}), median ratio", end=" ")
    print(f"{median_ratio(timed['axonym'], timed['jax.numpy']):.2f}")
    more = [name for name, *pair in zip(rows, counts["axonym"], counts["jax.numpy"], strict=True) if pair[0] > pair[1]]
    print(f"operations with more equations than in jax.numpy: {', '.join(more) or 'none'}")


if __name__ == "__main__":
    main()
