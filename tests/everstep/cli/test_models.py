"""The configured models: a list, and a check of each."""

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from everstep.cli.main import commands
from tests.everstep.inference.counterparts import WireModelServer
from tests.everstep.inference.dialects import DIALECTS, Answer
from tests.everstep.inference.wire_server import Reply, WireServer, wire_server

SETTINGS = re.compile(r"EVERSTEP_|.*_API_KEY$")
KEY = "sk-do-not-print"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, without keys and settings in the environment."""
    for name in filter(SETTINGS.match, tuple(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.setenv("EVERSTEP_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_command(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(commands, ["models", *arguments], env=environment, prog_name="everstep")


async def run_check(*arguments: str, **environment: str) -> Result:
    return await asyncio.to_thread(run_command, "check", *arguments, **environment)


def with_sections(folder: Path, **sections: dict[str, Any]) -> None:
    lines = [
        line
        for name, section in sections.items()
        for line in (f"[presets.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items()))
    ]
    (folder / "everstep.toml").write_text("\n".join(lines))


LOCAL = {"driver": "openai-chat", "model": "qwen3", "base_url": "http://127.0.0.1:11434/v1"}


def test_the_list_shows_each_model_with_its_key_and_the_default(folder: Path) -> None:
    """11.5"""
    with_sections(folder, local=LOCAL | {"context_window": 32000})
    result = run_command(OPENAI_API_KEY=KEY)
    assert result.stdout.splitlines() == [
        "openai     openai gpt-5.5; key in OPENAI_API_KEY; the default",
        "anthropic  anthropic claude-opus-5-5; no key: set ANTHROPIC_API_KEY",
        "demo       scripted demo; needs no key",
        "local      openai-chat qwen3 at http://127.0.0.1:11434/v1; needs no key",
    ]
    assert result.exit_code == 0


def test_the_list_is_also_json_and_shows_no_key(folder: Path) -> None:
    """11.5"""
    with_sections(folder, local=LOCAL | {"context_window": 32000, "input_price": 0.5})
    result = run_command("--json", EVERSTEP_PRESET="anthropic:small", ANTHROPIC_API_KEY=KEY)
    entries = {entry["name"]: entry for entry in map(json.loads, result.stdout.splitlines())}
    assert list(entries) == ["openai", "anthropic", "demo", "local", "anthropic:small"]
    assert [name for name, entry in entries.items() if entry["is_default"]] == ["anthropic:small"]
    assert (entries["openai"]["has_key"], entries["anthropic"]["has_key"]) == (False, True)
    local = {**LOCAL, "name": "local", "api_key_env": None, "has_key": None, "context_window": 32000}
    assert {**local, "input_price": 0.5}.items() <= entries["local"].items()
    assert KEY not in result.output


def test_settings_that_cannot_be_used_are_named(folder: Path) -> None:
    """11.5"""
    with_sections(folder, local={"driver": "openai-chat"})
    for arguments in ((), ("check",)):
        result = run_command(*arguments)
        assert (result.exit_code, result.output) == (
            1,
            "Error: preset 'local': Value error, 'model' is missing\n",
        )


async def test_each_model_is_asked_for_one_token(wire: WireModelServer, folder: Path) -> None:
    """11.5: with each provider's SDK."""
    driver = wire.dialect.driver
    await wire.script_answers(Answer(("o",), finish="length"))
    url = wire.server.url + wire.dialect.prefix
    with_sections(folder, ours={"driver": driver, "model": "m", "base_url": url, "max_output_tokens": 999})

    result = await run_check()

    lines = result.stdout.splitlines()
    assert lines[:2] == [
        "-      openai: preset 'openai' needs a key; set OPENAI_API_KEY",
        "-      anthropic: preset 'anthropic' needs a key; set ANTHROPIC_API_KEY",
    ]
    assert lines.pop(3).startswith("-      local: the local model is not downloaded")
    assert [re.sub(r"[0-9.]+ s$", "S", line) for line in lines[2:]] == [
        "ok     demo: answered in S",
        "ok     ours: answered in S",
    ]
    assert result.exit_code == 0
    (request,) = wire.server.requests
    limit = request.body.get("max_output_tokens") or request.body.get("max_tokens")
    assert limit == (16 if driver == "openai" else 1)


def refusal(driver: str, status: int, message: str) -> Reply:
    return Reply.json(status, DIALECTS[driver].refusal("some_error", message))


@pytest.mark.parametrize(
    ("status", "said", "advice"),
    [
        (401, f"Incorrect API key provided: {KEY}", r"\[key\]\. Check the key in OUR_KEY$"),
        (404, "The model m does not exist", r"\(404\): .* Check 'model' and 'base_url' of preset 'ours'"),
        (429, "Slow down", r"Slow down\. The provider asks to slow down: try again later"),
        (503, "Overloaded", r"\(503\): Overloaded: check the network and 'base_url' of preset 'ours'"),
    ],
)
async def test_what_is_wrong_is_said_with_what_to_do(
    wire: WireModelServer, folder: Path, status: int, said: str, advice: str
) -> None:
    """11.5: in one line, without the key; the command exits with 1."""
    driver = wire.dialect.driver
    wire.server.answers(refusal(driver, status, said))
    url = wire.server.url + wire.dialect.prefix
    ours = {"driver": driver, "model": "m", "base_url": url, "api_key_env": "OUR_KEY"}
    with_sections(folder, ours=ours)

    result = await run_check("ours", OUR_KEY=KEY)

    assert result.exit_code == 1
    (line,) = result.stdout.splitlines()
    assert line.startswith("WRONG  ours: m")
    assert re.search(advice, line), line
    assert KEY not in result.output


async def test_models_that_cannot_be_asked_are_wrong_too(folder: Path) -> None:
    """11.5: a server that does not run, a key that is missing, a script that is not there."""
    async with wire_server() as server:
        gone: WireServer = server
    with_sections(
        folder,
        gone=LOCAL | {"base_url": gone.url},
        keyless={"driver": "openai", "model": "m"},
        script={"driver": "scripted", "scenario": "none.yaml"},
    )

    result = await run_check("--json")

    checks = {entry["name"]: entry for entry in map(json.loads, result.stdout.splitlines())}
    assert {name: entry["status"] for name, entry in checks.items()} == {
        "openai": "skipped",
        "anthropic": "skipped",
        "demo": "ok",
        "local": "skipped",
        "gone": "wrong",
        "keyless": "wrong",
        "script": "wrong",
    }
    assert re.search("cannot be reached: .*: check the network and 'base_url'", checks["gone"]["problem"])
    assert checks["keyless"]["problem"] == "preset 'keyless' needs a key; set OPENAI_API_KEY"
    assert checks["script"]["problem"] == "the scenario none.yaml cannot be read: No such file or directory"
    assert result.exit_code == 1


def test_an_installation_with_a_model_that_does_not_exist_is_not_started(folder: Path) -> None:
    """11.2: `everstep up --model` names the default preset, and no server was started."""
    result = CliRunner().invoke(commands, ["--data", str(folder / "data"), "up", "--model", "opnai:x"])
    assert (result.exit_code, (folder / "data").exists()) == (1, False)
    assert "No preset or driver named 'opnai'" in result.output


async def test_a_named_model_is_checked_even_if_it_is_not_configured() -> None:
    """11.5"""
    result = await run_check("openai:gpt-5.5")
    line = "WRONG  openai:gpt-5.5: preset 'openai:gpt-5.5' needs a key; set OPENAI_API_KEY\n"
    assert (result.exit_code, result.stdout) == (1, line)
    unknown = await run_check("opnai:gpt-5.5")
    assert unknown.output.startswith("Error: No preset or driver named 'opnai'. Choose from: openai")
