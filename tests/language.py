"""Measures how plain the project's English and names are.

Words of a private idiom are counted in docstrings, comments and pages, and in the names of tests. A function
is named by a verb or a noun; a past participle is for a transition of a frozen value, a method that returns
its own class.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SKIPPED = {".venv", "__pycache__", "node_modules", "static", "workspace"}

INSTEAD = {
    "whoever": "the caller, viewer, process or test that does it",
    "whom": "a sentence with the person as its subject",
    "whomever": "a sentence with the person as its subject",
    "nobody": "no viewer, no caller, or no one",
    "somebody": "a caller, a viewer, a user",
    "anybody": "any caller, any user",
    "everybody": "all callers, all viewers",
    "anew": "again",
    "besides": "also, or beside",
    "meanwhile": "while, with what happens at the time",
    "whatever": "any, or the cases by name",
    "told": "notified, sent, published, shown",
    "tell": "notify, send, publish, report",
    "tells": "notifies, sends, publishes, reports",
    "heard": "received",
    "hears": "receives",
    "stands": "is, or is stored",
    "goes": "is sent, moves, continues",
}
"""Words of this project's former idiom, and their replacements."""

PARTICIPLE = re.compile(
    r"(?:[a-z]{2}ed|told|begun|ran|came|heard|kept|known|said|found|left|sent|met|lost|gone|written|given|taken"
    r"|shown|spoken|made|brought|held|built|meant|drawn|thrown)$"
)
NO_PARTICIPLES = {"need", "feed", "speed", "seed", "embed", "shared", "red", "exceed", "proceed", "succeed"}
NOT_NAMED = ("__", "test_")
"""Functions whose names Python or pytest requires."""
BOOLEAN = ("is_", "has_", "was_", "can_", "on_")


class Finding(NamedTuple):
    """A word or a name, and its place."""

    place: str
    found: str
    instead: str

    def __str__(self) -> str:
        return f"{self.place}: {self.found!r}; write {self.instead}"


class Measure(NamedTuple):
    """The findings of a room."""

    words: int
    private: list[Finding]
    functions: int
    participles: list[Finding]
    async_participles: list[Finding]

    @property
    def per_thousand(self) -> float:
        """Private words in a thousand."""
        return 1000 * len(self.private) / max(self.words, 1)

    @property
    def percent(self) -> float:
        """The percentage of functions named by a participle."""
        return 100 * len(self.participles) / max(self.functions, 1)


def files(folder: Path, *suffixes: str) -> Iterator[Path]:
    found = [folder] if folder.is_file() else sorted(folder.rglob("*"))
    for path in found:
        if path.suffix in suffixes and path.is_file() and not SKIPPED & {*path.relative_to(folder).parts}:
            yield path


def place_of(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def private_words(place: str, text: str) -> tuple[int, list[Finding]]:
    """How many words a text has, and which of them are private."""
    words = re.findall(r"[a-z']+", text.lower())
    return len(words), [Finding(place, word, INSTEAD[word]) for word in words if word in INSTEAD]


def prose(path: Path) -> Iterator[tuple[str, str]]:
    """Docstrings, comments and names of tests of a module, or the lines of a page, each with its place."""
    name, source = place_of(path), path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from ((f"{name}:{line}", text) for line, text in enumerate(source.splitlines(), 1))
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield f"{name}:{node.lineno}", text
            case ast.FunctionDef(name=test) | ast.AsyncFunctionDef(name=test) if test.startswith("test_"):
                yield f"{name}:{node.lineno}", test.replace("_", " ")
            case _:
                pass
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield f"{name}:{token.start[0]}", token.string


def is_participle(name: str) -> bool:
    """Whether a function's name ends in a past participle."""
    bare = name.strip("_")
    return (
        bool(PARTICIPLE.search(bare))
        and not bare.startswith(BOOLEAN)
        and bare.split("_")[-1] not in NO_PARTICIPLES
    )


def _transitions(tree: ast.AST) -> Iterator[ast.AST]:
    """Methods that return their own class."""
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in owner.body:
            returned = node.returns if isinstance(node, ast.FunctionDef) else None
            if returned is not None and ast.unparse(returned).strip("'\"") in {"Self", owner.name}:
                yield node


def functions(path: Path) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, bool]]:
    """Each function of a module except tests, and whether it is a transition."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    transitions = {*_transitions(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith(NOT_NAMED):
            yield node, node in transitions


def measure(*rooms: Path) -> Measure:
    found = Measure(0, [], 0, [], [])
    for room in rooms:
        for path in files(room, ".py", ".md"):
            for place, text in prose(path):
                count, private = private_words(place, text)
                found = found._replace(words=found.words + count, private=found.private + private)
        for path in files(room, ".py"):
            for node, is_transition in functions(path):
                found = found._replace(functions=found.functions + 1)
                if is_participle(node.name) and not is_transition:
                    place = f"{place_of(path)}:{node.lineno}"
                    named = Finding(place, node.name, "a verb for an effect, a noun for a value")
                    found.participles.append(named)
                    if isinstance(node, ast.AsyncFunctionDef):
                        found.async_participles.append(named)
    return found


def main(message: Path) -> int:
    """Print what the title of a commit should not contain; return the exit code of a hook of git."""
    title = next(iter(message.read_text(encoding="utf-8").splitlines()), "")
    _, found = private_words("The title of the commit", title)
    for finding in found:
        sys.stderr.write(f"{finding}\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
