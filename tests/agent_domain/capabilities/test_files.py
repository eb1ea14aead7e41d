import re
import tracemalloc

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.capabilities.files import (
    MAX_ALTERNATIVES,
    MAX_PATTERNS,
    Edit,
    apply_edit,
    concurrent_change_error,
    directory_matcher,
    displayable,
    edit_problem,
    file_excerpt,
    is_a_directory,
    listing,
    listing_cut_short,
    match_files,
    matcher,
    no_directory,
    no_file,
    no_parent_directory,
    no_regular_file,
    not_text,
    numbered_lines,
    offset_too_large,
    parse_patterns,
    path_error,
    path_problem,
    read_error,
    search_cut_short,
    search_text,
    text_of,
    too_large_to_edit,
    too_long_to_write,
    too_many_links,
    truncation_note,
    unread_directories,
    window,
    write_summary,
)
from everstep.agent_domain.errors import InvalidInput

OUTSIDE = "Error: Path is outside the allowed directory"


# --- Paths ---


@pytest.mark.parametrize("path", ["../x", "a/../../x", "..", "/etc/passwd", "/work/agents", "//etc", "/"])
def test_a_path_that_leads_out_is_refused(path: str) -> None:
    """9.2.1: `..` and absolute paths leading out."""
    assert path_problem(path, ["/work/agent"]) == OUTSIDE


@pytest.mark.parametrize("path", ["a.txt", "a/../b", ".", "", "...", "..a", "/work/agent/a", "/work/agent"])
def test_a_path_that_stays_inside_is_allowed(path: str) -> None:
    """9.2.1: paths stay inside base_dir."""
    assert path_problem(path, ["/work/agent"]) is None


def test_the_policy_may_allow_more_directories() -> None:
    """9.2.1: or the policy's readable and writable paths."""
    assert path_problem("/data/x", ["/work", "/data/"]) is None
    assert path_problem("../data/x", ["/work", "/data"]) is None
    assert path_problem("data/x", ["/work", "/data"]) is None
    assert path_problem("/database/x", ["/work", "/data"]) == OUTSIDE
    assert path_problem("/anything", ["/"]) is None


def test_a_nul_is_reported_first() -> None:
    """9.2.1: NUL in the path."""
    assert path_problem("../a\x00b", ["/work"]) == "Error: Path contains a NUL character"


@given(st.lists(st.sampled_from(["..", ".", "a", "b", ""])).map("/".join))
def test_no_relative_path_that_passes_climbs_above_the_base(path: str) -> None:
    """9.2.1: walking it component by component never leaves the base for good."""
    if path.startswith("/"):
        return
    walked = ["x", "y"]
    for part in path.split("/"):
        walked = walked[:-1] if part == ".." else [*walked, part] if part.strip(".") else walked
    assert (path_problem(path, ["/x/y"]) is None) == (walked[:2] == ["x", "y"])


def test_names_that_are_not_utf_8_can_be_shown() -> None:
    """9.2.6: and stored."""
    assert displayable("b\udcffd ä") == "b\ufffdd ä"


def test_a_name_occupies_one_line() -> None:
    """9.2.6, 9.2.7: no file name can look like two."""
    assert displayable("a\n[dir] b\t\u2028\x7f") == "a\ufffd[dir] b\ufffd\ufffd\ufffd"
    assert listing(".", [("a\nb", False)]) == "[file] a\ufffdb"


# --- Reading ---


def test_the_example_of_reading() -> None:
    """9.2.2: `a⏎b⏎` with offset 1."""
    assert file_excerpt("a\nb\n", 1) == "     2\tb"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a", "     1\ta"),
        ("a\n", "     1\ta"),
        ("a\nb", "     1\ta\n     2\tb"),
        ("\n", "     1\t"),
        ("a\n\n", "     1\ta\n     2\t"),
        ("a\r\nb", "     1\ta\r\n     2\tb"),
        ("a\u2028b", "     1\ta\u2028b"),
    ],
)
def test_lines_are_numbered_and_a_trailing_newline_adds_none(text: str, shown: str) -> None:
    """9.2.2: only newlines end lines, so that the numbered text can be edited."""
    assert file_excerpt(text) == shown


def test_long_lines_are_cut_to_2000_characters() -> None:
    """9.2.2: text cut to 2000."""
    assert file_excerpt("ä" * 2000) == "     1\t" + "ä" * 2000
    assert file_excerpt("ä" * 2001) == "     1\t" + "ä" * 2000 + "..."


def test_offset_and_limit_choose_lines() -> None:
    """9.2.2: offset zero-based, negative → 0."""
    assert file_excerpt("a\nb\nc\n", 1, 1) == "     2\tb"
    assert file_excerpt("a\nb\n", -5, 1) == "     1\ta"


@pytest.mark.parametrize("limit", [2001, 10**9, 0, -1])
def test_at_most_2000_lines_are_shown(limit: int) -> None:
    """9.2.2: limit at most 2000; zero and less mean the maximum."""
    assert len(file_excerpt("x\n" * 3000, 0, limit).split("\n")) == 2000


def test_numbers_may_outgrow_their_column() -> None:
    """9.2.2: right-aligned in 6."""
    assert file_excerpt("x\n" * 1_000_000, 999_998) == "999999\tx\n1000000\tx"


def test_an_empty_file_is_reported_at_any_offset() -> None:
    """9.2.2: `(empty file)`."""
    assert file_excerpt("") == file_excerpt("", 7) == "(empty file)"


def test_an_offset_past_the_end_is_an_error() -> None:
    """9.2.2: `Error: The file ends before this offset`."""
    assert file_excerpt("a\nb\n", 2) == "Error: The file ends before this offset"


def test_the_other_texts_of_reading() -> None:
    """9.2.2: literal texts; the path is echoed as given."""
    assert no_file("./x y") == "Error: No file at './x y'"
    assert is_a_directory("src/") == "Error: 'src/' names a directory, list_dir shows what is in it"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a\x00b", b"\xc3"])
def test_a_file_that_is_not_text_is_binary(content: bytes) -> None:
    """9.2.2: this file is binary."""
    assert text_of(content) is None


def test_text_is_decoded() -> None:
    """9.2.2: UTF-8."""
    assert text_of("häß".encode()) == "häß"
    assert text_of(b"") == ""


@given(st.text(), st.integers(-5, 50), st.integers(-5, 50))
def test_reading_never_shows_more_than_asked(text: str, offset: int, limit: int) -> None:
    """9.2.2: the bounds hold for every file."""
    shown = file_excerpt(text, offset, limit)
    lines = [line for line in shown.split("\n") if "\t" in line]
    assert len(lines) <= (limit if limit > 0 else 2000)
    assert all(len(line) <= 7 + 2000 + 3 for line in lines)


def test_lines_can_be_numbered_without_those_before_them() -> None:
    """9.2.2: the same form, for files that are not read whole."""
    assert numbered_lines(["b", "c"], 1) == file_excerpt("a\nb\nc", 1)
    assert window(-1, 5000) == (0, 2000)
    assert window(3, 2) == (3, 2)


def test_a_read_problem_names_a_limit_or_a_reason() -> None:
    """9.2.1: problems are error texts."""
    assert no_regular_file("p").startswith("Error: 'p' is no regular file but a pipe")
    assert too_many_links("p").startswith("Error: 'p' leads in circles")
    assert path_error("p", "Permission denied") == "Error: 'p' cannot be used: Permission denied"
    assert not_text("path") == "Error: path holds characters that UTF-8 cannot express"
    assert truncation_note(5) == "... the file goes on, and only its first 5 bytes are read"
    assert offset_too_large(5).startswith("Error: Only the first 5 bytes of a file are read")


# --- Writing and editing ---


def test_writing_counts_bytes_and_newlines() -> None:
    """9.2.3: `Wrote {path}: {bytes} bytes, {newlines+1} lines`."""
    assert write_summary("a/b.txt", "ä\nb\n") == "Wrote a/b.txt: 5 bytes, 3 lines"
    assert write_summary("e", "") == "Wrote e: 0 bytes, 1 lines"


def test_a_write_problem_names_a_limit_or_a_reason() -> None:
    """9.2.3, 9.2.4: problems are error texts."""
    assert too_long_to_write(9, 5).startswith("Error: The file would have 9 bytes, at most 5 can be written")
    assert too_large_to_edit(5) == "It is larger than 5 bytes, the most that can be edited"
    assert no_parent_directory("a/b").startswith("Error: No file can be made at 'a/b'")
    assert concurrent_change_error("a").startswith(
        "Error: 'a' was not edited, because other processes keep changing it"
    )


def test_editing_replaces_the_only_hit() -> None:
    """9.2.4: success."""
    assert apply_edit("one two", "two", "three") == Edit("one three", 1)
    assert Edit("one three", 1).summary("./a") == "Edited ./a: 1 replacement(s)"


def test_editing_replaces_every_hit_on_request() -> None:
    """9.2.4: replace_all."""
    assert apply_edit("a b a", "a", "c", replace_all=True) == Edit("c b c", 2)


def test_an_empty_new_string_deletes() -> None:
    """9.2.4: empty new_string deletes."""
    assert apply_edit("abc", "b", "") == Edit("ac", 1)


def test_several_hits_need_a_decision() -> None:
    """9.2.4: several hits without replace_all."""
    assert apply_edit("a b a", "a", "c") == (
        "Error: old_string occurs 2 times. Set replace_all=true to change every one, "
        "or extend old_string until it occurs once"
    )


def test_edits_are_checked_in_order() -> None:
    """9.2.4: equal, then empty, then reading, then missing."""
    assert edit_problem("", "") == "Error: new_string equals old_string, so nothing would change"
    assert edit_problem("", "x") == "Error: old_string must hold the text to replace"
    assert edit_problem("x", "") is None
    assert read_error("no such file") == "Error: Reading the file failed: no such file"
    assert apply_edit("abc", "x", "y") == "Error: The file does not contain old_string"
    assert apply_edit("abc", "", "y") == "Error: old_string must hold the text to replace"


@given(st.text("ab\n", max_size=30), st.text("ab\n", min_size=1, max_size=3), st.text("abc", max_size=3))
def test_an_edit_changes_nothing_but_the_hits(text: str, old: str, new: str) -> None:
    """9.2.4: the count is the number of replacements."""
    edit = apply_edit(text, old, new, replace_all=True)
    if isinstance(edit, Edit):
        assert len(edit.text) == len(text) + edit.replacements * (len(new) - len(old))
    else:
        assert old == new or old not in text


# --- Searching ---

TREE = [
    "README.md",
    "main.py",
    "src/app.py",
    "src/app_test.py",
    "src/web/app.js",
    "src/web/README.md",
    "src/web/deep/view.ts",
    "docs/guide.md",
    "Makefile",
]


def finds(pattern: str, tree: list[str] = TREE) -> list[str]:
    return match_files([pattern], tree, 0)[pattern]


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("./README.md", ["README.md"]),
        ("./app.py", []),
        ("./src/app.py", ["src/app.py"]),
        ("./*.py", ["main.py"]),
        ("./src/*.py", ["src/app.py", "src/app_test.py"]),
        ("./**/*.py", ["main.py", "src/app.py", "src/app_test.py"]),
        ("./**", sorted(TREE)),
        ("./src/ap[p].py", ["src/app.py"]),
        ("./", []),
        ("src/app.py", ["src/app.py"]),
        ("web/app.js", []),
        ("src/ap[p].py", []),
        ("src/ap?.py", []),
        ("src/**/*.md", ["src/web/README.md"]),
        ("src/**/*.py", ["src/app.py", "src/app_test.py"]),
        ("**/README.md", ["README.md", "src/web/README.md"]),
        ("**/*.{js,ts}", ["src/web/app.js", "src/web/deep/view.ts"]),
        (
            "src/**",
            ["src/app.py", "src/app_test.py", "src/web/README.md", "src/web/app.js", "src/web/deep/view.ts"],
        ),
        ("**.md", ["README.md", "docs/guide.md", "src/web/README.md"]),
        ("src/**/web/*.js", ["src/web/app.js"]),
        ("*.py", ["main.py"]),
        ("*.md", ["README.md"]),
        ("src/*.py", ["src/app.py", "src/app_test.py"]),
        ("src/*", ["src/app.py", "src/app_test.py"]),
        ("*/*.md", ["docs/guide.md"]),
        ("mai?.py", ["main.py"]),
        ("[mM]ain.py", ["main.py"]),
        ("{main,README}.{py,md}", ["README.md", "main.py"]),
        ("{README.md,{main,x}.py}", ["README.md", "main.py"]),
        ("app.py", ["src/app.py"]),
        ("README.md", ["README.md", "src/web/README.md"]),
        (".md", []),
        ("app", ["src/app.py", "src/app_test.py", "src/web/app.js"]),
        ("web", []),
        ("readme", []),
        ("READ", ["README.md", "src/web/README.md"]),
    ],
)
def test_the_first_matching_line_determines_the_meaning_of_a_pattern(pattern: str, paths: list[str]) -> None:
    """9.2.5: the table."""
    assert finds(pattern) == paths


@pytest.mark.parametrize(
    ("pattern", "directories"),
    [
        ("./app.py", []),
        ("./src/web/app.js", ["src", "src/web"]),
        ("src/web/x", ["src", "src/web"]),
        ("src/[w]eb/x", ["src"]),
        ("./src/[w]eb/x", ["src", "src/web"]),
        ("*.py", []),
        ("*/*.md", ["docs", "src"]),
        ("src/**/*.md", ["src", "src/web", "src/web/deep"]),
        ("{docs,src/web}/*", ["docs", "src", "src/web"]),
        ("**", ["docs", "src", "src/web", "src/web/deep"]),
        ("app.py", ["docs", "src", "src/web", "src/web/deep"]),
        ("app", ["docs", "src", "src/web", "src/web/deep"]),
    ],
)
def test_a_search_visits_only_directories_that_can_contain_hits(pattern: str, directories: list[str]) -> None:
    """9.2.5: so that a pattern finds its files in a tree of any size."""
    leads_on = directory_matcher(pattern)
    assert [path for path in ("docs", "src", "src/web", "src/web/deep") if leads_on(path)] == directories


@given(
    st.text("ab/*?{},.", max_size=8), st.lists(st.sampled_from("ab"), min_size=2, max_size=4).map("/".join)
)
def test_every_hit_of_a_pattern_is_in_its_scope(pattern: str, path: str) -> None:
    """9.2.5: no file is missed."""
    parts = path.split("/")
    if matcher(pattern)(path):
        assert all(directory_matcher(pattern)("/".join(parts[:depth])) for depth in range(1, len(parts)))


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("a[", "xa[y"),
        ("a{b}", "a{b}"),
        ("{x", "{x.txt"),
        ("a,b", "a,b.txt"),
        ("a.]", "d/a.]"),
        ("[]", "a[].txt"),
    ],
)
def test_an_unmatched_bracket_is_a_letter(pattern: str, path: str) -> None:
    """9.2.5: only `[ ]` and `{a,b}` are wildcards."""
    assert finds(pattern, [path]) == [path]


def test_at_most_ten_files_are_found_over_all_patterns() -> None:
    """9.2.5: at most 10, without repeats, in path order."""
    tree = [f"{name}{n}.txt" for n in range(8) for name in "ab"]
    groups = match_files(["a", "*.txt", "b"], reversed(tree))
    assert groups["a"] == [f"a{n}.txt" for n in range(8)]
    assert groups["*.txt"] == ["b0.txt", "b1.txt"]
    assert groups["b"] == []


def test_a_file_counts_for_the_first_pattern_only() -> None:
    """9.2.5: without repeats."""
    assert match_files(["*.md", "README.md", "*.md"], TREE) == {
        "*.md": ["README.md"],
        "README.md": ["src/web/README.md"],
    }


@pytest.mark.parametrize(("pattern", "patterns"), [(None, None), ("", []), ("  ", ["", " "])])
def test_a_search_needs_a_pattern(pattern: object, patterns: object) -> None:
    """9.2.5: no pattern."""
    assert search_text(match_files(parse_patterns(pattern, patterns), TREE)) == "Error: pattern is required"


def test_both_arguments_of_a_search_count() -> None:
    """9.2.5: `pattern | patterns`."""
    assert parse_patterns("a", ["b", "a", ""]) == ("a", "b")
    assert parse_patterns(["a"], "b") == ("a", "b")


@pytest.mark.parametrize("patterns", [5, {"a": 1}, [1], [None]])
def test_patterns_that_are_not_text_fail(patterns: object) -> None:
    """9.2.5: the model learns the expected form."""
    with pytest.raises(InvalidInput, match="must be text"):
        parse_patterns(None, patterns)


def test_a_search_has_at_most_20_patterns() -> None:
    """9.2.5: each is compared with every path."""
    names = [str(number) for number in range(MAX_PATTERNS + 1)]
    assert len(parse_patterns(None, names[1:])) == MAX_PATTERNS
    with pytest.raises(InvalidInput, match="at most 20 patterns fit in one search, not 21"):
        parse_patterns(None, names)


def test_the_example_of_the_search_result() -> None:
    """9.2.6: the example."""
    assert search_text(match_files(["*.md"], ["README.md"])) == "Files found: 1\n\n[*.md]\nREADME.md"


def test_a_group_shows_five_paths() -> None:
    """9.2.6: at most 5, then the number of others; patterns without hits are left out."""
    groups = match_files(["*.py", "none.x", "*.md"], [*(f"{n}.py" for n in range(7)), "a.md"])
    assert search_text(groups) == (
        "Files found: 8\n\n[*.py]\n0.py\n1.py\n2.py\n3.py\n4.py\n... 2 more not shown\n\n[*.md]\na.md"
    )


def test_five_paths_are_shown_whole() -> None:
    """9.2.6: no line about zero more."""
    assert "more not shown" not in search_text(match_files(["*"], "abcde"))


def test_a_search_without_hits_names_its_patterns() -> None:
    """9.2.6: none."""
    assert search_text(match_files(["*.rs", "x"], TREE)) == "No file matches *.rs, x"


def test_an_incomplete_search_is_reported() -> None:
    """9.2.6, 9.2.7: no omission is silent."""
    assert search_cut_short(7).startswith("... the search ended after 7 entries")
    assert unread_directories(2) == "... 2 directories could not be read"
    assert listing_cut_short(7) == "... only 7 entries were looked at, there are more"


def test_braces_cannot_explode() -> None:
    """9.2.5: a pattern that multiplies is refused."""
    with pytest.raises(InvalidInput, match="more than 100 patterns"):
        matcher("{a,b}" * 20)
    with pytest.raises(InvalidInput, match="more than 100 patterns"):
        matcher("{" + "," * MAX_ALTERNATIVES + "}*")
    with pytest.raises(InvalidInput, match="more than 4096 characters"):
        matcher("[" * 4097)


def test_the_expansion_of_braces_is_limited_in_total() -> None:
    """9.2.5, 9.2.8: as every expansion is compiled before the first path is compared."""
    long = "[ab]?" * 700
    with pytest.raises(InvalidInput, match="the braces of the pattern mean more than 16384 characters"):
        matcher(long + "{1,2,3,4,5}")
    assert matcher(long + "{1,2,3,4}")("ab" * 700 + "3")


def test_no_pattern_is_kept_after_its_search() -> None:
    """9.2.8: a worker runs for months, and models send ever new patterns."""
    re.purge()
    tracemalloc.start()
    try:
        for number in range(300):
            assert not matcher("[ab]?" * 100 + str(number))("ab")
        re.purge()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 300_000


def test_many_stars_cannot_make_a_search_slow() -> None:
    """9.2.5: matching keeps all positions at once."""
    assert not matcher("**/a/" * 400 + "b")("a/" * 400 + "c")
    assert matcher("**/a/" * 400 + "b")("a/" * 400 + "b")


pattern_texts = st.text("ab./*?[]{},!-&|~^\\", max_size=12)


@given(pattern_texts, st.lists(st.text("ab.[", min_size=1, max_size=5), max_size=5))
def test_any_pattern_finds_only_given_files_or_is_refused(pattern: str, paths: list[str]) -> None:
    """9.2.5: nothing but InvalidInput."""
    try:
        groups = match_files([pattern], paths, 2)
    except InvalidInput:
        return
    assert set(groups[pattern]) <= set(paths)
    assert len(groups[pattern]) <= 2


# --- Listing ---


def test_directories_come_first_then_names_without_regard_to_case() -> None:
    """9.2.7: order and lines."""
    entries = [("b.txt", False), ("A.txt", False), ("zoo", True), ("Alpha", True), ("a.txt", False)]
    assert listing(".", entries) == "[dir] Alpha\n[dir] zoo\n[file] A.txt\n[file] a.txt\n[file] b.txt"


def test_at_most_fifty_entries_are_listed() -> None:
    """9.2.7: at most 50."""
    entries = [(f"{n:03}", False) for n in range(53)]
    lines = listing(".", entries).split("\n")
    assert (len(lines), lines[49], lines[50]) == (51, "[file] 049", "... 3 more not shown")
    assert "more not shown" not in listing(".", entries[:50])
    assert len(listing(".", entries, 0).split("\n")) == 53


def test_the_other_texts_of_listing() -> None:
    """9.2.7: literal texts."""
    assert listing("./empty", []) == "'./empty' has no entries"
    assert no_directory("src/x") == "Error: No directory at 'src/x'"
