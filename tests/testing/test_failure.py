"""What kind of error a claim raises."""

import pickle

from axonym.errors import AxonymError
from axonym.testing import ClaimError
from axonym.testing.explain import fail


def test_a_claim_is_an_assertion_and_an_error_of_axonym():
    error = fail("causal", "x", axis="pos", causes="causal", effect=0.5)
    assert isinstance(error, AssertionError)
    assert isinstance(error, AxonymError)
    assert (error.function, error.problem) == ("assert_causal", "x")


def test_fields_survive_a_process():
    error = fail("causal", "x", axis="pos", causes="causal", effect=0.5, source={"pos": 1}, factor=2.0)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is ClaimError
    assert str(again) == str(error)
    assert (again.axis, again.source, again.factor, again.layer) == ("pos", {"pos": 1}, 2.0, None)
