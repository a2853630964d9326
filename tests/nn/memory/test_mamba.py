"""Mamba-2, against its recurrence."""

import pytest

from axonym import nn
from tests.nn.remembering import check_gradients, check_values, layer

pytestmark = pytest.mark.sampled


def test_values_and_memories_are_those_of_the_recurrence() -> None:
    check_values(layer(nn.Mamba2))


def test_gradients_are_those_of_the_loop() -> None:
    check_gradients(layer(nn.Mamba2))
