"""Configurations of decoders: sizes that do not fit are refused."""

import pytest

from axonym.models import DecoderConfig
from tests.nn.layouts import fails


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        (
            {"heads": 6, "kv_heads": 4},
            "kv_heads must divide heads: heads=6 is not a multiple of kv_heads=4",
        ),
        (
            {"pattern": ("local", "global")},
            "local layers need a window, but pattern=('local', 'global') and window=None",
        ),
    ],
)
def test_sizes_that_do_not_fit(sizes, text):
    fails(ValueError, text, lambda: DecoderConfig(**sizes))
