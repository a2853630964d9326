"""The claim that layouts change no numbers: every mapping and kind of mesh gives the same numbers as one device."""

import itertools
from collections.abc import Callable, Mapping, Sequence
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
from .differences import differences, find_largest
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
    """Check that values, gradients, updates and random draws are the same under every mapping as on one device.

    The function runs in `named_jit`, so it may use `shard_map`, collectives and anything else that needs a mesh. One
    device is a mesh with the same axes, each of size 1. All results without axes, such as losses, are differentiated
    with respect to all floating arrays; if a function returns gradients itself, these are compared. Random draws are
    part of the values: give the function a key.

    Args:
        f: any function of named arrays, a module or its method.
        mappings: a mapping, or several.
        mesh: the devices.
        args: its arguments.
        kinds: the kinds of mesh axes to try.
        optimizer: a transformation of Optax, whose first updates are compared, too: for the arrays of the function, or,
            if it has none, of the first argument.

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
    # An array on one mesh cannot be used on another one.
    program.arrays = [x if is_key(x) else np.asarray(x) for x in program.arrays]
    alone = Mesh(mesh.devices.reshape(-1)[:1].reshape((1,) * mesh.devices.ndim), mesh.axis_names)
    wanted = _Run(program, alone, several[0], optimizer)
    for mapping, kind in itertools.product(several, kinds):
        types = repeat_mode(cast("Mode", kind), len(mesh.axis_names))
        found = _Run(
            program,
            Mesh(mesh.devices, mesh.axis_names, axis_types=types),
            mapping,
            optimizer,
            wanted,
        )
        for what in ("values", "gradients", "updates"):
            changes = _find_changes(what, wanted, found)
            if changes:
                raise _explain(what, changes, wanted, found, f"{mapping} on {kind} axes")


def _find_changes(what: str, one: "_Run", other: "_Run") -> dict[str, Any]:
    """Return the differences by path, for all numbers that differ."""
    wanted, found = one.measure(what), other.measure(what)
    among = find_largest(x for _, x in wanted.values()) if what == "gradients" else 0.0
    changes = {
        path: differences(x, found[path][1], is_same_program=False, among=among)
        for path, (_, x) in wanted.items()
    }
    return {path: change for path, change in changes.items() if change.any()}


class _Run:
    """A program on a mesh, under a mapping.

    Attributes:
        gradient: the gradient with respect to the function and its arguments, on the host.
    """

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        mapping: ResourceMapping | Mappings,
        optimizer: Any,
        wanted: "_Run | None" = None,
    ) -> None:
        self.program, self.mesh, self.mapping = program, mesh, mapping
        self._optimizer, self._wanted = optimizer, wanted or self
        self.gradient: Tree = None
        self._found: dict[str, Numbers] = {}

    def measure(self, what: str) -> Numbers:
        """Return values, gradients or updates by path, on the host."""
        if not self._found:
            sizes = ", ".join(f"{name}={size}" for name, size in self.mesh.shape.items())
            text = f"{self.program.function}: it was called on the mesh {sizes}"
            with set_mesh(self.mesh), note(text):
                f, args = self.program.fill(self.program.arrays)
                found = named_jit(self._run, self.mapping, strict=False)(f, args)
                if self._optimizer is not None and "gradients" in found:
                    self.gradient = jax.tree.map(np.asarray, found["gradients"])
                    own, _ = eqx.partition((f, args), _has_gradient)
                    run = named_jit(self._update, self.mapping, strict=False)
                    # Use one gradient for all: if it is zero up to rounding, Adam turns the rounding into a large
                    # update.
                    found["updates"] = run(self._wanted.gradient, own)
            for name, result in found.items():
                numbers = self._list(name, result)
                self._found[name] = {
                    path: (place, x if is_key(x) else np.asarray(x))
                    for path, (place, x) in numbers.items()
                }
        return self._found.get(what, {})

    def _run(self, f: Any, args: Any) -> dict[str, Any]:
        """Return values and gradients from one program, which compiles faster than two."""
        found: dict[str, Any] = {"values": f(*args)}
        values = self._list("values", found["values"])
        places = [place for place, _ in values.values()]
        if self.program.find_parameters(places) or not any(is_loss(x) for _, x in values.values()):
            return found
        floating, rest = eqx.partition((f, args), _has_gradient)

        def loss(floating: Any) -> Any:
            f, args = eqx.combine(floating, rest)
            return add_losses(f(*args))

        found["gradients"] = jax.grad(loss)(floating)
        return found

    def _update(self, gradient: Tree, floating: Tree) -> Tree:
        return update(self._optimizer, gradient, floating)

    def _list(self, what: str, result: Tree) -> Numbers:
        found = Program(self.program.function, lambda: None, (result,))
        # A gradient has the structure of the function and its arguments, so it has the paths of the inputs.
        cut = 1 if what == "values" else 2
        pairs = [(".".join(place.path.split(".")[cut:]), place) for place in found.places]
        return {
            path: (place._replace(path=path), x)
            for (path, place), x in zip(pairs, found.arrays, strict=True)
        }

    def find_parameters(self) -> dict[str, str]:
        """See `Program.find_parameters`."""
        return self.program.find_parameters(place for place, _ in self.measure("values").values())

    def trace(self) -> Trace:
        """Trace the program, on its mesh."""
        mapping = self.mapping.compute if isinstance(self.mapping, Mappings) else self.mapping
        with set_mesh(self.mesh), axis_mapping(mapping):
            return Trace(self.program.run_unwrapped, self.program.arrays, self.program)

    def values(self, trace: Trace) -> dict[int, Any]:
        """Return the results of the layers in a trace."""
        kept = {result for _, result in list_layers(trace).values()}

        def run(arrays: Any) -> dict[int, Any]:
            return {i: x for i, x in trace.run(arrays).items() if i in kept}

        with set_mesh(self.mesh):
            found = jax.jit(run)(self.program.arrays)
        return {i: x if is_key(x) else np.asarray(x) for i, x in found.items()}


def _has_gradient(leaf: Any) -> bool:
    return has_type(leaf) and is_float(leaf)


def _explain(
    what: str, changes: Mapping[str, Any], one: _Run, other: _Run, layout: str
) -> ClaimError:
    wrong = list(changes)
    parameters = {path: path for path in wrong}
    if what == "values":
        own = one.find_parameters()
        parameters = {path: own[path] for path in wrong if path in own}
    path = _find_deepest(parameters, one) if parameters else wrong[0]
    parameter = parameters.get(path)
    (place, x), (_, y) = one.measure(what)[path], other.measure(what)[path]
    change, factor = changes[path], find_factor(x, y)
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
    """Return the result for the parameter that the program reads last: gradients flow from there to the others."""
    trace = run.trace()
    readers: dict[int, int] = {}
    for number, operation in enumerate(trace.operations):
        for i in operation.operands:
            readers.setdefault(i, number)
    places = zip(run.program.places, trace.inputs, strict=True)
    first = {place.path: readers.get(i, -1) for place, i in places}
    return max(parameters, key=lambda path: first.get(parameters[path], -1))


def _name_factor(factor: float, mesh: Mesh) -> str:
    """Name the mesh axes whose size equals a factor or its inverse."""
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
