"""Published runs: what a cost bounds, expects and holds against what their authors measured."""

import pytest
from published import list_rows

ROWS = {row.name: row for row in list_rows()}


def test_few_rows_are_fitted_and_each_generation_is_tested():
    fitted = {name for name, row in ROWS.items() if row.is_fitted}
    assert fitted == {
        "v6e Llama 3.1 8B, 16",
        "v6e Llama 3.1 70B, 128",
        "v5p 32B, 64",
        "v5p Llama 2 70B, 256",
        "v5e 32B, 1 x 256",
        "h100 Llama 3.1 8B, 8",
    }
    assert {row.target for name, row in ROWS.items() if name not in fitted} == {"v6e", "v5p", "v5e", "h100-96gb"}


@pytest.mark.parametrize(
    "name",
    [
        "v6e Llama 3.1 8B, 256",
        "v6e Llama 3.1 405B, 2 x 256",  # between slices
        "v5p 256B, 512",  # with tensor parallelism
        "v5p Mixtral 8x7B, 128",  # with experts
        "v5e 32B, 8 x 256",
        "h100 Llama 3.1 70B, 32 x 8",
    ],
)
def test_a_run_that_was_not_fitted_fits_and_is_expected_within_a_sixth(name):
    row = ROWS[name]
    cost = row.count()
    assert not cost.problems
    time = cost.time
    assert time.seconds < row.measured
    assert time.expected == pytest.approx(row.measured, rel=1 / 6)


def test_memory_is_that_of_the_state_and_near_the_published_peak():
    """Torch publishes what its allocator reserves, which is more than what is in use."""
    row = ROWS["h100 Llama 3.1 8B, 128"]
    cost = row.count()
    # Embeddings, their inverse, four products of attention, three of the perceptron, and norms.
    layer = 2 * 4096 * 128 * (32 + 8) + 3 * 4096 * 14336 + 2 * 4096
    parameters = 4 * (2 * 128256 * 4096 + 32 * layer + 4096) / 128
    assert cost.memory.parameters == parameters
    assert cost.memory.optimizer == pytest.approx(2 * parameters, abs=8)
    assert not cost.problems
    assert cost.memory.peak == pytest.approx(row.memory * 2**30, rel=0.2)
