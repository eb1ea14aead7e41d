"""Asks a person at the terminal for what an execution waits for: an answer, a decision or a budget.

Lines that were typed before a request was shown answer nothing: what is approved was on the screen.
"""

import sys
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Final, cast

from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.requests import RequestKind, RequestRow, RequestState
from everstep.agent_domain.values import FrozenDict, frozen_map, json_text, parse_json, thaw
from everstep.cli import output
from everstep.cli.decisions import parse_decision
from everstep.cli.executions import OPERATOR, await_worker
from everstep.cli.printing import echo
from everstep.cli.terminal import InputLines
from everstep.client.execution import Execution

LOOK_SECONDS: Final = 1.0
"""Seconds between two checks whether the request was answered elsewhere."""

SIMPLE_TYPES: Final = frozenset({"string", "number", "integer", "boolean"})
"""The types of fields that are asked for one by one; any other form is answered with JSON."""


class Later(Exception):
    """The person leaves the request open."""


class Closed(Exception):
    """The request was answered elsewhere, or its execution ended."""


class Dialogue:
    """Asks for the answers to requests, one after the other."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._lines: InputLines | None = None

    async def ask(self, request: RequestRow) -> None:
        """Ask until the request is answered, closed, or left open."""
        while True:
            try:
                await self._check_open(request)
                done = await self._answer(request)
            except Later:
                echo(f"  left open; to answer it later: {output.request_command(request)}")
                return
            except Closed:
                echo("\n  no longer open")
                return
            except EverstepError as error:
                echo(f"  {error}")
            else:
                echo(f"  {done}")
                return

    async def _answer(self, request: RequestRow) -> str:
        execution = self._execution.client.execution(request.ref.execution_id, request.ref.session_id)
        if request.kind is CallNeed.APPROVAL:
            return await self._decide(execution, request)
        if request.kind is RequestKind.BUDGET:
            return await self._raise_budget(execution, request)
        given = await self._ask_question(request)
        await await_worker(execution.submit_input(**given, request_id=request.id, by=OPERATOR))
        return "answered"

    # Approvals.

    async def _decide(self, execution: Execution, request: RequestRow) -> str:
        line = await self._read(request, "[a]pprove, [d]eny (reason), [e]dit the arguments, Enter: later > ")
        if not line.strip():
            raise Later
        if line.strip().lower() in ("e", "edit"):
            return await self._edit(execution, request, await self._edited_args(request))
        decision = parse_decision(line)
        shown: dict[str, Any] = {"args_digest": request.args_digest, "by": OPERATOR}
        match decision["decision"]:
            case "approve":
                await await_worker(execution.approve(request.id, **shown))
                return f"approved: {output.request_text(request)}"
            case "deny":
                await await_worker(execution.deny(request.id, reason=decision["reason"], **shown))
                return f"denied: {output.request_text(request)}"
            case _:
                return await self._edit(execution, request, decision["args"])

    async def _edit(self, execution: Execution, request: RequestRow, args: Mapping[str, Any]) -> str:
        await await_worker(execution.edit(args, request.id, args_digest=request.args_digest, by=OPERATOR))
        return f"approved with other arguments: {request.tool} {json_text(thaw(args))}"

    async def _edited_args(self, request: RequestRow) -> FrozenDict:
        """Ask for each argument; Enter keeps it."""
        echo("  Enter keeps the value of an argument")
        changed: dict[str, Any] = {}
        for name, value in thaw(request.args).items():
            shown = value if isinstance(value, str) else json_text(value)
            line = await self._read(request, f"  {name} [{shown}] > ")
            if not line.strip():
                changed[name] = value
            else:
                changed[name] = line if isinstance(value, str) else parse_json(line, name)
        return frozen_map(changed, "the arguments")

    # Questions.

    async def _ask_question(self, request: RequestRow) -> dict[str, Any]:
        schema = thaw(request.request.get("schema") or {})
        if _is_simple_form(schema):
            return {"data": await self._fill_in(request, schema)}
        choices: list[str] = list(request.request.get("choices") or ())
        for number, choice in enumerate(choices, 1):
            echo(f"  {number}  {choice}")
        what = "a JSON object" if schema else "a number or the text" if choices else "your answer"
        line = await self._read(request, f"{what}, Enter: later > ")
        text = line.strip()
        if not text:
            raise Later
        if text.isdecimal() and text not in choices and 1 <= int(text) <= len(choices):
            text = choices[int(text) - 1]
        return {"data": parse_json(text, "the answer")} if schema else {"text": text}

    async def _fill_in(self, request: RequestRow, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for each field of a form."""
        required = schema.get("required", [])
        data: dict[str, Any] = {}
        for name, field in schema["properties"].items():
            is_required = name in required and "default" not in field
            while True:
                line = (await self._read(request, _field_prompt(name, field, is_required))).strip()
                if not line and is_required:
                    raise Later
                if not line:
                    if "default" in field:
                        data[name] = field["default"]
                    break
                try:
                    data[name] = _field_value(name, field, line)
                except InvalidInput as error:
                    echo(f"  {error}")
                    continue
                break
        return data

    # Budgets.

    async def _raise_budget(self, execution: Execution, request: RequestRow) -> str:
        asked = request.request
        line = await self._read(request, f"the new total in {asked['unit']}, Enter: later > ")
        if not line.strip():
            raise Later
        amount = parse_json(line.strip(), "the total")
        if isinstance(amount, bool) or not isinstance(amount, int | float):
            raise InvalidInput("write the new total as a number")
        terms: dict[str, Any] = {asked["unit"]: amount, "scope": asked["scope"], "by": OPERATOR}
        await await_worker(execution.raise_budget(**terms))
        return f"raised to {amount:g} {asked['unit']}"

    # Input.

    async def _read(self, request: RequestRow, prompt: str) -> str:
        """Read a line that was typed after the prompt."""
        if self._lines is None:
            self._lines = InputLines()
        drop_typed()
        # Before the prompt: an answer may come as soon as it is visible.
        shown_at = monotonic()
        echo(prompt, nl=False)
        while True:
            try:
                line = await self._lines.next(LOOK_SECONDS)
            except TimeoutError:
                await self._check_open(request)
                continue
            if line is None:
                echo()
                raise Later
            if line.at >= shown_at:
                return line.text

    async def _check_open(self, request: RequestRow) -> None:
        stored = await self._execution.client.store.request(request.ref, request.id)
        row = await self._execution.client.store.execution(request.ref)
        if stored is None or stored.state is not RequestState.OPEN or row is None or row.status.is_terminal:
            raise Closed


def drop_typed() -> None:
    """Drop what was typed and not read."""
    # Imported here because Windows does not have it.
    import termios  # noqa: PLC0415

    with suppress(OSError, termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _is_simple_form(schema: Mapping[str, Any]) -> bool:
    properties: Any = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, dict) or not properties:
        return False
    fields: list[Any] = list(cast("dict[str, Any]", properties).values())
    return all(isinstance(field, dict) and _is_simple(cast("dict[str, Any]", field)) for field in fields)


def _is_simple(field: Mapping[str, Any]) -> bool:
    kind = field.get("type")
    return bool(_choices(field)) or (isinstance(kind, str) and kind in SIMPLE_TYPES)


def _choices(field: Mapping[str, Any]) -> list[Any]:
    values: Any = field.get("enum")
    return list(cast("list[Any]", values)) if isinstance(values, list) else []


def _field_prompt(name: str, field: Mapping[str, Any], is_required: bool) -> str:
    choices = _choices(field)
    kind = ", ".join(map(_shown, choices)) if choices else str(field.get("type"))
    default = f" [{_shown(field['default'])}]" if "default" in field else ""
    empty = "Enter: later" if is_required else "Enter: the default" if default else "Enter: none"
    return f"  {name} ({kind}){default}, {empty} > "


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json_text(value)


def _field_value(name: str, field: Mapping[str, Any], line: str) -> Any:
    if choices := _choices(field):
        for choice in choices:
            if line == _shown(choice):
                return choice
        raise InvalidInput(f"choose one of: {', '.join(map(_shown, choices))}")
    kind = field["type"]
    if kind == "string":
        return line
    if kind == "boolean" and line.lower() in ("y", "yes", "true", "n", "no", "false"):
        return line.lower() in ("y", "yes", "true")
    value = parse_json(line, name)
    is_bool = isinstance(value, bool)
    types: dict[str, Any] = {"number": int | float, "integer": int, "boolean": bool}
    if not isinstance(value, types[kind]) or (is_bool and kind != "boolean"):
        raise InvalidInput(f"{name} is of the type {kind}")
    return value
