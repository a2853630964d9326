"""Checkpoints of examples/lm: into any layout, checked by names, whole or absent."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from checkpoint import Checkpoints, DamagedError, checksum

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


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "float32", "uint32"])
def test_a_checksum_tells_each_flipped_bit_and_no_layout(dtype: str) -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    x = np.random.default_rng(0).integers(0, 2, (4, 6)).astype(jnp.dtype(dtype))
    whole = int(checksum(x))
    assert int(checksum(jax.device_put(x, jax.NamedSharding(mesh, jax.P("data", "model"))))) == whole
    bits = x.view(np.uint8)
    for at in np.ndindex(bits.shape):
        other = bits.copy()
        other[at] ^= 1 if dtype == "bool" else 64
        assert int(checksum(other.view(x.dtype))) != whole
    assert int(checksum(x[::-1])) != whole
    assert checksum(np.zeros((0, 3), x.dtype)) == 0


def test_a_flipped_bit_is_damage(tmp_path: Path) -> None:
    place = jax.NamedSharding(jax.make_mesh((1,), ("data",)), jax.P())
    state = {"x": jnp.arange(3000.0), "y": jnp.ones(3000)}
    places = dict.fromkeys(state, place)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state, {}, wait=True)
    files = [file for file in (tmp_path / "1" / "arrays").rglob("*") if file.is_file() and file.stat().st_size > 5000]
    assert files
    for file in files:
        whole = file.read_bytes()
        damaged = bytearray(whole)
        damaged[len(whole) // 2] ^= 4
        file.write_bytes(damaged)
        with pytest.raises(DamagedError):
            checkpoints.restore(1, state, places)
        file.write_bytes(whole)
    np.testing.assert_array_equal(checkpoints.restore(1, state, places)["x"], np.arange(3000))
    (tmp_path / "1" / "about" / "metadata").write_text("{")
    with pytest.raises(DamagedError):
        checkpoints.about(1)
    checkpoints.close()


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


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """Let writes fail as on a disk that is full: those of other threads and libraries, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_told_by_step_and_the_checkpoints_around_it_are_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = Checkpoints(tmp_path)
    states = {step: {"x": jax.random.normal(jax.random.key(step), (50_000,))} for step in range(1, 4)}
    checkpoints.save(1, states[1], {}, wait=True)
    with no_file_larger_than(50_000):
        checkpoints.save(2, states[2], {})
        assert checkpoints.latest() == 1
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert len(told) == 1
    assert told[0].startswith("warning: no checkpoint of step 2, the run goes on: ")
    assert "Failed writing" in told[0]
    # Nothing is left of it, which would fill the disk.
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    checkpoints.save(3, states[3], {})
    checkpoints.close()
    assert capsys.readouterr().err == ""
    again, place = Checkpoints(tmp_path), jax.NamedSharding(jax.make_mesh((1,), ("data",)), jax.P())
    assert again.latest() == 3
    for step in (1, 3):
        restored = again.restore(step, states[step], {"x": place})
        np.testing.assert_array_equal(restored["x"], states[step]["x"])
    again.close()


def test_a_checkpoint_that_fails_at_once_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoints._manager, "save", full)
    checkpoints.save(2, {"x": jnp.zeros(3)}, {})
    told = "warning: no checkpoint of step 2, the run goes on: No space left on device\n"
    assert capsys.readouterr().err == told
    assert checkpoints.latest() is None
    checkpoints.close()


def test_a_folder_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(json.dumps({}))
    with pytest.raises(OSError, match="file"):
        Checkpoints(tmp_path / "file")
