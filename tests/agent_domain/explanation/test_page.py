"""The tables of docs/because.md show sentences that the code makes."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "because.md").read_text(encoding="utf-8")
SHOWN = [sentence for _, sentence in re.findall(r"^\| (.+?) \| (\w[\w ]*: .+?) \|$", PAGE, re.MULTILINE)]
TESTS = [ROOT / "tests/agent_domain/loop/test_explanations.py", Path(__file__).with_name("test_because.py")]
EXPECTED = " ".join(
    " ".join(re.sub(r'"\s+"', "", path.read_text(encoding="utf-8")) for path in TESTS).split()
)


@pytest.mark.parametrize("sentence", SHOWN)
def test_a_sentence_of_the_page_is_one_that_tests_expect(sentence: str) -> None:
    """15.1.1: the page and the code do not differ."""
    assert f'"{sentence}"' in EXPECTED


def test_the_page_shows_all_kinds_of_sentences() -> None:
    """15.1.1: each first word has its rows."""
    kinds = {sentence.partition(":")[0] for sentence in SHOWN}

    assert kinds == {
        *("completed", "stopped", "failed", "cancelled", "went on", "retried"),
        *("pending", "runs", "waits", "paused"),
    }
