"""The samples of docs/webhooks.md verify what we sign."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.agent_domain.storage.webhooks import webhook_signature
from everstep.client.webhooks import new_secret
from tests.node import node

PAGE = Path(__file__).parents[3] / "docs" / "webhooks.md"
BODY = '{"text": "Grüße"}'
Verify = Callable[[str, dict[str, str], str], bool]


def sample(language: str, function: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = (each for each in blocks if function in each)
    return block


def verified_by_python(secret: str, headers: dict[str, str], body: str) -> bool:
    names: dict[str, Callable[[str, dict[str, str], bytes], bool]] = {}
    exec(sample("python", "def is_genuine"), names)  # noqa: S102 -- our own page
    return names["is_genuine"](secret, headers, body.encode())


def verified_by_node(secret: str, headers: dict[str, str], body: str) -> bool:
    arguments = ", ".join(map(json.dumps, (secret, headers, body)))
    script = f"{sample('js', 'function isGenuine')}\nconsole.log(isGenuine({arguments}));"
    done = subprocess.run([node(), "-e", script], capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout == "true\n"


@pytest.mark.parametrize("verify", [verified_by_python, verified_by_node], ids=["python", "node"])
def test_a_sample_accepts_only_what_is_genuine(verify: Verify) -> None:
    """18.6.4"""
    secret, now = new_secret(), int(time.time())

    def headers(signer: str, stamp: int) -> dict[str, str]:
        signatures = [
            webhook_signature(each, "evt_1", stamp, BODY.encode()) for each in (new_secret(), signer)
        ]
        return {
            "webhook-id": "evt_1",
            "webhook-timestamp": str(stamp),
            "webhook-signature": " ".join(signatures),
        }

    assert verify(secret, headers(secret, now), BODY)
    assert not verify(secret, headers(new_secret(), now), BODY)
    assert not verify(secret, headers(secret, now), BODY + " ")
    assert not verify(secret, headers(secret, now - 3600), BODY)
