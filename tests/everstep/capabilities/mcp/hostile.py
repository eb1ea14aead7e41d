"""A hostile MCP server: `python hostile.py MODE`.

It does not use the SDK, which would prevent the violations.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

MODE = sys.argv[1] if len(sys.argv) > 1 else ""
WRITING = threading.Lock()
HUGE = 25_000_000


def write(text: str) -> None:
    with WRITING, contextlib.suppress(BrokenPipeError):
        sys.stdout.write(text)
        sys.stdout.flush()


def send_result(request: dict[str, Any], result: Any) -> None:
    write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}) + "\n")


def send_error(request: dict[str, Any], code: int, message: str) -> None:
    error = {"code": code, "message": message}
    write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}) + "\n")


def send_text(request: dict[str, Any], text: str, **more: Any) -> None:
    send_result(request, {"content": [{"type": "text", "text": text}], **more})


def tool(name: str, schema: Any = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": schema or {"type": "object"}, **more}


CALLS = [
    "echo",
    "wait",
    "never",
    "error",
    "broken",
    "failed",
    "garbage",
    "die",
    "kill",
    "dies_once",
    "huge",
    "huge_first",
    "huge_anonymous",
    "env",
    "stop_reading",
    "close_input",
    "close_output",
]
LISTS = {
    "paged": [[tool(f"tool_{page}_{i}") for i in range(20)] for page in range(10)],
    "double": [[tool("same", description="first"), tool("same", description="second"), tool("other")]],
    "clash": [[tool("a.b"), tool("a/b"), tool("c")]],
    "odd": [
        [
            tool("näme with späces.and.dots"),
            tool("x" * 100),
            tool("nul", {"type": "object", "title": "\0"}),
            tool("large", {"type": "object", "title": "x" * 100_000}),
            tool("wordy", description="x" * 100_000 + "\0"),
        ]
    ],
    "heavy": [[tool(f"heavy_{i}", {"type": "object", "title": "x" * 60_000}) for i in range(20)]],
    "hints": [
        [
            tool("reads", annotations={"readOnlyHint": True}),
            tool("again", annotations={"idempotentHint": True}),
            tool("writes", annotations={"readOnlyHint": False}),
            tool("silent"),
        ]
    ],
}


def list_tools(request: dict[str, Any]) -> None:
    params: dict[str, Any] = request.get("params") or {}
    if MODE == "endless":
        send_result(request, {"tools": [tool("a")], "nextCursor": "again"})
        return
    repeatable = {"annotations": {"readOnlyHint": True}}
    plain = [[tool(name, **(repeatable if name == "dies_once" else {})) for name in CALLS]]
    pages, page = LISTS.get(MODE, plain), int(params.get("cursor") or 0)
    more = {"nextCursor": str(page + 1)} if page + 1 < len(pages) else {}
    send_result(request, {"tools": pages[page], **more})


def call_tool(request: dict[str, Any]) -> None:  # noqa: C901, PLR0912, PLR0915 -- one case after the other
    args: dict[str, Any] = request["params"].get("arguments") or {}
    match request["params"]["name"]:
        case "echo":
            send_text(request, args.get("text", ""))
        case "env":
            send_text(request, json.dumps(dict(os.environ)))
        case "wait":
            threading.Timer(args["seconds"], send_text, (request, "waited")).start()
        case "never":
            note(args, f"began {request['id']}")
        case "error":
            send_error(request, -32000 - 55, args.get("text", "no"))
        case "broken":
            send_result(request, {"content": "this is no list"})
        case "failed":
            send_text(request, args.get("text", "it did not work"), isError=True)
        case "garbage":
            write("\n[1, 2]\n{}\nnull\n" + '{"jsonrpc": "2.0", "id": 123456, "result": {}}\n')
            write("garbage \x01\n" * args.get("lines", 10))
            send_text(request, "after the garbage")
        case "close_input":
            os.close(0)
            send_text(request, "")
            time.sleep(600)
        case "close_output":
            send_text(request, "")
            os.close(1)
            time.sleep(600)
        case "stop_reading":
            send_text(request, "")
            time.sleep(600)
        case "die":
            note(args, "died")
            write('{"jsonrpc": "2.0", "id":')
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "dies_once":
            if not Path(args["note"]).exists():
                note(args, "died")
                os._exit(3)
            send_text(request, "alive")
        case "huge":
            text = json.dumps([{"type": "text", "text": "x" * HUGE}])
            write('{"result":{"content":%s},"jsonrpc":"2.0","id":%d}\n' % (text, request["id"]))  # noqa: UP031
        case "huge_first":
            text = json.dumps([{"type": "text", "text": "x" * HUGE}])
            write('{"jsonrpc":"2.0","id":%d,"result":{"content":%s}}\n' % (request["id"], text))  # noqa: UP031
        case "huge_anonymous":
            write('{"result":{"x":"%s"},"id":%d,"_":[]}\n' % ("x" * HUGE, request["id"]))  # noqa: UP031
        case unknown:
            send_error(request, -32602, f"bad {unknown}")


def note(args: dict[str, Any], text: str) -> None:
    if "note" in args:
        with Path(args["note"]).open("a") as file:
            file.write(f"{text}\n")


def main() -> None:
    if MODE == "crash":
        sys.exit(1)
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if MODE == "garbage":
        # More than a pipe holds; an endless one would keep a core busy until it is stopped.
        write("this is no JSON-RPC\n" * 10_000)
    sys.stderr.write(f"starting as {os.getpid()} with {os.environ.get('TOKEN', 'no token')}\n")
    if MODE == "chatty":
        sys.stderr.write("x" * 100_000 + "\n" + "a line\n" * 2_000)
    sys.stderr.flush()
    for line in sys.stdin:
        on_notification(json.loads(line))
    while MODE == "stubborn":
        time.sleep(1)


def on_notification(request: dict[str, Any]) -> None:
    match request.get("method"):
        case "initialize" if MODE != "silent":
            served = {"name": "hostile", "version": "1"}
            version, can = request["params"]["protocolVersion"], {"tools": {"listChanged": True}}
            send_result(request, {"protocolVersion": version, "capabilities": can, "serverInfo": served})
        case "tools/list":
            list_tools(request)
        case "tools/call":
            call_tool(request)
        case "notifications/cancelled":
            notes = {"note": os.environ.get("NOTES", os.devnull)}
            note(notes, f"cancelled {request['params']['requestId']}")
        case _ if "id" in request and MODE != "silent":
            send_error(request, -32601, "Method not found")
        case _:
            pass


if __name__ == "__main__":
    main()
