"""What convolution and pooling read of their settings."""

import numpy as np
import pytest

from axonym.errors import ArgumentError, AxisSizeError
from axonym.nn.windows import check_fit, expand_setting, read_padding


def test_settings_for_all_axes_or_for_each():
    assert expand_setting("f", "stride", 2, 3) == (2, 2, 2)
    assert expand_setting("f", "stride", [1, 2], 2) == (1, 2)
    assert read_padding("f", 1, 2) == ((1, 1), (1, 1))
    assert read_padding("f", (1, 2), 2) == ((1, 1), (2, 2))
    assert read_padding("f", ((1, 2), 3), 2) == ((1, 2), (3, 3))
    assert read_padding("f", "SAME", 2) == "SAME"


def test_settings_of_numpy():
    for settings in (expand_setting("f", "stride", np.int64(2), 2), expand_setting("f", "stride", np.array([1, 2]), 2)):
        assert {type(setting) for setting in settings} == {int}
    for padding in (np.int64(1), np.array([1, 2]), np.array([[1, 2], [3, 4]])):
        sides = read_padding("f", padding, 2)
        assert {type(side) for pair in sides for side in pair} == {int}


def test_settings_that_make_no_sense():
    with pytest.raises(ArgumentError) as error:
        expand_setting("f", "stride", (1, 2), 3)
    assert str(error.value) == (
        "f: stride has 2 entries, but there are 3 axes\n  hint: give one int, or one for each axis"
    )
    for value in (0, 1.5, None):
        for given in ([value], value):
            with pytest.raises(ArgumentError) as error:
                expand_setting("f", "stride", given, 1)
            assert str(error.value) == f"f: stride must be an int of at least 1, not {value}"
    hint = '\n  hint: "SAME", "VALID", an int, one int for each axis, or a pair for each axis'
    with pytest.raises(ArgumentError) as error:
        read_padding("f", "same", 2)
    assert str(error.value) == f"f: unknown padding 'same'{hint}"
    for padding in (-1, (1,), ((1, 2, 3), 0), 3.5, None, (1, 3.5), (None, 1), ((1, 3.5), 0)):
        with pytest.raises(ArgumentError) as error:
            read_padding("f", padding, 2)
        problem = f"f: padding must have one non-negative entry for each of 2 axes, not {padding!r}"
        assert str(error.value) == problem + hint


def test_a_window_must_fit():
    check_fit("f", ["a", "b"], [3, 2], [3, 5], ((0, 0), (1, 2)), "a=3, b=2")
    check_fit("f", ["a"], [1], [3], "SAME", "a=1")
    with pytest.raises(AxisSizeError) as error:
        check_fit("f", ["a"], [3], [4], "VALID", "a=3")
    assert str(error.value) == "f: a window of 4 does not fit into axis 'a' of size 3\n  input has: a=3"
    with pytest.raises(AxisSizeError, match="of size 3 and 1 of padding"):
        check_fit("f", ["a"], [3], [5], ((0, 1),), "a=3")
