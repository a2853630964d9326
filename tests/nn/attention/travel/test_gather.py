"""Attention after an all-gather: values and gradients."""

from tests.nn.split import check_mask


def test_value_and_gradients(auto_mesh):
    check_mask("causal", "all-gather", auto_mesh)
