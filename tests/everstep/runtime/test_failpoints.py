"""Failpoints: crash tests enable them, and they are off by default."""

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.runtime.worker import build_frame_loss


@pytest.mark.parametrize("spec", [None, "", "infer.before_model", "link.before_send:0"])
def test_by_default_no_frame_is_lost(spec: str | None) -> None:
    loses = build_frame_loss(spec)
    assert not any(loses() for _ in range(100))


def test_frames_are_lost_with_the_configured_probability() -> None:
    loses = build_frame_loss("link.before_send:0.5")
    assert 200 < sum(loses() for _ in range(1000)) < 800
    assert build_frame_loss("link.before_send:1")()


def test_an_invalid_probability_is_refused() -> None:
    with pytest.raises(InvalidInput, match="has no probability"):
        build_frame_loss("link.before_send:often")
