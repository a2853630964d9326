"""Programs: inputs, and lines of Python that mean the same to axonym and to the reference."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.fuzz.table import Table, made

__all__ = ["Input", "Line", "Program"]

_VARIABLE = re.compile(r"\bv\d+\b")


@dataclasses.dataclass(frozen=True)
class Input:
    """An array that a program is given, and on which mesh axes each of its axes lies; None means on one device."""

    names: tuple[str, ...]
    values: np.ndarray
    dtype: str
    layout: Mapping[str, Any] | None = None

    @property
    def shape(self) -> dict[str, int]:
        return dict(zip(self.names, self.values.shape, strict=True))

    def table(self) -> Table:
        return made(self.values, self.names, self.dtype)

    def array(self) -> Any:
        """Return the values in the dtype, without names."""
        # `jnp.asarray` would compile a program for each shape and mesh.
        place = None if jax.sharding.get_abstract_mesh().empty else jax.P()
        return jax.device_put(self.values.astype(jnp.dtype(self.dtype)), place)


@dataclasses.dataclass(frozen=True)
class Line:
    """One operation: the variables that it gives, and its expression, in which `n` is the library."""

    results: tuple[str, ...]
    text: str

    @property
    def operands(self) -> set[str]:
        return set(_VARIABLE.findall(self.text))

    def __str__(self) -> str:
        return f"{', '.join(self.results)} = {self.text}"


@dataclasses.dataclass(frozen=True)
class Program:
    """A few lines over a few inputs; `outs` are the variables to compare."""

    inputs: dict[str, Input]
    lines: tuple[Line, ...]
    outs: tuple[str, ...]
    seed: int = 0
    finite: bool = True
    mapping: Mapping[str, Any] | None = None

    def source(self) -> str:
        body = "\n".join(f"    {line}" for line in self.lines)
        return f"def program(n, {', '.join(self.inputs)}):\n{body}\n    return {', '.join(self.outs)},\n"

    def function(self) -> Any:
        """Return the function of a library and of the inputs."""
        scope: dict[str, Any] = {}
        exec(compile(self.source(), f"<program {self.seed}>", "exec"), scope)
        return scope["program"]

    def pruned(self) -> "Program":
        """Drop the lines and inputs that no result needs."""
        needed, kept = set(self.outs), []
        for line in reversed(self.lines):
            if needed & set(line.results):
                needed |= line.operands
                kept.append(line)
        inputs = {name: given for name, given in self.inputs.items() if name in needed}
        return dataclasses.replace(self, lines=tuple(reversed(kept)), inputs=inputs)

    def script(self, setting: str) -> str:
        """Return a program to paste that shows what was computed."""
        lines = ["import axonym as axn", "import jax.numpy as jnp", "from jax.numpy import nan, inf", ""]
        lines.append(f"# setting: {setting}; current mapping: {self.mapping}; seed {self.seed}")
        for name, given in self.inputs.items():
            values = np.asarray(given.values).tolist()
            array = f"jnp.asarray({values}, {given.dtype!r})"
            if given.values.size == 0:
                array = f"jnp.zeros({given.values.shape}, {given.dtype!r})"
            note = "" if given.layout is None else f"  # split: {dict(given.layout)}"
            lines.append(f"{name} = axn.named({array}, {given.names!r}){note}")
        lines += [re.sub(r"\bn\.", "axn.", str(line)) for line in self.lines]
        return "\n".join([*lines, *(f"print({out})" for out in self.outs)])
