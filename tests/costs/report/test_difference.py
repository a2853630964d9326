"""What differs between two programs."""

from axonym.costs.report.difference import Change


def test_a_change_says_by_how_much():
    assert str(Change("memory", "peak", 2**20, 2**21)) == "peak: 1.0 MiB -> 2.0 MiB (+100.0%)"
    assert str(Change("totals", "flops", 2000, 1000)) == "flops: 2,000 -> 1,000 (-50.0%)"
    assert str(Change("layouts", "w", "a", "b")) == "w: a -> b"
    assert str(Change("time", "of one run", 1500, 3000)) == "of one run: 1.5 µs -> 3 µs (+100.0%)"
    new = Change("communication", "all-gather over data because of embed, bytes sent", None, 2048)
    assert new.ratio is None
    assert new.cells[1:] == ("none", "2.0 KiB", "")
    assert Change("memory", "data", 5, None).ratio == 0
