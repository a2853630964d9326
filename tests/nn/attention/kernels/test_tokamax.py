"""What does not need the library; `tests/neighbours/test_tokamax.py` compares what it computes."""

import pytest

import axonym as axn

Q, K, D = axn.make_axes(pos=4, key_pos=4, head_dim=8)


def test_calls_that_tokamax_computes_otherwise_are_refused() -> None:
    q, k = axn.ones((Q, D)), axn.ones((K, D))
    options = {"soft_cap": 3.0, "bias": axn.zeros((Q, K)), "implementation": "tokamax"}
    with pytest.raises(axn.errors.ArgumentError) as error:
        axn.nn.dot_product_attention("pos", "key_pos", "head_dim", q, k, k, **options)
    assert str(error.value) == (
        "dot_product_attention: implementation 'tokamax' does not support this: "
        "it adds the bias before soft_cap, and this function after it\n"
        '  hint: "plain" and "blockwise" do'
    )
