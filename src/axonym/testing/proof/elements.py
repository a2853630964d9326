"""Internal. Elementwise operations: an element of the result depends only on operands' elements at the same place."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp

from .facts import Count, Guard, Known, Truth, compare, compare_origins, decide
from .places import Cause, Part, join

Equation: TypeAlias = Any
Rule: TypeAlias = Callable[[Equation, Sequence[Known], Cause], list[Known]]


def split_words(text: str) -> frozenset[str]:
    """Return the words of a text: tables of names are easier to read without quotes."""
    return frozenset(text.split())


# These return their operands unchanged, each one separately.
IDENTITIES = split_words(
    "copy copy_p device_put name optimization_barrier pbroadcast pcast pvary random_clone "
    "reshard sharding_constraint stop_gradient"
)
# Operands of these have the shape of the result, or are scalars.
ELEMENTWISE = split_words(
    "abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e "
    "cbrt ceil clamp clz complex conj convert_element_type cos cosh digamma "
    "div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac imag "
    "integer_pow is_finite le le_to lgamma log log1p logistic lt lt_to max min mul ne neg "
    "nextafter not one_minus_square or polygamma population_count pow random_fold_in random_gamma "
    "random_gamma_grad real regularized_incomplete_beta rem round rsqrt select_n shift_left "
    "shift_right_arithmetic shift_right_logical sign sin sinh sqrt square sub tan tanh "
    "reduce_precision threefry2x32 xor zeta"
)
# Zero stays zero.
_KEEPS_ZERO = split_words(
    "abs asin asinh atan atanh cbrt ceil conj convert_element_type copy erf expm1 floor imag "
    "log1p neg real round sign sin sinh sqrt square tan tanh"
)
# Results of these are never large, unless they are infinite or do not enter scores.
_BOUNDED = split_words(
    "and cos eq erf exp exp2 ge gt is_finite le logistic lt ne not or sign sin tanh threefry2x32 "
    "xor"
)


def pass_through(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    """Return the operands as they are."""
    return [*inputs][: len(equation.outvars)]


def apply_to_elements(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    """Return the facts about the results of an elementwise operation."""
    name = equation.primitive.name
    may_hide = name not in _BOUNDED and any(one.may_hide for one in inputs)
    found = combine(inputs, may_hide=may_hide)
    if len(equation.outvars) > 1:
        return [found] * len(equation.outvars)
    rule = _FACTS.get(name)
    if rule is not None:
        found = rule(equation, inputs, found)
    elif name in _KEEPS_ZERO:
        found = dataclasses.replace(found, guard=_keep(inputs[0].guard, "zero"))
    aval = equation.outvars[0].aval
    if found.count is not None and not found.count.fits(aval.dtype, aval.shape):
        found = dataclasses.replace(found, count=None)
    return [found]


def combine(inputs: Sequence[Known], *, may_hide: bool) -> Known:
    """Return the facts about elements that depend on the elements of all operands."""
    varies = frozenset[Part]().union(*(one.varies for one in inputs))
    return Known(join(one.reach for one in inputs), varies, may_hide=may_hide)


def _keep(guard: Guard | None, kind: str) -> Guard | None:
    return guard if guard is not None and guard.kind == kind else None


def _meet(guards: Sequence[Guard | None], kind: str) -> Guard | None:
    """Return the guard of the result, if one zero or hidden operand makes the result zero or hidden."""
    own = [one for one in guards if one is not None and one.kind == kind]
    if not own:
        return None
    side = own[0].side
    for one in own[1:]:
        side = side.meet(one.side)
    return own[0]._replace(side=side, may_hide=any(one.may_hide for one in own))


def _add(equation: Equation, inputs: Sequence[Known], found: Known) -> Known:
    left, right = inputs
    sign = -1 if equation.primitive.name == "sub" else 1
    count = None
    if left.count is not None and right.count is not None:
        count = left.count.add(right.count, sign)
    guard = None
    if sign == 1:
        guard = _meet([left.guard, right.guard], "hidden")
        others = [one.may_hide for one in inputs if _keep(one.guard, "hidden") is None]
        if guard is not None:
            guard = guard._replace(may_hide=guard.may_hide or any(others))
    elif not right.may_hide:
        # Subtracting a hidden score would bring back the scores that the first one hides.
        guard = _keep(left.guard, "hidden")
    if guard is None and left.guard and right.guard and left.guard.kind == right.guard.kind:
        # The sum is zero where both operands are zero.
        both = left.guard.side.join(right.guard.side)
        guard = Guard("zero", both) if left.guard.kind == "zero" else None
    return dataclasses.replace(found, count=count, guard=guard)


def _multiply(equation: Equation, inputs: Sequence[Known], found: Known) -> Known:
    left, right = inputs
    count = None
    for one, other in ((left, right), (right, left)):
        if one.count is not None and other.constant is not None:
            count = one.count.scale(other.constant) if math.isfinite(other.constant) else None
    return dataclasses.replace(found, count=count, guard=_meet([left.guard, right.guard], "zero"))


def _divide(equation: Equation, inputs: Sequence[Known], found: Known) -> Known:
    left, right = inputs
    count = left.count if right.constant == 1 else None
    guard = _keep(left.guard, "zero")
    # A mean divides by a large number, which makes nothing large.
    return dataclasses.replace(found, count=count, guard=guard, may_hide=left.may_hide)


def _is_exact(equation: Equation) -> bool:
    """Return whether operands are integers or booleans; operands of other dtypes may have been rounded."""
    dtype = equation.invars[-1].aval.dtype
    return bool(jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_))


def _clamp(equation: Equation, inputs: Sequence[Known], found: Known) -> Known:
    (low, one, high), shape = inputs, equation.outvars[0].aval.shape
    ends = one.count.find_ends(shape) if one.count and not one.count.is_absolute else None
    if ends is None or low.constant is None or high.constant is None or not _is_exact(equation):
        return found
    is_inside = low.constant <= ends[0] and ends[1] <= high.constant
    return dataclasses.replace(found, count=one.count if is_inside else None)


def _take_remainder(equation: Equation, inputs: Sequence[Known], found: Known) -> Known:
    count, size = inputs[0].count, inputs[1].constant
    if count is None or count.is_absolute or size is None or not _is_exact(equation):
        return found
    ends = count.find_ends(equation.outvars[0].aval.shape)
    is_less = ends is not None and ends[0] >= 0 and ends[1] < size
    return dataclasses.replace(found, count=count if is_less else None)


def _negate(equation: Equation, inputs: Sequence[Known], found: Known) -> Known:
    count = inputs[0].count and inputs[0].count.scale(-1)
    return dataclasses.replace(found, count=count, guard=_keep(inputs[0].guard, "zero"))


def _take_absolute(equation: Equation, inputs: Sequence[Known], found: Known) -> Known:
    count = inputs[0].count and inputs[0].count._replace(is_absolute=True)
    return dataclasses.replace(found, count=count, guard=_keep(inputs[0].guard, "zero"))


def _convert(equation: Equation, inputs: Sequence[Known], found: Known) -> Known:
    (one,) = inputs
    dtype = equation.outvars[0].aval.dtype
    count, guard = one.count, one.guard
    if dtype == jnp.bool_:
        count = None
    elif one.truth is not None:
        # A mask of zeros and ones.
        guard = Guard("zero", one.truth.true)
    elif count is not None and not count.steps and jnp.issubdtype(dtype, jnp.integer):
        count = count if float(count.constant).is_integer() else None
    truth = one.truth if dtype == jnp.bool_ else None
    if guard is not None and guard.kind == "hidden" and not jnp.issubdtype(dtype, jnp.floating):
        guard = None
    return dataclasses.replace(found, count=count, truth=truth, guard=guard)


def _exponentiate(equation: Equation, inputs: Sequence[Known], found: Known) -> Known:
    guard = _keep(inputs[0].guard, "hidden")
    return dataclasses.replace(found, guard=guard and guard._replace(kind="zero"))


def _take_logarithm(equation: Equation, inputs: Sequence[Known], found: Known) -> Known:
    # The logarithm of zero hides.
    guard = _keep(inputs[0].guard, "zero")
    hidden = guard and Guard("hidden", guard.side._replace(equal=frozenset()), found.may_hide)
    return dataclasses.replace(found, guard=hidden, may_hide=found.may_hide or hidden is not None)


def _compare(equation: Equation, inputs: Sequence[Known], found: Known) -> Known:
    left, right = inputs
    name = equation.primitive.name
    if left.count is None or right.count is None:
        truth = compare_origins(left.origin, right.origin)
        if truth is None or name not in ("eq", "ne"):
            return found
        return dataclasses.replace(found, truth=truth if name == "eq" else truth.invert())
    count = None
    if _is_exact(equation):
        count = decide(name, left.count, right.count, equation.outvars[0].aval.shape)
    return dataclasses.replace(found, count=count, truth=compare(name, left.count, right.count))


def _invert(equation: Equation, inputs: Sequence[Known], found: Known) -> Known:
    return dataclasses.replace(found, truth=inputs[0].truth and inputs[0].truth.invert())


def _conjoin(equation: Equation, inputs: Sequence[Known], found: Known) -> Known:
    # Zero stays zero, whatever the other operand is.
    count = Count(0, {}) if any(one.constant == 0 for one in inputs) else None
    return dataclasses.replace(found, count=count, truth=_pair(inputs, Truth.both))


def _disjoin(equation: Equation, inputs: Sequence[Known], found: Known) -> Known:
    return dataclasses.replace(found, truth=_pair(inputs, Truth.either))


def _pair(
    inputs: Sequence[Known], join_truths: Callable[[Truth, Truth | None], Truth]
) -> Truth | None:
    left, right = (one.truth for one in inputs)
    if left is None:
        left, right = right, left
    return None if left is None else join_truths(left, right)


def _maximum(equation: Equation, inputs: Sequence[Known], found: Known) -> Known:
    # One number that is not very negative is enough.
    return dataclasses.replace(found, may_hide=all(one.may_hide for one in inputs))


def _select(equation: Equation, inputs: Sequence[Known], found: Known) -> Known:
    condition, *cases = inputs
    if condition.constant is not None and 0 <= condition.constant < len(cases):
        return cases[int(condition.constant)]
    may_hide = any(one.may_hide for one in cases)
    found = dataclasses.replace(found, may_hide=may_hide)
    if len(cases) != 2 or condition.truth is None:
        return found
    # Where the other case is taken, the result is zero or hidden from a softmax: this is a mask.
    guard = None
    for side, other, one in (
        (condition.truth.false, cases[1], cases[0]),
        (condition.truth.true, cases[0], cases[1]),
    ):
        if other.constant == 0:
            own = _keep(one.guard, "zero")
            guard = Guard("zero", side.meet(own.side) if own else side)
        elif other.is_hiding:
            own = _keep(one.guard, "hidden")
            hides = own.may_hide if own else one.may_hide
            guard = Guard("hidden", side.meet(own.side) if own else side, hides)
    return dataclasses.replace(found, guard=guard)


_FACTS: Mapping[str, Callable[[Equation, Sequence[Known], Known], Known]] = {
    "abs": _take_absolute,
    "add": _add,
    "add_any": _add,
    "and": _conjoin,
    "clamp": _clamp,
    "convert_element_type": _convert,
    "div": _divide,
    "eq": _compare,
    "exp": _exponentiate,
    "exp2": _exponentiate,
    "ge": _compare,
    "gt": _compare,
    "le": _compare,
    "log": _take_logarithm,
    "logistic": _exponentiate,
    "lt": _compare,
    "max": _maximum,
    "mul": _multiply,
    "ne": _compare,
    "neg": _negate,
    "not": _invert,
    "or": _disjoin,
    "rem": _take_remainder,
    "select_n": _select,
    "sub": _add,
}
