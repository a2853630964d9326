"""Make a failing program small: fewer results, fewer lines, plainer inputs."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from tests.fuzz.generate import reference
from tests.fuzz.program import Input, Program
from tests.fuzz.run import Finding, check

__all__ = ["shrunk"]


def shrunk(finding: Finding) -> Finding:
    """Return the smallest finding of the same kind that simple steps lead to."""

    def again(program: Program) -> Finding | None:
        try:
            found = check(finding.setting, [program])
        except Exception:
            return None  # the reference does not know the smaller program
        return next((each for each in found if each.kind == finding.kind), None)

    best = again(finding.program)
    if best is None:
        return finding  # it fails only beside others
    while (smaller := _smaller(best, again)) is not None:
        best = smaller
    return best


def _smaller(finding: Finding, again: Callable[[Program], Finding | None]) -> Finding | None:
    for candidate in _candidates(finding.program):
        found = again(candidate)
        if found is not None:
            return found
    return None


def _candidates(program: Program) -> Iterator[Program]:
    if len(program.outs) > 1:
        for out in program.outs:
            yield dataclasses.replace(program, outs=(out,)).pruned()
    for line in program.lines:
        results = (line.results[0],)
        if results != program.outs:
            yield dataclasses.replace(program, outs=results).pruned()
    for i, line in enumerate(program.lines):
        if len(line.results) == 1 and len(program.lines) > 1 and line.results != program.outs:
            given = _as_input(program, line.results[0])
            lines = program.lines[:i] + program.lines[i + 1 :]
            if given is not None:
                yield dataclasses.replace(
                    program, inputs={**program.inputs, line.results[0]: given}, lines=lines
                ).pruned()
    if program.mapping:
        yield dataclasses.replace(program, mapping=None)
    for name, given in program.inputs.items():
        for plainer in _plainer(given):
            yield dataclasses.replace(program, inputs={**program.inputs, name: plainer})


def _as_input(program: Program, variable: str) -> Input | None:
    """Return a variable with the values that the reference gives it."""
    try:
        (table,) = reference(dataclasses.replace(program, outs=(variable,)))
    except Exception:
        return None
    layouts = [given.layout for given in program.inputs.values() if given.layout]
    sizes = table.shape
    layout = {name: axes for name, axes in (layouts[0] if layouts else {}).items() if sizes.get(name, 1) % 8 == 0}
    return Input(table.names, table.values, table.dtype, layout if layouts else None)


def _plainer(given: Input) -> Iterator[Input]:
    if given.layout:
        yield dataclasses.replace(given, layout={})
        for name in given.layout:
            if len(given.layout) > 1:
                yield dataclasses.replace(given, layout={k: v for k, v in given.layout.items() if k != name})
    for i, name in enumerate(given.names):
        if given.values.shape[i] > 1 and not (given.layout or {}).get(name):
            pass
    if given.dtype in ("float32", "bfloat16", "float16"):
        plain = np.arange(given.values.size, dtype=float).reshape(given.values.shape)
        for values in (np.ones(given.values.shape), plain):
            older = np.array_equal(given.values, np.ones(given.values.shape)) or np.array_equal(given.values, plain)
            if not older:
                yield dataclasses.replace(given, values=values)
