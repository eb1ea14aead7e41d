"""Pods as processes.

They have the command, the variables and the files of the chart, no rights, and a file system that is
read-only except where the chart mounts something.
"""

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2
import pytest
from sqlalchemy import make_url

from tests.acceptance.front import a_free_port
from tests.acceptance.harness import environment, until
from tests.deployment.chart import ROOT, Manifest, container, pods, variables

POD_IP: Final = "127.0.0.1"
HOME: Final = Path("/home/everstep")


@dataclass
class Pod:
    """A pod that runs."""

    name: str
    manifest: Manifest
    process: Process
    log: Path
    ports: Mapping[str, int]
    """The port of each named one: that of the chart may be in use on this machine."""

    async def status(self, kind: str, host: str | None = None) -> int:
        """The status of a probe; 0 if nothing listens."""
        probe = container(self.manifest)[f"{kind}Probe"]["httpGet"]
        return (await self.get(probe["port"], probe["path"], host)).status_code

    async def get(self, port: str, path: str, host: str | None = None) -> httpx2.Response:
        """Ask a port, under the address of the pod or another name."""
        url = f"http://{POD_IP}:{self.ports[port]}{path}"
        async with httpx2.AsyncClient(timeout=10) as http:
            try:
                return await http.get(url, headers={"Host": host} if host else {})
            except httpx2.TransportError:
                return httpx2.Response(0)

    async def until_ready(self) -> None:
        """Wait for the probes, as a kubelet does."""
        for kind in ("startup", "readiness", "liveness"):

            async def passes(kind: str = kind) -> bool:
                assert self.process.returncode is None, self.log.read_text()
                return await self.status(kind) == 200

            await until(f"{self.name} passes its {kind} probe", passes)

    async def stop(self) -> int:
        """Stop it within the time that its manifest gives; return its exit code."""
        # The sandbox passes no signals on; it ends with the code of its child.
        [child] = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
        async with asyncio.timeout(self.manifest["terminationGracePeriodSeconds"]):
            return await self.process.wait()


@asynccontextmanager
async def open_database_port(url: str) -> AsyncGenerator[str]:
    """A port of PostgreSQL, whose socket is for its own user; yield the URL."""
    parsed = make_url(url)
    socket = Path(str(parsed.query["host"])) / f".s.PGSQL.{parsed.query.get('port', 5432)}"
    copying = set[asyncio.Task[None]]()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()
            await writer.wait_closed()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, before = await asyncio.open_unix_connection(socket)
        copying.update((asyncio.create_task(copy(reader, before)), asyncio.create_task(copy(behind, writer))))

    server = await asyncio.start_server(accept, POD_IP)
    port = server.sockets[0].getsockname()[1]
    try:
        outside = parsed.set(drivername="postgresql", host=POD_IP, port=port, query={})
        yield outside.render_as_string(hide_password=False)
    finally:
        server.close()
        for task in copying:
            task.cancel()
        await asyncio.gather(*copying, return_exceptions=True)


@dataclass
class Cluster:
    """Starts the pods of rendered manifests."""

    manifests: Sequence[Manifest]
    folder: Path
    secrets: Mapping[str, Mapping[str, str]]
    """The content of each Secret."""

    async def start(self, name: str, command: Sequence[str] = ()) -> Pod:
        """Start a pod, perhaps with another command."""
        pod = pods(self.manifests)[name]
        given = variables(pod, **{"status.podIP": POD_IP})
        ports = {each["name"]: a_free_port() for each in container(pod).get("ports", ())}
        for port in container(pod).get("ports", ()):
            for variable, value in given.items():
                if variable.endswith("_PORT") and value == str(port["containerPort"]):
                    given[variable] = str(ports[port["name"]])
        log = self.folder / f"{name}.log"
        # A container has nothing of this environment but the path of its programs.
        clean = environment(
            **given, HOME=str(HOME), PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        )
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *self._sandbox(pod),
                *(command or container(pod)["command"]),
                env=clean,
                stdout=asyncio.subprocess.PIPE if command else file,
                stderr=file,
            )
        return Pod(name, pod, process, log, ports)

    async def run(self, name: str, command: Sequence[str] = ()) -> str:
        """Run a pod to its end, as a Job does, or a command in it, whose output is returned."""
        pod = await self.start(name, command)
        said, _ = await pod.process.communicate()
        assert pod.process.returncode == 0, pod.log.read_text()
        return said.decode() if said else ""

    def _sandbox(self, pod: Manifest) -> list[str | Path]:
        bubblewrap = shutil.which("bwrap")
        if bubblewrap is None:
            pytest.fail("install bubblewrap (Debian: apt-get install bubblewrap)")
        assert container(pod)["securityContext"]["readOnlyRootFilesystem"]
        user = pod["securityContext"]
        command: list[str | Path] = [
            *(bubblewrap, "--die-with-parent", "--unshare-user", "--cap-drop", "ALL"),
            *("--uid", str(user["runAsUser"]), "--gid", str(user["runAsGroup"])),
            *(
                "--ro-bind",
                "/",
                "/",
                "--dev",
                "/dev",
                "--proc",
                "/proc",
                "--tmpfs",
                "/run",
                "--tmpfs",
                "/home",
            ),
        ]
        programs = [
            path for path in (ROOT, Path(sys.prefix), Path(sys.base_prefix)) if path.is_relative_to("/home")
        ]
        for path in programs:
            command += ["--ro-bind", path, path]
        volumes = {each["name"]: each for each in pod["volumes"]}
        command += ["--dir", HOME]
        for mount in sorted(container(pod)["volumeMounts"], key=lambda each: each["mountPath"]):
            volume, target = volumes[mount["name"]], mount["mountPath"]
            if "emptyDir" in volume:
                command += ["--tmpfs", target]
                continue
            source = self._files(volume)
            command += ["--ro-bind", source / mount["subPath"] if "subPath" in mount else source, target]
        return [
            *command,
            "--remount-ro",
            "/home",
            "--remount-ro",
            "/run",
            "--chdir",
            container(pod)["workingDir"],
        ]

    def _files(self, volume: Manifest) -> Path:
        """The files of a Secret or a ConfigMap, in a folder."""
        folder = self.folder / "volumes" / volume["name"]
        folder.mkdir(parents=True, exist_ok=True)
        if "secret" in volume:
            secret = self.secrets[volume["secret"]["secretName"]]
            items = volume["secret"].get("items") or [{"key": key, "path": key} for key in secret]
            content = {each["path"]: secret[each["key"]] for each in items}
        else:
            named = volume["configMap"]["name"]
            [found] = [
                each
                for each in self.manifests
                if each["kind"] == "ConfigMap" and each["metadata"]["name"] == named
            ]
            content = found["data"]
        for name, text in content.items():
            (folder / name).write_text(text)
        return folder
