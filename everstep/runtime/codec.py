"""Encryption of Temporal payloads with AES-GCM, with a key that Temporal does not have.

Histories hold facts and references, no texts. To hide even those from Temporal, set `EVERSTEP_PAYLOAD_KEY`.
Failures are encoded along with the payloads: a codec alone would leave error messages readable.
"""

import base64
import binascii
import os
from collections.abc import Sequence
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from everstep.agent_domain.errors import EverstepError, InvalidInput

ENCODING = b"binary/everstep-aes-gcm"
REFUSED_ENCODING = b"binary/everstep-refused"
"""The encoding of a plain payload that is refused. Raising here would fail the workflow's task again and
again, because of a signal that any client may have sent; instead the unreadable payload is dropped or
refused."""
NONCE_BYTES = 12
KEY_BYTES = 32


class WrongPayloadKey(EverstepError):
    """A payload was encrypted with a different key."""


class PlainPayload(EverstepError):
    """A payload is not encrypted, and only encrypted ones are accepted."""

    def __init__(self) -> None:
        super().__init__(
            "a payload in Temporal is not encrypted, although payload_key is set: its sender needs the key; "
            "EVERSTEP_ACCEPT_PLAIN_PAYLOADS=true accepts payloads from before there was a key"
        )


class AesGcmCodec(PayloadCodec):
    """Encrypts every payload, and accepts only encrypted ones.

    Args:
        key: 32 bytes.
        accepts_plain: Whether plain payloads are read too, while executions run that began before there was a
            key.
    """

    def __init__(self, key: bytes, *, accepts_plain: bool = False) -> None:
        self._cipher = AESGCM(key)
        self._accepts_plain = accepts_plain

    @classmethod
    def of(cls, text: str, *, accepts_plain: bool = False) -> Self:
        """Create a codec from a key in the environment: 32 bytes in base64."""
        try:
            key = base64.b64decode(text, validate=True)
        except binascii.Error:
            key = b""
        if len(key) != KEY_BYTES:
            raise InvalidInput(
                f"payload_key must be {KEY_BYTES} random bytes in base64; make one with: "
                'python -c "import os, base64; print(base64.b64encode(os.urandom(32)).decode())"'
            )
        return cls(key, accepts_plain=accepts_plain)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt payloads."""
        return [self._encrypt(payload) for payload in payloads]

    def _encrypt(self, payload: Payload) -> Payload:
        nonce = os.urandom(NONCE_BYTES)
        data = nonce + self._cipher.encrypt(nonce, payload.SerializeToString(), ENCODING)
        return Payload(metadata={"encoding": ENCODING}, data=data)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt payloads."""
        return [self._decrypt(payload) for payload in payloads]

    def _decrypt(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCODING:
            # Its data distinguish an execution from before there was a key from a foreign workflow.
            return (
                payload
                if self._accepts_plain
                else Payload(metadata={"encoding": REFUSED_ENCODING}, data=payload.data)
            )
        nonce, data = payload.data[:NONCE_BYTES], payload.data[NONCE_BYTES:]
        try:
            return Payload.FromString(self._cipher.decrypt(nonce, data, ENCODING))
        except InvalidTag:
            raise WrongPayloadKey(
                "a payload was encrypted with another key: is payload_key the same in all processes?"
            ) from None
