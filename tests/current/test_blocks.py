"""Blocks of several tasks and generators in one thread."""

import asyncio
import threading
from collections.abc import Generator
from typing import Any

import jax
import pytest

import axonym as axn
from axonym.errors import ShardingError
from axonym.layout import context

HINT = "  hint: leave the block before `await` or `yield`, or run it in a thread of its own: asyncio.to_thread"
FIRST, SECOND = {"batch": "data"}, {"batch": "model"}


def current() -> dict[str, Any] | None:
    mapping = axn.current_mapping()
    return None if mapping is None else dict(mapping)


async def hold(mapping: dict[str, Any], ticks: int, seen: list[Any]) -> None:
    with axn.axis_mapping(mapping):
        for _ in range(ticks):
            await asyncio.sleep(0)
            seen.append(current())


async def read(seen: list[Any]) -> None:
    seen.append(current())


def elsewhere(here: object, there: object) -> str:
    problem = "axis_mapping: another task or generator of this thread has changed what is current"
    return f"{problem}\n  here: {here}\n  current: {there}\n{HINT}"


def test_a_task_is_refused_inside_of_the_mapping_of_another_one() -> None:
    seen: list[Any] = []

    async def main() -> list[Any]:
        tasks = hold(FIRST, 3, seen), hold(SECOND, 1, seen), read(seen)
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, *others = asyncio.run(main())
    assert first is None
    for error in others:
        assert isinstance(error, ShardingError)
        assert str(error) == elsewhere(None, "{'batch': 'data'}")
    assert seen == [{"batch": ("data",)}] * 3
    assert current() is None
    with axn.axis_mapping(SECOND):
        assert current() == {"batch": ("model",)}


def test_a_task_of_a_block_has_its_mapping_until_the_block_ends() -> None:
    seen: list[Any] = []

    async def main() -> str:
        with axn.axis_mapping(FIRST):
            await asyncio.gather(read(seen), hold(SECOND, 2, seen))
            late = asyncio.ensure_future(read([]))
        with pytest.raises(ShardingError) as error:
            await late
        return str(error.value)

    assert asyncio.run(main()) == elsewhere("{'batch': 'data'}", None)
    assert seen == [{"batch": ("data",)}, {"batch": ("model",)}, {"batch": ("model",)}]
    assert current() is None


def test_a_block_that_is_left_inside_of_that_of_its_own_task_is_an_error() -> None:
    async def main() -> str:
        block = axn.axis_mapping(FIRST)
        block.__enter__()
        task = asyncio.ensure_future(hold(SECOND, 2, []))
        await asyncio.sleep(0)
        with pytest.raises(ShardingError) as error:
            block.__exit__(None, None, None)
        await task
        return str(error.value)

    assert asyncio.run(main()).startswith("axis_mapping: a block was left while one that was entered later")
    assert current() is None


def test_tasks_one_after_the_other_and_in_threads_have_their_own_mapping() -> None:
    def inside(mapping: dict[str, Any]) -> Any:
        with axn.axis_mapping(mapping):
            return current()

    async def main() -> None:
        for mapping in (FIRST, SECOND):
            await hold(mapping, 2, [])
            assert current() is None
        with axn.axis_mapping(FIRST):
            assert await asyncio.to_thread(current) is None  # JAX's contexts belong to a thread
            assert await asyncio.to_thread(inside, SECOND) == {"batch": ("model",)}
            assert current() == {"batch": ("data",)}

    asyncio.run(main())


def generate(mapping: Any, block: Any = axn.axis_mapping) -> Generator[Any]:
    with block(mapping):
        yield current()
        yield current()


def test_generators_that_stop_within_their_blocks_by_turns_are_an_error_that_leaves_nothing_behind() -> None:
    first, second = generate(FIRST), generate(SECOND)
    assert (next(first), next(second)) == ({"batch": ("data",)}, {"batch": ("model",)})
    with pytest.raises(ShardingError) as error:
        list(first)
    assert str(error.value) == (
        "axis_mapping: a block was left while one that was entered later in the same thread is still open\n"
        f"  left: {{'batch': 'data'}}\n  open: {{'batch': 'model'}}\n{HINT}"
    )
    assert list(second) == [{"batch": ("model",)}]
    assert current() is None
    outer, inner = generate(FIRST), generate(SECOND)  # left in the order of blocks
    assert (next(outer), next(inner)) == ({"batch": ("data",)}, {"batch": ("model",)})
    assert (list(inner), list(outer)) == ([{"batch": ("model",)}], [{"batch": ("data",)}])
    assert current() is None


def test_an_error_within_a_block_is_not_replaced() -> None:
    first, second = generate(FIRST), generate(SECOND)
    next(first)
    next(second)
    with pytest.raises(KeyError):
        first.throw(KeyError())
    second.close()
    assert current() is None


def test_meshes_of_two_tasks_and_of_two_generators() -> None:
    here, there = (jax.make_mesh(sizes, ("data", "model")) for sizes in ((4, 2), (2, 4)))

    async def hold_mesh(mesh: jax.sharding.Mesh) -> None:
        with axn.set_mesh(mesh):
            await asyncio.sleep(0)
            assert jax.sharding.get_abstract_mesh() == mesh.abstract_mesh

    async def main() -> list[Any]:
        return await asyncio.gather(hold_mesh(here), hold_mesh(there), return_exceptions=True)

    first, second = asyncio.run(main())
    assert first is None
    assert str(second) == (
        "set_mesh: another task or generator of this thread has changed what is current\n"
        f"  here: none\n  current: data=4, model=2\n{HINT}"
    )
    assert jax.sharding.get_abstract_mesh().empty
    outer, inner = generate(here, axn.set_mesh), generate(there, axn.set_mesh)
    next(outer)
    next(inner)
    with pytest.raises(ShardingError, match="set_mesh: a block was left while one"):
        list(outer)
    assert jax.sharding.get_abstract_mesh() == there.abstract_mesh
    list(inner)
    assert jax.sharding.get_abstract_mesh().empty


def test_a_mesh_is_current_without_a_block_and_in_several_threads() -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    found: list[Any] = []

    def work() -> None:
        with axn.set_mesh(mesh):
            found.append(context.context_mesh())
        axn.set_mesh(mesh)
        found.append(context.context_mesh())

    thread = threading.Thread(target=work)
    with axn.set_mesh(mesh):
        thread.start()
        thread.join()
    assert found == [mesh.abstract_mesh] * 2
