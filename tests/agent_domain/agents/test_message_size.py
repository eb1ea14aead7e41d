"""Messages that no request to a model can contain."""

import pytest

from everstep import Attachment
from everstep.agent_domain.agents.token_counting import ContextWindow, require_fit
from everstep.agent_domain.errors import MessageTooLong

WINDOW = ContextWindow(1_000, 200)


def test_a_text_file_beyond_the_window_is_refused() -> None:
    """5.6.2"""
    small, large = (Attachment.from_bytes("a.txt", b"word " * count) for count in (1_000, 1_400))
    image = Attachment.from_bytes("a.png", b"\x89PNG\r\n\x1a\n" + b"x" * 100_000)

    require_fit("Look", WINDOW, [small, image])
    require_fit("Look", None, [large])
    with pytest.raises(MessageTooLong):
        require_fit("Look", WINDOW, [large])
