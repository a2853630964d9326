from axonym.layout import records
from axonym.layout.context import resolve_mapping


def test_ledgers_of_nested_functions_note_what_is_laid_out_inside() -> None:
    mapping = resolve_mapping({"batch": "data"})
    assert mapping is not None
    outer = records.Ledger(None, {"batch", "embed"}, [mapping])
    outer.sizes = {}
    inner = records.Ledger(outer, {"batch"})
    with records.LEDGER.using(inner):
        records.note(mapping, ("batch", "embed"), (8, 4))
        records.note_waiting(0.25)
        records.note_waiting(0.125)
    assert outer.seen == inner.seen == {mapping: {"batch", "embed"}}
    assert outer.sizes == {"batch": {8}, "embed": {4}}
    assert outer.waiting == 0.25


def test_ledgers_share_traces_unless_a_key_of_a_mapping_is_unknown() -> None:
    mapping = resolve_mapping({"batch": "data"})
    assert mapping is not None
    known = records.Ledger(None, {"batch"}, [mapping])
    assert known == records.Ledger()
    assert hash(known) == hash(records.Ledger())
    alone = records.Ledger(None, {"embed"}, [mapping])
    assert alone.is_alone
    assert alone != records.Ledger(None, {"embed"}, [mapping])
    assert known.entering(mapping) is known
    assert records.Ledger().entering(mapping).is_alone


def test_nested_functions_note_mixtures_and_tables() -> None:
    mixture = records.Mixture((("batch", 8),), ("experts", 4), ("mlp", 16))
    table = records.Table(("vocab", "embed"), (32, 4), "vocab", ("batch",), (8,))
    outer = records.Ledger()
    with records.LEDGER.using(records.Ledger(outer)):
        records.note_mixture(mixture)
        records.note_table(table)
    assert (list(outer.mixtures), list(outer.tables)) == ([mixture], [table])


def test_a_hidden_axis_leaves_mesh_axes_to_experts() -> None:
    mixture = records.Mixture((("batch", 8),), ("experts", 4), ("mlp", 16))
    given = {"batch": ("data",), "experts": ("model",), "mlp": ("model", "third", "single")}

    def assign(axes: dict[str, int]) -> dict[str, tuple[str, ...]]:
        return {name: given[name] for name in axes}

    found = mixture.find_entries(assign, {"data", "model", "third"})
    assert found == {"batch": ("data",), "experts": ("model",), "mlp": ("third",)}
