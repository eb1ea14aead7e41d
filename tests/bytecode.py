"""Compiles test files before the processes of a parallel run start.

Pytest compiles each file to bytecode of its own kind on first import and keeps it. After a checkout, each of
six processes would compile all of them, which takes ten seconds of CPU time each.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import pytest

FEW: Final = 20
"""So many files are compiled faster by each process than by one that has to start for it."""


def compile_tests(arguments: Iterable[str], root: Path) -> None:
    """Compile the test files below these arguments of pytest, unless nearly all of them are compiled."""
    files = [file for argument in arguments for file in _test_files(Path(argument.partition("::")[0]))]
    if sum(not _is_compiled(file) for file in files) <= FEW:
        return
    parts = os.cpu_count() or 1
    processes = [_start_collection(files[part::parts], root) for part in range(min(parts, len(files)))]
    for process in processes:
        # The run itself reports what cannot be collected.
        process.wait()


def _test_files(path: Path) -> list[Path]:
    return sorted(path.rglob("test_*.py")) if path.is_dir() else [path]


def _is_compiled(file: Path) -> bool:
    name = f"{file.stem}.{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    compiled = file.parent / "__pycache__" / name
    return compiled.exists() and compiled.stat().st_mtime >= file.stat().st_mtime


def _start_collection(files: Sequence[Path], root: Path) -> "subprocess.Popen[bytes]":
    collect = (sys.executable, "-m", "pytest", "--collect-only", "-qq", "-n0", "-p", "no:cacheprovider")
    return subprocess.Popen(  # noqa: S603 -- fixed arguments
        [*collect, *map(str, files)],
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
