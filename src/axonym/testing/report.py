"""Several claims about one function, and a report that prints."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from ..array import NamedArray
from ..axis import AxisSelector, axis_name
from ..base.kinds import Tree
from ..layout.assignment import Mappings, ResourceMapping
from ..report.table import Printed, Table
from .axes import assert_causal, assert_independent
from .failure import ClaimError
from .layouts import assert_same_layouts
from .padding import assert_ignores
from .program import Program
from .proof.claims import Verdict
from .proving import KINDS, Proofs
from .symmetry import assert_equivariant, assert_invariant

__all__ = ["Claim", "Claims", "check"]

Several = AxisSelector | Sequence[AxisSelector]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim with its result.

    Attributes:
        text: what is claimed, such as "causal: pos".
        error: why it does not hold, or None.
        reason: why it need not hold, or None.
        verdict: what the program proves, for claims that can be proven.

    Examples:
        >>> found = axn.testing.check(lambda x: x * 2, axn.ones({"batch": 2}), independent="batch")
        >>> found.claims[0].text, found.claims[0].result
        ('independent: batch', 'proven')
    """

    text: str
    error: ClaimError | None
    reason: str | None
    verdict: Verdict | None = None

    @property
    def result(self) -> str:
        """The result in a word: "proven", "holds" if it was tested, "declared" or "broken"."""
        if self.error is None:
            return "proven" if self.verdict else "holds"
        return "broken" if self.reason is None else "declared"


@dataclasses.dataclass(frozen=True, repr=False)
class Claims(Printed):
    """The claims about a function, which print as a table with a list of problems; true if there are problems.

    Attributes:
        claims: in the order in which they were checked.

    Examples:
        >>> x = axn.random.normal(jax.random.key(0), axn.make_axes(batch=2, pos=3))
        >>> axn.testing.check(lambda x: axn.cumsum(x, "pos"), x, independent="batch", causal="pos")
        claim               result
        independent: batch  proven
        causal: pos         proven
    """

    claims: tuple[Claim, ...]

    @property
    def problems(self) -> tuple[ClaimError, ...]:
        """The errors of claims that do not hold and were not declared as broken."""
        return tuple(
            claim.error for claim in self.claims if claim.error is not None and claim.reason is None
        )

    def __bool__(self) -> bool:
        return bool(self.problems)

    def parts(self) -> Iterator[str | Table]:
        """Yield the paragraphs and tables."""
        rows = tuple((claim.text, claim.result, _explain(claim)) for claim in self.claims)
        has_reasons = any(row[2] for row in rows)
        header = ("claim", "result", "reason")
        width = 3 if has_reasons else 2
        yield Table(header[:width], tuple(row[:width] for row in rows))
        yield from map(str, self.problems)


def _explain(claim: Claim) -> str:
    if claim.result == "declared":
        return claim.reason or ""
    # Why it was tested but not proven.
    return str(claim.verdict) if claim.result == "holds" and claim.verdict is not None else ""


def check(
    f: Callable[..., Any],
    *args: Tree,
    independent: Several = (),
    causal: Several = (),
    equivariant: Several = (),
    invariant: Several = (),
    ignores: Mapping[str, NamedArray] | None = None,
    layouts: Sequence[ResourceMapping | Mappings] = (),
    mesh: Mesh | None = None,
    declared: Mapping[str, str] | None = None,
) -> Claims:
    """Check several claims about a function, and report on all of them.

    Args:
        f: any function of named arrays, a module or its method.
        args: its arguments.
        independent: axes for `assert_independent`, one or several.
        causal: axes for `assert_causal`.
        equivariant: axes for `assert_equivariant`.
        invariant: axes for `assert_invariant`.
        ignores: masks by axis, for `assert_ignores`.
        layouts: mappings for `assert_same_layouts`.
        mesh: the devices for `layouts`.
        declared: reasons by claim, such as {"independent: batch": "experts share a capacity"}: a claim that need not
            hold is no problem, and prints with its reason.

    Returns:
        An object that prints as a report, has `problems`, and is true if there are any.

    Examples:
        >>> x = axn.random.normal(jax.random.key(0), axn.make_axes(batch=2, pos=3))
        >>> found = axn.testing.check(lambda x: x - x.mean("pos"), x, independent="batch", causal="pos")
        >>> [claim.result for claim in found.claims], len(found.problems)
        (['proven', 'broken'], 1)
    """
    reasons, proofs = declared or {}, Proofs(Program("check", f, args))
    found: list[Claim] = []

    def try_claim(text: str, claim: Callable[..., None], *given: Any, **options: Any) -> None:
        error: ClaimError | None = None
        try:
            claim(*given, **options)
        except ClaimError as caught:
            error = caught
        kind, _, axis = text.partition(": ")
        verdict = None
        if error is None and kind in KINDS:
            verdict = proofs.find_verdict(kind, axis)
        found.append(Claim(text, error, reasons.get(text), verdict))

    by_axis: tuple[tuple[str, Callable[..., None], Several], ...] = (
        ("independent", assert_independent, independent),
        ("causal", assert_causal, causal),
        ("equivariant", assert_equivariant, equivariant),
        ("invariant", assert_invariant, invariant),
    )
    for name, claim, axes in by_axis:
        for axis in [axes] if isinstance(axes, AxisSelector) else axes:
            try_claim(f"{name}: {axis_name(axis)}", claim, f, axis, *args)
    for axis, where in (ignores or {}).items():
        try_claim(f"ignores: {axis}", assert_ignores, f, axis, *args, where=where)
    if layouts:
        try_claim("same layouts", assert_same_layouts, f, layouts, mesh, *args)
    return Claims(tuple(found))
