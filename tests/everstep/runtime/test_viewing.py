"""The gateway's address for viewers."""

from pathlib import Path

from everstep.runtime.settings import Settings
from everstep.runtime.viewing import GATEWAY_URL, gateway_url


def test_the_gateway_is_the_configured_or_the_local_one(tmp_path: Path) -> None:
    nowhere = Settings(data_dir=tmp_path)
    named = Settings(data_dir=tmp_path, gateway_url="wss://watch.example")

    assert gateway_url(nowhere) is None
    (tmp_path / GATEWAY_URL).write_text("ws://127.0.0.1:6001\n")
    assert gateway_url(nowhere) == "ws://127.0.0.1:6001"
    assert gateway_url(named) == "wss://watch.example"
    (tmp_path / GATEWAY_URL).write_text("")
    assert gateway_url(nowhere) is None
