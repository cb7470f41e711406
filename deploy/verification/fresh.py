"""`python -m tidemark.deploy.verification.fresh`: does a clone work on a machine that has nothing but Debian's Python and Java?

For each suite a root folder is made by debootstrap (kept for the next time), the commit is cloned into it, and the README's first command
run inside, with mounts and processes of its own. Status 0 if it ended with 0 in each.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidemark.deploy.verification.context import ROOT
from tidemark.deploy.verification.shell import CommandFailed, RunLog, Shell

SUITES: Final = ("bookworm", "trixie", "forky")
"""Debian 12: Python 3.11 and Java 17; 13: Python 3.13 and Java 21; what becomes 14: Python 3.14 and Java 25."""
_SCRIPTS: Final = Path("/usr/share/debootstrap/scripts")
_MIRROR: Final = "http://deb.debian.org/debian"
_PACKAGES: Final = ("ca-certificates", "default-jre-headless", "git", "make", "python3", "python3-venv")
_CLONE: Final = "opt/tidemark-clone"
_AUTHORITIES: Final = "etc/ssl/certs/ca-certificates.crt"
_TRUST: Final = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
_TIMEOUT_S: Final = 3_600


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tidemark.deploy.verification.fresh", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "fresh", help="the roots, and what was printed")
    parser.add_argument("--suite", action="append", help=f"a suite of Debian; all of {', '.join(SUITES)} without it")
    parser.add_argument("command", nargs="*", default=["make", "demo"], help="what is run in the clone")
    options = parser.parse_args(arguments)
    missing = [program for program in ("debootstrap", "unshare", "chroot") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        sys.stderr.write(
            f"A fresh root needs root's rights and the programs debootstrap, unshare, chroot; missing: {missing}\n"
        )
        return 1
    work: Path = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    record = RunLog(work / f"log-{time.strftime('%Y%m%d-%H%M%S')}.txt")
    shell = Shell(record, work)
    failed = []
    for suite in options.suite or SUITES:
        try:
            root = _root(shell, work, suite)
            _clone(shell, root)
        except CommandFailed as error:
            record.say(f"WRONG: {error}")
            return 1
        if not _run(record, root, work / f"{suite}.txt", options.command):
            failed.append(suite)
    record.say(f"WRONG: {' '.join(options.command)} failed on {', '.join(failed)}" if failed else "all of it held")
    return 1 if failed else 0


def _root(shell: Shell, work: Path, suite: str) -> Path:
    root, complete = work / suite, work / f"{suite}.complete"
    wish = " ".join(_PACKAGES)
    if not complete.exists() or complete.read_text(encoding="utf-8") != wish:
        shutil.rmtree(root, ignore_errors=True)
        cached = work / "packages"
        cached.mkdir(exist_ok=True)
        include = f"--include={','.join(_PACKAGES)}"
        # A suite that is younger than the program is made as Debian's unstable one is.
        newer: list[str | Path] = [] if (_SCRIPTS / suite).exists() else [_MIRROR, _SCRIPTS / "sid"]
        shell.run(
            "debootstrap",
            "--variant=minbase",
            include,
            f"--cache-dir={cached}",
            suite,
            root,
            *newer,
            timeout_s=_TIMEOUT_S,
        )
        complete.write_text(wish, encoding="utf-8")
    return root


def _clone(shell: Shell, root: Path) -> None:
    """The commit, and the machine's certificate authorities and name servers."""
    shutil.rmtree(root / _CLONE, ignore_errors=True)
    shell.run("git", "clone", "--quiet", "--no-hardlinks", ROOT, root / _CLONE)
    named = (os.environ.get(name) for name in _TRUST)
    bundle = next((Path(path) for path in named if path), Path("/") / _AUTHORITIES)
    if bundle.exists():
        shutil.copyfile(bundle, root / _AUTHORITIES)
    shutil.copyfile("/etc/resolv.conf", root / "etc/resolv.conf")


def _run(record: RunLog, root: Path, said: Path, command: Sequence[str]) -> bool:
    """Whether the command ended with status 0. Mounts and processes end with it."""
    passed = {
        name: value for name, value in os.environ.items() if name.lower().endswith("_proxy") or name == "PIP_INDEX_URL"
    }
    trust = dict.fromkeys(_TRUST, f"/{_AUTHORITIES}")
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", **trust, **passed}
    script = (
        'cd "$1" && shift && mount -t proc proc proc && mount --rbind /dev dev && mount --rbind /sys sys'
        ' && clone="$1" && shift && exec chroot . sh -c \'cd "$0" && exec "$@"\' "$clone" "$@"'
    )
    inside = ["sh", "-c", script, "sh", str(root), f"/{_CLONE}", *command]
    began = time.monotonic()
    with said.open("w", encoding="utf-8") as out:
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", *inside],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S,
            check=False,
        )
    took_s = time.monotonic() - began
    record.say(f"{root.name}: {' '.join(command)} ended with status {done.returncode} after {took_s:.0f} s ({said})")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
