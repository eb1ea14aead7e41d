"""Sign-ins of people in browsers: a cookie that identifies the caller, and what may be exchanged for it.

- A session has two secrets. One is in an HttpOnly cookie. No script can read it, but browsers send it to all
  ports of a host, so every local web application receives it. The other, the page key, is in the storage of
  the page, which belongs to one origin, port included. The page sends it in a header. Each is useless without
  the other.
- The name of the cookie derives from the page key, so that nothing else sets a cookie of this name by chance
  or guess: neither an earlier session, nor an installation at another port or path of the host. Over https it
  begins with `__Host-`: then browsers take it neither from other hosts of the domain nor from plain http. A
  web application at another port still receives the name with the cookie, and can overwrite it, which signs
  the person out. Nothing about cookies prevents that.
- The store has one digest of both, so every process of the API knows the session, and signing out ends it
  everywhere.
- The cookie is `SameSite=Strict`, and a request that changes something also has to name this origin: `Origin`
  cannot be forged by a page.
- For the gateway, which takes no cookies, a page gets a ticket for one connection.
"""

import hashlib
import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from everstep.agent_domain.capabilities.rights import OWN_SCOPES
from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.agent_domain.storage.sign_ins import SignIn, SignInKind, SignInStore
from everstep.agent_domain.values import escape_unstorable
from everstep.http_api.auth import READ_METHODS, Authenticate
from everstep.http_api.authorities import Authority
from everstep.http_api.callers import LEEWAY, Caller
from everstep.http_api.problems import authentication_error, forbidden

LOCAL_USER: Final = "local"
"""The user of this machine. A link of `everstep up` signs in as this user."""

CODE_MINUTES: Final = 10
"""How long a link is valid."""
SESSION_DAYS: Final = 7
"""The longest time of a session; it never outlasts the token with which it began."""
TICKET_SECONDS: Final = 60

TICKET_PREFIX: Final = "est_"
MAX_USER_AGENT: Final = 300

PAGE_KEY_HEADER: Final = "Everstep-Page-Key"
HOST_PREFIX: Final = "__Host-"

SIGN_IN_AGAIN = "The session has ended; sign in again"


def digest_of(secret: str) -> str:
    """The stored digest of a secret. 256 random bits cannot be guessed, so a fast hash is sufficient."""
    return hashlib.sha256(secret.encode()).hexdigest()


async def create_code(store: SignInStore) -> str:
    """Create the code of a link that signs in the user of this machine."""
    code = secrets.token_urlsafe(32)
    expires_at = datetime.now(UTC) + timedelta(minutes=CODE_MINUTES)
    local = SignIn(DEFAULT_TENANT, LOCAL_USER, expires_at, OWN_SCOPES)
    await store.add_sign_in(SignInKind.CODE, digest_of(code), local)
    return code


def caller_of(sign_in: SignIn) -> Caller:
    """The caller that a sign-in stands for."""
    expires_at = sign_in.expires_at.timestamp() + LEEWAY
    caller = Caller.from_claims(
        sign_in.user_id, sign_in.tenant_id, list(sign_in.scopes), expires_at, list(sign_in.roles)
    )
    return replace(caller, key_id=sign_in.key_id, signing_key=sign_in.signing_key, is_session=True)


@dataclass(frozen=True, slots=True)
class NewBrowserSession:
    """A new session, with the secret that its page keeps."""

    sign_in: SignIn
    page_key: str


@dataclass(frozen=True, slots=True)
class BrowserSessions:
    """The sessions of browsers, over a store that all processes of the API and the gateway share."""

    store: SignInStore
    authority: Authority

    async def open(self, request: Request, response: Response, caller: Caller) -> NewBrowserSession:
        """Begin a session of this caller, and set its cookie."""
        longest = datetime.now(UTC) + timedelta(days=SESSION_DAYS)
        expires_at = longest
        if caller.expires_at is not None:
            expires_at = min(longest, datetime.fromtimestamp(caller.expires_at - LEEWAY, UTC))
        user_agent = escape_unstorable(request.headers.get("user-agent", ""))[:MAX_USER_AGENT]
        sign_in = replace(self._sign_in(caller, expires_at), user_agent=user_agent or None)
        cookie, page_key = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        await self.store.add_sign_in(SignInKind.SESSION, _session_digest(cookie, page_key), sign_in)
        name, is_https = cookie_name(page_key), _is_https(request)
        response.set_cookie(
            f"{HOST_PREFIX}{name}" if is_https else name,
            cookie,
            expires=sign_in.expires_at,
            path=_path(is_https=is_https),
            secure=is_https,
            httponly=True,
            samesite="strict",
        )
        return NewBrowserSession(sign_in, page_key)

    async def find(self, request: Request) -> SignIn | None:
        """The session of the request's cookie and page key, if there is a valid one."""
        digest = digest_of_request(request)
        return (
            None
            if digest is None
            else await self._good(await self.store.find_sign_in(SignInKind.SESSION, digest))
        )

    async def close(self, request: Request, response: Response) -> None:
        """End the session of the request's cookie and page key."""
        if digest := digest_of_request(request):
            await self.store.remove_sign_in(SignInKind.SESSION, digest)
        page_key, is_https = request.headers.get(PAGE_KEY_HEADER), _is_https(request)
        if not page_key:
            return
        # Like the cookie that it replaces.
        response.set_cookie(
            f"{HOST_PREFIX}{cookie_name(page_key)}" if is_https else cookie_name(page_key),
            max_age=0,
            expires=0,
            path=_path(is_https=is_https),
            secure=is_https,
            httponly=True,
            samesite="strict",
        )

    async def create_ticket(self, caller: Caller) -> str:
        """Create a ticket with which a page of the caller connects to the gateway once."""
        ticket = TICKET_PREFIX + secrets.token_urlsafe(32)
        expires_at = datetime.now(UTC) + timedelta(seconds=TICKET_SECONDS)
        if caller.expires_at is not None:
            expires_at = min(expires_at, datetime.fromtimestamp(caller.expires_at, UTC))
        await self.store.add_sign_in(SignInKind.TICKET, digest_of(ticket), self._sign_in(caller, expires_at))
        return ticket

    async def take_ticket(self, ticket: str) -> Caller | None:
        """The caller of a ticket, which is then used up; None if it is not valid."""
        # Not compared with the authority: a ticket lasts a minute, and a gateway may know less than the API.
        sign_in = await self.store.take_sign_in(SignInKind.TICKET, digest_of(ticket))
        return None if sign_in is None else caller_of(sign_in)

    async def _good(self, sign_in: SignIn | None) -> SignIn | None:
        """The sign-in, unless what vouched for it has changed."""
        return sign_in if sign_in is not None and await self.authority.vouches_for(sign_in) else None

    def _sign_in(self, caller: Caller, expires_at: datetime) -> SignIn:
        origin = caller.key_id, self.authority.digest, caller.signing_key
        return SignIn(caller.tenant_id, caller.user_id, expires_at, caller.scopes, caller.roles, *origin)


def digest_of_request(request: Request) -> str | None:
    """The digest of the session that a request names, or None if it lacks one of the secrets."""
    page_key = request.headers.get(PAGE_KEY_HEADER)
    if not page_key:
        return None
    name = cookie_name(page_key)
    # A request that only reads does not say whether it came over https, which a proxy ends.
    cookie = request.cookies.get(f"{HOST_PREFIX}{name}") or request.cookies.get(name)
    return _session_digest(cookie, page_key) if cookie else None


def _session_digest(cookie: str, page_key: str) -> str:
    return digest_of(f"{cookie} {page_key}")


async def find_caller(
    request: Request, authenticate: Authenticate, sessions: BrowserSessions | None
) -> Caller:
    """The caller of a request: by its `Authorization` header, or else by its cookie and page key.

    Raises:
        Refusal: The caller is unknown, or another page caused the request.
    """
    header = request.headers.get("authorization")
    if header is not None or sessions is None or digest_of_request(request) is None:
        return await authenticate(header)
    sign_in = await sessions.find(request)
    if sign_in is None:
        raise authentication_error(SIGN_IN_AGAIN)
    if request.method not in READ_METHODS:
        require_own_page(request, is_browser=True)
    return caller_of(sign_in)


def require_own_page(request: Request, *, is_browser: bool = False) -> None:
    """Refuse a request that a page of another origin caused.

    Args:
        request: The request.
        is_browser: Whether it has to be from a browser, which names the origin of each such request.

    Raises:
        Refusal: Its origin is another one.
    """
    origin = request.headers.get("origin")
    if origin is None and not is_browser:
        return
    if origin is None or _host_of(origin) != request.headers.get("host", "").lower():
        raise forbidden("Another page sent this request with your session; use the console")


def _host_of(origin: str) -> str:
    parts = urlsplit(origin.lower())
    default = {"http": ":80", "https": ":443"}.get(parts.scheme)
    return "" if default is None else parts.netloc.removesuffix(default)


def _is_https(request: Request) -> bool:
    # Behind a proxy, only the page knows.
    return request.url.scheme == "https" or request.headers.get("origin", "").lower().startswith("https://")


def _path(*, is_https: bool) -> str | None:
    """The path of the cookie; without one, browsers use that of the request's address, as below a proxy."""
    return "/" if is_https else None


def cookie_name(page_key: str) -> str:
    """The name of the cookie of the session with this page key."""
    return f"everstep-{digest_of(f'name {page_key}')[:16]}"
