"""Resources that record when they start and stop."""

from collections.abc import AsyncIterator

from everstep.agent_domain.tools.resources import Resource, resource


class Pool:
    """A pool of connections that records what happens to it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def query(self, text: str) -> str:
        """Answer a query."""
        self.log.append(f"{self.name} {text}")
        return f"{self.name}: {text}"


def a_pool(name: str, log: list[str], fault: Exception | None = None) -> Resource[Pool]:
    """A resource; with a fault it cannot be started."""

    @resource(name=name)
    async def pool() -> AsyncIterator[Pool]:
        log.append(f"start {name}")
        if fault:
            raise fault
        yield Pool(name, log)
        log.append(f"stop {name}")

    return pool
