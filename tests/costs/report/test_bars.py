"""Pictures of costs."""

from tests.costs.made import made


def test_each_group_has_a_bar_for_each_row():
    picture = made().picture()
    bars = {title: {bar.label: bar.text for bar in group} for title, group in picture.groups.items()}
    assert bars == {
        "sent because of": {"batch": "36.0 KiB", "embed": "18.0 KiB", "unattributed": "6 B"},
        "memory, of 1.0 MiB": {
            "parameters": "48.0 KiB",
            "state of the optimiser": "96.0 KiB",
            "data": "1.0 KiB",
            "temporaries": "19.5 KiB",
            "results in new memory": "848 B",
        },
        "time by layer": {"blocks.up": "220 µs", "outside of layers": "0"},
    }
    assert picture.svg().count("<rect") == 3 + 5 + 2
    assert "<Bars of sent because of, memory" in repr(picture)


def test_the_longest_bar_comes_first_and_a_group_without_bars_is_left_out():
    svg = made(communication=()).picture().svg()
    assert "sent because of" not in svg
    assert svg.index("state of the optimiser") < svg.index("parameters")


def test_a_file_follows_the_colours_of_the_reader(tmp_path):
    made().picture().save(tmp_path / "cost.svg")
    text = (tmp_path / "cost.svg").read_text()
    assert text.startswith("<svg")
    assert "<style>" in text
    assert "<style>" not in made().picture()._repr_html_()
