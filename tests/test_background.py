"""No background task of the product runs unsupervised."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parent.parent
PACKAGES = ("activities", "broadcast_gateway", "everstep")
MAKERS = ("create_task", "ensure_future")

AWAITED: Final = {
    "activities/brief_inference.py": "a model call, which an activity awaits, or which is cancelled",
    "everstep/http_api/mcp_server.py": "one exchange, awaited by its request",
    "activities/deferred_start.py": "awaited by the block that it belongs to",
    "everstep/runtime/serving.py": "the server itself, awaited by the block that it belongs to",
    "everstep/runtime/embedded/service.py": "awaited by the start, and the watch that reports a death",
    "everstep/runtime/embedded/__init__.py": "a group of tasks, awaited by its block",
    "everstep/runtime/embedded/ui_proxy.py": "one half of a connection, awaited by the other",
    "everstep/runtime/replay/actions.py": "an action of a person, awaited at the latest when the replay ends",
    "everstep/capabilities/bash/proxy.py": "one connection of a command, which logs what fails and ends",
    "everstep/capabilities/bash/sandbox.py": "awaited by the command that it belongs to",
    "everstep/capabilities/bash/process.py": "awaited by the command that it belongs to",
    "everstep/capabilities/mcp/stdio.py": "a server's pipes: their end is the end of the connection",
    "everstep/capabilities/mcp/http_transport.py": "one request, whose failure is its answer",
    "everstep/capabilities/mcp/shared_connections.py": "a connection; a failed request is its answer",
    "everstep/cli/processes.py": "waits for the death of a server",
    "everstep/cli/agent_process.py": "ends the process with its parent",
    "everstep/cli/worker_program.py": "stops the process with its parent",
    "everstep/runtime/worker_processes.py": "awaited by the worker that they belong to",
    "everstep/runtime/agent_process.py": "the worker itself, awaited by its process",
    "everstep/runtime/model_checks.py": "awaited by the block that they belong to",
    "everstep/runtime/reloading.py": "awaited by the block that they belong to, or at the end of `up`",
    "everstep/cli/watch.py": "awaited by the block that it belongs to",
    "everstep/streams/connection.py": "pings of a client's line, whose end is the line's",
    "activities/progress_reports.py": "ends with its call; a report that cannot be stored is logged",
    "everstep/steps/resource_lifetimes.py": "awaited by the block that it belongs to",
    "everstep/http_api/event_stream.py": "awaited by the answer that they are",
    "everstep/store/transaction.py": "awaited by its transaction, also after a cancel",
}
"""Tasks that are awaited, or whose end is a result that a caller waits for, and why they need no supervision.
"""

CAUGHT: Final = {
    ("activities/text_checkpoints.py", "_record_due"),
    ("everstep/client/beginnings.py", "_watch"),
    ("everstep/client/titles.py", "_entitle"),
    ("everstep/client/webhook_delivery.py", "_deliver_batch"),
    ("everstep/steps/shared_rates.py", "_work"),
    ("everstep/store/batches.py", "_run_all"),
    ("everstep/streams/publisher.py", "_send"),
    ("broadcast_gateway/links.py", "send_changes"),
    ("broadcast_gateway/protocols.py", "_run_queue"),
    ("broadcast_gateway/hub.py", "coroutine"),
}
"""Tasks that end by themselves. Each catches every exception, or its result is checked."""


def tasks() -> Iterator[tuple[str, ast.Call]]:
    """Each place that makes a task."""
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and _name(node.func) in MAKERS:
                    yield str(file.relative_to(ROOT)), node


def _name(node: ast.AST) -> str:
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return _name(function)
        case _:
            return ""


def test_every_task_is_supervised_or_listed() -> None:
    """1.3.3."""
    unknown = [
        f"{file}:{call.lineno}: {ast.unparse(call)}"
        for file, call in tasks()
        if _name(call.args[0]) != "keep_running"
        and file not in AWAITED
        and (file, _name(call.args[0])) not in CAUGHT
    ]

    assert not unknown, "wrap them in everstep.agent_domain.background.keep_running, or say here why not"


def test_the_listed_tasks_still_exist() -> None:
    """1.3.3."""
    found = {(file, _name(call.args[0])) for file, call in tasks()}

    assert {file for file, _ in found} >= {*AWAITED}
    assert found >= CAUGHT


def test_the_tasks_that_end_by_themselves_catch_everything() -> None:
    """1.3.3."""
    for file, name in CAUGHT - {("broadcast_gateway/hub.py", "coroutine")}:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.AsyncFunctionDef) and n.name == name]
        assert functions, (file, name)
        handlers = [n for n in ast.walk(functions[0]) if isinstance(n, ast.ExceptHandler)]
        assert any(n.type and _name(n.type) == "Exception" for n in handlers), (file, name)
