"""The text of axes in a file."""

import json

from hypothesis import given, strategies as st

from axonym.state_dict.axes import StoredAxis
from axonym.state_dict.record import axes_text, decode, encode

axis = st.builds(
    lambda name, size, flipped: StoredAxis(name, size, flipped and size > 1),
    st.text(min_size=1, max_size=3),
    st.integers(0, 5),
    st.booleans(),
)
dims = st.none() | st.lists(axis, max_size=3, unique_by=lambda one: one.name).map(tuple)


@given(st.dictionaries(st.text(max_size=3), st.lists(dims, max_size=3).map(tuple), max_size=3))
def test_what_is_written_is_read(axes):
    assert decode(encode(axes), json.loads) == axes


def test_texts():
    heads, head_dim, embed = StoredAxis("heads", 2), StoredAxis("head_dim", 3), StoredAxis("embed", 4, True)
    assert axes_text(((heads, head_dim), (embed,), None, ()), (6, 4, 5, 1)) == "heads=2 * head_dim=3, embed=4, 5, 1"
    assert axes_text((), ()) == "no axes"
    text = encode({"w": ((heads, head_dim), (embed,), None, ())})
    assert text == '{"w":[{"heads":2,"head_dim":3},{"embed":-4},null,{}]}'
