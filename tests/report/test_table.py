"""Tables that fit a terminal."""

import pytest

from axonym.report.table import Printed, Table, byte_text, group_rows, list_items, numbers


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, ""),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (5 * 2**20, "5.0 MiB"),
        (2**30 * 3 // 2, "1.5 GiB"),
        (2**40, "1.0 TiB"),
        (2**52, "4096.0 TiB"),
    ],
)
def test_bytes_have_a_unit(count, text):
    assert byte_text(count) == text


@pytest.mark.parametrize(
    ("values", "text"), [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([1, 11, 12], "1, 11-12"), ([0, 2, 4], "0, 2, 4")]
)
def test_runs_of_numbers_are_ranges(values, text):
    assert numbers(values) == text


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (100, "batch=8, embed=16, mlp=32"),
        (25, "batch=8, embed=16, mlp=32"),
        (24, "batch=8, +2 more"),
        (16, "batch=8, +2 more"),
        (9, "batc…more"),
    ],
)
def test_a_long_list_is_shortened_with_a_count(width, text):
    assert list_items(("batch=8", "embed=16", "mlp=32"), width) == text


def test_paths_that_differ_in_numbers_alone_share_a_row():
    rows = [
        ("blocks.0.mlp.0", "a"),
        ("blocks.0.mlp.1", "b"),
        ("blocks.1.mlp.0", "a"),
        ("head", "a"),
        ("blocks.12.mlp.1", "b"),
    ]
    assert group_rows(rows) == (("blocks.*.mlp.0 (2x)", "a"), ("blocks.*.mlp.1 (2x)", "b"), ("head", "a"))


def test_rows_beyond_a_number_are_counted():
    text = str(Table(("array", "bytes"), tuple((f"a{i}x", str(i)) for i in range(65)), ("all", "9")))
    assert text.splitlines()[0] == "array          bytes"
    assert text.splitlines()[60:] == ["a59x              59", "… 5 more rows", "all                9"]


def test_a_table_fits_120_characters():
    axes = tuple(f"name_of_axis_{i}={10**i}" for i in range(9))
    path = ".".join(["encoder", "decoder"] * 8 + ["weight"])
    text = str(
        Table(("array", "axes", "layout", "bytes"), ((path, axes, axes, "1 B"), ("b", ("c=1",), ("d",), "12 B")))
    )
    assert [len(line) for line in text.splitlines()] == [120, 120, 120]
    assert text.splitlines()[1] == (
        "encoder.decoder.e…der.decoder.weight  "
        "name_of_axis_0=1, +8 more             name_of_axis_0=1, +8 more                1 B"
    )


class Page(Printed):
    def parts(self):
        yield "a < b"
        yield Table(("array", "bytes"), (("<x>", "1 B"),))


def test_what_is_printed_is_its_repr_too():
    assert repr(Page()) == str(Page()) == "a < b\n\narray  bytes\n<x>      1 B"


def test_notebooks_get_escaped_html():
    assert Page()._repr_html_() == (
        "<pre>a &lt; b</pre>"
        '<table><thead><tr><th style="text-align:left">array</th><th style="text-align:right">bytes</th></tr></thead>'
        '<tbody><tr><td style="text-align:left">&lt;x&gt;</td><td style="text-align:right">1 B</td></tr></tbody>'
        "</table>"
    )
