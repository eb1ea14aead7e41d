"""The tables of the benches: printed while they are measured, and kept as JSON for `docs/performance.md`.

With `EVERSTEP_BENCH_FIGURES=FOLDER` each bench also writes its tables to `FOLDER/{bench}.json`, with the
machine, its load and the command. `bench/report.py` puts them into the page. A bench with several parts
writes one file for each.
"""

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

MISSED: Final = "MISSED"
_WIDTH: Final = 52

_tables = list[list[list[str]]]()
_load_at_start = os.getloadavg()[0]
_part = ""


def name_part(part: str) -> None:
    """Write the tables to `{bench}_{part}.json`."""
    global _part  # noqa: PLW0603 -- one program writes one report
    _part = part


def line(name: str, *columns: str) -> None:
    """Print one line of a table; a line without a name begins a table.

    Args:
        name: What was measured.
        columns: The values. The last one is `MISSED` in a line that misses its target.
    """
    print(f"{name:{_WIDTH}}" + "".join(f"{column:>14}" for column in columns), flush=True)
    if not name or not _tables:
        _tables.append([])
    _tables[-1].append([name, *(column.strip() for column in columns)])
    if folder := os.environ.get("EVERSTEP_BENCH_FIGURES"):
        _write(Path(folder))


def mark(is_missed: bool) -> str:
    """Return the last column of a line."""
    return MISSED if is_missed else ""


def misses(value: float, target: str) -> bool:
    """Return whether a value misses a target such as `<= 1.20`."""
    if not target:
        return False
    relation, limit = target.split()
    number = float(limit.replace(",", ""))
    return value > number if relation == "<=" else value < number


def _write(folder: Path) -> None:
    program = Path(sys.argv[0])
    report = {
        "command": " ".join([f"bench/{program.name}", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "load": round(_load_at_start, 1),
        "tables": _tables,
    }
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{program.stem}_{_part}" if _part else program.stem
    (folder / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """Describe this machine."""
    return {
        "cores": os.cpu_count(),
        "processor": _from_proc("cpuinfo", "model name") or platform.machine(),
        "memory_gb": round(int((_from_proc("meminfo", "MemTotal") or "0 kB").split()[0]) / 2**20),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "temporalio": version("temporalio"),
    }


def _from_proc(name: str, key: str) -> str | None:
    try:
        lines = Path(f"/proc/{name}").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((each.split(":", 1)[1].strip() for each in lines if each.startswith(key)), None)
