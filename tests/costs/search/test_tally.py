"""How far a plan is, in numbers and as the bar of a terminal."""

import io
import math

from axonym.costs.search.progress import Progress
from axonym.costs.search.tally import Bar, Tally


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_compiled_mapping_counts_as_several():
    told = []
    tally = Tally(told.append, 20)
    tally.add("counting", 1, 0.5)
    tally.add("compiling", 10, math.inf)
    tally.close()
    assert told == [Progress("counting", 1, 20, 0.5), Progress("compiling", 11, 20, 0.5), Progress("done", 11, 20, 0.5)]


def test_a_terminal_has_a_bar_in_one_line_and_nothing_stays():
    terminal = Terminal()
    bar = Bar(terminal)
    bar(Progress("counting", 5, 20, math.inf))
    bar(Progress("compiling", 15, 20, 0.25))
    bar(Progress("done", 15, 20, 0.25))
    first, second, last = terminal.getvalue().split("\x1b[K\r")[:-1]
    assert first == f"\rplan [{'#' * 6}{'.' * 18}] 5 of at most 20, counting"
    assert second == f"\rplan [{'#' * 18}{'.' * 6}] 15 of at most 20, compiling, best 250 ms"
    assert last == "\r"
    assert "\n" not in terminal.getvalue()


def test_what_is_no_terminal_shows_nothing():
    stream = io.StringIO()
    Bar(stream)(Progress("counting", 5, 20, math.inf))
    Bar(None)(Progress("counting", 5, 20, math.inf))
    assert stream.getvalue() == ""
