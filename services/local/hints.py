"""Names the packages of the machine's distribution that a set-up needs.

Rules kept here: the standard library only, and no syntax newer than Python 3.7, as in `doctor.py`, which asks first.
"""

from __future__ import annotations

from pathlib import Path

OS_RELEASE = Path("/etc/os-release")
# Where the distribution's own python3 or java is too old, its packages with a number in their name.
OLDER = {
    "ubuntu 22.04": ("python3.11 python3.11-venv", "openjdk-17-jre-headless"),
    "debian 11": ("", "openjdk-17-jre-headless"),
}
# By family: the installer, its package of Python with venv, and that of Java.
FAMILIES = (
    (("debian", "ubuntu"), "apt-get install", "python3 python3-venv", "default-jre-headless"),
    (("fedora", "rhel", "centos"), "dnf install", "python3", "java-latest-openjdk-headless"),
    (("arch",), "pacman -S", "python", "jre-openjdk-headless"),
    (("suse", "opensuse"), "zypper install", "python313", "java-21-openjdk-headless"),
)


def to_install_python() -> str:
    """The command that installs a fitting Python with its venv module, in brackets behind a blank; nothing where none is known."""
    return _hint(0)


def to_install_java() -> str:
    """The command that installs a fitting Java, in the same form."""
    return _hint(1)


def _hint(which: int) -> str:
    told = _os_release()
    own, version = told.get("ID", ""), told.get("VERSION_ID", "")
    for names, installer, python, java in FAMILIES:
        if own in names or set(told.get("ID_LIKE", "").split()) & set(names):
            package = OLDER.get(f"{own} {version}", (python, java))[which]
            return f" ({installer} {package})" if package else ""
    return ""


def _os_release() -> dict[str, str]:
    try:
        text = OS_RELEASE.read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name: value.strip("\"'") for name, _, value in pairs}
