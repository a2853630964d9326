"""Internal. The purpose of a trace that will not run on this machine: to count the cost on another machine, or a proof.

Code that picks an implementation by the platform asks `find_platform`. A kernel that such a machine would run is one
call in the program, and the name of the call says what it computes: only names survive from a traced program to a
compiled one. Programs that will run here have no such names.
"""

import re
from typing import Any, NamedTuple

import jax

from .features import Feature


class Machine(NamedTuple):
    """The machine that a program is traced for while its cost is counted.

    Attributes:
        platform: `tpu`, `cuda` or `cpu`.
        has_compiler: whether its compiler is here, so that its kernels can be compiled.
        is_typed: whether the types of the program are all that counts, which no compiler sees.
        mixtures: for a template of several mappings, each mixture of experts with the entries of its axes; others take
            the entries of the current mapping.
        tables: for a template, each table in which rows are looked up, with the mapping of the table and those of its
            rows, in the order in which they are sent.
    """

    platform: str
    has_compiler: bool = False
    is_typed: bool = False
    mixtures: tuple[tuple[Any, tuple[tuple[str, tuple[str, ...]], ...]], ...] = ()
    tables: tuple[tuple[Any, tuple[Any, ...]], ...] = ()


MACHINE: Feature[Machine | None] = Feature(None)
"""The machine of the cost that is being counted; None for a program that runs here."""

IS_PROOF: Feature[bool] = Feature(False)
"""Whether a program is traced to follow its axes: a layer may then trace an equal function that is easier to follow."""


def find_platform() -> str:
    """Return the platform that a program will run on: `tpu`, `cuda` for GPUs of NVIDIA, `rocm` for others, or `cpu`."""
    machine = MACHINE.get()
    if machine is not None:
        return machine.platform
    # Which devices a traced call will run on is not known, so the default backend counts.
    backend = jax.default_backend()
    if backend != "gpu":
        return backend
    return "cuda" if jax.local_devices()[0].device_kind.startswith("NVIDIA") else "rocm"


_KERNEL = re.compile(r"kernel\[(\w+) (\d+) (\d+) (\d+)\]")
_CHOSEN = re.compile(r"attention<([^>]*)>")
_LOOP = re.compile(r"loop<([\d.]+)>/while$")


class KernelCall(NamedTuple):
    """What one call of a kernel computes.

    Attributes:
        kernel: the name of the kernel.
        flops: its operations; a multiplication and an addition count as two.
        backward: the operations of its gradient, where JAX derives that from the call.
        elements: the number of elements of its first result. A call on a part of the arrays, or on several of them, has
            as much less or more of them, and of operations.
    """

    kernel: str
    flops: int
    backward: int
    elements: int

    @property
    def name(self) -> str:
        """The name of the call in a program."""
        return f"kernel[{self.kernel} {self.flops} {self.backward} {self.elements}]"


def find_kernel_call(source: str) -> KernelCall | None:
    """Return the kernel that an operation with this name belongs to; None if it is no kernel."""
    found = _KERNEL.search(source)
    return None if found is None else KernelCall(found[1], *map(int, found.groups()[1:]))


def write_choice(implementation: str, reason: str) -> str:
    """Return the name of the scope in which an implementation of attention computes, with the reason for it."""
    text = f"{implementation}: {reason}" if reason else implementation
    # The name of an operation is split at these, and a compiled program has it in quotes.
    shown = re.sub('[<>/"]', "", text)
    return f"attention<{shown}>"


def find_choice(source: str) -> str | None:
    """Return the implementation of attention that an operation with this name belongs to, with its reason."""
    found = _CHOSEN.search(source)
    return None if found is None else found[1]


def write_iterations(mean: float) -> str:
    """Return the name of the scope of a loop whose number of iterations varies, with its mean."""
    return f"loop<{mean:.9g}>"


def find_iterations(source: str) -> float | None:
    """Return the mean number of iterations of the loop with this name; None if the name does not say."""
    found = _LOOP.search(source)
    return None if found is None else float(found[1])
