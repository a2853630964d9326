"""Several claims at once."""

import axonym as axn
from axonym.testing import check
from tests.nn.layouts import draw

B, P, E = axn.make_axes(batch=4, pos=5, embed=3)
REAL = axn.arange(P).broadcast_axis(B) < 3


def test_a_report_has_all_claims_and_prints_the_problems(auto_mesh):
    found = check(
        lambda x: x - x.mean("pos"),
        draw(B, P, E),
        independent=(B, "embed"),
        causal="pos",
        equivariant=P,
        invariant=(),
        ignores={"pos": REAL},
        layouts=[{"batch": "data"}],
        mesh=auto_mesh,
        declared={"causal: pos": "it is an encoder", "independent: embed": "not needed"},
    )
    assert [(claim.text, claim.result) for claim in found.claims] == [
        ("independent: batch", "proven"),
        ("independent: embed", "proven"),
        ("causal: pos", "declared"),
        ("equivariant: pos", "holds"),
        ("ignores: pos", "broken"),
        ("same layouts", "holds"),
    ]
    assert found
    assert [error.claim for error in found.problems] == ["ignores"]
    # What was tried and not proven says why.
    (permuted,) = [claim for claim in found.claims if claim.text == "equivariant: pos"]
    assert str(permuted.verdict).startswith("not proven: ")
    table, problem = str(found).split("\n\n")
    assert table.splitlines()[3] == "causal: pos         declared  it is an encoder"
    assert problem == str(found.problems[0])


def test_nothing_claimed_is_nothing_found():
    assert not check(lambda x: x, draw(B))
