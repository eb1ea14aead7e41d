"""Agents as models, as OpenAI's API lists them."""

from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.requests import Request

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.errors import UnknownName
from everstep.http_api.auth import CallerDep
from everstep.http_api.dependencies import Api
from everstep.http_api.openai_errors import render_error
from everstep.http_api.problems import Refusal
from everstep.http_api.routes.router import ApiDep
from everstep.http_api.wire_routes import wire_route

routes = APIRouter(route_class=wire_route(render_error), tags=["openai"])


@routes.get("/v1/models")
async def list_models(api: ApiDep, caller: CallerDep) -> dict[str, Any]:
    """List the agents as models."""
    del caller
    return {"object": "list", "data": [_model(each) for each in api.sessions.client.agents.values()]}


@routes.get("/v1/models/{model}")
async def read_model(
    model: Annotated[str, Path(max_length=200, description="The name of an agent.")],
    api: ApiDep,
    caller: CallerDep,
) -> dict[str, Any]:
    """Read an agent as a model."""
    del caller
    require_model(api, model)
    return _model(api.sessions.client.agents[model])


other_routes = APIRouter(route_class=wire_route(render_error))
"""Include it after all other routes of the protocol."""


@other_routes.api_route(
    "/v1/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False
)
async def refuse_unknown_address(path: str, request: Request) -> None:
    """Refuse what OpenAI's API has and this one has not, such as embeddings.

    Raises:
        Refusal: Always.
    """
    detail = (
        f"{request.method} /v1/{path} does not exist here: agents have responses, chat/completions, models"
    )
    raise Refusal(404, "unknown-url", "Not found", detail)


def require_model(api: Api, name: str) -> None:
    """Refuse a model that is no agent.

    Raises:
        Refusal: There is no agent with this name.
    """
    agents = api.sessions.client.agents
    if name not in agents:
        detail = str(UnknownName("agent", name, agents))
        errors = [{"at": "model", "message": detail}]
        raise Refusal(404, "model-not-found", "Not found", detail, errors=errors)


def _model(agent: AgentDefinition) -> dict[str, Any]:
    descriptor = agent.descriptor
    return {
        "id": descriptor.name,
        "object": "model",
        # Agents have no date.
        "created": 0,
        "owned_by": "everstep",
        "description": descriptor.description,
    }
