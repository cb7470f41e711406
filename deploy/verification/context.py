"""The build context of the images: the files of the commit, and beside them the packages that were fetched before.

So a build needs no network, and has none: the engine's namespace has no way out.
"""

import shutil
import sys
from pathlib import Path
from typing import Final

from tidemark.deploy.verification.shell import Shell

ROOT: Final = Path(__file__).resolve().parents[2]


def make_context(shell: Shell, folder: Path, cache: Path, commit: str = "HEAD") -> Path:
    """A folder with the commit's tree, and wheels and jars in deploy/images/cache. cache: keeps the fetched files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    here = Shell(shell.record, ROOT)
    commit = here.run("git", "rev-parse", f"{commit}^{{commit}}", told=False).strip()
    here.run("sh", "-c", f"git archive {commit} | tar --extract --directory '{folder}'")
    wheels = cache / "wheels"
    for lock in ("requirements-build.lock", "requirements.lock"):
        words = ("-m", "pip", "download", "--quiet", "--require-hashes", "--no-build-isolation", "--dest", wheels)
        here.run(sys.executable, *words, "--find-links", wheels, "--requirement", folder / lock, timeout_s=1800)
    here.run(sys.executable, "-m", "tidemark.services.local.jars", "--cache", cache / "kafka")
    shutil.copytree(wheels, folder / "deploy" / "images" / "cache", dirs_exist_ok=True)
    shutil.copytree(cache / "kafka", folder / "deploy" / "images" / "cache" / "kafka")
    shell.record.say(f"build context: commit {commit}")
    return folder
