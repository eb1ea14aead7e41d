"""A model with fallbacks."""

import pytest

from everstep.agent_domain.agents.drivers import OnText
from everstep.agent_domain.errors import InvalidInput, ModelError, ModelTimeout, ModelUnavailable, RateLimited
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import ScriptedModel, says
from everstep.inference.fallback import FallbackModel
from everstep.inference.scripted import ScenarioModel, Script, ScriptedError, ScriptedTurn
from tests.everstep.inference.asking import ChunkRecorder, a_request, ask


class CountingModel(ScriptedModel):
    """A scripted model that counts its calls."""

    @property
    def request_count(self) -> int:
        return len(self.requests)


@pytest.mark.parametrize("failure", [RateLimited("slow"), ModelTimeout("late"), ModelUnavailable("down")])
async def test_the_next_model_answers_while_one_is_unreachable(failure: ModelError) -> None:
    """3.5.1"""
    first, second, third = CountingModel(failure), CountingModel("Hello"), CountingModel("Never")

    response = await ask(FallbackModel([first, second, third]), "Hello")

    assert response.text == "Hello"
    assert (first.request_count, second.request_count, third.request_count) == (1, 1, 0)


async def test_the_first_reachable_model_is_used_every_time() -> None:
    first, second = CountingModel(ModelUnavailable("down"), "Hello"), CountingModel("Hello from me")
    model = FallbackModel([first, second])

    assert [(await ask(model, "Hello")).text for _ in range(2)] == ["Hello from me", "Hello"]


async def test_a_refused_request_is_not_passed_on() -> None:
    """3.5.2"""
    second = CountingModel("Hello")

    with pytest.raises(ModelError, match="wrong key"):
        await ask(FallbackModel([CountingModel(ModelError("wrong key")), second]), "Hello")

    assert second.request_count == 0


async def test_only_the_text_of_the_answer_is_streamed() -> None:
    heard = ChunkRecorder()

    response = await FallbackModel([CountingModel(ModelTimeout("late")), CountingModel("Hello")]).respond(
        a_request("Hello"), heard
    )

    assert heard.text == response.text


async def test_a_response_that_broke_off_is_left_to_the_caller() -> None:
    """Streamed text cannot be retracted: a new attempt has to announce itself."""
    broken = ScriptedTurn(text="Hello there", error=ScriptedError(type="unavailable", after=5))
    second, heard = CountingModel("Good day"), ChunkRecorder()

    with pytest.raises(ModelUnavailable):
        await FallbackModel([ScenarioModel(Script.of(broken)), second]).respond(a_request("Hello"), heard)

    assert heard == ["Hello"]
    assert second.request_count == 0


async def test_when_no_model_answers_the_longest_delay_is_requested() -> None:
    """3.5.1: wait at least as long as any of them requested."""
    models = [
        CountingModel(ModelTimeout("late")),
        CountingModel(RateLimited("slow", 3)),
        CountingModel(ModelUnavailable("down", 20)),
    ]

    with pytest.raises(ModelUnavailable, match="down") as failed:
        await ask(FallbackModel(models), "Hello")

    assert failed.value.retry_after == 20
    assert failed.value.__notes__ == ["Also: late", "Also: slow"]


async def test_without_a_delay_the_first_error_is_raised() -> None:
    with pytest.raises(ModelTimeout):
        await ask(
            FallbackModel([CountingModel(ModelTimeout("late")), CountingModel(RateLimited("slow"))]), "Hello"
        )


class FaultyModel:
    """A model with a bug."""

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        raise ZeroDivisionError


async def test_a_bug_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await ask(FallbackModel([FaultyModel(), CountingModel(says("Hello"))]), "Hello")


def test_a_chain_needs_a_model() -> None:
    with pytest.raises(InvalidInput, match="at least one model"):
        FallbackModel([])
