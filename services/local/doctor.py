"""Looks at the machine before a set-up, and names the remedy in a sentence if something is missing.

Rules kept here: the standard library only, and no syntax newer than Python 3.7 in this file, for it is run by whichever
python the machine has, before there is a virtual environment.

``python services/local/doctor.py check`` — before the set-up: Python, its venv module, Java, disk.
``python services/local/doctor.py explain FILE`` — after a failed step: the meaning of its output, as a sentence.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The oldest and the newest that the locked packages were run with.
PYTHON_MIN = (3, 11)
PYTHON_MAX = (3, 14)
# For the virtual environment, the broker's jars, and the packages that pip unpacks on the way.
FREE_DISK_MIB_MIN = 4096
SHOWN_LINES = 4

# Output of failed steps, and its meaning. The first that is found wins.
REASONS = (
    ("No space left on device", "the disk is full: free some space, then run it again"),
    ("Disk quota exceeded", "the disk quota is used up: free some space, then run it again"),
    ("DO NOT MATCH THE HASHES", "a package differs from the locked one: look at where this machine gets packages from"),
    # Before those of the network, which a failed connection to a proxy has behind it.
    ("ProxyError", "the proxy refuses or cannot be reached: check its settings (https_proxy), then run it again"),
    ("Name or service not known", "no network: connect to one, or set a mirror for pip, then run it again"),
    ("Temporary failure in name resolution", "no network: connect to one, or set a mirror for pip, then run it again"),
    ("NewConnectionError", "no network: connect to one, or set a mirror for pip, then run it again"),
    ("ConnectTimeoutError", "the package index does not answer: check the network and the proxy, then run it again"),
    ("ReadTimeoutError", "the package index answers too slowly: run it again, what was fetched is kept"),
    ("CERTIFICATE_VERIFY_FAILED", "the index's certificate is not trusted here: set PIP_CERT to your authority's file"),
    ("No matching distribution", "a locked package cannot be found: check the network and the index that pip uses"),
    ("Permission denied", "a file may not be written: run it as the user who owns this folder"),
)


def check() -> list[str]:
    """Needs of a set-up that are missing, a sentence each; nothing when all is there."""
    sys.path.insert(0, str(ROOT))
    from tidemark.services.local.hints import to_install_python  # noqa: PLC0415 - the script's own folder is on the path, not the root

    if not PYTHON_MIN <= sys.version_info[:2] <= PYTHON_MAX:
        return [
            "Python {}.{} to {}.{} is needed, found {}.{}: install one{}, or name one: make PYTHON=/path/to/python3 …".format(
                *PYTHON_MIN, *PYTHON_MAX, *sys.version_info[:2], to_install_python()
            )
        ]
    findings = []
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        findings.append(f"The venv module of {sys.executable} is missing: install it{to_install_python()}")
    free_mib = shutil.disk_usage(str(ROOT)).free // 2**20
    if free_mib < FREE_DISK_MIB_MIN:
        findings.append(
            f"The set-up needs {FREE_DISK_MIB_MIN} MiB of disk in {ROOT}, found {free_mib}: "
            "free some space, or put the project on another disk"
        )
    return findings + java_findings()


def java_findings() -> list[str]:
    """Defects of the machine's Java; the same check that the broker makes at each start."""
    from tidemark.services.local.java import JavaError, find_java  # noqa: PLC0415 - an older Python cannot read that file

    try:
        find_java()
    except JavaError as error:
        return [str(error)]
    return []


def explain(log: str) -> str:
    """The meaning of a failed step's output, or its last lines."""
    for words, remedy in REASONS:
        if words in log:
            return f"The set-up failed: {remedy}"
    last = [line for line in log.splitlines() if line.strip()][-SHOWN_LINES:]
    return "The set-up failed: {}".format(" | ".join(last) or "it printed nothing")


def main(arguments: list[str]) -> int:
    """The command line; status 1 when something is missing."""
    if arguments[:1] == ["explain"]:
        sys.stderr.write(explain(Path(arguments[1]).read_text(encoding="utf-8", errors="replace")) + "\n")
        return 1
    findings = check()
    for finding in findings:
        sys.stderr.write(finding + "\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
