"""A model with fallbacks."""

import pytest

from everstep.agent_domain.agents.drivers import OnText
from everstep.agent_domain.errors import InvalidInput, ModelError, ModelTimeout, ModelUnavailable, RateLimited
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import ScriptedModel, says
from everstep.inference.fallback import FallbackModel
from everstep.inference.scripted import ScenarioModel, Script, ScriptedError, ScriptedTurn
from tests.everstep.inference.asking import Listener, asked, asking


class Counted(ScriptedModel):
    """A scripted model that counts its calls."""

    @property
    def asked(self) -> int:
        return len(self.requests)


@pytest.mark.parametrize("failure", [RateLimited("slow"), ModelTimeout("late"), ModelUnavailable("down")])
async def test_the_next_model_answers_while_one_is_unreachable(failure: ModelError) -> None:
    """3.5.1"""
    first, second, third = Counted(failure), Counted("Hello"), Counted("Never")

    response = await asked(FallbackModel([first, second, third]), "Hello")

    assert response.text == "Hello"
    assert (first.asked, second.asked, third.asked) == (1, 1, 0)


async def test_the_first_reachable_model_is_used_every_time() -> None:
    first, second = Counted(ModelUnavailable("down"), "Hello"), Counted("Hello from me")
    model = FallbackModel([first, second])

    assert [(await asked(model, "Hello")).text for _ in range(2)] == ["Hello from me", "Hello"]


async def test_a_refused_request_is_not_passed_on() -> None:
    """3.5.2"""
    second = Counted("Hello")

    with pytest.raises(ModelError, match="wrong key"):
        await asked(FallbackModel([Counted(ModelError("wrong key")), second]), "Hello")

    assert second.asked == 0


async def test_only_the_text_of_the_answer_is_streamed() -> None:
    heard = Listener()

    response = await FallbackModel([Counted(ModelTimeout("late")), Counted("Hello")]).respond(
        asking("Hello"), heard
    )

    assert heard.text == response.text


async def test_a_response_that_broke_off_is_left_to_the_caller() -> None:
    """Streamed text cannot be retracted: a new attempt has to announce itself."""
    broken = ScriptedTurn(text="Hello there", error=ScriptedError(type="unavailable", after=5))
    second, heard = Counted("Good day"), Listener()

    with pytest.raises(ModelUnavailable):
        await FallbackModel([ScenarioModel(Script.of(broken)), second]).respond(asking("Hello"), heard)

    assert heard == ["Hello"]
    assert second.asked == 0


async def test_when_no_model_answers_the_longest_delay_is_requested() -> None:
    """3.5.1: wait at least as long as any of them requested."""
    models = [
        Counted(ModelTimeout("late")),
        Counted(RateLimited("slow", 3)),
        Counted(ModelUnavailable("down", 20)),
    ]

    with pytest.raises(ModelUnavailable, match="down") as failed:
        await asked(FallbackModel(models), "Hello")

    assert failed.value.retry_after == 20
    assert failed.value.__notes__ == ["Also: late", "Also: slow"]


async def test_without_a_delay_the_first_error_is_raised() -> None:
    with pytest.raises(ModelTimeout):
        await asked(FallbackModel([Counted(ModelTimeout("late")), Counted(RateLimited("slow"))]), "Hello")


class Faulty:
    """A model with a bug."""

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        raise ZeroDivisionError


async def test_a_bug_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await asked(FallbackModel([Faulty(), Counted(says("Hello"))]), "Hello")


def test_a_chain_needs_a_model() -> None:
    with pytest.raises(InvalidInput, match="at least one model"):
        FallbackModel([])
