"""Removes secrets from error texts before they reach a model, the store or a viewer.

Exceptions quote connection strings, headers and settings. Patterns find text that looks like a secret; the
secrets that an installation is configured with are replaced by value.
"""

import re
from dataclasses import dataclass
from urllib.parse import quote

REDACTED = "[redacted]"

MIN_SECRET_LENGTH = 6
"""Shorter configured values are not replaced: they occur inside ordinary words."""

_NAMES = "|".join(
    (
        r"pass(?:word|wd|phrase)?|pwd|secret|token|credentials?",
        r"(?:api|access|private|secret|encryption)[_-]?key",
    )
)
_VALUE = r"(?:\"[^\"]*\"|'[^']*'|[^\s\"',;&)}\]]+)"

_PATTERNS = (
    # Whole keys in PEM format.
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    # The password in an address: scheme://user:password@host.
    re.compile(r"(?P<kept>\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(?=@)", re.IGNORECASE),
    # Authorization: Bearer ..., and a bearer token alone: words have no digits.
    re.compile(
        rf"(?P<kept>\bauthorization[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token)\s+)?){_VALUE}",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<kept>\bbearer\s+)(?=\S*\d)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE),
    # password=..., "api_key": "...", DB_PASSWORD: ...
    re.compile(
        rf"(?P<kept>(?:\b|_)(?:[\w-]*[_-])?(?:{_NAMES})[\"']?\s*(?:=>|[:=])\s*){_VALUE}", re.IGNORECASE
    ),
    # Tokens with the well-known prefixes of providers, and JSON web tokens.
    re.compile(r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{12,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bxox[abprs]-[\w-]{10,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bglpat-[\w-]{16,}|\bAIza[\w-]{30,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"),
)


@dataclass(frozen=True, slots=True, repr=False)
class Redaction:
    """Replaces secrets in a text: those that the patterns above find, and those that are known by value."""

    secrets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        forms = {form for secret in self.secrets for form in (secret, quote(secret, safe=""))}
        usable = sorted((form for form in forms if len(form) >= MIN_SECRET_LENGTH), key=len, reverse=True)
        object.__setattr__(self, "secrets", tuple(usable))

    def __repr__(self) -> str:
        return f"<Redaction, {len(self.secrets)} known secrets>"

    def __call__(self, text: str) -> str:
        """Return the text with every known or apparent secret replaced."""
        for secret in self.secrets:
            text = text.replace(secret, REDACTED)
        for pattern in _PATTERNS:
            text = pattern.sub(_replacement, text)
        return text


def _replacement(match: re.Match[str]) -> str:
    prefix: str = match.groupdict().get("kept") or ""
    return f"{prefix}{REDACTED}"
