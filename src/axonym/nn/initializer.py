"""Initial values of parameters.

An initializer is a function of a key and the axes of a parameter. Those that count inputs and outputs take them by
name, in whatever order the parameter stores its axes:

* `In` alone: all other axes are outputs; `Out` alone: all others are inputs;
* both: other axes, such as `experts`, number separate matrices, and are not counted;
* neither: the layer says which axes it sums over, see `between`.

In `Out`, a name also stands for the axis `<name>.out` of a weight, see `Linear`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import jax
from jax.typing import DTypeLike

from .. import create, random
from ..array import NamedArray
from ..axis import Axis, AxisSelection, AxisSpec, axis_size, selection, shown, spec, without_axes
from ..errors import ArgumentError, AxisClashError, AxisSizeError, message, suggestion
from ..partitioning.shard import auto_sharded
from ..phrases import given_with_size, missing_axis
from .settings import as_python

__all__ = [
    "Initializer",
    "between",
    "constant",
    "fan_in",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "ones",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "zeros",
]

Initializer: TypeAlias = Callable[[jax.Array, tuple[Axis, ...]], NamedArray]
"""A function of a key and axes that makes a parameter."""
Mode: TypeAlias = Literal["fan_in", "fan_out", "fan_avg"]
Distribution: TypeAlias = Literal["truncated_normal", "normal", "uniform"]


def fan_in(size: int, scale: float = 1.0) -> Initializer:
    """Draw from a normal distribution, truncated at three, times `scale` over the square root of `size`, the inputs."""
    return truncated_normal(scale / math.sqrt(max(size, 1)), lower=-3.0, upper=3.0)


def constant(value: float, *, dtype: DTypeLike | None = None) -> Initializer:
    """Fill with one number."""
    return lambda key, axes: auto_sharded(create.full(axes, value, dtype or float))


def zeros(*, dtype: DTypeLike | None = None) -> Initializer:
    """Fill with zeros."""
    return constant(0, dtype=dtype)


def ones(*, dtype: DTypeLike | None = None) -> Initializer:
    """Fill with ones."""
    return constant(1, dtype=dtype)


def normal(std: float = 1.0, *, dtype: DTypeLike | None = None) -> Initializer:
    """Draw from a normal distribution with mean 0.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=8, mlp=16)
        >>> small = axn.nn.initializer.normal(0.02)
        >>> axn.nn.Linear.init(Embed, Mlp, key=jax.random.key(0), initializer=small).weight.shape
        {'embed': 8, 'mlp': 16}
    """
    return lambda key, axes: random.normal(key, axes, dtype) * as_python(std)


def truncated_normal(
    std: float = 1.0, *, lower: float = -2.0, upper: float = 2.0, dtype: DTypeLike | None = None
) -> Initializer:
    """Draw from a normal distribution, truncated at `lower` and `upper` times `std`.

    `std` is the standard deviation before truncation, which reduces it to 0.88 of that at the default bounds;
    `variance_scaling` corrects for this.
    """
    return lambda key, axes: (
        random.truncated_normal(key, axes, lower, upper, dtype) * as_python(std)
    )


def uniform(minval: float, maxval: float, *, dtype: DTypeLike | None = None) -> Initializer:
    """Draw uniformly from `minval` (included) to `maxval` (excluded)."""
    return lambda key, axes: random.uniform(key, axes, dtype, minval, maxval)


def variance_scaling(
    scale: float = 1.0,
    mode: Mode = "fan_in",
    distribution: Distribution = "truncated_normal",
    *,
    In: AxisSelection | None = None,
    Out: AxisSelection | None = None,
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Draw with a variance of `scale` over the number of inputs, of outputs, or the mean of the two.

    Args:
        scale: the variance times what `mode` counts.
        mode: "fan_in", "fan_out" or "fan_avg".
        distribution: "truncated_normal" (at two standard deviations, with corrected variance), "normal" or "uniform";
            all have mean 0.
        In: the axes that count as inputs.
        Out: the axes that count as outputs.
        dtype: of the result.

    Raises:
        ArgumentError: if the mode or the distribution is unknown.

    Examples:
        >>> Experts, Embed, Mlp = axn.make_axes(experts=4, embed=256, mlp=64)
        >>> initializer = axn.nn.initializer.variance_scaling(In="embed", Out="mlp")
        >>> weights = initializer(jax.random.key(0), (Experts, Embed, Mlp))
        >>> round(weights.std().item(), 2)  # 1 / sqrt(256)
        0.06
    """
    choices: tuple[tuple[str, str, object], ...] = (
        ("mode", mode, Mode),
        ("distribution", distribution, Distribution),
    )
    for what, given, literal in choices:
        known = get_args(literal)
        if given not in known:
            facts, hint = f"there are: {', '.join(known)}", suggestion(str(given), known)
            raise ArgumentError(
                message("variance_scaling", f"unknown {what} {given!r}", facts, hint=hint)
            )

    def make(sides: _Sides) -> Initializer:
        inputs, outputs = axis_size(sides.inputs), axis_size(sides.outputs)
        fan = {"fan_in": inputs, "fan_out": outputs, "fan_avg": (inputs + outputs) / 2}[mode]
        std = math.sqrt(scale / max(fan, 1))
        if distribution == "uniform":
            return lambda key, axes: (
                random.uniform(key, axes, dtype, -1.0, 1.0) * (math.sqrt(3) * std)
            )
        if distribution == "normal":
            return normal(std, dtype=dtype)
        return truncated_normal(std / _STD_OF_CUT, dtype=dtype)

    return _BySides("variance_scaling", make, In, Out)


# The standard deviation of a normal distribution truncated at -2 and 2.
_STD_OF_CUT = math.sqrt(1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2)))


def lecun_normal(
    *,
    In: AxisSelection | None = None,
    Out: AxisSelection | None = None,
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Draw from a truncated normal distribution of variance 1 / inputs.

    Reference:
        LeCun et al. (1998), Efficient backprop.
    """
    return variance_scaling(1, "fan_in", "truncated_normal", In=In, Out=Out, dtype=dtype)


def lecun_uniform(
    *,
    In: AxisSelection | None = None,
    Out: AxisSelection | None = None,
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Draw from a uniform distribution of variance 1 / inputs; see `lecun_normal`."""
    return variance_scaling(1, "fan_in", "uniform", In=In, Out=Out, dtype=dtype)


def glorot_normal(
    *,
    In: AxisSelection | None = None,
    Out: AxisSelection | None = None,
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Draw from a truncated normal distribution of variance 2 / (inputs + outputs).

    Reference:
        Glorot, Bengio (2010), Understanding the difficulty of training deep feedforward neural networks.
    """
    return variance_scaling(1, "fan_avg", "truncated_normal", In=In, Out=Out, dtype=dtype)


def glorot_uniform(
    *,
    In: AxisSelection | None = None,
    Out: AxisSelection | None = None,
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Draw from a uniform distribution of variance 2 / (inputs + outputs); see `glorot_normal`."""
    return variance_scaling(1, "fan_avg", "uniform", In=In, Out=Out, dtype=dtype)


def he_normal(
    *,
    In: AxisSelection | None = None,
    Out: AxisSelection | None = None,
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Draw from a truncated normal distribution of variance 2 / inputs, which suits relu.

    Reference:
        He et al. (2015), Delving deep into rectifiers: surpassing human-level performance on ImageNet classification.
    """
    return variance_scaling(2, "fan_in", "truncated_normal", In=In, Out=Out, dtype=dtype)


def he_uniform(
    *,
    In: AxisSelection | None = None,
    Out: AxisSelection | None = None,
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Draw from a uniform distribution of variance 2 / inputs; see `he_normal`."""
    return variance_scaling(2, "fan_in", "uniform", In=In, Out=Out, dtype=dtype)


def orthogonal(
    scale: float = 1.0,
    *,
    In: AxisSelection | None = None,
    Out: AxisSelection | None = None,
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Draw orthogonal matrices from `In` to `Out`, uniformly, times `scale`.

    Several axes on one side count as one. If one side is larger, the vectors along it are orthonormal. The matrices
    along other axes are drawn independently.

    Reference:
        Saxe, McClelland, Ganguli (2014), Exact solutions to the nonlinear dynamics of learning in deep linear networks.
    """

    def make(sides: _Sides) -> Initializer:
        def initialize(key: jax.Array, axes: tuple[Axis, ...]) -> NamedArray:
            # No parameter has axes of these names: the flat matrix is not laid out.
            rows, columns = (
                Axis("in (flat)", axis_size(sides.inputs)),
                Axis("out (flat)", axis_size(sides.outputs)),
            )
            batch = without_axes(axes, (*sides.inputs, *sides.outputs))
            drawn = random.orthogonal(key, batch, rows, columns, dtype)
            flat: NamedArray = drawn * as_python(scale)
            weight = flat.unflatten_axis(rows, sides.inputs).unflatten_axis(columns, sides.outputs)
            return auto_sharded(weight.rearrange(axes))

        return initialize

    return _BySides("orthogonal", make, In, Out)


@dataclasses.dataclass(frozen=True)
class _Sides:
    """The axes of a weight that are summed over, and those that replace them."""

    inputs: tuple[Axis, ...]
    outputs: tuple[Axis, ...]


@dataclasses.dataclass(frozen=True)
class _BySides:
    """An initializer that depends on which axes are inputs and which are outputs."""

    function: str
    make: Callable[[_Sides], Initializer]
    In: AxisSelection | None
    Out: AxisSelection | None

    def __call__(self, key: jax.Array, axes: tuple[Axis, ...]) -> NamedArray:
        if self.In is None and self.Out is None:
            problem = f"cannot tell which axes are inputs: {shown(*axes) or 'no axes'}"
            raise ArgumentError(
                message(self.function, problem, hint="give In=..., Out=... or both")
            )
        inputs: tuple[Axis, ...] = ()
        outputs: tuple[Axis, ...] = ()
        if self.In is not None:
            inputs = _found(self.function, self.In, axes)
        if self.Out is not None:
            outputs = _found(self.function, self.Out, axes, role="out")
        if self.In is None:
            inputs = without_axes(axes, outputs)
        if self.Out is None:
            outputs = without_axes(axes, inputs)

        for axis in inputs:
            if axis in outputs:
                problem = f"axis {axis.name!r} is both input and output"
                raise AxisClashError(message(self.function, problem, f"axes: {shown(*axes)}"))
        return self.make(_Sides(inputs, outputs))(key, axes)


def _found(
    function: str, asked: AxisSelection, axes: tuple[Axis, ...], role: str = ""
) -> tuple[Axis, ...]:
    """Look up axes of a parameter; `<name>.<role>` is preferred to the plain name."""
    by_name = {axis.name: axis for axis in axes}
    found = []
    for name, size in selection(asked, function):
        axis = by_name.get(name)
        if role:
            axis = by_name.get(f"{name}.{role}", axis)
        facts = f"axes: {shown(*axes) or 'none'}"
        if axis is None:
            raise missing_axis(function, name, by_name, facts, what="parameter")
        if size is not None and size != axis.size:
            problem = given_with_size(name, size, f"the parameter has size {axis.size}")
            raise AxisSizeError(message(function, problem, facts))
        found.append(axis)
    return tuple(found)


def between(initializer: Initializer, In: AxisSpec, Out: AxisSpec) -> Initializer:
    """Give an initializer that counts inputs and outputs those axes of a weight, unless it has them; layers call this.

    Args:
        initializer: makes the weight.
        In: the axes of the weight to sum over.
        Out: the axes that replace them, as the weight names them.
    """
    if (
        not isinstance(initializer, _BySides)
        or initializer.In is not None
        or initializer.Out is not None
    ):
        return initializer
    return initializer.make(_Sides(spec(In, "between"), spec(Out, "between")))
