"""Configurations of decoders: sizes that do not fit are refused."""

import pytest

from axonym.models import DecoderConfig, DeltaConfig, LatentConfig
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
        ({"pattern": ("delta", "global")}, "delta layers need a DeltaConfig, but pattern=('delta', 'global')"),
        (
            {"heads": 4, "kv_heads": 2, "latent": LatentConfig(8, 4, 4)},
            "each head of latent attention has keys of its own, but kv_heads=2 and heads=4",
        ),
    ],
)
def test_sizes_that_do_not_fit(sizes, text):
    fails(ValueError, text, lambda: DecoderConfig(**sizes))


def test_heads_of_keys_divide_those_of_values():
    text = "key_heads must divide heads: heads=6 is not a multiple of key_heads=4"
    fails(ValueError, text, lambda: DeltaConfig(6, 4, 8, 8))
