"""The claim that layouts change no numbers: under every mapping and kind of mesh, they are those of one device."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh

from ..base.kinds import Tree, has_type
from ..errors import ArgumentError, message
from ..layout.assignment import Mappings, ResourceMapping
from ..layout.modes import Mode, repeat_mode
from ..partitioning.blocks import axis_mapping
from ..partitioning.jit import named_jit
from ..partitioning.shard import set_mesh
from .blame import find_first_layer, list_layers
from .differences import differences
from .explain import fail, find_factor, first_place
from .failure import ClaimError
from .program import Place, Program, add_losses, is_float, is_key, is_loss, note, update
from .trace import Trace

__all__ = ["assert_same_layouts"]

Numbers = dict[str, tuple[Place, Any]]
KINDS: tuple[Mode, ...] = ("Auto", "Explicit")


def assert_same_layouts(
    f: Callable[..., Any],
    mappings: ResourceMapping | Mappings | Sequence[ResourceMapping | Mappings],
    mesh: Mesh,
    *args: Tree,
    kinds: Sequence[str] = ("Auto", "Explicit"),
    optimizer: Any = None,
) -> None:
    """Check that values, gradients, updates and random draws under every mapping are those of one device.

    The function runs in `named_jit`, so that it may use `shard_map`, collectives and whatever else needs a mesh. One
    device is a mesh with the same axes, each of size 1. Gradients are those of all results without axes, such as
    losses, by all floating arrays; a function that returns gradients itself is compared by them. Random draws are part
    of the values: give the function a key.

    Args:
        f: any function of named arrays, a module or its method.
        mappings: a mapping, or several.
        mesh: the devices.
        args: its arguments.
        kinds: the kinds of mesh axes to try.
        optimizer: a transformation of Optax, whose first updates are compared, too: of the arrays of the function, or
            else of the first argument.

    Raises:
        ClaimError: with the mapping, the result or parameter that differs, the factor, and the layer.

    Examples:
        >>> Batch, Embed = axn.make_axes(batch=8, embed=4)
        >>> norm, x = axn.nn.LayerNorm.init(Embed), axn.random.normal(jax.random.key(0), (Batch, Embed))
        >>> mesh = jax.make_mesh((8,), ("data",))
        >>> axn.testing.assert_same_layouts(lambda x: axn.nn.silu(norm(x)).mean(), {"batch": "data"}, mesh, x)
    """
    several = [mappings] if isinstance(mappings, Mapping | Mappings) else list(mappings)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not several:
        problem = f"unknown kind of mesh axes {unknown[0]!r}" if unknown else "there is no mapping"
        raise ArgumentError(
            message("assert_same_layouts", problem, hint=f"kinds: {', '.join(KINDS)}")
        )
    program = Program("assert_same_layouts", f, args)
    # An array that lies on one mesh cannot be used on another one.
    program.arrays = [x if is_key(x) else np.asarray(x) for x in program.arrays]
    alone = Mesh(mesh.devices.reshape(-1)[:1].reshape((1,) * mesh.devices.ndim), mesh.axis_names)
    wanted = _Run(program, alone, several[0], optimizer)
    for mapping, kind in itertools.product(several, kinds):
        types = repeat_mode(cast("Mode", kind), len(mesh.axis_names))
        found = _Run(
            program, Mesh(mesh.devices, mesh.axis_names, axis_types=types), mapping, optimizer
        )
        for what in ("values", "gradients", "updates"):
            one, other = wanted.measure(what), found.measure(what)
            wrong = [
                path
                for path, (_, x) in one.items()
                if differences(x, other[path][1], is_same_program=False).any()
            ]
            if wrong:
                raise _explain(what, wrong, wanted, found, f"{mapping} on {kind} axes")


class _Run:
    """A program on a mesh, under a mapping."""

    def __init__(
        self, program: Program, mesh: Mesh, mapping: ResourceMapping | Mappings, optimizer: Any
    ) -> None:
        self.program, self.mesh, self.mapping, self.optimizer = program, mesh, mapping, optimizer
        self._found: dict[str, Numbers] = {}

    def measure(self, what: str) -> Numbers:
        """Return values, gradients or updates by path, on the host."""
        if what not in self._found:
            self._found[what] = dict(self._list(what))
        return self._found[what]

    def _list(self, what: str) -> Iterator[tuple[str, tuple[Place, Any]]]:
        program = self.program
        if what == "updates" and self.optimizer is None:
            return
        if what != "values" and (self.find_parameters() or not self._losses()):
            return

        def run(f: Any, args: Any) -> Any:
            if what == "values":
                return f(*args)
            floating, rest = eqx.partition((f, args), _has_gradient)
            gradient = jax.grad(lambda floating: self._loss(*eqx.combine(floating, rest)))(floating)
            if what == "gradients":
                return gradient
            return update(self.optimizer, gradient, floating)

        sizes = ", ".join(f"{name}={size}" for name, size in self.mesh.shape.items())
        with set_mesh(self.mesh), note(f"{program.function}: it was called on the mesh {sizes}"):
            f, args = program.fill(program.arrays)
            result = named_jit(run, self.mapping, strict=False)(f, args)
        found = Program(program.function, lambda: None, (result,))
        for place, array in zip(found.places, found.arrays, strict=True):
            # A gradient is one of the function and its arguments: paths are those of the inputs.
            path = ".".join(place.path.split(".")[1 if what == "values" else 2 :])
            yield path, (place._replace(path=path), array if is_key(array) else np.asarray(array))

    def find_parameters(self) -> dict[str, str]:
        """See `Program.find_parameters`."""
        return self.program.find_parameters(place for place, _ in self.measure("values").values())

    def _losses(self) -> list[str]:
        return [path for path, (_, x) in self.measure("values").items() if is_loss(x)]

    def _loss(self, f: Any, args: Any) -> Any:
        return add_losses(f(*args))

    def trace(self) -> Trace:
        """Trace the program, on its mesh."""
        mapping = self.mapping.compute if isinstance(self.mapping, Mappings) else self.mapping
        with set_mesh(self.mesh), axis_mapping(mapping):
            return Trace(self.program.run_unwrapped, self.program.arrays, self.program)

    def values(self, trace: Trace) -> dict[int, Any]:
        """Return the results of the layers of a trace."""
        kept = {result for _, result in list_layers(trace).values()}

        def run(arrays: Any) -> dict[int, Any]:
            return {i: x for i, x in trace.run(arrays).items() if i in kept}

        with set_mesh(self.mesh):
            found = jax.jit(run)(self.program.arrays)
        return {i: x if is_key(x) else np.asarray(x) for i, x in found.items()}


def _has_gradient(leaf: Any) -> bool:
    return has_type(leaf) and is_float(leaf)


def _explain(what: str, wrong: Sequence[str], one: _Run, other: _Run, layout: str) -> ClaimError:
    parameters = {path: path for path in wrong}
    if what == "values":
        own = one.find_parameters()
        parameters = {path: own[path] for path in wrong if path in own}
    path = _find_deepest(parameters, one) if parameters else wrong[0]
    parameter = parameters.get(path)
    (place, x), (_, y) = one.measure(what)[path], other.measure(what)[path]
    change = differences(x, y, is_same_program=False)
    factor = find_factor(x, y)
    facts = [] if factor is None else [f"factor: {factor:g}{_name_factor(factor, other.mesh)}"]
    if parameter is not None:
        found = parameter.rpartition(".")[0], "", ""
    else:
        traces = one.trace(), other.trace()
        values = one.values(traces[0]), other.values(traces[1])
        # If all layers agree, what is around them does not.
        found = find_first_layer(traces[0], values[0], traces[1], values[1]) or ("", "", "")
    kind = {"values": "", "gradients": "the gradient of ", "updates": "the update of "}[what]
    wanted = f"{kind}{parameter or path or 'the result'}"
    problem = f"under {layout}, {wanted} is not that of one device"
    if len(wrong) > 1:
        facts.append(f"wrong: {len(wrong)} arrays")
    return fail(
        "same_layouts",
        problem,
        *facts,
        axis=None,
        causes="layouts",
        target=first_place(place, change),
        effect=float(change.max()),
        place=found,
        parameter=parameter,
        factor=factor,
    )


def _find_deepest(parameters: Mapping[str, str], run: _Run) -> str:
    """Return the result whose parameter the program reads last: gradients flow from there to the others."""
    trace = run.trace()
    readers: dict[int, int] = {}
    for number, operation in enumerate(trace.operations):
        for i in operation.operands:
            readers.setdefault(i, number)
    places = zip(run.program.places, trace.inputs, strict=True)
    first = {place.path: readers.get(i, -1) for place, i in places}
    return max(parameters, key=lambda path: first.get(parameters[path], -1))


def _name_factor(factor: float, mesh: Mesh) -> str:
    """Say of which mesh axes a factor is the size, or one over it."""
    sizes = mesh.shape
    for count in range(1, len(sizes) + 1):
        for names in itertools.combinations(sizes, count):
            size = int(np.prod([sizes[name] for name in names]))
            shown = " and ".join(names)
            axes = f"mesh {'axis' if count == 1 else 'axes'} {shown}"
            if size > 1 and np.isclose(factor, size, rtol=1e-3):
                return f", the size of {axes}"
            if size > 1 and np.isclose(factor, 1 / size, rtol=1e-3):
                return f", one over the size of {axes}"
    return ""
