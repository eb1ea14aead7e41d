"""Who may decide about a request: the approvers of a call, and the rights that a decision used.

An approval names its approvers: the owner of the execution, a scope, or roles. By default it is the scope
`approve`. Scopes and roles come from the token or the key of the caller; a decision records those it used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, NoReturn, TypeAlias, cast
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict

from everstep.agent_domain.checks import require_finite
from everstep.agent_domain.errors import InvalidInput, NotPermitted
from everstep.agent_domain.values import (
    format_optional_moment,
    parse_moment,
    parse_optional_uuid,
    read_each,
    read_key,
    valid_text,
)

ALL_SESSIONS = "sessions:all"
"""The scope for the data of all users of a tenant."""
APPROVE = "approve"
"""The scope that decides about calls, where an agent names no other approver."""
EDIT = "approve:edit"
"""The scope that a decision with other arguments needs as well."""
ANSWER = "answer"
"""The scope that answers the questions of other users."""
STEER = "steer"
"""The scope that steers the executions of other users."""
CANCEL = "cancel"
"""The scope that cancels the executions of other users."""

ADMIN = "admin"
"""The scope for the installation itself, over all tenants."""

OPERATOR_SCOPES = (ALL_SESSIONS, APPROVE, EDIT)
"""The scopes that read and decide everything in a tenant."""
OWN_SCOPES = (*OPERATOR_SCOPES, ADMIN)
"""The scopes of the installation's own user: on its machine, and where authentication is off."""
TEMPORAL = "temporal"
"""The role of services that have a Temporal client only: they send no token."""

OWNER = "owner"
"""The approver that is the user of the execution."""

_SCOPE, _ROLE = "scope:", "role:"
DEFAULT_APPROVERS = (f"{_SCOPE}{APPROVE}",)

MAX_EXPIRY = 100 * 365 * 86400
"""The longest time in which an approval may expire, in seconds: a hundred years."""


def parse_approvers(value: object) -> tuple[str, ...]:
    """Parse the approvers of a call: one, or a list of which any may decide.

    Raises:
        InvalidInput: One is none of `owner`, `approve`, `scope:NAME` and `role:NAME`.
    """
    if not isinstance(value, list | tuple):
        return (_parse_approver(value),)
    entries = cast("Sequence[object]", value)
    return tuple(dict.fromkeys(map(_parse_approver, entries))) or _refuse_approver(entries)


def _parse_approver(value: object) -> str:
    if value == OWNER:
        return OWNER
    if value == APPROVE:
        return DEFAULT_APPROVERS[0]
    if not isinstance(value, str):
        _refuse_approver(value)
    kind = next((kind for kind in (_SCOPE, _ROLE) if value.startswith(kind)), None)
    name = valid_text(value, "an approver").removeprefix(kind or "")
    # The scopes of a token are separated by spaces; the name of a role may contain some.
    expected = "".join(name.split()) if kind == _SCOPE else name.strip()
    if kind is None or not name or name != expected:
        _refuse_approver(value)
    return value


def _refuse_approver(value: object) -> NoReturn:
    raise InvalidInput(
        f"{value!r} is no approver; use 'owner', 'approve', 'scope:NAME' or 'role:NAME', or a list of them"
    )


def _valid_expiry(value: object) -> float | None:
    if value is None:
        return None
    require_finite("expires_after", value)
    seconds = cast("float", value)
    if not 0 < seconds <= MAX_EXPIRY:
        raise InvalidInput(
            f"expires_after is {seconds:g}; pass seconds, more than 0 and at most a hundred years, "
            "or leave it out to wait as long as it takes"
        )
    return seconds


Approvers: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(parse_approvers)]
Expiry: TypeAlias = Annotated[float | None, BeforeValidator(_valid_expiry)]


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts on an execution, with the rights of the token or key that was sent."""

    subject: str
    scopes: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    key_id: UUID | None = None
    """The API key, if one was sent."""

    def has_scope(self, scope: str) -> bool:
        """Whether the token or key has this scope."""
        return scope in self.scopes

    def acts_for(self, user_id: str | None) -> bool:
        """Whether it is this user, or a service that may act for all users."""
        return self.subject == user_id or self.has_scope(ALL_SESSIONS)

    @property
    def approver_names(self) -> tuple[str, ...]:
        """The approvers that it is by its scopes and roles, whatever the execution."""
        return (*(f"{_SCOPE}{name}" for name in self.scopes), *(f"{_ROLE}{name}" for name in self.roles))


@dataclass(frozen=True, slots=True)
class Decider:
    """Who decided about a request or sent a command, with the rights that this used, and when."""

    subject: str
    at: datetime
    scopes: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    key_id: UUID | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; roles and the key only where there are any."""
        data = {
            "subject": self.subject,
            "scopes": list(self.scopes),
            "at": format_optional_moment(self.at),
        }
        if self.roles:
            data["roles"] = list(self.roles)
        if self.key_id:
            data["key_id"] = str(self.key_id)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Decider":
        """Read the JSON form; unknown keys are ignored."""
        return cls(
            read_key(data, "subject", str),
            read_key(data, "at", parse_moment),
            read_each(data, "scopes", str),
            read_each(data, "roles", str),
            parse_optional_uuid(data.get("key_id"), "key_id"),
        )

    @property
    def text(self) -> str:
        """The decider for people: the subject, and the rights that were used."""
        names = [*self.scopes, *(f"role {role}" for role in self.roles)]
        return f"{self.subject} ({', '.join(names)})" if names else self.subject


class DecisionPolicy(BaseModel):
    """Who may decide about a call that waits for approval, and for how long."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    approver: Approvers = DEFAULT_APPROVERS
    """Any of these may decide."""
    four_eyes: bool = False
    """Whether the user for whom the call was made may not decide about it."""
    expires_after: Expiry = None
    """Seconds after which the call is denied; None for never."""

    def require_decidable(self) -> None:
        """Refuse a policy under which no one could decide.

        Raises:
            InvalidInput: The owner is the only approver, and may not decide.
        """
        if self.four_eyes and self.approver == (OWNER,):
            raise InvalidInput(
                "four_eyes leaves no one to decide where only the owner may; name another approver"
            )

    @property
    def approver_text(self) -> str:
        """The approvers for people, such as `callers with the scope 'approve'`."""
        return " or ".join(map(_approver_text, self.approver))

    def decider(self, actor: Actor, requester: str | None, at: datetime, *, edits: bool = False) -> Decider:
        """The record of a decision by this actor.

        Args:
            actor: Who decides.
            requester: The user of the execution, for whom the call was made.
            at: When.
            edits: Whether the decision changes the arguments.

        Raises:
            NotPermitted: The actor may not decide; the message says who may.
        """
        if self.four_eyes and requester is not None and actor.subject == requester:
            raise NotPermitted(
                f"This call was made for '{requester}', so another person has to decide about it: "
                f"{self.approver_text}"
            )
        found = next((each for each in self.approver if _is_approver(actor, each, requester)), None)
        if found is None:
            raise NotPermitted(f"Only {self.approver_text} may decide about this call; ask one of them")
        if edits and not actor.has_scope(EDIT):
            raise NotPermitted(
                f"Other arguments need the scope '{EDIT}'; approve or deny the call as it is, or send a "
                "token or key with that scope"
            )
        role = (found.removeprefix(_ROLE),) if found.startswith(_ROLE) else ()
        scope = (found.removeprefix(_SCOPE),) if found.startswith(_SCOPE) else ()
        if found == OWNER and actor.subject != requester:
            scope = (ALL_SESSIONS,)
        return Decider(actor.subject, at, (*scope, *((EDIT,) if edits else ())), role, actor.key_id)

    def permits(self, actor: Actor, requester: str | None) -> bool:
        """Whether the actor may decide, without changing the arguments."""
        if self.four_eyes and requester is not None and actor.subject == requester:
            return False
        return any(_is_approver(actor, each, requester) for each in self.approver)


DEFAULT_POLICY = DecisionPolicy()

OLD_POLICY = DecisionPolicy(approver=(OWNER,))
"""The policy of requests that an older release opened: the owner decides."""


def _is_approver(actor: Actor, approver: str, requester: str | None) -> bool:
    return actor.acts_for(requester) if approver == OWNER else approver in actor.approver_names


def _approver_text(approver: str) -> str:
    if approver == OWNER:
        return "the owner of the execution"
    kind, _, name = approver.partition(":")
    return f"callers with the {kind} '{name}'"


def command_decider(actor: Actor, right: str, owner: str | None, at: datetime) -> Decider:
    """The record of an answer, a steering message or a cancel by this actor.

    Args:
        actor: Who sends it.
        right: The scope that this needs for the executions of other users.
        owner: The user of the execution.
        at: When.

    Raises:
        NotPermitted: The execution is another user's, and the actor does not have the scope.
    """
    if actor.subject == owner:
        return Decider(actor.subject, at, key_id=actor.key_id)
    scope = next((scope for scope in (right, ALL_SESSIONS) if actor.has_scope(scope)), None)
    if scope is None:
        raise NotPermitted(
            f"For the execution of another user this needs the scope '{right}'; send a token or key with it"
        )
    return Decider(actor.subject, at, (scope,), key_id=actor.key_id)
