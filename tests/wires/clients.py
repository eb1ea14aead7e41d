"""The unmodified clients of AG-UI, of Vercel's AI SDK and of OpenAI, in node."""

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

from everstep.agent_domain.loop.budget import BudgetUnit, OnExhausted
from everstep.agent_domain.storage.budget_ledger import OperatorBudget
from tests.browsers.scripted_gateway import DEADLINE
from tests.browsers.viewer import SharedNode, Viewer, in_node
from tests.everstep.http_api.house import ApiCaller
from tests.node import installed_modules

HERE = Path(__file__).parent
LOCK = HERE / "node"
STATIC = HERE.parents[1] / "everstep" / "http_api" / "static"


class AgUiClient:
    """An agent of `@ag-ui/client`."""

    def __init__(self, viewer: Viewer, name: str) -> None:
        self.viewer = viewer
        self.name = name
        self.patience = DEADLINE
        """Seconds within which a run has to end."""

    def make(
        self, url: str, headers: dict[str, str], *, resumes: bool = False, **config: Any
    ) -> "AgUiClient":
        """Make the agent: an `HttpAgent`, or our own that resumes."""
        self.viewer.command("make", name=self.name, url=url, headers=headers, resumes=resumes, **config)
        return self

    def add(self, text: str, id_: str | None = None) -> None:
        """Add a message of the user."""
        message = {"id": id_ or str(uuid4()), "role": "user", "content": text}
        self.viewer.command("add", name=self.name, message=message)

    async def run(self, text: str | None = None, **parameters: Any) -> Any:
        """Run the agent, with a new message if one is given; return how it is afterwards."""
        if text is not None:
            self.add(text)
        return await self._finish("run", **parameters)

    async def connect(self) -> Any:
        """Connect to the thread; return how the agent is afterwards."""
        return await self._finish("connect")

    async def _finish(self, does: str, **parameters: Any) -> Any:
        before = len(self.viewer.events_of("done", self.name))
        self.viewer.command(does, name=self.name, **parameters)
        ended = await self.viewer.until("done", before + 1, self.name, seconds=self.patience)
        return ended[-1]

    @property
    def events(self) -> list[Any]:
        """All events that passed the client's verification."""
        return self.viewer.events_of("event", self.name)

    @property
    def kinds(self) -> list[str]:
        """Their types."""
        return [event["type"] for event in self.events]


def ag_ui_script(folder: Path) -> tuple[Path, Path, Path]:
    """The script and the arguments of a process in which agents of AG-UI are made."""
    modules = installed_modules(LOCK)
    # Node resolves the packages of a module from the module's own folder.
    (folder / "node_modules").symlink_to(modules)
    own = Path(shutil.copy(STATIC / "everstep-ag-ui.js", folder / "everstep-ag-ui.mjs"))
    client = modules / "@ag-ui" / "client" / "dist" / "index.mjs"
    return HERE / "ag_ui.mjs", client, own


class ChatClient:
    """A chat of `@ai-sdk/react`, as `useChat` holds it."""

    def __init__(self, viewer: Viewer, name: str) -> None:
        self.viewer = viewer
        self.name = name

    def make(self, api: str, headers: dict[str, str], chat_id: str, **config: Any) -> "ChatClient":
        """Make the chat with the default transport."""
        self.viewer.command("make", name=self.name, id=chat_id, api=api, headers=headers, **config)
        return self

    async def send(self, text: str, **body: Any) -> Any:
        """Send a message; return the chat after the response."""
        return await self.do("send", message={"text": text}, body=body)

    async def do(self, what: str, **given: Any) -> Any:
        """Run a command; return the chat afterwards."""
        before = len(self.viewer.events_of("done", self.name))
        self.viewer.command(what, name=self.name, **given)
        return (await self.viewer.until("done", before + 1, self.name))[-1]


def chat_node() -> SharedNode:
    """A process in which chats are made."""
    modules = installed_modules(LOCK)
    chat = modules / "@ai-sdk" / "react" / "dist" / "index.js"
    sdk = modules / "ai" / "dist" / "index.js"
    return SharedNode(HERE / "chat.mjs", chat, sdk)


async def exhaust_budget(person: ApiCaller) -> None:
    """Every execution of the tenant waits until a person raises its budget of no steps."""
    setup = person.api_setup
    budget = OperatorBudget(setup.tenant, BudgetUnit.STEPS, Decimal(0), on_exhausted=OnExhausted.ASK)
    await setup.sessions.client.store.set_operator_budget(budget)


class OpenAiClient:
    """A client of the npm package `openai`."""

    def __init__(self, viewer: Viewer, name: str) -> None:
        self.viewer = viewer
        self.name = name

    def make(self, url: str, key: str) -> "OpenAiClient":
        """Make the client, which repeats no request."""
        self.viewer.command("make", name=self.name, baseURL=f"{url}/v1", apiKey=key)
        return self

    async def call(self, method: str, **body: Any) -> Any:
        """What a call returns; for a refused one, its error."""
        before = len(self.viewer.events_of("done", self.name))
        self.viewer.command("call", name=self.name, method=method, body=body)
        done = (await self.viewer.until("done", before + 1, self.name))[-1]
        return done["error"] if "error" in done else done["value"]


@asynccontextmanager
async def openai_viewer() -> AsyncGenerator[Viewer]:
    """A process in which clients of the package `openai` are made."""
    sdk = installed_modules(LOCK) / "openai" / "index.mjs"
    async with in_node(HERE / "openai.mjs", sdk) as viewer:
        yield viewer
