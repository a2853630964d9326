"""Maximal update parametrisation: hyperparameters that are tuned on a narrow model fit a wide one.

`Mup` visits a model from outside and reads from names what depends on its width; layers know nothing of it.

Reference:
    Yang et al. (2022), Tensor programs V: tuning large neural networks via zero-shot hyperparameter transfer, table 3.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, get_args

import jax

from . import parameters
from .axis import AxisSelection, AxisSpec, selection, spec
from .errors import ArgumentError, AxisNotFoundError, AxisSizeError, describe, message, suggestion
from .layout import looked_up, matches, with_bases
from .parameters import Parameter
from .partitioning._table import Printed, Table

__all__ = ["Factors", "Mup", "Report"]

Optimizer: TypeAlias = Literal["adam", "sgd"]
Role: TypeAlias = Literal["input", "hidden", "output", "fixed"]
Spread: TypeAlias = Literal["fan_in", "constant"]


@dataclasses.dataclass(frozen=True)
class Factors:
    """What the width of a model changes for one parameter; all is 1 in the base model.

    Attributes:
        role: what the paper calls it: "input" (also of biases and norms), "hidden" or "output"; or "fixed".
        inputs: how many times wider its inputs are than in the base model.
        outputs: how many times wider its outputs are.
    """

    role: Role
    inputs: float
    outputs: float

    @property
    def std(self) -> float:
        """The standard deviation at the start, relative to that of the base model."""
        return {"hidden": 1 / math.sqrt(self.inputs), "output": 1 / self.inputs}.get(self.role, 1.0)

    @property
    def adam(self) -> float:
        """The factor for the learning rate of Adam and its kin, whose updates have a size of their own."""
        return 1 / self.inputs

    @property
    def sgd(self) -> float:
        """The factor for the learning rate of SGD, with or without momentum."""
        return self.outputs / self.inputs


@dataclasses.dataclass(frozen=True, repr=False)
class Report(Printed):
    """The factors of each parameter of a model: print it, or let a notebook show it.

    Attributes:
        rows: the parameters and their factors.
    """

    rows: tuple[tuple[Parameter, Factors], ...]

    def parts(self) -> Iterator[str | Table]:
        """Yield the paragraphs and tables."""
        header = ("parameter", "axes", "role", "std", "Adam", "SGD")
        cells = tuple(
            (
                own.path,
                tuple(f"{name}={size}" for name, size in own.sizes.items()) or "no axes",
                factors.role,
                *(f"{number:.4g}" for number in (factors.std, factors.adam, factors.sgd)),
            )
            for own, factors in self.rows
        )
        yield Table(header, cells, right=("std", "Adam", "SGD"))


@dataclasses.dataclass(frozen=True)
class Mup:
    """Scale initial values and learning rates with the width of a model.

    The widths are named axes. Axes that are not named here do not grow, and layer axes of `Stacked` never count.

    Attributes:
        base: the sizes of the width axes in the base model, on which hyperparameters are tuned. Derived names, such as
            the `embed.out` of `embed`, go by their base.
        inputs: for arrays in modules of your own, that do not say which axes they sum over: these axes, by patterns of
            paths as in `Mappings`.

    Example:
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
    inputs: Mapping[str, AxisSelection] = dataclasses.field(default_factory=dict[str, AxisSelection])

    def __post_init__(self) -> None:
        for name, size in self.base.items():
            if size < 1:
                raise AxisSizeError(message("Mup", f"the base size of {name!r} must be positive, got {size}"))

    def ratio(self, axes: AxisSpec) -> float:
        """Return how many times larger axes are than in the base model.

        It is for what no visitor can change: divide the logits of a tied embedding by `ratio(Embed)`; and where the
        size of a head grows, multiply queries by `ratio(HeadDim) ** -0.5`, for scores that fall with the size and not
        with its root.
        """
        return math.prod(self._ratio(axis.name, axis.size) for axis in spec(axes, "Mup.ratio"))

    def _ratio(self, name: str, size: int) -> float:
        base = looked_up(self.base, name)
        return 1.0 if base is None else size / base

    def factors(self, parameter: Parameter) -> Factors:
        """Return the factors of one parameter.

        Raises:
            ArgumentError: if it has several width axes, and nothing says which of them are inputs.
        """
        counted = [
            name for name in parameter.sizes if looked_up(self.base, name) is not None and name not in parameter.layers
        ]
        given = [axes for pattern, axes in self.inputs.items() if matches(pattern, parameter.path)]
        inputs = tuple(name for name, _ in selection(given[-1], "Mup")) if given else parameter.inputs
        if inputs is None and len(counted) > 1:
            problem = f"which axes {parameter.path!r} sums over is not known"
            facts = f"array has: {describe(tuple(parameter.sizes), tuple(parameter.sizes.values()))}"
            hint = f'say it: Mup(..., inputs={{"{parameter.path}": "{counted[0]}"}})'
            raise ArgumentError(message("Mup", problem, facts, hint=hint))
        summed = [name for name in counted if name in (inputs or ())]
        added = [name for name in counted if name not in summed]
        roles: tuple[tuple[Role, Role], tuple[Role, Role]] = (("fixed", "input"), ("output", "hidden"))
        wider = (math.prod(self._ratio(name, parameter.sizes[name]) for name in names) for names in (summed, added))
        return Factors(roles[bool(summed)][bool(added)], *wider)

    def report(self, model: Any) -> Report:
        """Tell the role and the factors of each parameter.

        Raises:
            AxisNotFoundError: if no parameter has one of the width axes, or none that a pattern of `inputs` matches has
                one of its axes.
            ArgumentError: if a pattern of `inputs` matches no parameter.
        """
        found = tuple((parameter, self.factors(parameter)) for parameter in parameters.walk(model))
        names = {name for parameter, _ in found for name in parameter.sizes}
        for name in self.base:
            if name not in with_bases(names):
                facts, hint = f"axes: {', '.join(sorted(names)) or 'none'}", suggestion(name, names)
                raise AxisNotFoundError(message("Mup", f"no parameter has width axis {name!r}", facts, hint=hint))
        for pattern, axes in self.inputs.items():
            _check_inputs(pattern, axes, [parameter for parameter, _ in found])
        return Report(found)

    def initial(self, model: Any, spread: Spread | Callable[[str, Any], Spread] = "fan_in") -> Any:
        """Correct the initial values of a model that was just made.

        Args:
            model: as `init` made it.
            spread: how the standard deviation of what was drawn depends on the width. "fan_in": it falls with the root
                of the number of inputs, and of an embedding with that of the size of its vectors. That is what the
                default initializers, and all that scale by fan-in, do. "constant": not at all, such as
                `initializer.normal(0.02)`. Or a function of a path and an array that tells which.

        Raises:
            AxisNotFoundError: if no parameter has one of the width axes.
            ArgumentError: if there is no such `spread`.
        """
        factors: dict[str, float] = {}
        for parameter, own in self.report(model).rows:
            drawn = spread if isinstance(spread, str) else spread(parameter.path, parameter.array)
            _check_known("spread", drawn, get_args(Spread))
            fan = own.outputs if parameter.looked_up else own.inputs
            factors[parameter.path] = own.std * (math.sqrt(fan) if drawn == "fan_in" else 1.0)
        return _scaled(model, factors)

    def learning_rates(self, model: Any, optimizer: Optimizer = "adam") -> Any:
        """Return a tree with the factor for the learning rate of each parameter, and None where there is none.

        Raises:
            AxisNotFoundError: if no parameter has one of the width axes.
            ArgumentError: if there is no such `optimizer`.
        """
        _check_known("optimizer", optimizer, get_args(Optimizer))
        rates = {parameter.path: getattr(own, optimizer) for parameter, own in self.report(model).rows}
        return parameters.labels(model, lambda path, _: rates[path])

    def scaled_updates(self, updates: Any, optimizer: Optimizer = "adam") -> Any:
        """Multiply updates by the factors for their learning rates.

        With Optax, put `optax.stateless(lambda updates, _: mup.scaled_updates(updates))` behind what the factors are
        for, such as `optax.scale_by_adam()`, and before what they are not for, such as `optax.add_decayed_weights`.

        Args:
            updates: a tree of the structure of the model, such as its gradients.
            optimizer: "adam", also for its kin; or "sgd".

        Raises:
            ArgumentError: if there is no such `optimizer`.
        """
        _check_known("optimizer", optimizer, get_args(Optimizer))
        rows = ((parameter.path, self.factors(parameter)) for parameter in parameters.walk(updates))
        return _scaled(updates, {path: getattr(own, optimizer) for path, own in rows})


def _check_known(what: str, given: Any, known: tuple[str, ...]) -> None:
    if given not in known:
        facts = f"known: {', '.join(map(repr, known))}"
        raise ArgumentError(message("Mup", f"there is no {what} {given!r}", facts, hint=suggestion(given, known)))


def _check_inputs(pattern: str, axes: AxisSelection, known: list[Parameter]) -> None:
    """Refuse a pattern, or an axis, that no parameter has: a hidden weight would learn at the rate of another role."""
    matched = [parameter for parameter in known if matches(pattern, parameter.path)]
    if not matched:
        paths = [parameter.path for parameter in known]
        hint = suggestion(pattern, {part for path in paths for part in (path, path.rpartition(".")[2])})
        facts = f"parameters: {', '.join(paths) or 'none'}"
        raise ArgumentError(message("Mup", f"inputs: no parameter matches {pattern!r}", facts, hint=hint))
    names = {name for parameter in matched for name in parameter.sizes}
    for name, _ in selection(axes, "Mup"):
        if name not in names:
            facts = f"axes: {', '.join(sorted(names)) or 'none'}"
            problem = f"inputs: no parameter that matches {pattern!r} has axis {name!r}"
            raise AxisNotFoundError(message("Mup", problem, facts, hint=suggestion(name, names)))


def _scaled(tree: Any, factors: Mapping[str, float]) -> Any:
    """Multiply the floating arrays of a tree."""
    scales = parameters.labels(tree, lambda path, _: factors[path])
    return jax.tree.map(
        lambda scale, x: x if scale in (None, 1.0) else x * scale, scales, tree, is_leaf=lambda x: x is None
    )
