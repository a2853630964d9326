"""Internal. The base of layers with a memory: projections, short convolutions, a decay, and the way to a result."""

from collections.abc import Callable
from typing import Any, Self, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp

from ... import random
from ...array import NamedArray
from ...axis import Axis, AxisSelector, AxisSpec, axis_name, shown, sized, spec, without_axes
from ...base.dtypes import widen
from ...engine import checks
from ...engine.core import Core, facts
from ...errors import AxisClashError, AxisNotFoundError, OperandError, message, suggestion
from ...names.plans import Names
from ...ops.elementwise import exp, log
from ...ops.logical import logical_and
from ..activation import silu, softplus
from ..initializer import Initializer
from ..inputs import find_axis_name
from ..layer import Layer, enter_scope
from ..linear import Linear
from ..norm import RmsNorm
from ..roles import Role
from ..weights import find_dtype, read_vector
from .chunks import Writes, write_all, write_one
from .short_conv import TAP, ShortConv

Pair: TypeAlias = tuple[NamedArray, NamedArray]
State: TypeAlias = tuple[NamedArray, tuple[NamedArray, NamedArray, NamedArray]]
"""A memory, and the recent inputs of the convolutions of queries, keys and values."""


class Decay(Layer):
    """Steps and decays of heads: a step is softplus(x + bias), and the log of its decay -step * exp(log_rate).

    Attributes:
        log_rate: axes {*axis}.
        bias: axes {*axis}.
        axis: the axes of heads.
    """

    log_rate: NamedArray
    bias: NamedArray
    axis: tuple[Axis, ...] = eqx.field(static=True)

    @classmethod
    def init(cls, axis: AxisSpec, *, key: jax.Array) -> Self:
        """Draw rates from 1 to 16, and biases for steps from 0.001 to 0.1."""
        heads = spec(axis, "Decay.init")
        k_rate, k_step = jax.random.split(key)
        rate = random.uniform(k_rate, heads, minval=1.0, maxval=16.0)
        step = exp(random.uniform(k_step, heads, minval=-6.9, maxval=-2.3))
        # The inverse of softplus.
        return cls(log(rate), step + log(1 - exp(-step)), heads)

    def __call__(self, x: NamedArray) -> tuple[NamedArray, NamedArray]:
        """Return steps and the logs of decays, axes {*axis, ...}; float32 or wider."""
        step = softplus(widen(x) + widen(read_vector(self.bias)))
        return step, -step * exp(widen(read_vector(self.log_rate)))


class MemoryLayer(Layer):
    """A layer whose state is a memory; see `chunks`. A subclass says what is written, and makes results."""

    query: Linear
    key: Linear
    value: Linear
    gate: Linear
    forget: Linear
    convs: tuple[ShortConv, ShortConv, ShortConv]
    decay: Decay
    norm: RmsNorm
    out: Linear
    axis: AxisSelector = eqx.field(static=True)
    chunk: int = eqx.field(static=True)

    @property
    def axis_roles(self) -> dict[str, Role]:
        """The roles of axes that the projections cannot know: which of them count heads."""
        return {axis.name: "head" for axis in self.decay.axis}

    def __call__(
        self,
        x: NamedArray,
        state: State | None = None,
        *,
        where: NamedArray | None = None,
        begins: NamedArray | None = None,
        key: jax.Array | None = None,
    ) -> tuple[NamedArray, State]:
        """Compute all positions.

        Args:
            x: axes {axis, *Embed, ...}.
            state: the state to start from; by default zeros. It may have axes that `x` lacks.
            where: booleans, axes {axis, ...}: which positions are real. The others leave the state as it is, and their
                results are meaningless.
            begins: booleans, axes {axis, ...}: at which positions a new sequence begins, which sees nothing before.
            key: not used; every layer takes one.

        Returns:
            The results, axes {axis, *Embed, ...}, and the last state: the memory, and the recent inputs of the
            convolutions of queries, keys and values.

        Raises:
            AxisNotFoundError: if `x` or a mask lacks an axis, or a mask has one that `x` lacks.
            AxisSizeError: if an axis has another size.
            AxisClashError: if the state has the axis to run along.
            OperandError: if a mask is not one of booleans.
        """
        name = find_axis_name(type(self).__name__, x, self.axis)
        for what, mask in (("mask 'where'", where), ("mask 'begins'", begins)):
            if mask is not None:
                _check_mask(type(self).__name__, what, mask, x, name)
        if where is not None and begins is not None:
            begins = logical_and(begins, where)

        def convolve(conv: ShortConv, x: NamedArray, recent: NamedArray | None) -> Pair:
            return conv(x, name, recent, where, begins)

        def write(writes: Writes, memory: NamedArray | None) -> Pair:
            if memory is not None and name in memory.names:
                problem = f"the state has axis {name!r}, which the layer runs along"
                given = f"memory has: {facts(memory)}"
                raise AxisClashError(message(type(self).__name__, problem, given))
            options = name, memory, where, begins, self.chunk
            return write_all(writes, self._feature, *options)

        return self._run(x, state, convolve, write)

    @enter_scope
    def step(self, x: NamedArray, state: State | None = None) -> tuple[NamedArray, State]:
        """Compute one position, as a decoder does.

        Args:
            x: axes {*Embed, ...}.
            state: the previous state; by default zeros.

        Returns:
            The result, axes {*Embed, ...}, and the next state.
        """

        def write(writes: Writes, memory: NamedArray | None) -> Pair:
            return write_one(writes, self._feature, memory)

        return self._run(x, state, ShortConv.step, write)

    @property
    def _feature(self) -> str:
        return self.query.Out[-1].name

    def _run(
        self,
        x: NamedArray,
        state: State | None,
        convolve: Callable[[ShortConv, NamedArray, NamedArray | None], Pair],
        write: Callable[[Writes, NamedArray | None], Pair],
    ) -> tuple[NamedArray, State]:
        before = (None, (None,) * 3) if state is None else state
        features = axis_name((*self.decay.axis, self.query.Out[-1], self.value.Out[-1]))
        if isinstance(before[0], Core) and isinstance(x, Core):
            # A state may have axes that the input lacks, such as a batch that begins with one prompt.
            x = x.broadcast_axis(without_axes(before[0].axes, (*x.names, *features)))
        parts = zip(self.convs, (self.query, self.key, self.value), before[1], strict=True)
        pairs = [convolve(conv, part(x), own) for conv, part, own in parts]
        query, keys, values = (silu(widen(y)) for y, _ in pairs)
        read, memory = write(self._prepare(x, query, keys, values), before[0])
        dtype = jnp.result_type(x.dtype, find_dtype(self.out))
        y = self.out(self._gate(x, read, values).astype(dtype))
        # A loop wants a state with the axes in the order of the one before.
        memory = _rearrange(memory, before[0], features)
        recent = [
            _rearrange(own, given, (TAP, *axis_name(conv.axis)))
            for (_, own), given, conv in zip(pairs, before[1], self.convs, strict=True)
        ]
        return y, (memory, (recent[0], recent[1], recent[2]))

    def _prepare(
        self, x: NamedArray, query: NamedArray, keys: NamedArray, values: NamedArray
    ) -> Writes:
        """Return what is written; all are float32 or wider."""
        raise NotImplementedError

    def _gate(self, x: NamedArray, read: NamedArray, values: NamedArray) -> NamedArray:
        """Return the input of the last projection."""
        raise NotImplementedError


def _check_mask(function: str, what: str, mask: NamedArray, x: NamedArray, name: str) -> None:
    checks.require(function, mask, name, what, role=", the positions")
    given = checks.write_axes(facts(mask), what), checks.write_axes(facts(x), "input")
    if mask.dtype != jnp.bool_:
        raise OperandError(
            message(function, f"the {what} must be booleans, not {mask.dtype}", given[0])
        )
    for own in mask.names:
        if own not in x.names:
            problem = f"the {what} has axis {own!r}, which the input lacks"
            raise AxisNotFoundError(
                message(function, problem, *given, hint=suggestion(own, x.names))
            )


def _rearrange(x: NamedArray, given: NamedArray | None, names: Names) -> NamedArray:
    if given is not None and set(given.names) == set(x.names):
        return x.rearrange(given.names)
    return x.rearrange((..., *names))


def make_parts(
    function: str,
    Embed: AxisSpec,
    Heads: AxisSpec,
    KeyHeads: AxisSpec | None,
    KeyDim: Axis,
    ValueDim: Axis,
    window: int,
    use_bias: bool,
    initializer: Initializer | None,
    key: jax.Array,
) -> dict[str, Any]:
    """Make the fields of `MemoryLayer` that all layers have; `use_bias` is for the convolutions."""
    heads = spec(Heads, function)
    own = heads if KeyHeads is None else spec(KeyHeads, function)
    missing = [axis for axis in own if axis not in heads]
    if missing:
        problem = f"queries and keys have heads {shown(*missing)}, which values lack"
        hint = "grouped heads are two axes of values: Heads=(KeyHeads, Group)"
        raise AxisNotFoundError(message(function, problem, f"Heads: {shown(*heads)}", hint=hint))
    keys = iter(jax.random.split(key, 10))
    features, values = (*own, sized(KeyDim, function)), (*heads, sized(ValueDim, function))

    def project(In: AxisSpec, Out: AxisSpec) -> Linear:
        return Linear.init(In, Out, key=next(keys), use_bias=False, initializer=initializer)

    def convolve(axis: AxisSpec) -> ShortConv:
        return ShortConv.init(axis, window, key=next(keys), use_bias=use_bias)

    return {
        "query": project(Embed, features),
        "key": project(Embed, features),
        "value": project(Embed, values),
        "gate": project(Embed, values),
        "forget": project(Embed, heads),
        "convs": (convolve(features), convolve(features), convolve(values)),
        "decay": Decay.init(heads, key=next(keys)),
        "out": project(values, Embed),
    }
