"""Request and response models of sign-ins in browsers."""

from typing import Self
from uuid import UUID

from pydantic import ConfigDict, Field, model_validator

from everstep.agent_domain.storage.sign_ins import BrowserSession, SignIn
from everstep.http_api.callers import Caller
from everstep.http_api.schemas.text import Moment, RequestModel, ResponseModel, Text
from everstep.http_api.tokens import MAX_TOKEN


class ProviderAnswer(RequestModel):
    """What an identity provider sent back with a person."""

    code: Text = Field(max_length=4096)
    verifier: Text = Field(min_length=43, max_length=128, description="The PKCE verifier of the page.")
    redirect_uri: Text = Field(max_length=2048)


class SignInSent(RequestModel):
    """What is exchanged for a session: exactly one of the fields."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"code": "the code of a one-time link"}]})

    code: Text | None = Field(default=None, max_length=200, description="The code of a one-time link.")
    token: Text | None = Field(default=None, max_length=MAX_TOKEN, description="A token or a key.")
    provider: ProviderAnswer | None = Field(default=None, description="The answer of an identity provider.")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(each is not None for each in (self.code, self.token, self.provider)) != 1:
            raise ValueError("send exactly one of: code, token, provider")
        return self


class ProviderResponse(ResponseModel):
    """Where people sign in at the identity provider."""

    authorization_endpoint: str | None = Field(description="Null while the provider does not answer.")
    client_id: str
    scope: str


class SignInResponse(ResponseModel):
    """Who is signed in, and how to sign in."""

    signed_in: bool
    required: bool = Field(description="Whether the API requires authentication at all.")
    user_id: str | None = None
    tenant_id: str | None = None
    scopes: list[str] = Field(default_factory=list[str])
    expires_at: Moment | None = Field(default=None, description="When the session ends.")
    page_key: str | None = Field(
        default=None,
        description="The page key of a new session, which is sent only once. The page keeps it in storage "
        "of its origin, and sends it as `Everstep-Page-Key` together with the cookie.",
    )
    provider: ProviderResponse | None = Field(
        default=None, description="The identity provider, if there is one."
    )
    temporal_workflows_url: str | None = Field(
        default=None,
        description="The list of workflows in Temporal's web UI, for links of people who are signed in.",
    )

    def with_session(self, sign_in: SignIn, temporal_workflows_url: str | None) -> Self:
        """Add the session, and what only people who are signed in learn."""
        return self.model_copy(
            update={
                "signed_in": True,
                "user_id": sign_in.user_id,
                "tenant_id": sign_in.tenant_id,
                "scopes": list(sign_in.scopes),
                "expires_at": sign_in.expires_at,
                "temporal_workflows_url": temporal_workflows_url,
            }
        )

    def with_caller(self, caller: Caller, temporal_workflows_url: str | None) -> Self:
        """Add a caller who needs no session."""
        return self.model_copy(
            update={
                "signed_in": True,
                "user_id": caller.user_id,
                "tenant_id": caller.tenant_id,
                "scopes": list(caller.scopes),
                "temporal_workflows_url": temporal_workflows_url,
            }
        )


class SignOutSent(RequestModel):
    """What ends when a person signs out."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"everywhere": True}]})

    everywhere: bool = Field(default=False, description="End all sessions of the user, in every browser.")


class BrowserSessionResponse(ResponseModel):
    """The session of a person in a browser."""

    id: UUID
    user_id: str
    scopes: list[str]
    roles: list[str]
    key_id: UUID | None = Field(description="The API key with which the person signed in.")
    user_agent: str | None = Field(description="The browser, as it named itself.")
    is_current: bool = Field(description="Whether it is the session of this request.")
    created_at: Moment
    expires_at: Moment

    @classmethod
    def of(cls, session: BrowserSession, *, is_current: bool = False) -> Self:
        """The response for a stored session."""
        sign_in = session.sign_in
        return cls(
            id=session.id,
            user_id=sign_in.user_id,
            scopes=[*sign_in.scopes],
            roles=[*sign_in.roles],
            key_id=sign_in.key_id,
            user_agent=sign_in.user_agent,
            is_current=is_current,
            created_at=session.created_at,
            expires_at=sign_in.expires_at,
        )


class EndedSignIns(ResponseModel):
    """The sessions that a request ended."""

    ended: list[UUID]


class GatewayTicket(ResponseModel):
    """What admits one connection to the gateway."""

    ticket: str = Field(description="Send it in `hello`, as a token. It is good for one connection.")
    expires_in: int = Field(description="Seconds within which the connection has to begin.")
