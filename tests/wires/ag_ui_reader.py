"""A reader of AG-UI: the order that the protocol demands, and the conversation that results.

It follows the rules of `@ag-ui/client`, which other tests run. This one is fast, for thousands of streams.
"""

from collections.abc import Mapping
from typing import Any

OPENS: Mapping[str, tuple[str, str]] = {
    "TEXT_MESSAGE_START": ("text", "messageId"),
    "TOOL_CALL_START": ("call", "toolCallId"),
    "REASONING_START": ("span", "messageId"),
    "REASONING_MESSAGE_START": ("reasoning", "messageId"),
    "STEP_STARTED": ("step", "stepName"),
    "SUBAGENT_STARTED": ("subagent", "subagentRunId"),
}
CLOSES: Mapping[str, tuple[str, str]] = {
    "TEXT_MESSAGE_END": ("text", "messageId"),
    "TOOL_CALL_END": ("call", "toolCallId"),
    "REASONING_END": ("span", "messageId"),
    "REASONING_MESSAGE_END": ("reasoning", "messageId"),
    "STEP_FINISHED": ("step", "stepName"),
    "SUBAGENT_FINISHED": ("subagent", "subagentRunId"),
    "SUBAGENT_ERROR": ("subagent", "subagentRunId"),
}
CONTINUES: Mapping[str, tuple[str, str]] = {
    "TEXT_MESSAGE_CONTENT": ("text", "messageId"),
    "TOOL_CALL_ARGS": ("call", "toolCallId"),
    "REASONING_MESSAGE_CONTENT": ("reasoning", "messageId"),
}


class AgUiReader:
    """The state of a client after some events."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = {message["id"]: message for message in messages}
        self.state: Any = None
        self.outcome: Any = None
        self._open: set[tuple[str, ...]] = set()
        self._ended: set[str] = set()
        self._is_running = False

    def read(self, event: Mapping[str, Any]) -> None:
        """Read an event; one out of order is an error."""
        kind = event["type"]
        assert None not in event.values()
        if kind == "RUN_STARTED":
            assert not self._is_running
            self._is_running, self._open, self._ended = True, set(), set()
        else:
            assert self._is_running, event
        self._follow(kind, event)
        self._apply(kind, event)

    def _follow(self, kind: str, event: Mapping[str, Any]) -> None:
        if entry := self._entry(OPENS, kind, event):
            assert entry not in self._open, event
            assert entry[0] != "subagent" or entry[1] not in self._ended
            self._open.add(entry)
        elif entry := self._entry(CLOSES, kind, event):
            self._open.remove(entry)
            self._ended |= {entry[1]} if entry[0] == "subagent" else set()
        elif entry := self._entry(CONTINUES, kind, event):
            assert entry in self._open, event
        elif kind == "RUN_FINISHED":
            assert not self._open, self._open
            self._is_running = False
        elif kind == "RUN_ERROR":
            self._is_running = False
        if kind == "SUBAGENT_STARTED" and (parent := event.get("parentSubagentRunId")):
            assert ("subagent", parent) in self._open or parent in self._ended

    def _entry(
        self, table: Mapping[str, tuple[str, str]], kind: str, event: Mapping[str, Any]
    ) -> tuple[str, ...] | None:
        if kind not in table:
            return None
        what, key = table[kind]
        # The name of a step is unique within its agent.
        owner = (event.get("subagentRunId", ""),) if what == "step" else ()
        return (what, event[key], *owner)

    def _apply(self, kind: str, event: Mapping[str, Any]) -> None:
        match kind:
            case "TEXT_MESSAGE_START":
                new = {"id": event["messageId"], "role": event["role"], "content": ""}
                self.messages.setdefault(event["messageId"], new)
            case "TEXT_MESSAGE_CONTENT":
                message = self.messages[event["messageId"]]
                message["content"] = message.get("content", "") + event["delta"]
            case "TOOL_CALL_START":
                new = {"id": event["parentMessageId"], "role": "assistant"}
                message = self.messages.setdefault(event["parentMessageId"], new)
                function = {"name": event["toolCallName"], "arguments": ""}
                message.setdefault("toolCalls", []).append({"id": event["toolCallId"], "function": function})
            case "TOOL_CALL_ARGS":
                calls = [call for each in self.messages.values() for call in each.get("toolCalls", [])]
                (call,) = (call for call in calls if call["id"] == event["toolCallId"])
                call["function"]["arguments"] += event["delta"]
            case "TOOL_CALL_RESULT":
                fields = {name: event[name] for name in ("role", "content", "toolCallId")}
                assert event["messageId"] not in self.messages, event
                self.messages[event["messageId"]] = {"id": event["messageId"], **fields}
            case "REASONING_MESSAGE_START":
                new = {"id": event["messageId"], "role": "reasoning", "content": ""}
                self.messages[event["messageId"]] = new
            case "REASONING_MESSAGE_CONTENT":
                self.messages[event["messageId"]]["content"] += event["delta"]
            case _:
                self._apply_whole(kind, event)

    def _apply_whole(self, kind: str, event: Mapping[str, Any]) -> None:
        match kind:
            case "MESSAGES_SNAPSHOT":
                new = {message["id"]: dict(message) for message in event["messages"]}
                known = [id_ for id_ in self.messages if id_ in new]
                self.messages = {id_: new[id_] for id_ in [*known, *new]}
            case "STATE_SNAPSHOT":
                self.state = dict(event["snapshot"])
            case "STATE_DELTA":
                for operation in event["delta"]:
                    key = operation["path"][1:].replace("~1", "/").replace("~0", "~")
                    if operation["op"] == "remove":
                        del self.state[key]
                    else:
                        self.state[key] = operation["value"]
            case "RUN_FINISHED":
                self.outcome = event["outcome"]
            case "RUN_ERROR":
                self.outcome = {"type": "error"}
            case _:
                pass

    @property
    def contents(self) -> dict[str, tuple[Any, ...]]:
        """What the messages say, by id."""
        return {
            id_: (
                message["role"],
                (message.get("content") or "").rstrip(),
                [(call["id"], call["function"]) for call in message.get("toolCalls", [])]
                and [(call["id"], call["function"]["arguments"]) for call in message["toolCalls"]],
            )
            for id_, message in self.messages.items()
        }
