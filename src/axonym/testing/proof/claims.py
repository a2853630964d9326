"""Internal. Claims about an axis, proven from a traced program.

Nothing is computed: the function is traced, and `Walk` follows the axis from the arguments to the results. A proof
holds for all finite numbers, as long as visible scores are far above the constant that a mask puts in place of hidden
ones. It says nothing about rounding: a compiler may add up the numbers of one example in an order that depends on the
size of the batch.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ... import errors
from ...base.kinds import Payload, Tree
from ...costs.shared.places import find_place
from ...costs.traced.equations import write_source
from ...current.machine import IS_PROOF
from ...errors import AxisNotFoundError, message, suggestion
from ..program import Program
from .facts import Known
from .places import Cause, Digit, Digits, Part, Span, strip
from .walk import NoProofError, Walk

# Their code is not the user's, nor is code that is made as a text, such as an `__init__` of a dataclass.
_LIBRARIES = (*(str(Path(str(one.__file__)).parent) for one in (errors, jax, eqx)), "<")

Kind: TypeAlias = Literal["independent", "causal", "equivariant"]


@dataclasses.dataclass(frozen=True)
class Claim:
    """What an axis means.

    Attributes:
        kind: what is claimed: positions do not affect each other; later positions do not affect earlier ones; or a
            permutation of the positions only permutes the results.
        axis: the name of the axis.
        out_axes: the names of the axis in results.
        has_totals: whether results without the axis, such as a loss, may depend on all positions.
    """

    kind: Kind
    axis: str
    out_axes: tuple[str, ...] = ()
    has_totals: bool = False


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a claim is proven.

    Attributes:
        status: `proven`, or `unknown` if the claim may be false, or true for reasons that the program does not show.
        path: the result for which it is not proven.
        place: the layer, operation and line of code where the unproven dependence began.
        reason: what is not proven, in words.
    """

    status: Literal["proven", "unknown"]
    path: str = ""
    place: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return self.status == "proven"

    def __str__(self) -> str:
        if self:
            return self.status
        return f"not proven: {self.reason}" + (f", first at {self.place}" if self.place else "")


def prove(
    fn: Callable[..., Any], args: Sequence[Tree], claim: Claim, *, is_gradient: bool = False
) -> Verdict:
    """Prove a claim about all arguments of a function that have an axis.

    Args:
        fn: a function or a module of named arrays, which may be abstract.
        args: its arguments, which may be abstract.
        claim: the claim.
        is_gradient: whether the claim is about the gradients of all arguments, for any gradients of the results. A
            gradient at one position must come from results at the same position, or also at later ones if the claim is
            causal. Gradients of arguments without the axis, such as parameters, are totals.

    Returns:
        The verdict, with the place where an unproven dependence began.

    Raises:
        AxisNotFoundError: if no argument has the axis.
    """
    return check(trace(Program("prove", fn, args), is_gradient=is_gradient), claim)


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced function.

    Attributes:
        program: the program.
        arguments: the names of the dimensions of each argument of the program.
        results: the path and the names of each result.
        cotangents: how many of the arguments, the last ones, are gradients of results; the results are then gradients.
    """

    program: Any
    arguments: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, tuple[str, ...]], ...]
    cotangents: int = 0


def check(traced: Traced, claim: Claim) -> Verdict:
    """Prove a claim about a program; gradients without the axis are totals."""
    if traced.cotangents:
        claim = dataclasses.replace(claim, has_totals=True)
    if not any(claim.axis in names for names in traced.arguments):
        every = sorted({name for names in traced.arguments for name in names})
        problem = f"no argument has axis {claim.axis!r}"
        facts = f"arguments have: {', '.join(every)}"
        hint = suggestion(claim.axis, every)
        raise AxisNotFoundError(message("prove", problem, facts, hint=hint))
    program, count = traced.program.jaxpr, _find_size(traced, claim.axis)
    if count < 2:
        return Verdict("unknown", reason=f"axis {claim.axis!r} has no two positions to tell apart")
    followed = list(traced.arguments)
    if claim.kind == "causal" and traced.cotangents:
        # An effect on later positions is a gradient of earlier ones, whichever positions the values depend on.
        followed[: -traced.cotangents] = [()] * (len(followed) - traced.cotangents)
    pairs = zip(program.invars, followed, strict=True)
    inputs = [start(claim.axis, names, variable.aval.shape) for variable, names in pairs]
    try:
        known = Walk().run(program, inputs, traced.program.consts)
    except NoProofError as error:
        reason = f"nothing can be proven of {error.cause.reason}"
        return Verdict("unknown", "", _write_place(error.cause), reason)
    found = list(zip(traced.results, known, program.outvars, strict=True))
    is_gradient = bool(traced.cotangents)
    verdicts = [
        _judge(claim, one, *own, variable.aval.shape, count, is_gradient=is_gradient)
        for own, one, variable in found
    ]
    # If every result is a total, nothing was claimed. Gradients are asked for beside values: with tokens, which are
    # integers, only parameters have gradients, and these are totals.
    has_axis = is_gradient or any(
        {claim.axis, *claim.out_axes} & {*names} for names in dict(traced.results).values()
    )
    if not has_axis and any(one.reach for one in known):
        verdicts.append(Verdict("unknown", reason=f"no result has axis {claim.axis!r}"))
    return next((verdict for verdict in verdicts if not verdict), Verdict("proven"))


def start(axis: str, names: tuple[str, ...], shape: tuple[int, ...]) -> Known:
    """Return the facts about an argument: each position of the axis depends only on itself."""
    places = range(len(shape))
    if axis not in names:
        return Known(varies=frozenset(map(Part, places)))
    # Names belong to the last dimensions.
    place = len(shape) - len(names) + names.index(axis)
    size = shape[place]
    digits: Digits = (Digit(place, 1, size, 1),)
    reach = {digits: Span(0, 0)} if 0 not in shape else {}
    return Known(reach, frozenset(map(Part, places)) - {Part(place)})


def _find_size(traced: Traced, axis: str) -> int:
    """Return the number of positions of the axis."""
    pairs = zip(traced.program.jaxpr.invars, traced.arguments, strict=True)
    sizes = (
        one.aval.shape[names.index(axis) - len(names)] for one, names in pairs if axis in names
    )
    return int(next(sizes))


def _judge(
    claim: Claim,
    known: Known,
    path: str,
    names: tuple[str, ...],
    shape: tuple[int, ...],
    count: int,
    *,
    is_gradient: bool,
) -> Verdict:
    """Return whether the facts about one result prove the claim about an axis with so many positions."""
    own = next((name for name in (*claim.out_axes, claim.axis) if name in names), None)
    shown = f"result {path}" if path else "the result"
    if own is None:
        # A total, such as the last state of a loop, comes after all positions.
        if claim.has_totals or claim.kind == "causal" or not known.reach:
            return Verdict("proven")
        span = next(iter(known.reach.values()))
        reason = f"{shown} has no axis {claim.axis!r}, and depends on its positions"
        return Verdict("unknown", path, _write_span(span), reason)
    place = len(shape) - len(names) + names.index(own)
    size = shape[place]
    same = strip((Digit(place, 1, size, 1),))
    for every, span in known.reach.items():
        digits = strip(every)
        is_above = span.high > 0
        if claim.kind == "causal" and is_gradient:
            is_above = False
            is_fine = digits == same and span.low >= 0
            what = "earlier positions"
        elif claim.kind == "causal":
            # Without a digit, the positions are the same for all elements, of which the first one is at zero.
            is_fine = digits in (same, ()) and not is_above
            what = "later positions"
        else:
            is_fine = digits == same and span.bounds == (0, 0)
            what = "other positions"
        if not is_fine:
            reason = f"{shown} may depend on {what} of {claim.axis!r}"
            return Verdict("unknown", path, _write_span(span, is_above=is_above), reason)
    is_cut = size != count
    is_moved = any(part.meets(Digit(place, 1, size, 1)) for part in known.varies)
    if claim.kind == "equivariant" and (is_moved or is_cut):
        reason = f"{shown} may depend on where along {claim.axis!r} an element is"
        return Verdict("unknown", path, "", reason)
    return Verdict("proven")


def _write_span(span: Span, *, is_above: bool = True) -> str:
    cause = span.high_cause if is_above else span.low_cause
    cause = cause or span.high_cause or span.low_cause
    return "an argument" if cause is None else _write_place(cause)


def _write_place(cause: Cause) -> str:
    """Write the layer, the operation and the line of code of an equation."""
    source = cause.prefix and f"{cause.prefix}/"
    if cause.equation is not None:
        source = write_source(cause.equation, cause.prefix)
    layer = find_place(source, has_gradient=False).layer
    where = f"{layer}: {cause.reason}" if layer else cause.reason
    line = _find_line(cause.equation)
    return f"{where} ({line})" if line else where


def _find_line(equation: Any) -> str:
    """Return the innermost line of code outside this library and the libraries that it uses."""
    traceback = getattr(getattr(equation, "source_info", None), "traceback", None)
    for frame in getattr(traceback, "frames", ()):
        name = frame.file_name
        if not name.startswith(_LIBRARIES):
            return f"{name.rpartition('/')[2]}:{frame.line_num}"
    return ""


def trace(own: Program, *, is_gradient: bool = False) -> Traced:
    """Trace a function of abstract arrays, including those that the function itself holds."""
    with IS_PROOF.using(True):
        return _trace(own, is_gradient=is_gradient)


def _trace(own: Program, *, is_gradient: bool) -> Traced:
    abstract = [_make_abstract(array) for array in own.arrays]
    names = [place.names for place in own.places]
    if not is_gradient:
        program = jax.make_jaxpr(own.run)(abstract)
        return Traced(program, tuple(names), tuple((one.path, one.names) for one in own.results))

    floating = [k for k, one in enumerate(abstract) if jnp.issubdtype(one.dtype, jnp.inexact)]
    results = jax.eval_shape(own.run, abstract)
    chosen = [k for k, one in enumerate(results) if jnp.issubdtype(one.dtype, jnp.inexact)]

    def pull(payloads: Sequence[Payload], cotangents: Sequence[Payload]) -> Any:
        def part(some: Sequence[Payload]) -> list[Any]:
            several = list(payloads)
            for k, payload in zip(floating, some, strict=True):
                several[k] = payload
            values = own.run(several)
            return [values[k] for k in chosen]

        _, pullback = jax.vjp(part, [payloads[k] for k in floating])
        return pullback(list(cotangents))[0]

    cotangents = [jax.ShapeDtypeStruct(results[k].shape, results[k].dtype) for k in chosen]
    program = jax.make_jaxpr(pull)(abstract, cotangents)
    given_names = (*names, *(own.results[k].names for k in chosen))
    gradients = tuple((f"gradient of {own.places[k].path}", names[k]) for k in floating)
    return Traced(program, given_names, gradients, len(chosen))


def _make_abstract(payload: Payload) -> Any:
    if isinstance(payload, np.ndarray | np.generic):
        payload = jnp.asarray(payload)
    return jax.ShapeDtypeStruct(
        payload.shape, payload.dtype, weak_type=getattr(payload, "weak_type", False)
    )
