import platform
import shutil
import subprocess

import pytest
import torch

from torch_linformer.measuring.machine import git_commit, machine_facts, package_versions


def test_the_facts_of_a_machine():
    facts = machine_facts("cpu")
    assert facts["device"] == "cpu" and facts["Python"] == platform.python_version()
    assert int(facts["cores"]) >= 1 and facts["threads"] == str(torch.get_num_threads())
    assert facts["processor"] and facts["memory"].endswith("B")


def test_versions_of_what_is_installed():
    assert package_versions(("torch", "no-such-package-anywhere")) == {"torch": torch.__version__}


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_told_of_a_file_that_the_checkout_tracks(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    tracked, untracked = tmp_path / "tracked.py", tmp_path / "installed.py"
    for path in (tracked, untracked):
        path.write_text("")
    assert git_commit(str(tracked)) is None
    git("init", "--quiet")
    git("add", "tracked.py")
    git("commit", "--quiet", "--message", "one")
    commit = git("rev-parse", "HEAD")[:12]
    assert git_commit(str(tracked)) == commit
    assert git_commit(str(untracked)) is None
    tracked.write_text("changed")
    assert git_commit(str(tracked)) == f"{commit}-dirty"
