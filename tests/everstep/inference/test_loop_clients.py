"""A model in many event loops, one after the other and at once."""

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from everstep.agent_domain.agents.drivers import Model
from everstep.inference.loop_clients import LoopClients
from everstep.inference.models import Models
from everstep.inference.presets import Presets
from tests.everstep.inference.asking import ask
from tests.everstep.inference.counterparts import WireModelServer
from tests.everstep.inference.dialects import Answer


class Client:
    """A client that records whether it is open."""

    def __init__(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.is_open = False


def in_own_loop(clients: LoopClients[Client]) -> Client:
    async def use() -> Client:
        client = await clients.get()
        assert client is await clients.get()
        assert client.is_open
        return client

    return asyncio.run(use())


def test_each_event_loop_has_a_client_that_is_closed_with_it() -> None:
    """11.4"""
    clients = LoopClients(Client)

    used = [in_own_loop(clients) for _ in range(3)]

    assert len(set(map(id, used))) == 3
    assert not any(client.is_open for client in used)
    assert len(clients) == 0


def test_loops_of_several_threads_do_not_share_clients() -> None:
    """11.4"""
    clients, together = LoopClients(Client), 8

    with ThreadPoolExecutor(together) as threads:
        used = list(threads.map(in_own_loop, [clients] * together * 4))

    assert len(set(map(id, used))) == len(used)


async def test_a_closed_client_is_replaced() -> None:
    """11.4"""
    clients = LoopClients(Client)
    first = await clients.get()

    await clients.aclose()

    assert not first.is_open
    assert (await clients.get()).is_open
    await clients.aclose()
    await clients.aclose()


async def test_the_client_of_a_model_that_is_dropped_is_closed() -> None:
    """11.4: notebooks make many agents in a loop that never ends."""
    clients = LoopClients(Client)
    client = await clients.get()

    del clients
    gc.collect()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert not client.is_open


async def test_a_model_answers_in_every_event_loop_and_leaves_no_connection(wire: WireModelServer) -> None:
    """11.4: with each provider's SDK."""
    await wire.script_answers(Answer(("Hello",)))
    section = {"driver": wire.dialect.driver, "model": "m", "base_url": wire.server.url + wire.dialect.prefix}
    model = Models(Presets.read({"local": section}, {}), {}).model("local")

    for _ in range(3):
        assert await asyncio.to_thread(_answer_in_own_loop(model)) == ["Hello", "Hello"]
        await asyncio.wait_for(wire.server.hung_up.wait(), 10)
        wire.server.hung_up.clear()

    assert [request.connection for request in wire.server.requests] == [1, 1, 2, 2, 3, 3]


def _answer_in_own_loop(model: Model) -> Callable[[], list[str]]:
    async def answers() -> list[str]:
        return [(await ask(model, "Hi")).text for _ in range(2)]

    return lambda: asyncio.run(answers())
