"""Approval of tool calls by people: which calls need approval, by whom, and how a decision is applied.

An approval is single-use and bound to the digest of tool and arguments, so it never covers
another call. The exception is an approval with a rule, which also covers matching calls of the
same execution.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, TypeAlias, cast

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from everstep.agent_domain.capabilities.rights import (
    DEFAULT_POLICY,
    Approvers,
    DecisionPolicy,
    Expiry,
)
from everstep.agent_domain.checks import StrictModel, faults
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map, json_text

MISMATCH = "Approval does not match the pending call"
RESOLVED = "Approval already resolved"
EXPIRED = "Approval has expired"


class ApprovalMode(StrEnum):
    """Whether a call waits for a person."""

    NEVER = "never"
    ALWAYS = "always"


def _is_none(value: object) -> bool:
    return value is None


class ApprovalRule(StrictModel):
    """Decides for the calls whose tool name and arguments match its globs, case-sensitively."""

    model_config = ConfigDict(frozen=True)

    tool: str
    approval: ApprovalMode
    args: Annotated[Mapping[str, str], AfterValidator(frozen_map)] = EMPTY
    approver: Approvers | None = Field(default=None, exclude_if=_is_none)
    """Who decides about these calls; None for the approver of the tool."""
    four_eyes: bool | None = Field(default=None, exclude_if=_is_none)
    expires_after: Expiry = Field(default=None, exclude_if=_is_none)

    def matches(self, tool: str, args: Mapping[str, Any]) -> bool:
        """Whether the rule applies to a call; a missing argument matches no glob."""
        return fnmatchcase(tool, self.tool) and all(
            name in args and fnmatchcase(_as_text(args[name]), glob) for name, glob in self.args.items()
        )

    def covers(self, tool: str, args: Mapping[str, Any], policy: DecisionPolicy) -> bool:
        """Whether it allows a call without a further decision, as the rule of an earlier approval.

        The approver of the earlier call has to be the one of this call, too. Otherwise the approver of small
        amounts could allow large ones, for which the agent names another.
        """
        own = DecisionPolicy(
            approver=self.approver or DEFAULT_POLICY.approver, four_eyes=bool(self.four_eyes)
        )
        same = (own.approver, own.four_eyes) == (policy.approver, policy.four_eyes)
        return same and self.matches(tool, args)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json_text(value)


Waits: TypeAlias = ApprovalMode | tuple[ApprovalRule, ...]
"""Which calls wait: all, none, or those of which the first matching rule says so."""


@dataclass(frozen=True, slots=True)
class Approval:
    """Which calls of a tool wait for a decision, and who may decide."""

    waits: Waits = ApprovalMode.NEVER
    policy: DecisionPolicy = DEFAULT_POLICY

    def policy_of(self, tool: str, args: Mapping[str, Any]) -> DecisionPolicy | None:
        """Who may decide about a call; None if the call does not wait."""
        if isinstance(self.waits, ApprovalMode):
            return self.policy if self.waits is ApprovalMode.ALWAYS else None
        rule = next((rule for rule in self.waits if rule.matches(tool, args)), None)
        return None if rule is None or rule.approval is ApprovalMode.NEVER else self._policy_under(rule)

    def _policy_under(self, rule: ApprovalRule) -> DecisionPolicy:
        own = {name: value for name in _POLICY_KEYS if (value := getattr(rule, name)) is not None}
        return self.policy.model_copy(update=own)

    @property
    def may_expire(self) -> bool:
        """Whether a call may be denied because no one decides in time."""
        rules = self.waits if isinstance(self.waits, tuple) else ()
        return any(each.expires_after is not None for each in (self.policy, *rules))

    def require_decidable(self) -> None:
        """Refuse an approval under which no one could decide; see `DecisionPolicy.require_decidable`."""
        if isinstance(self.waits, ApprovalMode):
            self.policy.require_decidable()
            return
        for rule in self.waits:
            self._policy_under(rule).require_decidable()

    def to_json(self) -> Any:
        """The JSON form, which `parse_approval` reads: without a map where the default policy decides."""
        waits = (
            self.waits.value
            if isinstance(self.waits, ApprovalMode)
            else [rule.model_dump(mode="json") for rule in self.waits]
        )
        policy = self.policy.model_dump(mode="json", exclude_defaults=True)
        return {"approval": waits, **policy} if policy else waits


NO_APPROVAL = Approval()

_POLICY_KEYS = tuple(DecisionPolicy.model_fields)
_APPROVAL_KEYS = ("approval", *_POLICY_KEYS)


def parse_approval(value: object, policy: Mapping[str, Any] = EMPTY) -> Approval:
    """Parse a tool's approval: `never`, `always`, a list of rules, or a map that also says who decides.

    Args:
        value: The approval. A map has it under `approval`, beside values of `DecisionPolicy`.
        policy: Values of `DecisionPolicy` for those that `value` leaves out.

    Raises:
        InvalidInput: It is none of these.
    """
    given: Mapping[str, Any] = EMPTY
    if isinstance(value, Mapping):
        given = cast("Mapping[str, Any]", value)
        unknown = [str(key) for key in given if key not in _APPROVAL_KEYS]
        if unknown:
            problem = f"an approval has no key '{unknown[0]}'; use {', '.join(_APPROVAL_KEYS)}"
            raise InvalidInput(problem)
    values = {**policy, **{name: given[name] for name in _POLICY_KEYS if name in given}}
    try:
        decides = DecisionPolicy.model_validate(values)
    except ValidationError as error:
        problem = f"the approval does not fit: {faults(error)}"
        raise InvalidInput(problem) from None
    waits = given.get("approval") if isinstance(value, Mapping) else value
    approval = Approval(_parse_waits(waits), decides)
    approval.require_decidable()
    return approval


def _parse_waits(value: object) -> Waits:
    if isinstance(value, str) and value in tuple(ApprovalMode):
        return ApprovalMode(value)
    if not isinstance(value, list | tuple):
        problem = f"{value!r} is not an approval; use 'never', 'always' or a list of rules"
        raise InvalidInput(problem)
    return tuple(_rule(number, entry) for number, entry in enumerate(cast("Sequence[object]", value), 1))


def _rule(number: int, entry: object) -> ApprovalRule:
    try:
        return ApprovalRule.model_validate(entry)
    except ValidationError as error:
        problem = f"approval rule #{number} does not fit: {faults(error)}"
        raise InvalidInput(problem) from None


def args_digest(tool: str, args: Mapping[str, Any]) -> str:
    """The digest that binds an approval to a call: SHA-256 of its JSON text with sorted keys."""
    call = {"args": frozen_map(args, "args"), "tool": tool}
    text = json.dumps(call, ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


_DIGEST = "[0-9a-f]{64}"


def valid_digest(digest: str) -> str:
    """Return the digest if it has the form of one.

    Raises:
        InvalidInput: It does not.
    """
    if re.fullmatch(_DIGEST, digest):
        return digest
    raise InvalidInput(
        "args_digest must be 64 lower-case hexadecimal digits; send the args_digest of the request unchanged"
    )


Digest: TypeAlias = Annotated[
    str, AfterValidator(valid_digest), WithJsonSchema({"type": "string", "pattern": f"^{_DIGEST}$"})
]


class Verdict(StrEnum):
    """A person's decision about a tool call."""

    APPROVE = "approve"
    DENY = "deny"
    EDIT = "edit"


class ApprovalDecision(StrictModel):
    """A person's answer to a request for approval."""

    model_config = ConfigDict(frozen=True)

    decision: Verdict
    args_digest: Digest
    reason: str | None = None
    args: Annotated[Mapping[str, Any], AfterValidator(frozen_map)] | None = None
    remember: bool | Annotated[Mapping[str, str], AfterValidator(frozen_map)] = False
    """Whether it applies to later calls of the tool in this execution: all, or those that match the globs."""

    @model_validator(mode="after")
    def _remember_only_with_approve(self) -> "ApprovalDecision":
        if self.remember is not False and self.decision is not Verdict.APPROVE:
            raise InvalidInput(_REMEMBER_WITH_APPROVE)
        return self

    @model_validator(mode="after")
    def _args_only_with_edit(self) -> "ApprovalDecision":
        if (self.decision is Verdict.EDIT) != (self.args is not None):
            raise InvalidInput(_ARGS_WITH_EDIT)
        return self

    @classmethod
    def parse(cls, data: object) -> "ApprovalDecision":
        """Parse a decision.

        Raises:
            InvalidInput: It is malformed.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            problem = f"the decision does not fit: {faults(error)}"
            raise InvalidInput(problem) from None

    def conflict(self, pending_digest: str, resolved: bool) -> str | None:
        """The reason why the decision cannot be applied to its request; None if it can.

        Args:
            pending_digest: The digest of the request.
            resolved: Whether the request is already resolved.
        """
        if resolved:
            return RESOLVED
        return None if self.args_digest == pending_digest else MISMATCH

    def rule_to_remember(
        self, tool: str, args: Mapping[str, Any], policy: DecisionPolicy = DEFAULT_POLICY
    ) -> ApprovalRule | None:
        """The rule that allows later calls of the tool, if the decision is to be remembered.

        Args:
            tool: The tool of the approved call.
            args: Its arguments.
            policy: Who may decide about it; the rule covers calls with the same approver only.

        Raises:
            InvalidInput: The rule does not match this call.
        """
        if self.remember is False:
            return None
        globs = EMPTY if self.remember is True else self.remember
        approver = None if policy.approver == DEFAULT_POLICY.approver else policy.approver
        rule = ApprovalRule(
            tool=_escape_glob(tool),
            approval=ApprovalMode.NEVER,
            args=globs,
            approver=approver,
            four_eyes=policy.four_eyes or None,
        )
        if not rule.matches(tool, args):
            raise InvalidInput(_REMEMBER_OTHERS)
        return rule

    @property
    def denial(self) -> str:
        """The result of a denied call, which the model reads; for the error policy it is not an error."""
        reason = (self.reason or "").strip()
        return f"Denied by user: {reason}" if reason else "Denied by user"

    def effective_args(self, requested: FrozenDict) -> FrozenDict | None:
        """The arguments to run the call with; None if it must not run."""
        if self.decision is Verdict.DENY:
            return None
        return requested if self.args is None else frozen_map(self.args)

    def result_text(self, text: str) -> str:
        """The result text of the call, with a note if a person edited its arguments."""
        return text if self.args is None else f"[Arguments edited by user: {json_text(self.args)}]\n{text}"


def _escape_glob(name: str) -> str:
    """A glob that matches only this name."""
    return re.sub(r"([*?\[])", r"[\1]", name)


_REMEMBER_WITH_APPROVE = "only an approval can be remembered; send remember with the decision 'approve'"
_REMEMBER_OTHERS = "the rule to remember does not match the call that is approved; remember one that does"
_ARGS_WITH_EDIT = "send args with the decision 'edit', and only with it"
