"""A law over all public functions that take a tree: holes change nothing, and stay where they are.

A hole is a place without an array, as `eqx.partition`, `eqx.filter_grad` and `optax.masked` leave it: None, or a named
array that holds None. Beside them, models have functions and strings as leaves.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as axn
from axonym import debug, mup, nn, parameters, partitioning, quant, state_dict
from tests.nn.layouts import draw, made

pytestmark = pytest.mark.sampled

Batch, Embed, Mlp, Layers = axn.make_axes(batch=8, embed=8, mlp=4, layers=2)
KEY = jax.random.key(0)
MAPPING = {"embed": "model", "batch": "data"}
MESH = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
MUP = mup.Mup({"embed": 4})

FLOATS = {
    "layer": made(nn.Linear.init, Embed, Mlp),
    "lora": made(lambda *, key: nn.LoraLinear.init(nn.Linear.init(Embed, Mlp, key=key), 2, key=key)),
    "plain": jnp.arange(3.0),
    "rows": draw(Batch, Embed),
    "stack": made(lambda *, key: nn.Stacked.init(Layers, nn.LayerNorm)(Embed)),
}
INTEGERS = {"ids": axn.arange(Batch), "steps": jnp.arange(2)}
ARRAY_HOLES = {
    "hole-gone": eqx.filter(FLOATS["layer"], lambda _: False),
    "hole-gradient": eqx.filter_grad(lambda ids: jnp.zeros(()))(axn.arange(Batch)),
    "hole-lora": eqx.filter(FLOATS["lora"], lambda _: False),
    "hole-masked": jax.tree.map(lambda _: optax.MaskedNode(), FLOATS["layer"]),
    "hole-nothing": None,
    "hole-rows": eqx.filter(FLOATS["rows"], lambda _: False),
    "hole-stack": eqx.filter(FLOATS["stack"], lambda _: False),
}
OTHER_LEAVES = {"hole-function": jnp.tanh, "hole-text": "a text"}

Call = Callable[[dict[str, Any]], Any]


def on_mesh(call: Call) -> Call:
    """Run a call under a mesh and a mapping."""

    def run(tree: dict[str, Any]) -> Any:
        with axn.set_mesh(MESH), axn.axis_mapping(MAPPING):
            return call(tree)

    return run


def same(tree: dict[str, Any]) -> dict[str, Any]:
    return tree


def doubled(leaf: Any) -> Any:
    return leaf * 2 if isinstance(leaf, axn.NamedArray | jax.Array) else leaf


def loss(tree: dict[str, Any]) -> jax.Array:
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)), jnp.zeros(()))


def total(tree: dict[str, Any]) -> axn.NamedArray:
    return tree["rows"].sum()


def added(x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    return jax.tree.map(jnp.add, x, y)


def rebuilt(leaves: list[Any], structure: Any) -> dict[str, Any]:
    assert not [leaf for leaf in leaves if axn.is_named_array(leaf) and leaf.array is None]
    return axn.tree.unflatten(structure, leaves)


def mapped(tree: dict[str, Any]) -> dict[str, Any]:
    return axn.map(lambda tree: tree, "batch", is_mapped=axn.is_named_array)(tree)


def stepped(tree: dict[str, Any]) -> dict[str, Any]:
    steps = axn.arange(axn.Axis("step", 2))
    final, outputs = axn.scan(lambda carry, step: (carry, carry), "step")(tree, steps)
    return {name: (final[name], outputs[name]) for name in tree}


def of_layers(method: Callable[[Any], Any]) -> Call:
    """Apply a method to the stacks of a tree."""
    return lambda tree: {name: method(leaf) if isinstance(leaf, nn.Stacked) else leaf for name, leaf in tree.items()}


def labels(tree: dict[str, Any]) -> Any:
    return parameters.labels(tree, lambda path, x: path)


def chosen(make: Call) -> Call:
    """Count what a mask chooses."""
    return lambda tree: parameters.count(eqx.filter(tree, make(tree)))


def updated(tree: dict[str, Any]) -> Any:
    overwrites, rest = quant.partition_for_grad_overwrite(eqx.filter(tree, eqx.is_array))
    return quant.apply_updates(tree, rest, overwrites)


def read_back(tree: dict[str, Any], write: Any, read: Any) -> Any:
    return read(tree, dict(write(tree)))


ALL: dict[str, Call] = {
    "NamedJit.__call__": on_mesh(axn.named_jit(same)),
    "NamedJit.lower": on_mesh(lambda tree: axn.named_jit(same).lower(tree).compile().out_tree.num_leaves),
    "NamedJit.trace": on_mesh(lambda tree: len(axn.named_jit(same).trace(tree).jaxpr.out_avals)),
    "ScanCheckpointPolicy.mark": lambda tree: axn.ScanCheckpointPolicy(save_inputs=True).mark(tree, None)[0],
    "ShardMap.__call__": axn.shard_map(same, MAPPING, MESH),
    "auto_sharded": on_mesh(axn.auto_sharded),
    "check": lambda tree: str(axn.check(tree, MAPPING, MESH, quiet=True)),
    "cost": lambda tree: str(axn.cost(same, MAPPING, MESH, tree, depth="traced")),
    "debug.compare": lambda tree: str(debug.compare(total, total, tree)),
    "debug.diagnose": lambda tree: str(debug.diagnose(tree)),
    "debug.locate": lambda tree: str(debug.locate(lambda tree: tree["rows"].sum(), tree)),
    "debug.statistics": lambda tree: str(debug.statistics(tree)),
    "debug.unreached": lambda tree: debug.unreached(tree, lambda tree: tree["rows"].sum()),
    "debug.watch": lambda tree: debug.watch(same)(tree)[0],
    "fold": lambda tree: axn.fold(lambda tree, step: tree, "step")(tree, axn.arange(axn.Axis("step", 2))),
    "from_local": lambda tree: axn.from_local(tree, {}, MESH, strict=False),
    "fsdp": on_mesh(lambda tree: axn.fsdp(same, {"embed": "data"}, {"batch": "data"})(tree)),
    "map": mapped,
    "mup.Mup.initial": MUP.initial,
    "mup.Mup.learning_rates": MUP.learning_rates,
    "mup.Mup.report": lambda tree: str(MUP.report(tree)),
    "mup.Mup.scaled_updates": MUP.scaled_updates,
    "named_jit": on_mesh(axn.named_jit(same, MAPPING)),
    "nn.BlockFoldable.with_layers": of_layers(lambda stack: stack.with_layers(stack.unstacked())),
    "nn.add_lora": lambda tree: nn.add_lora(tree, 2, key=KEY),
    "nn.lora_filter": chosen(nn.lora_filter),
    "nn.merge_lora": nn.merge_lora,
    "nn.zigzag": lambda tree: nn.zigzag(tree, "batch", 2),
    "pad_batch": lambda tree: axn.pad_batch(tree, axn.Axis("batch", 12))[0],
    "parameters.count": parameters.count,
    "parameters.decay_mask": chosen(parameters.decay_mask),
    "parameters.kinds": parameters.kinds,
    "parameters.labels": labels,
    "parameters.roles": lambda tree: str(parameters.roles(tree)),
    "parameters.nbytes": parameters.nbytes,
    "parameters.select": chosen(lambda tree: parameters.select(tree, "rows")),
    "parameters.table": lambda tree: str(parameters.table(tree, mapping=MAPPING, mesh=MESH)),
    "parameters.walk": lambda tree: [own.path for own in parameters.walk(tree)],
    "partitioning.fit_mapping": lambda tree: str(partitioning.fit_mapping(tree, MAPPING, MESH).mapping),
    "partitioning.fsdp_mapping": lambda tree: partitioning.fsdp_mapping(tree, "data", MESH, min_size=1),
    "partitioning.pad_axes": lambda tree: partitioning.unpad_axes(partitioning.pad_axes(tree, {"mlp": 8})),
    "partitioning.show": lambda tree: str(partitioning.show(tree, MAPPING, MESH)),
    "plan": lambda tree: axn.plan(same, {"data": 2}, tree, verify=0).best.mappings,
    "pspec_for": lambda tree: axn.pspec_for(tree, MAPPING, MESH),
    "quant.apply_updates": updated,
    "quant.partition_for_grad_overwrite": lambda tree: eqx.combine(*quant.partition_for_grad_overwrite(tree)),
    "quant.quantize_linear_layers": lambda tree: quant.quantize_linear_layers(
        tree, quant.QuantizationConfig(quant.Int8DotGeneral)
    ),
    "scan": stepped,
    "shard": lambda tree: axn.shard(tree, MAPPING, MESH),
    "shard_map": axn.shard_map(same, MAPPING, MESH),
    "state_dict.from_state_dict": lambda tree: read_back(tree, state_dict.to_state_dict, state_dict.from_state_dict),
    "state_dict.from_torch_compatible_state_dict": lambda tree: read_back(
        tree, state_dict.to_torch_compatible_state_dict, state_dict.from_torch_compatible_state_dict
    ),
    "state_dict.to_state_dict": lambda tree: list(state_dict.to_state_dict(tree)),
    "state_dict.to_torch_compatible_state_dict": lambda tree: list(state_dict.to_torch_compatible_state_dict(tree)),
    "tree.flatten": lambda tree: rebuilt(*axn.tree.flatten(tree)),
    "tree.leaves": lambda tree: rebuilt(axn.tree.leaves(tree), axn.tree.structure(tree)),
    "tree.map": lambda tree: axn.tree.map(doubled, tree),
    "tree.resize_axis": lambda tree: axn.tree.resize_axis(tree, "mlp", 6),
    "tree.scan_aware_map": lambda tree: axn.tree.scan_aware_map(doubled, tree),
    "tree.structure": lambda tree: rebuilt(axn.tree.leaves(tree), axn.tree.structure(tree)),
    "tree_checkpoint_name": lambda tree: axn.tree_checkpoint_name(tree, "name"),
    "vmap": axn.vmap(same, "embed", default=None),
}

FLOATING: dict[str, Call] = {
    "ScanCheckpointPolicy.wrap": axn.ScanCheckpointPolicy().wrap(same),
    "associative_scan": lambda tree: {
        **tree,
        **axn.associative_scan(added, "embed")({name: tree[name] for name in tree if "rows" in name}),
    },
    "grad": axn.grad(loss),
    "hessian": lambda tree: axn.hessian(loss)(only(tree, "plain"))["plain"]["plain"],
    "jacfwd": axn.jacfwd(loss),
    "jacrev": axn.jacrev(loss),
    "nmap": lambda tree: {**tree, **axn.nmap(same)(only(tree, "rows"))},
    "value_and_grad": lambda tree: axn.value_and_grad(loss)(tree)[1],
}
ROWS = [*((name, call, True) for name, call in ALL.items()), *((name, call, False) for name, call in FLOATING.items())]
# Public functions whose signatures have the types of trees, and why they are in no row.
LEFT_OUT = {
    "tests/partitioning/test_leaves.py": [
        *("all_gather", "all_to_all", "pcast", "pmax", "pmean", "pmin", "ppermute", "psum", "psum_scatter"),
    ],
    "tests/neighbours": ["quant.quantize_with_qwix", "to_xarray"],
    "a call of the layers, which has what they need": [
        *("nn.BlockFoldable.__call__", "nn.BlockFoldable.fold", "nn.BlockFoldable.map", "nn.BlockFoldable.scan"),
        *("nn.BlockFoldable.fold_via", "nn.BlockFoldable.map_via", "nn.BlockFoldable.scan_via", "nn.from_inputs"),
        *("nn.BlockFoldable.vmap", "nn.BlockFoldable.vmap_via", "nn.BlockSeq.vmap_via", "nn.Interleaved.vmap_via"),
        *("nn.Stacked.vmap_via", "nn.generate", "nn.Recurrent.__call__", "nn.RecurrentCell.__call__"),
        *("nn.RecurrentCell.advance", "nn.RecurrentCell.output", "pipeline_value_and_grad"),
    ],
    "a claim about a function, which returns nothing": [
        *(
            "testing.assert_causal",
            "testing.assert_equivariant",
            "testing.assert_ignores",
            "testing.assert_independent",
        ),
        *("testing.assert_invariant", "testing.assert_mean_over", "testing.assert_same_layouts", "testing.check"),
        *("testing.assert_same_storage", "testing.assert_same_under"),
    ],
    "a function of arrays": ["partitioning.kernel_cost"],
    "in the row of pad_axes": ["partitioning.unpad_axes"],
    "another name of a row": ["nn.BlockSeq.with_layers", "nn.Interleaved.with_layers", "nn.Stacked.with_layers"],
    "a class that other rows make": [
        "NamedJit.__init__",
        "ShardMap.__init__",
    ],
    "a decoder, which has what it needs": ["models.TextGenerator.__init__", "models.generate", "models.save"],
    "values of a choice": ["partitioning.EachLayer.__init__"],
    "a function of numbers": ["fromfunction"],
}


def only(tree: dict[str, Any], chosen: str) -> dict[str, Any]:
    """Return an entry of a tree and its holes."""
    return {name: leaf for name, leaf in tree.items() if name == chosen or name.startswith("hole")}


def without_arrays(tree: Any) -> Any:
    return jax.tree.map(lambda _: None, tree)


def assert_same(got: Any, expected: Any, place: str) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected), place
    for own, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        if eqx.is_array(other):
            np.testing.assert_array_equal(own, other, err_msg=place)
        else:
            assert own == other, place


@pytest.mark.parametrize(("name", "call", "takes_all"), ROWS, ids=[name for name, _, _ in ROWS])
def test_holes_change_nothing_and_stay(name: str, call: Call, takes_all: bool) -> None:
    arrays = {**FLOATS, **(INTEGERS if takes_all else {})}
    holes = {**ARRAY_HOLES, **(OTHER_LEAVES if takes_all else {})}
    expected, got = call(arrays), call({**arrays, **holes})
    if not (isinstance(got, dict) and set(got) & set(holes)):
        assert_same(got, expected, name)
        return
    assert_same({place: leaf for place, leaf in got.items() if place not in holes}, expected, name)
    for place, hole in holes.items():
        assert set(jax.tree.leaves(got.get(place))) <= set(jax.tree.leaves(hole)), place
    # A hole gets the names that an array gets.
    assert jax.tree.structure(got.get("hole-rows")) == jax.tree.structure(without_arrays(got.get("rows")))


def test_every_function_that_takes_a_tree_has_a_row() -> None:
    tree = re.compile(r"\b(?:T|Tree|M|Carry|P)\b|tree: |node: |args: Any|model: |cache: Any|state: Any|^fn: Callable")
    lines = (Path(__file__).parent / "api.txt").read_text().splitlines()
    signatures = [match for line in lines if (match := re.match(r"axonym\.([\w.]+)\((.*)\) -> ", line))]
    found = {signature[1] for signature in signatures if tree.search(signature[2])}
    # Public for libraries that write reports, and called by all that is above.
    found = {name for name in found if not name.startswith(("costs.", "report."))}
    assert found == {name for name, _, _ in ROWS}.union(*LEFT_OUT.values())
