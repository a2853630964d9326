"""Maximal update parametrisation: hyperparameters that are tuned on a narrow model also fit a wide one.

`Mup` needs no change of layers: the names of axes show which parameters depend on the width.

Reference:
    Yang et al. (2022), Tensor programs V: tuning large neural networks via zero-shot hyperparameter transfer, table 3.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import jax

from . import parameters
from .axis import AxisSelection, AxisSpec, names_in, selection, spec
from .base.kinds import Payload, Tree
from .errors import (
    ArgumentError,
    AxisNotFoundError,
    AxisSizeError,
    OperandError,
    describe,
    message,
    suggestion,
)
from .layout.assignment import add_bases, find_entry, matches
from .names import plans
from .names.plans import Names
from .nn.roles import STACKS
from .nn.settings import check_int
from .parameters import Parameter
from .report.table import Cell, Printed, Table

__all__ = ["Factors", "Mup", "Report"]

T = TypeVar("T")
Optimizer: TypeAlias = Literal["adam", "sgd"]
Role: TypeAlias = Literal["input", "hidden", "output", "fixed"]
Spread: TypeAlias = Literal["fan_in", "constant"]

# The keys: whether a parameter sums over axes that grow, and whether it adds some. Table 3 of the paper.
_ROLES: dict[tuple[bool, bool], Role] = {
    (False, False): "fixed",
    (False, True): "input",
    (True, False): "output",
    (True, True): "hidden",
}


@dataclasses.dataclass(frozen=True)
class Factors:
    """How the width of a model changes one parameter; all factors are 1 in the base model.

    Attributes:
        role: as in the paper, "input" (also for biases and norms), "hidden" or "output"; or "fixed".
        inputs: the ratio of its input width to that in the base model.
        outputs: how many times wider its outputs are.

    Examples:
        >>> hidden = axn.mup.Factors("hidden", inputs=4.0, outputs=8.0)
        >>> hidden.std, hidden.adam, hidden.sgd
        (0.5, 0.25, 2.0)
    """

    role: Role
    inputs: float
    outputs: float

    @property
    def std(self) -> float:
        """The initial standard deviation, relative to that of the base model."""
        return {"hidden": 1 / math.sqrt(self.inputs), "output": 1 / self.inputs}.get(self.role, 1.0)

    @property
    def adam(self) -> float:
        """The factor for the learning rate of Adam and similar optimisers, whose updates are normalised."""
        return 1 / self.inputs

    @property
    def sgd(self) -> float:
        """The factor for the learning rate of SGD, with or without momentum."""
        return self.outputs / self.inputs


@dataclasses.dataclass(frozen=True, repr=False)
class Report(Printed):
    """The factors of each parameter of a model, which print as a table, also in notebooks.

    Attributes:
        rows: the parameters and their factors.

    Examples:
        >>> layer = axn.nn.Linear.init(axn.Axis("embed", 8), axn.Axis("mlp", 16), key=jax.random.key(0))
        >>> report = axn.mup.Mup({"mlp": 4}).report(layer)
        >>> [(parameter.path, factors.role, factors.sgd) for parameter, factors in report.rows]
        [('weight', 'input', 4.0), ('bias', 'input', 4.0)]
    """

    rows: tuple[tuple[Parameter, Factors], ...]

    def parts(self) -> Iterator[str | Table]:
        """Yield the paragraphs and tables."""
        header = ("parameter", "axes", "role", "std", "Adam", "SGD")
        rows: list[tuple[Cell, ...]] = []
        for own, factors in self.rows:
            axes = tuple(f"{name}={size}" for name, size in own.sizes.items())
            numbers = (f"{factors.std:.4g}", f"{factors.adam:.4g}", f"{factors.sgd:.4g}")
            rows.append((own.path, axes or "no axes", factors.role, *numbers))
        yield Table(header, tuple(rows), right=("std", "Adam", "SGD"))


@dataclasses.dataclass(frozen=True)
class Mup:
    """Scale initial values and learning rates with the width of a model.

    Widths are named axes. All other axes keep their sizes, and layers and other stacks never count as width.

    Attributes:
        base: the sizes of the width axes in the base model, on which hyperparameters are tuned. Derived names, such as
            `embed.out`, count as their base.
        inputs: the axes that arrays sum over, by patterns of paths as in `Mappings`; for your own modules that do not
            declare them.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=512, mlp=2048)
        >>> model = axn.nn.MLP.init(Embed, axn.Axis("label", 10), Mlp, 2, key=jax.random.key(0))
        >>> axn.mup.Mup({"mlp": 256}).report(model)
        parameter        axes                     role       std   Adam  SGD
        layers.0.weight  embed=512, mlp=2048      input        1      1    8
        layers.0.bias    mlp=2048                 input        1      1    8
        layers.1.weight  mlp=2048, mlp.out=2048   hidden  0.3536  0.125    1
        layers.1.bias    mlp=2048                 input        1      1    8
        layers.2.weight  mlp=2048, label=10       output   0.125  0.125  0.125
        layers.2.bias    label=10                 fixed        1      1      1
    """

    base: Mapping[str, int]
    inputs: Mapping[str, AxisSelection] = dataclasses.field(
        default_factory=dict[str, AxisSelection]
    )

    def __post_init__(self) -> None:
        # An `Axis` or a tuple of them would be a spec elsewhere; here it would hide which width is meant.
        if not isinstance(self.base, Mapping):
            problem = (
                f"base must be a dict from axis names to sizes, not {type(self.base).__name__}"
            )
            raise OperandError(message("Mup", problem, hint='write {"mlp": 256}'))
        names = names_in(selection(self.base, "Mup"))
        for name, size in zip(names, self.base.values(), strict=True):
            if check_int("Mup", f"the base size of {name!r}", size) < 1:
                raise AxisSizeError(
                    message("Mup", f"the base size of {name!r} must be positive, got {size}")
                )

    def ratio(self, axes: AxisSpec) -> float:
        """Return the size of axes relative to the base model.

        Use it in the model if scaled parameters are not enough. Divide the logits of a tied embedding by
        `ratio(Embed)`. If the size of a head grows, multiply queries by `ratio(HeadDim) ** -0.5`, so that scores are
        divided by the size of a head, not by its square root.

        Args:
            axes: axes with their sizes in this model.

        Examples:
            >>> axn.mup.Mup({"embed": 64}).ratio(axn.Axis("embed", 256))
            4.0
        """
        return math.prod(self._ratio(axis.name, axis.size) for axis in spec(axes, "Mup.ratio"))

    def _ratio(self, name: str, size: int) -> float:
        base = find_entry(self.base, name)
        return 1.0 if base is None else size / base

    def factors(self, parameter: Parameter) -> Factors:
        """Return the factors of one parameter, as `axn.parameters.walk` yields it.

        Raises:
            ArgumentError: if it has several width axes, and it is unknown which of them are inputs.
        """
        grow = [name for name in parameter.sizes if find_entry(self.base, name) is not None]
        counted = plans.without(tuple(grow), tuple(map(str, parameter.list_axes(*STACKS))))

        # As in `Mappings`, the last pattern that matches decides; it may correct what the module declares.
        given = [axes for pattern, axes in self.inputs.items() if matches(pattern, parameter.path)]
        inputs = names_in(selection(given[-1], "Mup")) if given else parameter.inputs
        # A single width axis is an output if nobody says otherwise, as in a bias or the scale of a norm.
        if inputs is None and len(counted) > 1:
            problem = f"cannot tell which axes {parameter.path!r} sums over"
            facts = (
                f"array has: {describe(tuple(parameter.sizes), tuple(parameter.sizes.values()))}"
            )
            hint = f'write Mup(..., inputs={{"{parameter.path}": "{counted[0]}"}})'
            raise ArgumentError(message("Mup", problem, facts, hint=hint))

        # In an array without inputs, such as a bias, all width axes are outputs.
        added = plans.without(counted, tuple(inputs or ()))
        summed = plans.without(counted, added)
        role = _ROLES[bool(summed), bool(added)]
        return Factors(
            role, self._multiply_ratios(parameter, summed), self._multiply_ratios(parameter, added)
        )

    def _multiply_ratios(self, parameter: Parameter, names: Names) -> float:
        return math.prod(self._ratio(name, parameter.sizes[name]) for name in names)

    def report(self, model: Tree) -> Report:
        """Return the role and the factors of each parameter, in the order of the leaves.

        Raises:
            AxisNotFoundError: if a width axis is in no parameter, or an axis of `inputs` is in no parameter that its
                pattern matches.
            ArgumentError: if a pattern of `inputs` matches no parameter.
        """
        found = list(parameters.walk(model))
        rows = tuple((parameter, self.factors(parameter)) for parameter in found)

        # A misspelt width axis would leave all factors 1.
        names = _collect_axes(found)
        known = add_bases(names)
        for name in self.base:
            if name not in known:
                problem = f"no parameter has width axis {name!r}"
                facts = f"axes: {', '.join(sorted(names)) or 'none'}"
                hint = suggestion(name, names)
                raise AxisNotFoundError(message("Mup", problem, facts, hint=hint))
        for pattern, axes in self.inputs.items():
            _check_inputs(pattern, axes, found)
        return Report(rows)

    def initial(self, model: T, spread: Spread | Callable[[str, Any], Spread] = "fan_in") -> T:
        """Correct the initial values of a new model.

        Args:
            model: the result of `init`.
            spread: says how the standard deviation of initial values depends on the width. "fan_in": it falls with the
                square root of the number of inputs, or, in an embedding, of the size of its vectors, as with the
                default initializers and all that scale by fan-in. "constant": it does not depend on the width, as with
                `initializer.normal(0.02)`. Or a function of a path and an array that returns one of these.

        Raises:
            AxisNotFoundError: if a width axis is in no parameter.
            ArgumentError: if `spread` is unknown.

        Examples:
            >>> layer = axn.nn.Linear.init(axn.Axis("embed", 8), axn.Axis("mlp", 16), key=jax.random.key(0))
            >>> scaled = axn.mup.Mup({"embed": 2}).initial(layer)
            >>> bool(jnp.allclose(scaled.weight.array, layer.weight.array / 2))
            True
        """
        factors: dict[str, float] = {}
        for parameter, own in self.report(model).rows:
            kind = spread if isinstance(spread, str) else spread(parameter.path, parameter.array)
            _check_known("spread", kind, get_args(Spread))

            factors[parameter.path] = own.std
            if kind == "fan_in":  # the initial values fall already with the square root of the fan
                fan = own.outputs if parameter.looked_up else own.inputs
                factors[parameter.path] *= math.sqrt(fan)
        return _scale(model, factors)

    def learning_rates(self, model: Tree, optimizer: Optimizer = "adam") -> Tree:
        """Return a tree with the factor for the learning rate of each parameter, and None for other leaves.

        Args:
            model: the model.
            optimizer: "adam", also for similar ones, or "sgd".

        Raises:
            AxisNotFoundError: if a width axis is in no parameter.
            ArgumentError: if `optimizer` is unknown.

        Examples:
            >>> layer = axn.nn.Linear.init(axn.Axis("embed", 8), axn.Axis("mlp", 16), key=jax.random.key(0))
            >>> axn.mup.Mup({"embed": 2}).learning_rates(layer).weight
            0.25
        """
        _check_known("optimizer", optimizer, get_args(Optimizer))
        rates = {
            parameter.path: getattr(own, optimizer) for parameter, own in self.report(model).rows
        }
        return parameters.labels(model, lambda path, _: rates[path])

    def scaled_updates(self, updates: T, optimizer: Optimizer = "adam") -> T:
        """Multiply updates by the factors for their learning rates.

        With Optax, put `optax.stateless(lambda updates, _: mup.scaled_updates(updates))` after transformations whose
        updates need the factors, such as `optax.scale_by_adam()`, and before all others, such as
        `optax.add_decayed_weights`.

        Args:
            updates: a tree with the structure of the model, such as its gradients.
            optimizer: "adam", also for similar ones; or "sgd".

        Raises:
            ArgumentError: if `optimizer` is unknown.

        Examples:
            >>> layer = axn.nn.Linear.init(axn.Axis("embed", 8), axn.Axis("mlp", 16), key=jax.random.key(0))
            >>> updates = jax.tree.map(jnp.ones_like, layer)
            >>> axn.mup.Mup({"embed": 2}).scaled_updates(updates).weight.max().item()
            0.25
        """
        _check_known("optimizer", optimizer, get_args(Optimizer))
        rates = {
            parameter.path: getattr(self.factors(parameter), optimizer)
            for parameter in parameters.walk(updates)
        }
        return _scale(updates, rates)


def _check_known(what: str, given: object, known: tuple[str, ...]) -> None:
    if given not in known:
        facts = f"known: {', '.join(map(repr, known))}"
        raise ArgumentError(
            message("Mup", f"unknown {what} {given!r}", facts, hint=suggestion(given, known))
        )


def _collect_axes(found: list[Parameter]) -> set[str]:
    """Return the names of the axes of parameters."""
    return set[str]().union(*(parameter.sizes for parameter in found))


def _check_inputs(pattern: str, axes: AxisSelection, known: list[Parameter]) -> None:
    """Raise for a pattern or an axis that no parameter has: weights would get the learning rate of another role."""
    matched = [parameter for parameter in known if matches(pattern, parameter.path)]
    if not matched:
        paths = [parameter.path for parameter in known]
        # A misspelt pattern is mostly the last component, which is too short to be close to a whole path.
        last = [path.rpartition(".")[2] for path in paths]
        hint = suggestion(pattern, {*paths, *last})
        facts = f"parameters: {', '.join(paths) or 'none'}"
        raise ArgumentError(
            message("Mup", f"inputs: no parameter matches {pattern!r}", facts, hint=hint)
        )
    names = _collect_axes(matched)
    for name in names_in(selection(axes, "Mup")):
        if name not in names:
            facts = f"axes: {', '.join(sorted(names)) or 'none'}"
            problem = f"inputs: no parameter that matches {pattern!r} has axis {name!r}"
            raise AxisNotFoundError(message("Mup", problem, facts, hint=suggestion(name, names)))


def _scale(tree: T, factors: Mapping[str, float]) -> T:
    """Multiply the floating arrays of a tree."""
    scales = parameters.labels(tree, lambda path, _: factors[path])

    def multiply(scale: float | None, x: Payload) -> Payload:
        # A product with 1 would copy the array, and give a new one where nothing has changed.
        return x if scale in (None, 1.0) else x * scale

    scaled: T = jax.tree.map(multiply, scales, tree, is_leaf=lambda scale: scale is None)
    return scaled
