"""Internal. Follow one axis through a traced program, equation by equation: into loops, branches, calls and devices.

If no table has a rule for a primitive, its results depend on every position as soon as an operand depends on any. A
program that reads and writes references has no proof.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ...costs.traced.equations import (
    Equation,
    Program,
    Variable,
    count_unstacked,
    is_literal,
    write_source,
)
from ...engine import Layout
from . import devices, lookups, shapes, sums
from .elements import (
    ELEMENTWISE,
    IDENTITIES,
    Rule,
    apply_to_elements,
    combine,
    pass_through,
    split_words,
)
from .facts import Count, Known, Origin, know_constant
from .places import (
    INFINITY,
    Cause,
    Change,
    Digit,
    Part,
    Place,
    Reach,
    Span,
    Turn,
    forget,
    move_parts,
    reach_all,
    rewrite,
)
from .shapes import move_known, shape_of

_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, apply_to_elements),
    **dict.fromkeys(IDENTITIES, pass_through),
    **shapes.RULES,
    **sums.RULES,
    **lookups.RULES,
    **devices.RULES,
}
Run: TypeAlias = Callable[[Sequence[Known]], list[Known]]

# Calls of one program with the operands of the equation. A custom derivative does not change the values.
_CALLS = split_words(
    "checkpoint closed_call core_call custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr jit "
    "pjit remat remat2"
)
# Effects that do not change results: names of mesh axes, and printing. JAX has no public names for them.
_HARMLESS = {"DebugEffect", "NamedAxisEffect", "OrderedDebugEffect"}
# A loop that has not settled after these rounds gets spans without bounds.
_ROUNDS = 3
_MOST_ROUNDS = 30


class NoProofError(Exception):
    """A program about which nothing can be proven.

    Attributes:
        cause: the equation.
    """

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.reason)
        self.cause = cause


class Walk:
    """A walk through one program and the programs inside of it."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def run(
        self,
        program: Program,
        inputs: Sequence[Known],
        constants: Sequence[object] = (),
        prefix: str = "",
    ) -> list[Known]:
        """Return the facts about the results of a program.

        Args:
            program: the program.
            inputs: the facts about its arguments.
            constants: its constants, if it has any.
            prefix: the name of the equation that runs it.
        """
        known: dict[int, Known] = {}
        for variable, value in zip(program.constvars, constants, strict=True):
            if isinstance(value, Tracer):
                # Only another program knows what it depends on.
                raise NoProofError(Cause(None, prefix, "a program that closes over a traced array"))
            known[id(variable)] = self._number(variable, know_constant(value))
        for variable, value in zip(program.invars, inputs, strict=True):
            known[id(variable)] = self._number(variable, value)

        def find(variable: Variable) -> Known:
            return know_constant(variable.val) if is_literal(variable) else known[id(variable)]

        for equation in program.eqns:
            results = self._visit(equation, [find(one) for one in equation.invars], prefix)
            for variable, result in zip(equation.outvars, results, strict=True):
                # An empty array has no elements that could depend on anything.
                is_empty = 0 in shape_of(variable)
                known[id(variable)] = Known() if is_empty else self._number(variable, result)
        return [find(variable) for variable in program.outvars]

    def _number(self, variable: Variable, known: Known) -> Known:
        """Give a number to an array of integers that copies no other one, so that its own copies are recognised."""
        dtype = getattr(variable.aval, "dtype", None)
        if known.origin is not None or dtype is None or not jnp.issubdtype(dtype, jnp.integer):
            return known
        origin = Origin(next(self._numbers), tuple(range(len(shape_of(variable)))))
        return dataclasses.replace(known, origin=origin)

    def _visit(self, equation: Equation, inputs: Sequence[Known], prefix: str) -> Sequence[Known]:
        name = equation.primitive.name
        _check_effects(equation, prefix)
        if name in _CALLS:
            run = self._open(equation, prefix, len(inputs))
            if run is not None:
                return run(inputs)
        special = {
            "scan": self._scan,
            "while": self._repeat,
            "cond": self._branch,
            "shard_map": self._share,
        }.get(name)
        if special is not None:
            return special(equation, inputs, prefix)
        rule = _RULES.get(name)
        cause = Cause(equation, prefix, name)
        if rule is not None:
            return rule(equation, inputs, cause)
        return _give_up(equation, inputs, cause._replace(reason=f"{name}, which has no rule"))

    def _open(self, equation: Equation, prefix: str, count: int) -> Run | None:
        """Return a function that follows the program of an equation, if it has a program with so many arguments."""
        params = equation.params
        keys = [key for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params]
        if len(keys) != 1:
            return None
        inner = params[keys[0]]
        program = getattr(inner, "jaxpr", inner)
        # Whatever names another version of JAX uses, a call has one result for each result of its program.
        if (len(program.invars), len(program.outvars)) != (count, len(equation.outvars)):
            return None
        return self._enter(inner, write_source(equation, prefix))

    def _enter(self, inner: Program, prefix: str) -> Run:
        program = getattr(inner, "jaxpr", inner)
        constants = getattr(inner, "consts", ())

        def run(inputs: Sequence[Known]) -> list[Known]:
            return self.run(program, inputs, constants, prefix)

        return run

    def _branch(self, equation: Equation, inputs: Sequence[Known], prefix: str) -> Sequence[Known]:
        choice, *operands = inputs
        source = write_source(equation, prefix)
        results = [self._enter(branch, source)(operands) for branch in equation.params["branches"]]
        return [_join_known([*alike], [choice]) for alike in zip(*results, strict=True)]

    def _repeat(self, equation: Equation, inputs: Sequence[Known], prefix: str) -> Sequence[Known]:
        params = equation.params
        source = write_source(equation, prefix)
        first, carried = params["cond_nconsts"], len(inputs) - len(equation.outvars)
        asked, given = inputs[:first], inputs[first:carried]
        ask, step = (self._enter(params[key], source) for key in ("cond_jaxpr", "body_jaxpr"))
        cause = Cause(equation, prefix, "while")

        def turn(carried: Sequence[Known]) -> list[Known]:
            (again,) = ask([*asked, *carried])
            # All values that the body changes depend on how often it runs.
            return [_join_known([one], [again]) for one in step([*given, *carried])]

        return _settle(inputs[carried:], turn, cause)

    def _scan(self, equation: Equation, inputs: Sequence[Known], prefix: str) -> Sequence[Known]:
        params = equation.params
        body = getattr(params["jaxpr"], "jaxpr", params["jaxpr"])
        whole = count_unstacked(equation.invars, body.invars)
        carried = count_unstacked(equation.outvars, body.outvars)
        length, step = params["length"], -1 if params["reverse"] else 1
        token = Turn(f"loop {next(self._numbers)}", length)
        cause = Cause(equation, prefix, "scan")
        run = self._enter(params["jaxpr"], write_source(equation, prefix))
        slices = [
            _take_slice(known, token, len(shape_of(variable)), length)
            for known, variable in zip(inputs[whole:], equation.invars[whole:], strict=True)
        ]
        fixed, start = inputs[: whole - carried], inputs[whole - carried : whole]
        if not length:
            return [*start, *(Known() for _ in equation.outvars[carried:])]
        counters = _find_counters(body, start, whole - carried, token, step)

        def compute(values: Sequence[Known]) -> list[Known]:
            # The values that an iteration gets from the one before differ between iterations.
            own = [dataclasses.replace(one, varies=one.varies | {Part(token)}) for one in values]
            for i, count in counters.items():
                own[i] = Known(varies=frozenset((Part(token),)), count=count)
            return run([*fixed, *own, *slices])

        def turn(values: Sequence[Known]) -> list[Known]:
            results = compute(values)[:carried]
            return [_pass_on(one, token, length, step, cause) for one in results]

        results = compute(_settle(start, turn, cause))
        last = length - 1 if step == 1 else 0
        ends = [_end_loop(one, token, last, cause) for one in results[:carried]]
        stacked = [
            _stack(one, token, len(shape_of(variable)), cause)
            for one, variable in zip(results[carried:], body.outvars[carried:], strict=True)
        ]
        return [*ends, *stacked]

    def _share(self, equation: Equation, inputs: Sequence[Known], prefix: str) -> Sequence[Known]:
        params = equation.params
        sizes = dict(params["mesh"].shape)
        cause = Cause(equation, prefix, "shard_map")
        # Inside, an argument is the block of one device, whose number is a place like a dimension.
        given = [
            devices.divide(
                known, _find_entries(spec, shape_of(variable)), shape_of(variable), sizes
            )
            for known, spec, variable in zip(
                inputs, params["in_specs"], equation.invars, strict=True
            )
        ]
        program = getattr(params["jaxpr"], "jaxpr", params["jaxpr"])
        results = self._enter(params["jaxpr"], write_source(equation, prefix))(given)
        found: list[Known] = []
        for known, spec, variable in zip(
            results, params["out_specs"], program.outvars, strict=True
        ):
            shape = shape_of(variable)
            whole = devices.collect(known, _find_entries(spec, shape), shape, sizes)
            found.append(devices.leave(whole, params["newly_manual_axes"], cause))
        return found


def _check_effects(equation: Equation, prefix: str) -> None:
    """Refuse an equation that may read or write something other than its operands."""
    for variable in (*equation.invars, *equation.outvars):
        if "Ref" in type(variable.aval).__name__:
            reason = f"{equation.primitive.name}, which reads or writes a reference"
            raise NoProofError(Cause(equation, prefix, reason))
    names = {type(effect).__name__ for effect in equation.effects}
    if names - _HARMLESS and equation.outvars:
        reason = f"{equation.primitive.name}, whose results no program decides"
        raise NoProofError(Cause(equation, prefix, reason))


def _give_up(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    """Let results depend on every position, if an operand depends on any."""
    reach = reach_all(cause) if any(one.reach for one in inputs) else {}
    tokens = sums.keep_tokens(combine(inputs, may_hide=False).varies)
    return [
        Known(reach, tokens | frozenset(map(Part, range(len(shape_of(variable))))), may_hide=True)
        for variable in equation.outvars
    ]


def _find_entries(spec: Any, shape: Sequence[int]) -> list[tuple[str, ...]]:
    return [tuple(entry) for entry in Layout.from_spec(spec, len(shape))]


def _join_known(several: Sequence[Known], choosing: Sequence[Known] = ()) -> Known:
    """Return the facts about an array that is selected from several arrays by other values."""
    first = several[0]
    found = combine([*several, *choosing], may_hide=any(one.may_hide for one in several))
    if all(_list_facts(one) == _list_facts(first) for one in several):
        found = dataclasses.replace(found, count=first.count, truth=first.truth, guard=first.guard)
    return found


def _list_facts(known: Known) -> tuple[object, ...]:
    return known.count, known.truth, known.guard


def _settle(start: Sequence[Known], turn: Run, cause: Cause) -> list[Known]:
    """Return the facts about a loop's carried values that hold before each iteration."""
    known = list(start)
    for number in range(_MOST_ROUNDS):
        after = [_join_known(pair) for pair in zip(known, turn(known), strict=True)]
        if [_sign(one) for one in after] == [_sign(one) for one in known]:
            return after
        if number >= _ROUNDS:
            after = [_open_ends(*pair) for pair in zip(known, after, strict=True)]
        known = after
    reach = reach_all(cause._replace(reason=f"{cause.reason}, which does not settle"))
    return [Known(reach, one.varies, may_hide=True) if one.reach else one.bare() for one in known]


def _sign(known: Known) -> tuple[object, ...]:
    """Return the facts that must not change between iterations once a loop has settled."""
    reach = {digits: span.bounds for digits, span in known.reach.items()}
    return reach, known.varies, *_list_facts(known), known.may_hide


def _open_ends(before: Known, after: Known) -> Known:
    """Set the ends of spans that still move to infinity."""
    reach: dict[tuple[Digit, ...], Span] = {}
    for digits, span in after.reach.items():
        old = before.reach.get(digits, span)
        low = -INFINITY if span.low < old.low else span.low
        high = INFINITY if span.high > old.high else span.high
        reach[digits] = span._replace(low=low, high=high)
    return dataclasses.replace(after, reach=reach)


def _take_slice(known: Known, token: str, rank: int, length: int) -> Known:
    """Return the facts about an iteration's slice of an array whose first dimension is the iteration."""
    to: dict[Place, Place | None] = {i: i - 1 for i in range(1, rank)}
    to[0] = token if length > 1 else None
    return move_known(known, to, None)


def _stack(known: Known, token: str, rank: int, cause: Cause) -> Known:
    to: dict[Place, Place | None] = {i: i + 1 for i in range(rank)}
    to[token] = 0
    # Each iteration makes an array of its own, so the iteration is no coordinate of an origin.
    return dataclasses.replace(move_known(known, to, cause), origin=None)


def _find_counters(
    body: Program, start: Sequence[Known], first: int, token: Turn, step: int
) -> Mapping[int, Count]:
    """Return the carried values that count iterations: each starts at a known integer, and an iteration adds one.

    Args:
        body: the program of an iteration.
        start: the facts about the values before the first iteration.
        first: the number of arguments before them.
        token: the place of the loop.
        step: 1, or -1 if the loop runs from its last iteration to the first.
    """
    made = {id(equation.outvars[0]): equation for equation in body.eqns if equation.outvars}
    found: dict[int, Count] = {}
    for i, known in enumerate(start):
        own, result = body.invars[first + i], body.outvars[i]
        equation = None if is_literal(result) else made.get(id(result))
        if known.constant is None or equation is None or equation.primitive.name != "add":
            continue
        others = [one for one in equation.invars if one is not own]
        if (
            len(others) == 1
            and is_literal(others[0])
            and np.ndim(others[0].val) == 0
            and others[0].val == 1
        ):
            before = 0 if step == 1 else token.size - 1
            count = Count(known.constant + before, {token: step} if token.size > 1 else {})
            # A counter that does not fit would wrap around; the last iteration adds one, too.
            if jnp.issubdtype(own.aval.dtype, jnp.integer) and count.fits(
                own.aval.dtype, own.aval.shape
            ):
                found[i] = count
    return found


def _pass_on(known: Known, token: str, length: int, step: int, cause: Cause) -> Known:
    """Return the facts about a result as the next iteration of a loop reads it."""

    def change(digit: Digit) -> Change:
        if digit.place != token:
            return (digit,), 0, 0
        if not digit.is_plain(length):
            return forget(digit)
        # It was written one iteration before it is read.
        back = -digit.weight * step
        return (digit,), back, back

    return _drop_turn(known, rewrite(known.reach, change, cause), token)


def _end_loop(known: Known, token: str, last: int, cause: Cause) -> Known:
    """Return the facts about a result of the last iteration."""

    def change(digit: Digit) -> Change:
        if digit.place != token:
            return (digit,), 0, 0
        own = digit.weight * (last // digit.inner % digit.size)
        return (), own, own

    return _drop_turn(known, rewrite(known.reach, change, cause), token)


def _drop_turn(known: Known, reach: Reach, token: str) -> Known:
    """Drop the facts that hold only within one iteration."""
    facts = known.move_facts({token: None}) | {"origin": None}
    if known.count is not None and token in known.count.steps:
        facts["count"] = None
    return dataclasses.replace(
        known, reach=reach, varies=move_parts(known.varies, {token: None}), **facts
    )
