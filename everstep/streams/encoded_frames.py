"""Frames as they are sent."""

import logging
from uuid import UUID

from everstep.agent_domain.stream.bus import Frame, encode_frame

logger = logging.getLogger(__name__)


def encoded_or_empty(stream_id: UUID, frame: Frame) -> bytes:
    """Encode a frame; empty if it cannot be encoded, which readers detect as a hole."""
    try:
        return encode_frame(frame)
    except Exception:
        logger.exception("a frame of the stream %s cannot be encoded", stream_id)
        return b""
