"""The traces of a run in an installation: clocks, snapshots, references, a visible end."""

from typing import Any
from uuid import UUID

import httpx2
import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata

from everstep.agent_domain.ids import subagent_id
from tests.acceptance.front import Front
from tests.acceptance.harness import until

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def details(front: Front, execution: str) -> str:
    """The first line that the Temporal UI shows of a workflow."""
    workflow: Any = front.installation.temporal.get_workflow_handle(f"agent-execution/{execution}")
    shown = await workflow.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return shown.current_details.splitlines()[0]


async def test_two_executions_of_a_session_leave_their_traces(front: Front) -> None:
    """1.2.3, 2.7.5, 6.2, 8.1, 8.1.2, 8.1.5: by a worker and an API of this test."""
    await front.api()
    headers = {"Authorization": f"Bearer {front.key}"}
    async with httpx2.AsyncClient(base_url=front.url, headers=headers, timeout=30) as ann:

        async def get(path: str) -> Any:
            answer = await ann.get(path)
            assert answer.status_code == 200, answer.text
            return answer.json()

        async def wait_for_end(execution: str) -> Any:
            async def is_over() -> bool:
                return (await get(f"/agent/executions/{execution}"))["completed_at"] is not None

            await until("the execution ends", is_over)
            return (await get(f"/agent/executions/{execution}/snapshots"))["items"][0]

        async def says(path: str, content: str) -> Any:
            answer = await ann.post(path, json={"content": content, "agent": "chief"})
            assert answer.status_code < 300, answer.text
            return answer.json()

        first = await says("/agent/messages", "hello")
        session, worked = first["session_id"], 0.0
        accepted = first
        for number in range(2):
            if number:
                accepted = await says(f"/agent/sessions/{session}/messages", "send hello & thanks")
            execution = accepted["execution_id"]
            kept = await get(f"/agent/sessions/{session}")
            assert kept["last_execution_id"] == execution
            snapshot = await wait_for_end(execution)
            clocks = snapshot["state"]["execution"]
            worked += clocks["cumulative_seconds"]
            assert clocks["cumulative_seconds"] > 0
            assert clocks["session_seconds"] == pytest.approx(worked)
            assert all(step["duration_ms"] is not None for step in snapshot["state"]["steps"])
            assert (await get(f"/agent/sessions/{session}"))["last_snapshot_id"] == snapshot["id"]
            assert (await get(f"/agent/executions/{execution}"))["last_snapshot_id"] == snapshot["id"]
            assert snapshot["parent_snapshot_id"] is None
            assert (await details(front, execution)).endswith("completed (completed)")
        calls = (await get(f"/agent/executions/{accepted['execution_id']}/steps"))["items"][0]["calls"]
        for call in calls:
            child = await wait_for_end(str(subagent_id(UUID(accepted["execution_id"]), call["id"])))
            assert child["parent_snapshot_id"] is None
            assert child["state"]["execution"]["session_seconds"] < worked
