"""Encryption of messages on a bus that others may use too.

Both sides derive their keys from the secret that all processes of an installation share. A message is
authentic if it can be opened: it comes from a process with the secret, and belongs to the subject under which
it arrived. Subjects are derived from the secret as well, so that they name no stream to others.

Each sender encrypts with a key of its own, which it derives from a random salt, and counts its messages: so
no nonce is used twice, however many messages are sent, and a repeated or delayed message can be recognized.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from everstep.agent_domain.errors import InvalidInput

VERSION = b"\x01"
SALT_BYTES = 16
COUNT_BYTES = 12
"""The size of a nonce of AES-GCM, which is the number of the message."""
HEADER_BYTES = len(VERSION) + SALT_BYTES + COUNT_BYTES
OVERHEAD_BYTES = HEADER_BYTES + 16
"""How much larger a sealed message is than its content."""
MOST_SENDERS = 10_000
"""Keys of senders that are remembered; each connection of a process is a sender."""


@dataclass(frozen=True, slots=True)
class OpenedMessage:
    """The content of an authentic message."""

    sender: bytes
    """The salt of the sender's connection."""
    number: int
    """The position among the messages of this sender, from 1."""
    content: bytes


class BusKeys:
    """What is derived from the secret of an installation."""

    def __init__(self, secret: str) -> None:
        self._root = _derived(secret.encode(), b"everstep/bus")
        self._subjects = _derived(self._root, b"subjects")
        self._senders: dict[bytes, AESGCM] = {}
        self.prefix = f"everstep.{_derived(self._root, b'installation').hex()[:24]}"
        """The beginning of all subjects of the installation."""

    def stream_subject(self, stream_id: UUID) -> str:
        """The subject of a stream, which cannot be related to the stream without the secret."""
        return f"{self.prefix}.stream.{_derived(self._subjects, stream_id.bytes).hex()[:32]}"

    @property
    def interest_subject(self) -> str:
        """The subject of the streams that gateways want."""
        return f"{self.prefix}.interest"

    @property
    def request_subject(self) -> str:
        """The subject on which writers ask gateways for the streams that they want."""
        return f"{self.prefix}.request"

    def open(self, subject: str, message: bytes) -> OpenedMessage:
        """Decrypt a message.

        Raises:
            InvalidInput: It was not sealed with this secret for this subject.
        """
        salt = message[len(VERSION) : len(VERSION) + SALT_BYTES]
        number = message[len(VERSION) + SALT_BYTES : HEADER_BYTES]
        if not message.startswith(VERSION) or len(number) < COUNT_BYTES:
            raise InvalidInput("the message has another format")
        known = self._senders.get(salt)
        key = known or self.sender_key(salt)
        try:
            content = key.decrypt(number, message[HEADER_BYTES:], subject.encode())
        except InvalidTag:
            raise InvalidInput("the message was not sealed with the secret of this installation") from None
        if known is None:
            # Only now: others could fill the memory with senders of their own.
            if len(self._senders) >= MOST_SENDERS:
                self._senders.clear()
            self._senders[salt] = key
        return OpenedMessage(salt, int.from_bytes(number), content)

    def sender_key(self, salt: bytes) -> AESGCM:
        """The key of a sender."""
        return AESGCM(_derived(self._root, b"sender" + salt))


class Sealer:
    """Encrypts the messages of one sender."""

    def __init__(self, keys: BusKeys) -> None:
        self._salt = secrets.token_bytes(SALT_BYTES)
        self._key = keys.sender_key(self._salt)
        self._number = 0

    def seal(self, subject: str, content: bytes) -> bytes:
        """Encrypt a message for a subject."""
        self._number += 1
        nonce = self._number.to_bytes(COUNT_BYTES)
        return VERSION + self._salt + nonce + self._key.encrypt(nonce, content, subject.encode())


def _derived(key: bytes, what: bytes) -> bytes:
    return hmac.digest(key, what, hashlib.sha256)
