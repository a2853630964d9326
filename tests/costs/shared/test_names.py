"""What names say about a program."""

import axonym as axn
from axonym.costs.shared.arguments import lay_out_arguments, list_rows, sort_by_kind
from axonym.costs.shared.names import collect_names, narrow
from axonym.layout.records import Ledger
from tests.costs.programs import MAPPINGS, abstract, step


def test_names_of_arguments_and_of_what_is_laid_out_inside(auto_mesh):
    given = lay_out_arguments(step, MAPPINGS, auto_mesh, abstract(), {})
    ledger = Ledger()
    ledger.sizes = {"heads": {4}, "embed.out": {12}}
    ledger.seen[axn.Mappings({"heads": "model"}).compute] = {"heads"}
    named = collect_names(given.mappings, ledger, list_rows(given), (), auto_mesh.abstract_mesh)
    assert named.stored == {"embed": ("data",), "mlp": ("model",)}
    assert named.computed == {"batch": ("data",), "mlp": ("model",), "heads": ("model",)}
    assert named.sizes["embed"] == {16, 12}
    assert named.sizes["heads"] == {4}
    assert named.count_shards(("data", "model")) == 8


def test_names_that_a_pipeline_makes_are_no_reason(auto_mesh):
    given = lay_out_arguments(step, MAPPINGS, auto_mesh, abstract(), {})
    ledger = Ledger()
    inside = {"layers": "model", "layers.stage": "model", "layers.ways": "data"}
    ledger.seen[axn.Mappings(inside).compute] = set(inside)
    named = collect_names(given.mappings, ledger, list_rows(given), (), auto_mesh.abstract_mesh)
    assert named.computed == {"batch": ("data",), "mlp": ("model",), "layers": ("model",)}


def test_axes_that_parameters_have(auto_mesh):
    given = lay_out_arguments(step, MAPPINGS, auto_mesh, abstract(), {})
    rows = list_rows(given)
    parameters = sort_by_kind(given, rows)["parameters"]
    named = collect_names(given.mappings, Ledger(), rows, parameters, auto_mesh.abstract_mesh)
    assert named.of_parameters == {"layers", "embed", "mlp"}


def test_a_preference_that_leaves_nothing_does_not_count():
    preferences = (lambda name: name == "none", lambda name: name > "a", lambda name: name > "z")
    assert narrow("abcb", preferences) == ["b", "c"]
    assert narrow("b", (lambda name: name == "none",)) == ["b"]
