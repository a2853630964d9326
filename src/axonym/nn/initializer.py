"""Initial values of parameters: functions of a key and the axes of a parameter.

The variance of many initializers depends on how many inputs and outputs a parameter has. `jax.nn.initializers` counts
them by position, the functions here by name, in whatever order the parameter stores its axes:

* `In` alone: all other axes are outputs; `Out` alone: all others are inputs;
* both: other axes, such as `experts`, number separate matrices, and do not count;
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
from ..base.phrases import missing_axis, write_size_conflict
from ..errors import ArgumentError, AxisClashError, AxisSizeError, message, suggestion
from ..partitioning.shard import auto_sharded
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
    """Draw from a normal distribution with standard deviation `scale / sqrt(size)`, truncated at three times that.

    This is the default of `Linear` and `Embedding`.

    Args:
        size: the number of inputs.
        scale: the standard deviation for one input.

    Examples:
        >>> weight = axn.nn.initializer.fan_in(100)(jax.random.key(0), axn.make_axes(embed=100, mlp=50))
        >>> round(weight.std().item(), 2), bool(abs(weight).max() <= 0.3)
        (0.1, True)
    """
    return truncated_normal(scale / math.sqrt(max(size, 1)), lower=-3.0, upper=3.0)


def constant(value: float, *, dtype: DTypeLike | None = None) -> Initializer:
    """Fill with one number, by default of the default float dtype.

    Examples:
        >>> axn.nn.initializer.constant(0.5)(jax.random.key(0), (axn.Axis("embed", 2),)).tolist()
        [0.5, 0.5]
    """
    return lambda key, axes: auto_sharded(create.full(axes, value, dtype or float))


def zeros(*, dtype: DTypeLike | None = None) -> Initializer:
    """Fill with zeros.

    Examples:
        >>> axn.nn.initializer.zeros()(jax.random.key(0), (axn.Axis("embed", 2),)).tolist()
        [0.0, 0.0]
    """
    return constant(0, dtype=dtype)


def ones(*, dtype: DTypeLike | None = None) -> Initializer:
    """Fill with ones.

    Examples:
        >>> axn.nn.initializer.ones(dtype=int)(jax.random.key(0), (axn.Axis("embed", 2),)).tolist()
        [1, 1]
    """
    return constant(1, dtype=dtype)


def normal(std: float = 1.0, *, dtype: DTypeLike | None = None) -> Initializer:
    """Draw from a normal distribution with mean 0 and standard deviation `std`.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=8, mlp=16)
        >>> small = axn.nn.initializer.normal(0.02)
        >>> axn.nn.Linear.init(Embed, Mlp, key=jax.random.key(0), initializer=small).weight.shape
        {'embed': 8, 'mlp': 16}
    """
    # A NumPy number would widen a narrow dtype.
    return lambda key, axes: random.normal(key, axes, dtype) * as_python(std)


def truncated_normal(
    std: float = 1.0, *, lower: float = -2.0, upper: float = 2.0, dtype: DTypeLike | None = None
) -> Initializer:
    """Draw from a normal distribution, truncated at `lower` and `upper` times `std`.

    `std` is the standard deviation before truncation, which reduces it to 0.88 of that at the default bounds;
    `variance_scaling` corrects for this.

    Examples:
        >>> draw = axn.nn.initializer.truncated_normal(0.02)
        >>> bool(abs(draw(jax.random.key(0), axn.make_axes(embed=100, mlp=50))).max() <= 0.04)
        True
    """
    return lambda key, axes: (
        random.truncated_normal(key, axes, lower, upper, dtype) * as_python(std)
    )


def uniform(minval: float, maxval: float, *, dtype: DTypeLike | None = None) -> Initializer:
    """Draw uniformly from `minval` (included) to `maxval` (excluded).

    Examples:
        >>> values = axn.nn.initializer.uniform(2.0, 3.0)(jax.random.key(0), axn.make_axes(embed=100, mlp=50))
        >>> bool(values.min() >= 2), bool(values.max() < 3)
        (True, True)
    """
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
        >>> Experts, Embed, Mlp = axn.make_axes(experts=4, embed=25, mlp=50)
        >>> initializer = axn.nn.initializer.variance_scaling(In="embed", Out="mlp")
        >>> weights = initializer(jax.random.key(0), (Experts, Embed, Mlp))
        >>> round(weights.std().item(), 2)  # 1 / sqrt(25)
        0.2
    """
    for what, given, literal in (
        ("mode", mode, Mode),
        ("distribution", distribution, Distribution),
    ):
        known = get_args(literal)
        if given not in known:
            facts, hint = f"there are: {', '.join(known)}", suggestion(str(given), known)
            raise ArgumentError(
                message("variance_scaling", f"unknown {what} {given!r}", facts, hint=hint)
            )

    def make(sides: _Sides) -> Initializer:
        inputs, outputs = axis_size(sides.inputs), axis_size(sides.outputs)
        fan = {"fan_in": inputs, "fan_out": outputs, "fan_avg": (inputs + outputs) / 2}[mode]
        std = math.sqrt(scale / max(fan, 1))  # an empty axis has no inputs
        if distribution == "uniform":
            # The standard deviation of numbers from -1 to 1 is 1 / sqrt(3).
            return lambda key, axes: (
                random.uniform(key, axes, dtype, -1.0, 1.0) * (math.sqrt(3) * std)
            )
        if distribution == "normal":
            return normal(std, dtype=dtype)
        # Truncation makes the standard deviation smaller.
        return truncated_normal(std / _TRUNCATED_STD, dtype=dtype)

    return _BySides("variance_scaling", make, In, Out)


# The standard deviation of a normal distribution truncated at -2 and 2: the variance is 1 - 4 phi(2) / P(|z| < 2).
_TRUNCATED_STD = math.sqrt(1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2)))


def lecun_normal(
    *,
    In: AxisSelection | None = None,
    Out: AxisSelection | None = None,
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Draw from a normal distribution of variance 1 / inputs, truncated at two standard deviations.

    It is `variance_scaling(1, "fan_in", "truncated_normal", ...)`, which explains the arguments.

    Reference:
        LeCun et al. (1998), Efficient backprop.

    Examples:
        >>> draw = axn.nn.initializer.lecun_normal(In="embed")
        >>> round(draw(jax.random.key(0), axn.make_axes(embed=100, mlp=50)).std().item(), 2)
        0.1
    """
    return variance_scaling(1, "fan_in", "truncated_normal", In=In, Out=Out, dtype=dtype)


def lecun_uniform(
    *,
    In: AxisSelection | None = None,
    Out: AxisSelection | None = None,
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Draw from a uniform distribution of variance 1 / inputs.

    It is `variance_scaling(1, "fan_in", "uniform", ...)`, which explains the arguments; see also `lecun_normal`.

    Examples:
        >>> draw = axn.nn.initializer.lecun_uniform(In="embed")
        >>> round(draw(jax.random.key(0), axn.make_axes(embed=100, mlp=50)).std().item(), 2)
        0.1
    """
    return variance_scaling(1, "fan_in", "uniform", In=In, Out=Out, dtype=dtype)


def glorot_normal(
    *,
    In: AxisSelection | None = None,
    Out: AxisSelection | None = None,
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Draw from a normal distribution of variance 2 / (inputs + outputs), truncated at two standard deviations.

    It is `variance_scaling(1, "fan_avg", "truncated_normal", ...)`, which explains the arguments.

    Reference:
        Glorot, Bengio (2010), Understanding the difficulty of training deep feedforward neural networks.

    Examples:
        >>> draw = axn.nn.initializer.glorot_normal(In="embed")
        >>> round(draw(jax.random.key(0), axn.make_axes(embed=100, mlp=50)).std().item(), 2)
        0.12
    """
    return variance_scaling(1, "fan_avg", "truncated_normal", In=In, Out=Out, dtype=dtype)


def glorot_uniform(
    *,
    In: AxisSelection | None = None,
    Out: AxisSelection | None = None,
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Draw from a uniform distribution of variance 2 / (inputs + outputs).

    It is `variance_scaling(1, "fan_avg", "uniform", ...)`, which explains the arguments; see also `glorot_normal`.

    Examples:
        >>> draw = axn.nn.initializer.glorot_uniform(In="embed")
        >>> round(draw(jax.random.key(0), axn.make_axes(embed=100, mlp=50)).std().item(), 2)
        0.12
    """
    return variance_scaling(1, "fan_avg", "uniform", In=In, Out=Out, dtype=dtype)


def he_normal(
    *,
    In: AxisSelection | None = None,
    Out: AxisSelection | None = None,
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Draw from a normal distribution of variance 2 / inputs, truncated at two standard deviations.

    This suits `relu`, which halves the mean square. It is `variance_scaling(2, "fan_in", "truncated_normal", ...)`,
    which explains the arguments.

    Reference:
        He et al. (2015), Delving deep into rectifiers: surpassing human-level performance on ImageNet classification.

    Examples:
        >>> draw = axn.nn.initializer.he_normal(In="embed")
        >>> round(draw(jax.random.key(0), axn.make_axes(embed=100, mlp=50)).std().item(), 2)
        0.14
    """
    return variance_scaling(2, "fan_in", "truncated_normal", In=In, Out=Out, dtype=dtype)


def he_uniform(
    *,
    In: AxisSelection | None = None,
    Out: AxisSelection | None = None,
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Draw from a uniform distribution of variance 2 / inputs.

    It is `variance_scaling(2, "fan_in", "uniform", ...)`, which explains the arguments; see also `he_normal`.

    Examples:
        >>> draw = axn.nn.initializer.he_uniform(In="embed")
        >>> round(draw(jax.random.key(0), axn.make_axes(embed=100, mlp=50)).std().item(), 2)
        0.14
    """
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

    Args:
        scale: a factor.
        In: the axes that count as inputs.
        Out: the axes that count as outputs.
        dtype: of the result.

    Reference:
        Saxe, McClelland, Ganguli (2014), Exact solutions to the nonlinear dynamics of learning in deep linear networks.

    Examples:
        >>> q = axn.nn.initializer.orthogonal(In="embed")(jax.random.key(0), axn.make_axes(embed=3, mlp=2))
        >>> bool(np.allclose(q.array.T @ q.array, np.eye(2), atol=1e-5))
        True
    """

    def make(sides: _Sides) -> Initializer:
        def initialize(key: jax.Array, axes: tuple[Axis, ...]) -> NamedArray:
            # No mapping has names like these, so the flat matrix is not sharded: its decomposition needs all of it.
            rows = Axis("in (flat)", axis_size(sides.inputs))
            columns = Axis("out (flat)", axis_size(sides.outputs))
            batch = without_axes(axes, (*sides.inputs, *sides.outputs))
            matrices = random.orthogonal(key, batch, rows, columns, dtype)
            flat: NamedArray = matrices * as_python(scale)
            # The parameter may store its axes in any order, inputs between outputs, too.
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
    """An initializer that depends on which axes are inputs and which are outputs.

    As a value and not a closure, it lets `between` see whether the user has named a side.
    """

    function: str
    make: Callable[[_Sides], Initializer]
    In: AxisSelection | None
    Out: AxisSelection | None

    def __call__(self, key: jax.Array, axes: tuple[Axis, ...]) -> NamedArray:
        # Layers fill in the sides by `between`. Called directly, an initializer sees the axes, but not their roles.
        if self.In is None and self.Out is None:
            problem = f"cannot tell which axes are inputs: {shown(*axes) or 'no axes'}"
            raise ArgumentError(
                message(self.function, problem, hint="give In=..., Out=... or both")
            )
        inputs = () if self.In is None else _find_axes(self.function, self.In, axes)
        if self.Out is None:
            outputs = without_axes(axes, inputs)
        else:
            outputs = _find_axes(self.function, self.Out, axes, role="out")
        if self.In is None:
            inputs = without_axes(axes, outputs)

        for axis in inputs:
            if axis in outputs:
                problem = f"axis {axis.name!r} is both input and output"
                raise AxisClashError(message(self.function, problem, f"axes: {shown(*axes)}"))
        return self.make(_Sides(inputs, outputs))(key, axes)


def _find_axes(
    function: str, asked: AxisSelection, axes: tuple[Axis, ...], role: str = ""
) -> tuple[Axis, ...]:
    """Look up axes of a parameter; `<name>.<role>` is preferred to the plain name."""
    by_name = {axis.name: axis for axis in axes}
    found: list[Axis] = []
    for name, size in selection(asked, function):
        # If a weight has both, the plain name is the input: the two sides must not share it.
        axis = by_name.get(f"{name}.{role}" if role else name, by_name.get(name))
        facts = f"axes: {shown(*axes) or 'none'}"
        if axis is None:
            raise missing_axis(function, name, by_name, facts, what="parameter")
        if size is not None and size != axis.size:
            problem = write_size_conflict(name, size, f"the parameter has size {axis.size}")
            raise AxisSizeError(message(function, problem, facts))
        found.append(axis)
    return tuple(found)


def between(initializer: Initializer, In: AxisSpec, Out: AxisSpec) -> Initializer:
    """Set which axes of a weight an initializer counts as inputs and as outputs, unless the user has set any.

    Layers call this, so that `glorot_normal()` needs no axes. Other initializers stay as they are.

    Args:
        initializer: makes the weight.
        In: the axes of the weight to sum over.
        Out: the axes that replace them, as the weight names them.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=100, mlp=50)
        >>> draw = axn.nn.initializer.between(axn.nn.initializer.lecun_normal(), Embed, Mlp)
        >>> round(draw(jax.random.key(0), (Mlp, Embed)).std().item(), 2)
        0.1
    """
    if isinstance(initializer, _BySides) and initializer.In is None and initializer.Out is None:
        return initializer.make(_Sides(spec(In, "between"), spec(Out, "between")))
    return initializer
