"""Provides the local model to commands: downloads its weights, and serves it beside `everstep up`."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from everstep.inference.presets import LOCAL_LIMITS, Driver
from everstep.runtime.local_model.download import download
from everstep.runtime.local_model.model_server import ModelServer, require_runtime
from everstep.runtime.local_model.qwen import WEIGHTS
from everstep.runtime.local_model.weights import models_folder
from everstep.runtime.models import presets_of
from everstep.runtime.settings import Settings

MEGABYTE: Final = 1_000_000


def download_weights(settings: Settings, say: Callable[[str], object]) -> None:
    """Download the weights of the local model, unless they are there.

    Args:
        settings: The settings.
        say: Shows the progress.

    Raises:
        DownloadFailed: That is not possible; the message says what to do.
    """
    folder = models_folder(settings.models_dir)
    if WEIGHTS.are_in(folder):
        say(f"{WEIGHTS.name} is in {folder}")
        return
    say(f"downloading {WEIGHTS.name} ({WEIGHTS.size // MEGABYTE} MB) to {folder}")

    def show(done: int, size: int) -> None:
        say(f"  {done // MEGABYTE} of {size // MEGABYTE} MB ({done * 100 // size} %)")

    download(WEIGHTS, folder, show)
    say("downloaded; the checksum is right")


@asynccontextmanager
async def open_local_model(settings: Settings, say: Callable[[str], object]) -> AsyncGenerator[Settings]:
    """Serve the local model within the block, if it is the default one; yield settings with its address.

    Args:
        settings: The settings.
        say: Shows the progress.

    Raises:
        InvalidInput: The extra is not installed.
        DownloadFailed: The weights cannot be downloaded.
        ModelError: The server cannot be started.
    """
    preset = presets_of(settings).resolve()
    if preset.driver is not Driver.LOCAL or settings.local_model_url:
        yield settings
        return
    require_runtime()
    folder = models_folder(settings.models_dir)
    if not WEIGHTS.are_in(folder):
        download_weights(settings, say)
    say(f"loading {WEIGHTS.name} ...")
    window = preset.context_window or LOCAL_LIMITS["context_window"]
    server = ModelServer(folder / WEIGHTS.file_name, window)
    endpoint = await server.find()
    try:
        yield settings.model_copy(update={"local_model_url": endpoint.address})
    finally:
        server.stop()
