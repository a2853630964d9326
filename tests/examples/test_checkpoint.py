"""Checkpoints of examples/lm: into any layout, checked by names, whole or absent."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from checkpoint import Checkpoints

import axonym as axn
from tests.nn.layouts import draw, fails

B, E = axn.make_axes(batch=8, embed=4)


def state_of(*axes: axn.Axis) -> dict[str, Any]:
    model = {"weight": draw(B, E).rearrange(axes)}
    return {"model": model, "optimizer": optax.adam(1e-3).init(model)}


def shardings(state: Any, mapping: axn.ResourceMapping, mesh: jax.sharding.Mesh) -> Any:
    specs = axn.pspec_for(state, mapping, mesh)
    return jax.tree.map(lambda spec: jax.NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, jax.P))


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_a_state_is_restored_in_another_order_of_axes_onto_another_mesh(kind: str, tmp_path: Path) -> None:
    kinds = (jax.sharding.AxisType[kind],) * 2
    here, there = (jax.make_mesh(shape, ("data", "model"), axis_types=kinds) for shape in ((4, 2), (2, 4)))
    checkpoints = Checkpoints(tmp_path / "of" / "run", keep=2)
    assert checkpoints.latest() is None
    with axn.set_mesh(here):
        state = axn.shard(state_of(B, E), {"batch": "data"})
        for step in (3, 5, 8):
            checkpoints.save(step, state, {"seed": 7}, wait=True)
    with axn.set_mesh(there):
        template = jax.eval_shape(lambda: state_of(E, B))
        places = shardings(template, {"batch": "data", "embed": "model"}, there)
        again = Checkpoints(tmp_path / "of" / "run")
        assert (again.latest(), again.about(8)["seed"]) == (8, 7)
        restored = again.restore(8, template, places)
    assert sorted(path.name for path in (tmp_path / "of" / "run").iterdir()) == ["5", "8"]
    assert jax.tree.structure(restored) == jax.tree.structure(template)
    for mine, its, place in zip(*map(jax.tree.leaves, (state_of(E, B), restored, places)), strict=True):
        np.testing.assert_array_equal(its, mine)
        assert its.sharding.is_equivalent_to(place, its.ndim)
    checkpoints.close()
    again.close()


def test_a_saved_state_is_that_of_its_step_though_it_is_donated(tmp_path: Path) -> None:
    checkpoints, state = Checkpoints(tmp_path), {"x": jnp.zeros(200_000)}
    step = jax.jit(lambda state: {"x": state["x"] + 1}, donate_argnums=0)
    for i in range(1, 4):
        state = step(state)
        checkpoints.save(i, state, {})
    state = step(state)
    checkpoints.close()
    restored = Checkpoints(tmp_path).restore(
        3, state, {"x": jax.NamedSharding(jax.make_mesh((1,), ("data",)), jax.P())}
    )
    assert (restored["x"] == 3).all()


def test_all_that_differs_is_told_at_once(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(2, {"a": draw(B, E), "b": draw(B), "c": draw(E), "n": jnp.zeros(())}, {}, wait=True)
    model = {"a": draw(B.resize(9), E), "b": draw(B).astype(jnp.bfloat16), "d": draw(E), "n": jnp.zeros(())}
    fails(
        ValueError,
        "the checkpoint of step 2 does not fit the model:\n"
        "  missing: d: embed=4\n"
        "  unexpected: c: embed=4\n"
        "  other axes: a: saved as batch=8, embed=4, but the model has batch=9, embed=4\n"
        "  other dtype: b: saved as float32, but the model has bfloat16",
        lambda: checkpoints.restore(2, model, None),
    )
    checkpoints.close()


def test_a_checkpoint_that_fails_is_told_and_the_one_before_it_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"x": jnp.zeros(3)}, {}, wait=True)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoints._manager, "save", full)
    checkpoints.save(2, {"x": jnp.zeros(3)}, {})
    assert capsys.readouterr().err == "warning: no checkpoint of step 2: No space left on device\n"
    assert checkpoints.latest() == 1
    checkpoints.close()


def test_a_folder_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(json.dumps({}))
    with pytest.raises(OSError, match="file"):
        Checkpoints(tmp_path / "file")
