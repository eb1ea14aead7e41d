"""Files that an agent's commands cannot change, for every user of the worker."""

import os
from pathlib import Path

import pytest

from tests.everstep.capabilities.bash.users import WorkerUser

SECRET = "S3CRET"  # noqa: S105 -- a fake secret
PAYLOAD = "touch pwned"


def project(user: WorkerUser) -> Path:
    """A typical project, with an installation's data inside."""
    base = user.folder / "project"
    for folder in (".everstep/run", ".everstep/postgres", ".claude/agents", "agents", "src/app"):
        (base / folder).mkdir(parents=True)
    (base / "everstep.toml").write_text("preset = 'x'\n")
    (base / ".everstep/api-secret").write_text(SECRET)
    (base / ".everstep/postgres/postgresql.auto.conf").write_text("")
    (base / ".claude/agents/a.md").write_text("a")
    (base / "agents/a.md").write_text("a")
    for secret in (".env", ".envrc", "src/app/.env.local"):
        (base / secret).write_text(SECRET)
    return base


def repository(user: WorkerUser, base: Path) -> None:
    base.mkdir(exist_ok=True)
    user.git(base, "init", "-q")
    (base / "file").write_text("one\n")
    user.git(base, "add", "file")
    user.git(base, "commit", "-qm", "one")


def files_in(base: Path) -> dict[str, str]:
    """All files with their contents."""
    return {
        str(path.relative_to(base)): path.read_text(errors="replace")
        for path in sorted(base.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


ATTEMPTS = [
    "cat .env .envrc src/app/.env.local .everstep/api-secret; find . -exec cat {} +",
    "cp -r .everstep copy; cp .env copy.env; ln .env hard; ln everstep.toml hard.toml; mv .env moved",
    "ln -s .env soft; cat soft; ln -s .everstep d; cat d/api-secret; cat /proc/*/cwd/.env",
    "echo x >everstep.toml; echo x >>everstep.toml; sed -i s/x/y/ everstep.toml; cp src/x everstep.toml",
    "rm -f everstep.toml; rm -rf .everstep .claude agents; rmdir .everstep; truncate -s 0 agents/a.md",
    "for each in everstep.toml .everstep .claude agents src/app src src/app/.env.local; do mv $each x; done",
    "echo x >agents/b.md; mkdir .everstep/agents; echo x >.claude/agents/b.md; touch .claude/settings.json",
    "chmod 777 .env everstep.toml .everstep agents; cat .env; echo x >agents/a.md; echo x >>.everstep/x",
    "cd ..; mv project elsewhere; mkdir project; ln -sfn /tmp project",
    "exec 3<.everstep; ls .everstep/run; mkdir -p .everstep/run; touch .everstep/run/x",
]


def test_no_protected_file_is_read_or_changed(user: WorkerUser) -> None:
    """9.1.9: secrets, data, settings and agent definitions, by any path."""
    base = project(user)
    before = files_in(base)

    told = user.bash(base, *ATTEMPTS, hidden=[str(base / ".everstep")], read_only=[str(base / "agents")])

    assert SECRET not in "".join(told)
    after = files_in(base)
    assert {name: after[name] for name in before} == before
    assert not [name for name in after if SECRET in after[name] and name not in before]
    assert [name for name in after if name.startswith(("agents", ".claude", ".everstep"))] == [
        name for name in before if name.startswith(("agents", ".claude", ".everstep"))
    ]


def test_missing_protected_files_cannot_be_created(user: WorkerUser) -> None:
    """9.1.9: the next start would use new settings and agents; nothing remains of the attempt."""
    base = user.folder / "empty"
    base.mkdir()
    told = user.bash(
        base,
        "echo 'agents = [\"x\"]' >everstep.toml; ls everstep.toml/x",
        "mkdir -p .everstep/agents; echo x >.everstep/agents/x.md",
        "mkdir -p .claude/agents; echo x >.claude/agents/x.md; ln -s src .claude",
        "mkdir made; mv made .claude; mv -T made .everstep; mv -T made .git; rmdir .claude .git; ls -A",
        "git init -q .; echo x >.git/config; echo 'gitdir: made' >.git",
    )
    assert "everstep.toml: Is a directory" in told[0]
    assert all("Read-only file system" in text for text in told[1:3])
    assert os.listdir(base) == ["made"]
    assert os.listdir(base / "made") == []


def test_settings_created_in_a_plain_work_directory_are_set_aside(user: WorkerUser) -> None:
    """9.1.9: they are renamed where the installation is not started from, and the model is informed."""
    base, here = user.folder / "work", user.folder / "here"
    base.mkdir()
    here.mkdir()
    (told, listed) = user.bash(base, "echo x >everstep.toml; ls", "ls", here=str(here))
    assert told.startswith("everstep.toml\n")
    assert "sandbox: " in told
    assert f"{base}/everstep.toml cannot be made by a command, and is everstep.toml.refused now" in told
    assert listed == "everstep.toml.refused\n"


def test_the_project_is_protected_in_a_base_directory_around_it(user: WorkerUser) -> None:
    """9.1.9: the folders above it cannot be renamed either, and a replacement is a different project."""
    base = project(user)
    before = files_in(base)
    told = user.bash(
        user.folder,
        "cat project/.env project/.everstep/api-secret project/src/app/.env.local",
        "echo x >project/everstep.toml; echo x >project/agents/b.md; mkdir project/.git",
        "mv project p; mkdir project; echo x >project/everstep.toml",
        here=str(base),
        hidden=[str(base / ".everstep")],
        read_only=["agents"],
    )
    assert SECRET not in "".join(told)
    assert files_in(base) == before


def test_closing_its_folder_does_not_reveal_a_secret(user: WorkerUser) -> None:
    """9.1.9: a folder that cannot be read is hidden."""
    base = user.folder / "base"
    (base / "a").mkdir(parents=True)
    (base / "a/.env").write_text(SECRET)
    told = user.bash(base, "chmod 000 a", "chmod 755 a; cat a/.env; ls a")
    assert SECRET not in "".join(told)


def test_the_data_of_an_installation_is_not_a_base_directory(user: WorkerUser) -> None:
    """9.1.9: not even for a policy that names it."""
    base = project(user)
    for named in (base / ".everstep", base / ".everstep/postgres"):
        (told,) = user.bash(named, "ls", hidden=[str(base / ".everstep")], here=str(base))
        assert told == (
            f"Error: {named} holds the data of an installation; name a directory for the work alone"
        )
    (told,) = user.bash(base / "src", "ls", writable=[str(base / ".everstep")], here=str(base))
    assert "holds the data of an installation" in told


def test_a_symbolic_link_as_settings_file_is_refused(user: WorkerUser) -> None:
    """9.1.9: a link could be replaced; the text says what to do."""
    base = user.folder / "base"
    (base / "other").mkdir(parents=True)
    (base / ".claude").symlink_to("other")
    (told,) = user.bash(base, "touch begun")
    assert told.startswith(f"Error: {base}/.claude is a link, which a command could replace; ")
    assert not (base / "begun").exists()


GIT_ATTEMPTS = [
    f"echo '{PAYLOAD}' >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; rm -rf .git/hooks",
    "git config core.fsmonitor ./x; echo '[core] fsmonitor = ./x' >>.git/config; cp file .git/config.new; "
    "mv .git/config.new .git/config; ln -f file .git/config; echo x >.git/config.worktree",
    "echo '* filter=x' >.git/info/attributes; mv .git/info .git/i; mkdir .git/info",
    "echo ../evil >.git/commondir; mkdir .git/commondir; ln -s ../evil .git/commondir",
    "mv .git .git2; mv .git/hooks .git/h; cp -r .git evil; mv evil/.git .; ln -sfn evil .git",
]


@pytest.mark.parametrize("git", [False, True])
def test_git_files_that_run_code_are_read_only(git: bool, user: WorkerUser) -> None:
    """9.1.10: with git and without."""
    base = user.folder / "base"
    repository(user, base)
    code = {"config", "config.worktree", "info/attributes", "commondir"}

    def files_in_git() -> dict[str, str]:
        found = files_in(base / ".git")
        return {name: found[name] for name in found if name in code or name.startswith("hooks/")}

    before = files_in_git()
    told = user.bash(base, *GIT_ATTEMPTS, git=git)
    assert files_in_git() == before, told
    assert not (base / ".git2").exists()
    user.git(base, "commit", "-q", "--allow-empty", "-m", "by hand")
    assert not (base / "pwned").exists()


def test_without_git_the_other_files_are_read_only_too(user: WorkerUser) -> None:
    """9.1.10: git can read."""
    base = user.folder / "base"
    repository(user, base)
    told = user.bash(base, "git log --format=%s; git status --short", "echo x >>file; git commit -qam x")
    assert told[0] == "one\n"
    assert "Read-only file system" in told[1]


COMMIT = (
    "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a; "
    "echo two >two && git add two && git commit -qm two && git checkout -q -b other && "
    "git stash list && git gc -q && git log --format=%s -1"
)


def test_with_git_commits_are_made(user: WorkerUser) -> None:
    """9.1.10: add, commit and checkout; no helper files remain outside."""
    base = user.folder / "base"
    repository(user, base)
    before = set(os.listdir(base / ".git"))
    assert user.bash(base, COMMIT, git=True)[0].endswith("two\n")
    assert user.git(base, "log", "--format=%s") == "two\none\n"
    assert user.git(base, "branch", "--show-current") == "other\n"
    assert set(os.listdir(base / ".git")) - before <= {"COMMIT_EDITMSG", "packed-refs"}


def test_a_linked_worktree_and_a_submodule_are_protected_like_a_repository(user: WorkerUser) -> None:
    """9.1.10: their git directory is outside of the base directory."""
    main, other, linked = user.folder / "main", user.folder / "other", user.folder / "linked"
    repository(user, main)
    repository(user, other)
    user.git(main, "worktree", "add", "-q", str(linked), "-b", "linked")
    user.git(main, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), "sub")
    attempt = (
        "echo x >>{git}/config; echo x >{git}/hooks/pre-commit; rm .git; echo 'gitdir: x' >.git; "
        "mv {git} {git}.2; echo x >{git}/worktrees/linked/commondir; echo x >{git}/commondir"
    )
    for base, folder in ((linked, main / ".git"), (main / "sub", main / ".git/modules/sub")):
        kept = {name: (folder / name).read_text() for name in ("config", "HEAD")}
        pointer = (base / ".git").read_text()
        told = user.bash(base, COMMIT, attempt.format(git=folder), git=True)
        assert told[0].endswith("two\n"), told
        assert (folder / "config").read_text() == kept["config"]
        assert (base / ".git").read_text() == pointer
        assert not (folder / "hooks/pre-commit").exists()
        assert user.git(base, "log", "-1", "--format=%s") == "two\n"
        # Without the policy it does not even exist there.
        assert "not a git repository" in user.bash(base, "git status")[0]
    assert "\ntwo" not in user.git(main, "log", "--format=%s")


def test_a_git_file_created_by_a_command_opens_nothing(user: WorkerUser) -> None:
    """9.1.10: a repository that does not know the base directory is not used."""
    base, strange = user.folder / "base", user.folder / "strange"
    base.mkdir()
    repository(user, strange)
    (base / ".git").write_text(f"gitdir: {strange}/.git\n")
    (told,) = user.bash(base, f"ls {strange}; git log", git=True)
    assert "No such file" in told
    assert "one" not in told


def test_repositories_inside_are_recognised_by_their_contents(user: WorkerUser) -> None:
    """9.1.10: a bare one, or one of another name, at any depth, and no folder above can be moved."""
    base = user.folder / "base"
    repository(user, base)
    (base / "vendor").mkdir()
    repository(user, base / "vendor/lib")
    user.git(base, "init", "-q", "--bare", "deep.store")
    kept = files_in(base)
    told = user.bash(
        base,
        "for g in vendor/lib/.git deep.store; do echo x >>$g/config; echo x >$g/hooks/pre-commit; "
        "echo x >$g/config.worktree; echo . >$g/commondir; done; for d in vendor vendor/lib deep.store; do "
        "mv $d x; done",
        git=True,
    )
    code = [name for name in kept if name.endswith("/config") or "/hooks/" in name]
    after = files_in(base)
    assert len(code) > 3
    assert {name: after[name] for name in code} == {name: kept[name] for name in code}, told
    for name in ("vendor/lib/.git", "deep.store"):
        assert not (base / name / "config.worktree").exists()
        assert not (base / name / "commondir").exists()
        assert not (base / name / "hooks/pre-commit").exists()


def test_hooks_in_the_project_files_are_read_only(user: WorkerUser) -> None:
    """9.1.10: at the path that the configuration names."""
    base = user.folder / "base"
    repository(user, base)
    (base / ".husky").mkdir()
    user.git(base, "config", "core.hooksPath", ".husky")
    user.bash(base, "echo x >.husky/pre-commit; mv .husky h", git=True)
    assert os.listdir(base / ".husky") == []


def test_a_repository_created_by_a_command_runs_no_code(user: WorkerUser) -> None:
    """9.1.10: with hooks or such configuration it is disabled; without, it can be used."""
    base = user.folder / "base"
    base.mkdir()
    evil = [
        f"git init -q a; echo '{PAYLOAD}' >a/.git/hooks/pre-commit; chmod +x a/.git/hooks/pre-commit",
        "git init -q b; git -C b config core.fsmonitor 'touch pwned'",
        "git init -q --bare c; printf '[core]\\nbare=0\\nworktree=..\\nfsmonitor=touch pwned\\n' >c/config",
        "git init -q x; mv x/.git x/y; echo 'gitdir: y' >x/.git; git -C x config alias.status '!touch pwned'",
        "git init -q z; echo '* diff=x' >z/.git/info/attributes",
        "git init -q h; printf '[remote \"o\"]\\n url = ext::sh -c x\\n' >>h/.git/config",
    ]
    told = user.bash(base, *evil, "git init -q good; git init -q .; ls -A", git=True)
    for text in told[:-1]:
        assert "is put out of use, as it" in text, text
    assert "out of use" not in told[-1]
    for name in "abcxzh":
        ran = user.run(["git", "-C", str(base / name), "status"], cwd=base / name)
        assert not list(base.rglob("pwned"))
        assert ran.returncode != 0 or str(base / "good") not in ran.stdout
    user.git(base / "good", "status")


MAKE = (
    "mk() {{ mkdir -p $1/objects $1/refs; echo 'ref: refs/heads/main' >$1/HEAD; conf $1; }}; "
    "conf() {{ printf '[core]\\nfsmonitor = touch pwned; false\\nrepositoryformatversion=0' >$1/config; }}; "
    "mkdir -p sub; cd sub; {0}"
)

HIDDEN_PLACES = {
    "a common directory without a HEAD": (
        "mk ../cd; rm ../cd/HEAD; mkdir .git; echo ../../cd >.git/commondir; "
        "echo 'ref: refs/heads/a' >.git/HEAD",
    ),
    "a folder like a secret": ("mk ../.envs/g; echo 'gitdir: ../.envs/g' >.git",),
    "what is put aside": ("mk .claude/g; echo 'gitdir: .claude.refused/g' >.git",),
    "another repository": ("git init -q a; mk a/.git/x; echo 'gitdir: a/.git/x' >.git",),
    "the project's own": ("mk ../.git/x; echo 'gitdir: ../.git/x' >.git",),
    "a HEAD that comes back": ("mk .git", "mv .git/HEAD.refused .git/HEAD"),
    "one that is changed later": (
        "git init -q --bare ../.git/x; rm ../.git/x/config; echo 'gitdir: ../.git/x' >.git",
        "conf ../.git/x",
    ),
    "a common directory that is changed later": (
        "git init -q --bare ../cd; rm ../cd/config; mkdir .git; echo ../../cd >.git/commondir; "
        "cp ../cd/HEAD .git",
        "mv ../cd/HEAD ../cd/H",
        "conf ../cd; mv ../cd/H ../cd/HEAD",
    ),
    "a closed folder": ("mk .git; chmod 0111 .git; chmod 0311 .",),
    "a pipe as configuration": ("mk .git; rm .git/config; mkfifo .git/config",),
}


@pytest.mark.parametrize("place", HIDDEN_PLACES)
def test_a_repository_that_runs_code_is_found_at_every_path(place: str, user: WorkerUser) -> None:
    """9.1.10: in every way that git finds it, and over any number of commands."""
    base = user.folder / "base"
    repository(user, base)
    told = user.bash(base, *(MAKE.format(each) for each in HIDDEN_PLACES[place]), git=True)
    (base / "sub").chmod(0o755)
    user.run(["timeout", "5", "git", "-C", str(base / "sub"), "status"], cwd=base)
    assert not list(base.rglob("pwned")), told


def test_a_repository_outside_is_not_changed_through_a_link(user: WorkerUser) -> None:
    """9.1.10: not even to disable it."""
    base, other = user.folder / "base", user.folder / "other"
    base.mkdir()
    repository(user, other)
    (other / ".git/hooks/pre-commit").write_text("")
    user.bash(base, f"mkdir sub; ln -s {other}/.git sub/.git; echo 'gitdir: {other}/.git' >.git", git=True)
    assert (other / ".git/HEAD").is_file()


def test_files_created_by_a_command_open_no_directory_outside(user: WorkerUser) -> None:
    """9.1.10: a linked worktree is inside the repository that it refers to, or none is opened."""
    base, outside = user.folder / "base", user.folder / "outside"
    for each in (base, outside):
        each.mkdir()
    make = (
        f"mkdir gd; echo 'ref: refs/heads/main' >gd/HEAD; echo {outside} >gd/commondir; "
        f"echo {base}/.git >gd/gitdir; echo 'gitdir: gd' >.git"
    )
    user.bash(base, make, f"echo x >{outside}/x; mkdir {outside}/y", git=True)
    assert os.listdir(outside) == []


@pytest.mark.parametrize("name", ["commondir", "gitdir", "config"])
def test_a_pipe_in_a_git_directory_does_not_block_the_worker(name: str, user: WorkerUser) -> None:
    """9.1.10: the worker does not wait for files that a command created."""
    base = user.folder / "base"
    base.mkdir()
    make = f"git init -q sub; rm -f sub/.git/{name}; mkfifo sub/.git/{name}; mkfifo .git"
    assert user.bash(base, make, "echo goes on", git=True)[1] == "goes on\n"


def test_hooks_are_found_through_included_configuration(user: WorkerUser) -> None:
    """9.1.10: included files, at any depth, are read-only too, and missing ones cannot be created."""
    base = user.folder / "base"
    repository(user, base)
    user.git(base, "config", "include.path", "../git.cfg")
    (base / "git.cfg").write_text("[include]\npath = more.cfg\n[core]\nhooksPath = .hooks/here\n")
    (base / "more.cfg").write_text("[include]\npath = missing.cfg\n")
    before = files_in(base)
    told = user.bash(
        base,
        "mkdir -p .hooks/here; echo x >.hooks/here/pre-commit; echo x >>git.cfg; echo x >>more.cfg; "
        "echo x >missing.cfg; git status",
        git=True,
    )
    after = files_in(base)
    # Git's index, which git updates when it reads files.
    assert after | {".git/index": ""} == before | {".git/index": ""}
    assert "On branch" in told[0]
    assert not (base / ".hooks").exists()


def test_settings_created_in_a_subfolder_are_set_aside(user: WorkerUser) -> None:
    """9.1.9: at any depth; existing ones stay."""
    base = project(user)
    (base / "src/.claude").mkdir()
    (told,) = user.bash(
        base, "mkdir -p a/.claude a/b/.everstep/agents; echo x >a/everstep.toml; ln -s . src/app/.claude"
    )
    left = {str(each.relative_to(base)) for each in base.rglob("*")}
    assert {"a/.claude.refused", "a/b/.everstep.refused", "a/everstep.toml.refused", "src/.claude"} <= left
    assert not left & {"a/.claude", "a/b/.everstep", "a/everstep.toml", "src/app/.claude"}
    assert "a/everstep.toml cannot be made by a command" in told


def test_a_program_in_the_project_does_not_replace_the_machines(user: WorkerUser) -> None:
    """9.1.9: although the worker's PATH contains its folder."""
    base = user.folder / "base"
    (base / "bin").mkdir(parents=True)
    for name in ("bwrap", "unshare", "nsenter", "setpriv", "git"):
        (base / "bin" / name).write_text(f"#!/bin/sh\ntouch {base}/pwned\n")
        (base / "bin" / name).chmod(0o755)
    base.chmod(0o777)
    told = user.bash(base, "echo fine", path=f"{base}/bin:/usr/bin:/bin")
    assert told == ["fine\n"]
    assert not (base / "pwned").exists()


def test_concurrent_commands_share_the_placeholders(user: WorkerUser) -> None:
    """9.1.9: when one command ends, the others stay protected, and the last one leaves nothing."""
    base = user.folder / "base"
    base.mkdir()
    waits = "until test -e go; do sleep 0.01; done; mkdir .claude/x; rmdir .claude"
    brief = [*(["true"] * 10), "touch go"]
    told = user.worker(base=base, held=[waits] * 3, commands=brief)["held"]
    assert ["Read-only" in each for each in told] == [True] * 3, told
    assert os.listdir(base) == ["go"]
