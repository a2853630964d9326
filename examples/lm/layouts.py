"""How runs are laid out: pairs of mappings, and the mesh."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

import jax

import axonym as axn

Strategy = Literal["single", "dp", "fsdp", "tp", "fsdp+tp"]
AxisTypes = Literal["auto", "explicit"]
Shape: TypeAlias = tuple[int, int] | Mapping[str, int]
KINDS = {"auto": jax.sharding.AxisType.Auto, "explicit": jax.sharding.AxisType.Explicit}
HEADS = {"kv_heads": "model", "mlp": "model"}

# For each strategy: how parameters and optimiser state are laid out, and how the computation is.
STRATEGIES: dict[Strategy, tuple[axn.ResourceMapping, axn.ResourceMapping]] = {
    "single": ({}, {}),
    "dp": ({}, {"batch": ("data", "model")}),
    "fsdp": ({"embed": ("data", "model")}, {"batch": ("data", "model")}),
    "tp": (HEADS, {"batch": "data", **HEADS}),
    "fsdp+tp": ({"embed": "data", **HEADS}, {"batch": "data", **HEADS}),
}
DEFAULT: Strategy = "fsdp+tp"

# For each mesh axis: what it divides beside the batch, in both mappings.
DIVIDED: dict[str, dict[str, str]] = {
    "data": {},
    "stage": {"layers": "stage"},
    "context": {"pos": "context"},
    "expert": {"experts": "expert"},
    "model": HEADS,
}
# The batch is divided by these.
ROWS = ("data", "expert", "stage")
# With FSDP, so are parameters by these.
WHOLE = ("data", "context")


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a run is laid out.

    Attributes:
        parameters: the mapping of parameters and optimiser state.
        compute: that of the computation.
        pipelined: into how many microbatches a pipeline cuts the batch; None where there is no pipeline.
    """

    parameters: axn.ResourceMapping
    compute: axn.ResourceMapping
    pipelined: int | None = None

    @property
    def rows(self) -> axn.ResourceMapping:
        """How a batch arrives: not divided among stages, since those of one process may have no range of its rows."""
        batch = self.compute.get("batch")
        if self.pipelined is None or not isinstance(batch, tuple):
            return {"batch": batch}
        return {"batch": tuple(axis for axis in batch if axis != "stage")}

    def __str__(self) -> str:
        told = {"parameters": dict(self.parameters), "computation": dict(self.compute)}
        lines = [f"{what + ':':<13} {mapping}" for what, mapping in told.items()]
        if self.pipelined is not None:
            lines.append(f"{'pipeline:':<13} {self.pipelined} microbatches")
        return "\n".join(lines)


def layout_of(sizes: Mapping[str, int], *, fsdp: bool = False, microbatches: int | None = None) -> Layout:
    """Return the layout that follows from the names of mesh axes.

    Args:
        sizes: of the mesh axes, which are among data, stage, context, expert and model.
        fsdp: whether parameters are divided by the axes data and context, too.
        microbatches: of a pipeline; by default twice as many as stages.
    """
    entries: axn.ResourceMapping = {}
    for axis in sizes:
        entries |= DIVIDED[axis]
    stored = {name: axis for name, axis in entries.items() if name != "pos"}
    if fsdp:
        whole = tuple(axis for axis in WHOLE if axis in sizes)
        if not whole:
            raise ValueError(f"fsdp divides parameters by mesh axes {' and '.join(WHOLE)}, but mesh={spelled(sizes)}")
        stored["embed"] = whole
    # The stage comes last, so that each device cuts its own rows into microbatches.
    rows = tuple(sorted((axis for axis in sizes if axis in ROWS), key="stage".__eq__))
    computed = {"batch": rows, **entries} if rows else entries
    if "stage" not in sizes:
        return Layout(stored, computed)
    return Layout(stored, computed, microbatches or 2 * sizes["stage"])


def read_mesh(text: str) -> dict[str, int]:
    """Read the sizes of mesh axes, such as data=2,stage=2,model=2."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if name not in DIVIDED or name in sizes or not size.isdecimal():
            known = ", ".join(DIVIDED)
            raise ValueError(f"mesh={text}: {part!r} should be the size of one of {known}, each once, such as data=4")
        sizes[name] = int(size)
    return sizes


def spelled(sizes: Mapping[str, int]) -> str:
    """Return sizes as `read_mesh` reads them."""
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def checked(shape: Shape) -> tuple[dict[str, int], str]:
    """Return the sizes of mesh axes, and how they are told."""
    if isinstance(shape, Mapping):
        sizes, told = dict(shape), spelled(shape)
    else:
        sizes, told = dict(zip(("data", "model"), shape, strict=True)), f"{shape[0]} x {shape[1]}"
    if min(sizes.values()) < 1:
        raise ValueError(f"a mesh of {told} must have at least 1 device along each axis")
    return sizes, told


def make_mesh(shape: Shape, axis_types: AxisTypes = "auto") -> jax.sharding.Mesh:
    """Make a mesh, from sizes by name or those of the axes data and model."""
    sizes, told = checked(shape)
    need, have = math.prod(sizes.values()), len(jax.devices())
    if need > have:
        raise ValueError(f"a mesh of {told} needs {need} devices, this machine has {have}")
    kinds = (KINDS[axis_types],) * len(sizes)
    devices = jax.devices()[:need]
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds, devices=devices)


def abstract_mesh(shape: Shape, axis_types: AxisTypes = "auto") -> jax.sharding.AbstractMesh:
    """Describe a mesh of devices that need not exist."""
    sizes, _ = checked(shape)
    kinds = (KINDS[axis_types],) * len(sizes)
    return jax.sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)
