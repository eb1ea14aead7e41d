"""The last turn at a step limit: the model answers without tools, so that the user gets an answer."""

from dataclasses import replace
from typing import Final

from everstep.agent_domain.agents.drivers import Reply
from everstep.agent_domain.loop.finish_reason import FinishReason
from everstep.agent_domain.loop.step_facts import StepType
from everstep.agent_domain.values import FrozenList

LAST_TURN: Final = """\
<last-turn>
This is the last turn: no tool can be called any more. Answer now with what you know, and say what is missing.
</last-turn>"""
"""What the model reads."""


def without_calls(reply: Reply) -> Reply:
    """The reply of a model that may not call tools; calls that it made are left out, and never run."""
    response = reply.response
    if not response.tool_calls:
        return reply
    is_calling = response.finish_reason == FinishReason.TOOL_CALLS.value
    reason = FinishReason.STOP.value if is_calling else response.finish_reason
    response = replace(response, tool_calls=(), items=FrozenList(), finish_reason=reason)
    return replace(reply, response=response, own_type=StepType.FINAL, executions=())
