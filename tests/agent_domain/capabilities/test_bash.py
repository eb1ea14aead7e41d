from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.capabilities.bash import (
    GIB,
    KIB,
    MIB,
    BashPolicy,
    CommandResult,
    ExecutionPolicy,
    decode_output,
    default_environment,
    result_text,
)
from everstep.agent_domain.errors import InvalidInput


def the_result(exit_code: int | None = 0, **facts: Any) -> str:
    return result_text(CommandResult(exit_code, **facts), 120, BashPolicy())


# --- The sandbox ---


def test_the_bash_tool_has_no_network_and_caps_of_5_and_1_mebibyte() -> None:
    """9.1.1: network off, stdout capped at 5 MiB, stderr at 1 MiB, 120 s."""
    policy = ExecutionPolicy.for_bash("/work")
    assert (policy.base_dir, policy.timeout, policy.network) == ("/work", 120, False)
    assert (policy.stdout_cap, policy.stderr_cap) == (5 * 1024 * 1024, 1024 * 1024)


def test_the_environment_is_reduced_to_harmless_variables() -> None:
    """9.1.1: only the named variables and LC_* reach a command."""
    kept = {
        name: name for name in ["PATH", "HOME", "LANG", "LC_ALL", "LC_TIME", "TERM", "TMPDIR", "TZ", "USER"]
    }
    assert default_environment({**kept, "API_KEY": "secret", "LCD": "x", "path": "x", "HOME2": "x"}) == kept


def test_a_policy_may_inherit_the_environment() -> None:
    """9.1.1: unless the policy inherits it."""
    bare = ExecutionPolicy.in_dir("/work")
    assert bare.environment({"PATH": "/bin", "API_KEY": "x"}) == {"PATH": "/bin"}
    assert bare.inherit_environment().environment({"API_KEY": "x"}) == {"API_KEY": "x"}
    assert bare.inherit_environment().inherit_environment(False).environment({"API_KEY": "x"}) == {}


def test_the_bare_policy_is_short_and_small() -> None:
    """9.1.2: 5 s, 128M, network off, environment not inherited, caps 1 MiB."""
    policy = ExecutionPolicy.in_dir("/work")
    assert (policy.timeout, policy.memory_bytes) == (5, 128 * 1024 * 1024)
    assert (policy.network, policy.inherits_environment) == (False, False)
    assert (policy.stdout_cap, policy.stderr_cap) == (1024 * 1024, 1024 * 1024)
    assert (policy.readable_paths, policy.writable_paths) == ((), ())


def test_numbers_beyond_a_bound_are_moved_to_it() -> None:
    """9.1.2: timeout min 1, memory max 1G, caps min 1 KiB."""
    policy = ExecutionPolicy.in_dir("/work").with_timeout(0).with_memory(2 * GIB).with_output_caps(10, -1)
    assert (policy.timeout, policy.memory_bytes) == (1, GIB)
    assert (policy.stdout_cap, policy.stderr_cap) == (KIB, KIB)


def test_modifiers_return_a_changed_copy() -> None:
    """9.1.2: the modifiers."""
    bare = ExecutionPolicy.in_dir("/work")
    policy = (
        bare.with_timeout(30)
        .with_network()
        .with_readable_paths("/usr", Path("/opt"))
        .with_writable_paths("/srv/out")
        .with_output_caps(2 * MIB, 2 * KIB)
    )
    assert (policy.timeout, policy.network) == (30, True)
    assert policy.readable_paths == ("/usr", "/opt")
    assert policy.writable_paths == ("/srv/out",)
    assert (policy.stdout_cap, policy.stderr_cap) == (2 * MIB, 2 * KIB)
    assert bare == ExecutionPolicy.in_dir(Path("/work"))


def test_a_single_path_is_not_taken_for_a_list_of_letters() -> None:
    """9.1.2: a mistake that would open the root directory."""
    paths: Any = "/usr"
    assert ExecutionPolicy("/work", readable_paths=paths).readable_paths == ("/usr",)


@pytest.mark.parametrize(
    "change", [{"timeout": float("nan")}, {"memory_bytes": 0}, {"stdout_cap": 1.5}, {"base_dir": ""}]
)
def test_meaningless_values_are_refused(change: dict[str, Any]) -> None:
    """9.1.2: decided here: bounds clamp, meaningless values are refused."""
    with pytest.raises(InvalidInput):
        replace(ExecutionPolicy.in_dir("/work"), **change)


# --- The result ---


def test_the_parts_of_a_result_are_in_order() -> None:
    """9.1.3: joined by a blank line."""
    text = the_result(exit_code=137, stdout="out", stderr="err", timed_out=True)
    assert text == "Time limit of 120s reached, command stopped\n\nExit code: 137\n\nout\n\nSTDERR:\nerr"


def test_a_successful_command_gives_its_stdout() -> None:
    """9.1.3: no exit code if 0."""
    assert the_result(stdout="hello\n") == "hello\n"


def test_a_failing_command_gives_its_exit_code() -> None:
    """9.1.3: `Exit code: {n}` if not 0."""
    assert the_result(exit_code=2, stderr="no such file") == "Exit code: 2\n\nSTDERR:\nno such file"


def test_a_silent_command_has_no_output() -> None:
    """9.1.3: nothing → `(no output)`."""
    assert the_result() == "(no output)"


def test_a_missing_exit_code_is_shown() -> None:
    """9.1.3: a stopped command may not have one."""
    assert the_result(exit_code=None, timed_out=True) == "Time limit of 120s reached, command stopped"


@pytest.mark.parametrize(("timeout", "shown"), [(5, "5"), (1.5, "1.5"), (30.0, "30"), (1_209_600, "1209600")])
def test_a_time_limit_is_written_without_needless_digits(timeout: float, shown: str) -> None:
    """9.1.3: `Time limit of {n}s reached, command stopped`."""
    text = result_text(CommandResult(None, timed_out=True), timeout, BashPolicy())
    assert text == f"Time limit of {shown}s reached, command stopped"


def test_output_that_is_not_text_can_still_be_stored() -> None:
    """9.1.3: characters that the store cannot hold are replaced."""
    assert decode_output(b"a\x00b\xffc\xc3\xa4") == "a\ufffdb\ufffdcä"


# --- Truncation ---


def test_the_example_of_the_truncation() -> None:
    """9.1.4: max 10, head 4, tail 6."""
    policy = BashPolicy(max_output_chars=10, head_chars=4, tail_chars=6)
    assert policy.truncated("0123456789ABCDEFGHIJ") == "...(truncated)...\n0123\n...\nEFGHIJ"


def test_the_defaults_keep_8000_and_42000() -> None:
    """9.1.4: the tail is raised to fill the maximum."""
    text = BashPolicy().truncated("h" * 8000 + "x" * 100 + "t" * 42000)
    assert text == f"...(truncated)...\n{'h' * 8000}\n...\n{'t' * 42000}"


def test_output_of_exactly_the_maximum_is_whole() -> None:
    """9.1.4: only longer than max."""
    assert BashPolicy().truncated("x" * 50_000) == "x" * 50_000


@pytest.mark.parametrize(
    ("head", "tail", "text"),
    [
        (0, 10, "...(truncated)...\nKLMNOPQRST"),
        (10, 0, "...(truncated)...\nABCDEFGHIJ"),
        (99, 99, "...(truncated)...\nABCDEFGHIJ"),
        (4, 99, "...(truncated)...\nABCD\n...\nOPQRST"),
        (1, 1, "...(truncated)...\nA\n...\nLMNOPQRST"),
    ],
)
def test_head_and_tail_fit_the_maximum(head: int, tail: int, text: str) -> None:
    """9.1.4: head = min(head, max), the tail fills up, one alone if the other is 0."""
    assert BashPolicy(10, head, tail).truncated("ABCDEFGHIJKLMNOPQRST") == text


@pytest.mark.parametrize("maximum", [0, -1])
def test_a_maximum_of_zero_or_less_is_unlimited(maximum: int) -> None:
    """9.1.4: max ≤ 0."""
    assert BashPolicy(maximum).truncated("x" * 100_000) == "x" * 100_000


def test_a_cut_by_the_sandbox_is_marked_too() -> None:
    """9.1.4: this line also when the sandbox cap cut."""
    assert BashPolicy().truncated("abc", cut=True) == "...(truncated)...\nabc"


def test_each_stream_is_truncated_separately() -> None:
    """9.1.4: per stream."""
    result = CommandResult(0, stdout="0123456789X", stderr="e", stderr_cut=True)
    text = result_text(result, 1, BashPolicy(10, 4, 6))
    assert text == "...(truncated)...\n0123\n...\n56789X\n\nSTDERR:\n...(truncated)...\ne"


def test_characters_are_counted_not_bytes() -> None:
    """9.1.4: lengths are characters."""
    assert BashPolicy(4, 2, 2).truncated("äöüß") == "äöüß"
    assert BashPolicy(4, 2, 2).truncated("äöü€ß") == "...(truncated)...\näö\n...\n€ß"


def test_a_negative_head_is_refused() -> None:
    """9.1.4: it would keep all but the last."""
    with pytest.raises(InvalidInput, match="head_chars is -1"):
        BashPolicy(head_chars=-1)


small = st.integers(0, 30)


@given(st.text(), st.integers(1, 30), small, small)
def test_truncation_keeps_as_many_characters_as_allowed_and_only_from_the_ends(
    text: str, maximum: int, head: int, tail: int
) -> None:
    """9.1.4: the length bound."""
    shown = BashPolicy(maximum, head, tail).truncated(text)
    if len(text) <= maximum:
        assert shown == text
        return
    kept = min(head, maximum)
    ends = [end for end in (text[:kept], text[len(text) - (maximum - kept) :]) if end]
    assert shown == "...(truncated)...\n" + "\n...\n".join(ends)
    assert sum(map(len, ends)) == maximum
