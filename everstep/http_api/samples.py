"""Example responses for the documentation of the API, all from one conversation."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ConfigDict

SESSION_ID: Final = "93bfb85c-abd7-5fa0-9085-89d8257d21b7"
EXECUTION_ID: Final = "31315973-d894-5f15-b318-f0faa1249fb7"
AT: Final = "2026-01-16T10:05:00.123456Z"
LATER: Final = "2026-01-16T10:05:07.654321Z"

_ABOUT: Final[Mapping[str, Any]] = {"related_type": None, "related_id": None, "context_url": None}


def example(sample: Mapping[str, Any]) -> ConfigDict:
    """The configuration of a response model with this example."""
    return ConfigDict(frozen=True, json_schema_extra={"examples": [{**sample}]})


SESSION: Final[Mapping[str, Any]] = {
    "id": SESSION_ID,
    "user_id": "ann",
    "title": "A trip to Bergen",
    "status": "active",
    "agent": "travel-desk",
    **_ABOUT,
    "initial_context_url": None,
    "metadata": {"agent": "travel-desk"},
    "last_execution_id": EXECUTION_ID,
    "last_snapshot_id": None,
    "cost_usd": 0.00694,
    "created_at": AT,
    "updated_at": LATER,
}

SEARCH_HIT: Final[Mapping[str, Any]] = {
    "session_id": SESSION_ID,
    "session_title": "A trip to Bergen",
    "execution_id": EXECUTION_ID,
    "agent": "travel-desk",
    "user_id": "ann",
    "step_number": 1,
    "kind": "arguments",
    "tool": "find_train",
    "call_id": "c-1",
    "snippet": {"text": '{"to":"Bergen"}', "marks": [[7, 13]]},
    "created_at": AT,
}

MESSAGE: Final[Mapping[str, Any]] = {
    "id": "381af9b5-8752-5792-bb72-d7c67eedc972",
    "session_id": SESSION_ID,
    "role": "user",
    "content": "Book me a train to Bergen",
    "execution_id": None,
    **_ABOUT,
    "metadata": {},
    "attachments": [],
    "created_at": AT,
    "feedback": None,
}

ATTACHMENT: Final[Mapping[str, Any]] = {
    "id": "5b0e2f0d-6f5c-4a53-9a0e-1b0f3a6d7c42",
    "name": "ticket.png",
    "media_type": "image/png",
    "size": 48213,
    "sha256": "0f1e5c7a3b9d48620f1e5c7a3b9d48620f1e5c7a3b9d48620f1e5c7a3b9d4862",
}

ACCEPTED: Final[Mapping[str, Any]] = {
    "session_id": SESSION_ID,
    "execution_id": EXECUTION_ID,
    "route": "start",
    "message": MESSAGE,
}

BUDGET: Final[Mapping[str, Any]] = {
    "unit": "usd",
    "limit": 0.5,
    "spent": 0.1875,
    "reserved": 0,
    "scope": "execution",
    "on_exhausted": "ask",
    "set_by": "agent",
}

EXECUTION: Final[Mapping[str, Any]] = {
    "id": EXECUTION_ID,
    "session_id": SESSION_ID,
    "parent_execution_id": None,
    "user_id": "ann",
    "agent": "travel-desk",
    "definition_hash": "0f1e5c7a3b9d48620f1e5c7a3b9d48620f1e5c7a3b9d48620f1e5c7a3b9d4862",
    "status": "completed",
    "stop_reason": "completed",
    "step_count": 3,
    "usage": {"input": 812, "output": 96, "cached": 0, "reasoning": 0, "total": 908},
    "cost_usd": 0.00694,
    "tree_cost_usd": 0.00694,
    "output": {"response": "Your train to Bergen is booked.", "stop_reason": "completed"},
    "error_message": None,
    "last_snapshot_id": "7d4e1c53-2f0b-5c55-9a51-7b0b6f1c2d3e",
    "metadata": {"stop_reason": "completed"},
    "created_at": AT,
    "started_at": AT,
    "completed_at": LATER,
    "because": "completed: the model answered without calling tools",
    "cancelled_by": None,
    "budget": BUDGET,
    "budgets": [BUDGET],
    "queue_position": None,
}

REQUEST: Final[Mapping[str, Any]] = {
    "id": "0c7f6f1f-7a10-5a4f-9a0e-4a530190b4a6",
    "execution_id": EXECUTION_ID,
    "session_id": SESSION_ID,
    "kind": "approval",
    "state": "open",
    "tool": "book_train",
    "args": {"train": "8:25 to Bergen"},
    "args_digest": "5f2b0c3c0e5d6f0a4a9a3b1f7cf0a0c3f9f6f3a1f3f1f5b7d1c2b3a4958677f0",
    "request": {},
    "created_at": AT,
    "agent": "travel-desk",
    "user_id": "ann",
    "approver": ["scope:approve"],
    "four_eyes": False,
    "expires_at": None,
    "may_decide": True,
    "decision": None,
    "reason": None,
    "edited_args": None,
    "decided_by": None,
}
