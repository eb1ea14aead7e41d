"""Resources: how they are declared, found, started and stopped."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from everstep.agent_domain.errors import InvalidInput, ResourceFailed
from everstep.agent_domain.tools.resources import Resource, Resources, resource
from everstep.steps import resource_lifetimes as opening
from everstep.steps.resource_lifetimes import open_resources
from tests.everstep.steps.resources_words import Pool, a_pool


class Client:
    """An async context manager, as HTTP clients are."""

    is_open = False

    async def __aenter__(self) -> "Client":
        self.is_open = True
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.is_open = False


class LargePool(Pool):
    pass


@resource
async def settings() -> dict[str, int]:
    return {"limit": 3}


@resource
@asynccontextmanager
async def connection() -> AsyncGenerator[Client]:
    async with Client() as client:
        yield client


client = resource(Client)


async def test_they_start_in_order_and_stop_in_reverse() -> None:
    """9.9.6"""
    log = list[str]()
    first, second = a_pool("first", log), a_pool("second", log)

    async with open_resources([first, second, first]) as opened:
        assert log == ["start first", "start second"]
        assert (opened[first].name, opened[second].name) == ("first", "second")
    assert log == ["start first", "start second", "stop second", "stop first"]


async def test_what_started_before_a_failure_is_stopped() -> None:
    """9.9.7"""
    log = list[str]()
    pools = [a_pool("a", log), a_pool("b", log), a_pool("c", log, OSError("refused")), a_pool("d", log)]

    with pytest.raises(ResourceFailed, match=r"^the resource 'c' cannot be started: OSError: refused$"):
        async with open_resources(pools):
            raise AssertionError

    assert log == ["start a", "start b", "start c", "stop b", "stop a"]


async def test_each_form_of_a_factory() -> None:
    """9.9.6"""
    async with open_resources([settings, connection, client]) as opened:
        assert opened[settings] == {"limit": 3}
        kept = opened[connection], opened[client]
        assert all(each.is_open for each in kept)
        assert opened.names == ("'settings'", "'connection'", "'Client'")
    assert not any(each.is_open for each in kept)


async def test_one_that_raises_when_it_stops_is_logged_and_the_others_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = list[str]()

    @resource
    async def broken() -> AsyncIterator[int]:
        yield 7
        raise ValueError("lost")

    with caplog.at_level(logging.ERROR):
        async with open_resources([a_pool("a", log), broken]):
            pass

    assert log == ["start a", "stop a"]
    assert "the resource 'broken' was not stopped: ValueError: lost" in caplog.text


async def test_neither_start_nor_stop_waits_forever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """9.9.7"""
    monkeypatch.setattr(opening, "STOP_SECONDS", 0.02)
    never = asyncio.Event()

    @resource(start_seconds=0.02)
    async def hangs() -> AsyncIterator[int]:
        await never.wait()
        yield 1

    @resource
    async def stays() -> AsyncIterator[int]:
        yield 1
        await never.wait()

    with pytest.raises(ResourceFailed, match=r"'hangs' cannot be started: it took longer than 0\.02 seconds"):
        async with open_resources([stays, hangs]):
            raise AssertionError
    assert "the resource 'stays' was not stopped: it took longer than 0.02 seconds" in caplog.text


async def test_a_cancel_during_the_start_stops_what_has_started() -> None:
    log, begun = list[str](), asyncio.Event()

    @resource
    async def slow() -> AsyncIterator[int]:
        begun.set()
        await asyncio.Event().wait()
        yield 1

    async def use() -> None:
        async with open_resources([a_pool("a", log), slow]):
            raise AssertionError

    task = asyncio.create_task(use())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["start a", "stop a"]


async def test_the_same_task_starts_and_stops() -> None:
    """Libraries with cancel scopes require it; a blocking iterator opens and closes in different tasks."""
    tasks = list[object]()

    @resource
    async def scope() -> AsyncIterator[int]:
        tasks.append(asyncio.current_task())
        yield 1
        tasks.append(asyncio.current_task())

    opened = open_resources([scope])
    await asyncio.create_task(opened.__aenter__())
    await asyncio.create_task(opened.__aexit__(None, None, None))
    assert len({*tasks}) == 1


async def test_given_objects_replace_resources() -> None:
    """9.9.8: by key or by type; nothing starts them, nothing stops them."""
    log = list[str]()
    pool, other = a_pool("pool", log), a_pool("other", log)
    for key in (pool, Pool):
        fake = LargePool("fake", log)
        async with open_resources([pool], {key: fake}) as opened:
            assert opened[pool] is opened[Pool] is fake
    assert log == []
    async with open_resources([pool, other], {pool: Pool("fake", log)}) as opened:
        assert (opened[pool].name, opened[other].name) == ("fake", "other")
    assert log == ["start other", "stop other"]


def test_an_object_is_found_by_its_type() -> None:
    """9.9.6: by the declared type first, then by that of the object."""
    log = list[str]()
    pool = a_pool("pool", log)
    assert (pool.kind, client.kind, settings.kind, connection.kind) == (Pool, Client, dict, Client)
    opened = Resources({pool: LargePool("a", log), str: "text"})
    assert opened[Pool] is opened[LargePool] is opened[pool]
    assert opened[str] == "text"
    assert LargePool in opened
    assert int not in opened


def test_an_ambiguous_or_missing_one_is_named() -> None:
    log = list[str]()
    a, b, c = (a_pool(name, log) for name in "abc")
    opened = Resources({a: Pool("a", log), b: Pool("b", log)})
    with pytest.raises(InvalidInput, match="2 resources are a Pool: 'a', 'b'; name one by its key"):
        _ = opened[Pool]
    with pytest.raises(
        InvalidInput, match="there is no resource 'c', only 'a', 'b'; add it by with_resources"
    ):
        _ = opened[c]
    with pytest.raises(InvalidInput, match="there is no resource int, only none"):
        _ = Resources()[int]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: resource(7), "7 is no factory of a resource; put @resource before an async function"),  # type: ignore[call-overload]
        (lambda: resource(lambda url: url), r"needs url; it is called without\s+arguments"),  # type: ignore[call-overload]
        (lambda: resource(start_seconds=0)(Client), "start_seconds of the resource 'Client' must be"),
        (lambda: Resources({"pool": 1}), "'pool' is no key of a resource"),
    ],
    ids=["no function", "needs arguments", "no time", "a name as key"],
)
def test_a_wrong_declaration_is_refused(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        make()


@pytest.mark.parametrize(
    ("factory", "problem"),
    [
        (lambda: 7, "returned int; write an async function that yields the object"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
    ids=["returns a value", "raises at once"],
)
async def test_a_factory_that_makes_nothing_is_named(factory: Any, problem: str) -> None:
    """9.9.7"""
    broken: Resource[Any] = resource(name="broken")(factory)
    with pytest.raises(ResourceFailed, match=f"the resource '?broken'? .*{problem}"):
        async with open_resources([broken]):
            raise AssertionError


async def test_only_resources_can_be_opened() -> None:
    with pytest.raises(InvalidInput, match="holds 7, which is no resource; put @resource before its factory"):
        async with open_resources([7]):  # type: ignore[list-item]
            raise AssertionError
