from datetime import date
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.capabilities.skills import (
    Skill,
    default_name,
    fill_arguments,
    is_skill_file,
    list_text,
    load_text,
    metadata_message,
    skills_by_name,
)
from everstep.agent_domain.errors import InvalidInput

PDF = Skill("pdf", "Fills forms", "Use the script.")
REVIEW = Skill("review", "Reads code", "Look at $0.", resources=("scripts/a.sh", "references/b.md"))
LIBRARY = {"pdf": PDF, "review": REVIEW}
LIST = "Available skills:\n- [pdf]: Fills forms\n- [review]: Reads code"


# --- Reading ---


def test_a_skill_is_read_from_its_front_matter_and_body() -> None:
    """9.5.1: name, description, tags, resources; other keys kept."""
    fields: dict[str, Any] = {"name": " pdf ", "description": "Fills forms", "licence": "MIT"}
    fields |= {"tags": ["a", "b", "a"], "resources": "x.md, y.md"}
    skill = Skill.parse(fields, "\nUse it.\n", "dir")
    assert skill == Skill("pdf", "Fills forms", "Use it.", ("a", "b"), ("x.md", "y.md"), skill.extra)
    assert skill.extra == {"licence": "MIT"}
    assert skill.content() == "Use it."


@pytest.mark.parametrize(
    "fields", [None, {}, {"name": None, "description": None}, {"name": " "}, {"name": ["x"]}]
)
def test_name_and_description_have_defaults(fields: dict[str, Any] | None) -> None:
    """9.5.1: name defaults to directory or file stem, description to empty; none counts as empty."""
    skill = Skill.parse(fields, "Body", "stem")
    assert (skill.name, skill.description, skill.tags, skill.resources) == ("stem", "", (), ())


def test_yaml_has_more_types_than_json() -> None:
    """9.5.1: an unquoted number is a name, a date is kept as text."""
    fields: dict[Any, Any] = {
        "name": 2024,
        "updated": date(2024, 5, 1),
        7: {"a": [date(2024, 5, 1)]},
        "tags": [1, None, {}],
    }
    skill = Skill.parse(fields, "", "stem")
    assert (skill.name, skill.tags) == ("2024", ("1",))
    assert skill.extra == {"updated": "2024-05-01", "7": "{'a': [datetime.date(2024, 5, 1)]}"}


def test_resources_are_those_declared_and_those_found() -> None:
    """9.5.1: files in scripts/, references/, assets/, without repeats."""
    files = ["SKILL.md", "scripts/run.sh", "assets/logo.png", "references/deep/a.md", "tests/x", "scripts"]
    skill = Skill.parse({"resources": ["scripts/run.sh", "NOTES.md"]}, "", "s", files)
    assert skill.resources == ("scripts/run.sh", "NOTES.md", "assets/logo.png", "references/deep/a.md")


@pytest.mark.parametrize(
    ("path", "name"),
    [("pdf/SKILL.md", "pdf"), ("review.md", "review"), ("a.b.md", "a.b"), ("SKILL.md", "SKILL")],
)
def test_a_skill_file_gives_the_default_name(path: str, name: str) -> None:
    """9.5.1: `{lib}/{name}/SKILL.md` and `{lib}/{name}.md`."""
    assert is_skill_file(path)
    assert default_name(path) == name


@pytest.mark.parametrize("path", ["a/b/SKILL.md", "a/skill.md", "a/b.md", "a.txt", "pdf/scripts/x.md", "md"])
def test_other_files_are_no_skills(path: str) -> None:
    """9.5.1: only those two places."""
    assert not is_skill_file(path)


def test_of_one_name_skill_md_wins() -> None:
    """9.5.1: same name: SKILL.md wins; the library is in the order of names."""
    flat, directory = Skill("pdf", "flat"), Skill("pdf", "directory")
    for found in (
        [("pdf.md", flat), ("z/SKILL.md", directory)],
        [("z/SKILL.md", directory), ("pdf.md", flat)],
    ):
        assert skills_by_name([("r.md", REVIEW), *found]) == {"pdf": directory, "review": REVIEW}
        assert list(skills_by_name([("r.md", REVIEW), *found])) == ["pdf", "review"]


def test_of_one_name_and_kind_the_first_path_wins() -> None:
    """9.5.1: decided here, so that it does not depend on the order of a directory."""
    first, second = Skill("pdf", "first"), Skill("pdf", "second")
    assert skills_by_name([("b.md", second), ("a.md", first)])["pdf"] == first


# --- Texts for the model ---


def test_skills_are_listed_with_their_descriptions() -> None:
    """9.5.2: the list."""
    assert list_text(LIBRARY.values()) == LIST
    assert list_text([]) == "(no skills)"


def test_a_skill_is_rendered_with_its_body() -> None:
    """9.5.2: rendered."""
    assert PDF.rendered() == '<skill name="pdf">\nUse the script.\n</skill>'


def test_a_skill_is_rendered_with_its_resources() -> None:
    """9.5.2: blank line, heading, lines."""
    resources = "## Available Resources\n- scripts/a.sh\n- references/b.md"
    assert REVIEW.rendered() == f'<skill name="review">\nLook at $0.\n\n{resources}\n</skill>'


@pytest.mark.parametrize(
    ("name", "flag"), [(None, False), ("", None), (" ", False), ("pdf", True), (None, True)]
)
def test_loading_lists_the_skills_when_asked_or_without_a_name(name: object, flag: object) -> None:
    """9.5.3: the list if the flag is set or no name given."""
    assert load_text(LIBRARY, name, flag) == LIST


def test_loading_a_skill_renders_it() -> None:
    """9.5.3: by name."""
    assert load_text(LIBRARY, "pdf") == PDF.rendered()
    assert "Look at me." in load_text(LIBRARY, " review ", False, "me")


def test_loading_an_unknown_skill_shows_the_list() -> None:
    """9.5.3: unknown, blank line, list."""
    assert load_text(LIBRARY, "nope") == f"Error: No skill named 'nope'\n\n{LIST}"
    assert load_text({}, "nope") == "Error: No skill named 'nope'\n\n(no skills)"


def test_a_name_that_is_not_text_fails() -> None:
    """9.5.3: the model learns the expected form."""
    with pytest.raises(InvalidInput, match="skill_name must be text, not int"):
        load_text(LIBRARY, 5)


def test_the_skills_are_announced_once() -> None:
    """9.5.4: one system message with the list and a hint."""
    message = metadata_message([PDF, REVIEW], ["You are helpful"])
    assert message is not None
    assert message.startswith(f"<skills-metadata>\n{LIST}\n</skills-metadata>\n")
    assert "load_skill" in message
    assert metadata_message([PDF], ["You are helpful", message]) is None
    assert metadata_message([], []) is None


# --- Arguments ---


@pytest.mark.parametrize(
    ("body", "filled"),
    [
        ("Fix $ARGUMENTS now", "Fix a  b c now"),
        ("$ARGUMENTS[0]-$ARGUMENTS[2]", "a-c"),
        ("$ARGUMENTS[3]!", "!"),
        ("$0-$1 $2", "a-b c"),
        ("$9.", "."),
        ("US$1 stays", "US$1 stays\n\nARGUMENTS: a  b c"),
        ("ä$1", "ä$1\n\nARGUMENTS: a  b c"),
        ("$10", "b0"),
        ("$x", "$x\n\nARGUMENTS: a  b c"),
        ("Plain", "Plain\n\nARGUMENTS: a  b c"),
        ("$ARGUMENTS[99999999999999999999]", ""),
        ("$ARGUMENTS[x]", "a  b c[x]"),
    ],
)
def test_placeholders_are_filled_in(body: str, filled: str) -> None:
    """9.5.5: by index, all, or appended."""
    assert fill_arguments(body, "a  b c") == filled


def test_arguments_are_filled_in_only_once() -> None:
    """9.5.5: text in an argument is no placeholder."""
    assert fill_arguments("$0 $1", "$1 $ARGUMENTS") == "$1 $ARGUMENTS"


def test_without_arguments_the_body_is_unchanged() -> None:
    """9.5.5: decided here: absent arguments are not the same as empty ones."""
    assert fill_arguments("echo $1", None) == "echo $1"
    assert fill_arguments("echo $1.", "") == "echo ."
    assert fill_arguments("Plain", " ") == "Plain"


yaml_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.dates()
    | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)
keys = st.sampled_from(["name", "description", "tags", "resources", "x"]) | st.text(max_size=3)


@given(st.none() | st.dictionaries(keys, yaml_values), st.text())
def test_every_front_matter_makes_a_skill(fields: dict[str, Any] | None, body: str) -> None:
    """9.5.1: no value in it can break the library."""
    skill = Skill.parse(fields, body, "stem")
    assert skill.name
    skill.rendered("a b").encode()
