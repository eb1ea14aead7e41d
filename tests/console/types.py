"""Checks the types of the console's modules, which are in JSDoc comments, with TypeScript.

`python -m tests.console.types` prints the findings. The libraries are those of `node/package.json`, which has
the versions that the console serves.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from everstep.console.site import STATIC
from tests.node import installed_modules, node

HERE = Path(__file__).parent
LOCK = HERE / "node"
CLIENT = STATIC.parents[1] / "http_api" / "static" / "everstep-client.js"
LIBRARIES = ("preact", "@preact/signals", "@preact/signals-core", "htm", "marked")


def config(modules: Path) -> dict[str, Any]:
    """The settings of TypeScript, with the places of libraries on this machine."""
    settings = json.loads((HERE / "tsconfig.json").read_text())
    types = {
        "preact": "src/index.d.ts",
        "htm": "dist/htm.d.ts",
        "marked": "lib/marked.d.ts",
        "@preact/signals": "dist/signals.d.ts",
        "@preact/signals-core": "dist/signals-core.d.ts",
    }
    paths = {name: [str(modules / name / types[name])] for name in LIBRARIES}
    paths["preact/hooks"] = [str(modules / "preact" / "hooks" / "src" / "index.d.ts")]
    paths["everstep-client"] = [str(CLIENT)]
    settings["compilerOptions"]["paths"] = paths
    sources = [path for path in STATIC.rglob("*.js") if "vendor" not in path.parts]
    settings["files"] = [str(path) for path in sorted(sources)]
    return settings


def findings() -> str:
    """What TypeScript finds, one line each; empty if nothing is wrong."""
    modules = installed_modules(LOCK)
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "tsconfig.json"
        project.write_text(json.dumps(config(modules)))
        command = [node(), str(modules / "typescript" / "bin" / "tsc"), "--project", str(project)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 -- fixed command
    return result.stdout.replace(f"{STATIC}/", "").strip() if result.returncode else ""


if __name__ == "__main__":
    found = findings()
    sys.stderr.write(f"{found}\n" if found else "")
    sys.exit(bool(found))
