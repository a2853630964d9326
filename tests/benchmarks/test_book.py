"""The bound of traced costs is that of the closed formulas of a book."""

import pytest
from book import list_cases, list_exchanges, list_far_tokens, list_others, list_tokens

CASES = list(list_cases())


def test_cases_have_all_strategies_and_both_limits() -> None:
    assert {case.chips for case in CASES} == {64, 256, 1024, 4096, 8192}
    assert len({case.strategy for case in CASES}) == 5
    # By hand: 2 * 3 * 2 * 8192 * 28672 operations for each token and layer, at 459 TFLOP/s.
    computing = 80 * 12 * 8192 * 28672 * 4096 / 459e12
    many = [case.seconds for case in CASES if case.tokens == 4096]
    assert sum(seconds == pytest.approx(computing) for seconds in many) > len(many) / 2
    # A ninth of the tokens takes more than a ninth of the time where sending takes longer.
    few = [case.seconds for case in CASES if case.tokens == 512]
    assert sum(8 * seconds > 1.01 * computing for seconds in few) > len(few) / 2


@pytest.mark.parametrize("case", list(list_others()), ids=lambda case: f"{case.strategy}, {case.chips} {case.target}")
def test_so_is_that_of_other_models_and_machines(case) -> None:
    assert case.count().time.seconds == pytest.approx(case.seconds, rel=0.1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.strategy}, {case.chips}, {case.tokens}")
def test_a_bound_is_within_a_tenth_of_the_formula(case) -> None:
    cost = case.count()
    formula = case.seconds
    if case.strategy == "FSDP" and case.tokens == 512 and not case.is_tiled:
        # Gradients of less than a tile are summed by all-reduce, with the bytes of a scatter and of a gather.
        assert formula < cost.time.seconds < 1.5 * formula
        return
    assert cost.time.seconds == pytest.approx(formula, rel=0.1)


@pytest.mark.parametrize("case", list(list_exchanges()), ids=lambda case: f"{case.x} x {case.y} {case.target}")
def test_exchanges_of_experts_take_what_the_formula_says(case) -> None:
    assert case.count() == pytest.approx(case.seconds, rel=0.1)


@pytest.mark.parametrize("case", list(list_far_tokens()), ids=lambda case: f"{case.batch}, {case.x} {case.target}")
def test_a_token_of_a_large_cache_or_on_gpus_also_takes_the_time_of_scores_and_of_sums(case) -> None:
    time = case.count().time
    assert time.seconds > case.seconds
    assert time.serial == pytest.approx(case.serial, rel=0.05)


@pytest.mark.parametrize("case", list(list_tokens()), ids=lambda case: f"{case.batch}, {case.x} {case.target}")
def test_a_token_takes_the_time_of_reading_weights_and_cache(case) -> None:
    assert case.count().time.seconds == pytest.approx(case.seconds, rel=0.1)
