"""Commands get the files that a policy names, even if other commands replace them."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from everstep.agent_domain.capabilities.bash import ExecutionPolicy
from everstep.capabilities.bash import sandbox
from everstep.capabilities.bash.places import MAX_LINKS, ResolvedPath, real_path
from everstep.capabilities.bash.sandbox import Launch
from everstep.capabilities.bash.words import Unusable
from tests.everstep.capabilities.bash.surroundings import SECRET, SandboxHost, bash, policy_for
from tests.everstep.capabilities.files.ground import swap_names_in_loop

REPLACE = "mv a z && mkdir a && ln -s {outside} a/b && cat a/b/secret"
REPLACED = "was replaced by something else in this moment; look at what is there, and try again"


def inner_directory(around: SandboxHost) -> Path:
    """A directory in a directory in the base directory."""
    path = around.base_dir / "a" / "b"
    path.mkdir(parents=True)
    return path


async def test_a_replaced_readable_path_leads_nowhere_else(around: SandboxHost) -> None:
    """9.1.6: a link in its place would show the next command any file of the machine."""
    path = inner_directory(around)
    policy = policy_for(around).with_readable_paths(path)
    assert SECRET not in await bash(REPLACE.format(**around.placeholders), policy)
    assert (path / "secret").is_file()

    told = await bash(f"cat {around.outside}/secret {path}/secret", policy)

    assert told == (
        f"Error: {path} is a link that leads out of {around.base_dir}, where commands can write; "
        "name the directory itself that is meant"
    )


@pytest.mark.parametrize("kind", ["base", "writable"])
async def test_a_replaced_writable_path_leads_nowhere_else(kind: str, around: SandboxHost) -> None:
    """9.1.6: nor could any other file be written."""
    path = inner_directory(around)
    if kind == "base":
        policy = ExecutionPolicy.for_bash(path, 10).with_writable_paths(around.base_dir)
    else:
        policy = policy_for(around).with_writable_paths(path)
    await bash(f"cd {around.base_dir}; {REPLACE.format(**around.placeholders)}", policy)
    assert (path / "secret").is_file()

    assert "leads out of" in await bash(f"touch {around.outside}/made {path}/made", policy)

    assert os.listdir(around.outside) == ["secret"]


async def test_a_link_to_a_replaced_path_leads_nowhere_else(around: SandboxHost, tmp_path: Path) -> None:
    """9.1.6: by every name that the policy uses."""
    path = inner_directory(around)
    (tmp_path / "alias").symlink_to(path)
    policy = policy_for(around).with_readable_paths(tmp_path / "alias")
    await bash(REPLACE.format(**around.placeholders), policy)
    assert "leads out of" in await bash("true", policy)


async def test_a_path_replaced_at_the_start_of_a_command_is_not_shown(
    around: SandboxHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.6: the checked directory is the mounted one, or the command does not start."""
    path, begin = inner_directory(around), sandbox.launch_for

    def replace_and_launch(policy: ExecutionPolicy, places: Sequence[ResolvedPath]) -> Launch:
        path.rename(path.with_name("moved"))
        path.symlink_to(around.outside)
        return begin(policy, places)

    policy = policy_for(around).with_readable_paths(path)
    await bash("true", policy)
    monkeypatch.setattr(sandbox, "launch_for", replace_and_launch)
    before = len(os.listdir("/proc/self/fd"))
    told = await bash(f"touch begun; cat {around.outside}/secret {path}/secret", policy)
    assert told == f"Error: {path} {REPLACED}"
    assert not (around.base_dir / "begun").exists()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_path_replaced_in_a_loop_is_never_shown(around: SandboxHost) -> None:
    """9.1.6: by commands that run concurrently."""
    path = inner_directory(around)
    (path / "here").touch()
    (around.base_dir / "link").symlink_to(around.outside)
    policy = policy_for(around).with_readable_paths(path)
    await bash("true", policy)
    seen = set[str]()
    with swap_names_in_loop(path, around.base_dir / "link"):
        for number in range(2000):
            told = await bash(f"cd {path} && ls; cat {around.outside}/secret", policy)
            assert SECRET not in told
            seen.add("refused" if told.startswith("Error: ") else "begun")
            if number > 50 and len(seen) > 1:
                break
    assert seen == {"begun", "refused"}
    assert not around.running_processes()


async def test_links_inside_and_links_of_the_operator_are_followed(
    around: SandboxHost, tmp_path: Path
) -> None:
    """9.1.6: only paths that commands can write are not trusted."""
    path = inner_directory(around)
    (path / "here").touch()
    (around.base_dir / "link").symlink_to("a/b")
    (tmp_path / "alias").symlink_to(around.base_dir)
    policy = ExecutionPolicy.for_bash(tmp_path / "alias", 10).with_readable_paths(tmp_path / "alias" / "link")
    assert await bash("pwd; ls link", policy) == f"{around.base_dir}\nhere\n"


def test_circular_links_are_refused(tmp_path: Path) -> None:
    """9.1.6: the text says what to do."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(Unusable, match="leads in circles, or through too many links; name the directory"):
        real_path(str(tmp_path / "a"), [])
    for number in range(MAX_LINKS):
        (tmp_path / f"l{number}").symlink_to(f"l{number + 1}" if number < MAX_LINKS - 1 else "../x")
    assert real_path(str(tmp_path / "l0"), []) == str(tmp_path.parent / "x")


def test_a_path_is_identified_by_its_inode_not_by_its_name(tmp_path: Path) -> None:
    """9.1.6: and no link is followed to it."""
    (tmp_path / "a").mkdir()
    place = ResolvedPath.at(f"{tmp_path}/a", writable=False)
    assert place.exists_under("")
    assert place.exists_under("/proc/self/root")
    (tmp_path / "a").rename(tmp_path / "b")
    assert not place.exists_under("")
    (tmp_path / "a").symlink_to("b")
    assert not place.exists_under("")
    for path in ("a", "a/x", "gone/x"):
        with pytest.raises(Unusable, match=REPLACED):
            ResolvedPath.at(f"{tmp_path}/{path}", writable=False)
