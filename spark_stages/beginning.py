"""Why Spark's JVM does not begin: PySpark says only that it has ended, and the JVM says the reason on the process' own output."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tidemark.shared.model.failures import WrongSetup

_JAVA_MIN: Final = 17
"""Spark 4 needs it."""
_TIMEOUT_S: Final = 60
"""For a JVM that only says whether it can begin: on a machine at its limit a start takes some seconds."""
_PASSING: Final = re.compile(
    r"reserve enough|allocate|insufficient memory|No space left|Too many open files", re.IGNORECASE
)
"""In a JVM's words: the machine has no room for it now."""
_TOLD: Final = (
    "Picked up ",
    "Error: Could not create",
    "Error: A fatal exception",
    "Error occurred during init",
    "OpenJDK 64-Bit Server VM warning",
)
"""Lines in front of the reason, or behind it."""
_AS_SPARK: Final = ("-XX:+IgnoreUnrecognizedVMOptions", "-XX:ErrorFile=/dev/null")
"""Spark's launcher gives the first; a report of the JVM's own would lie in the folder of the process."""
_SAID_CHARACTERS: Final = 300


class NoJvm(WrongSetup):
    """Spark's JVM can never begin: there is no Java, it is too old, or it takes no such options."""


class NotBegun(Exception):
    """It cannot begin now, in the JVM's own words."""


def leave_removed() -> None:
    """In a folder that was removed neither PySpark nor a JVM begins: this process goes to the root."""
    try:
        Path.cwd()
    except FileNotFoundError:
        os.chdir(os.sep)


def why_not(options: str, memory: str) -> NoJvm | NotBegun | None:
    """By another JVM with these options, which does nothing; None where that one begins."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if java is None:
        place = f"JAVA_HOME is {home}, which holds no bin/java" if home else "there is no java on the search path"
        return NoJvm(f"Spark's JVM cannot begin: {place}; install Java {_JAVA_MIN} or newer, or correct JAVA_HOME")
    try:
        command = [java, *_AS_SPARK, f"-Xmx{memory}", *shlex.split(options), "-version"]
        done = subprocess.run(  # noqa: S603 - this process' own Java and settings
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, errors="replace"
        )
    except (OSError, subprocess.SubprocessError) as error:
        return NotBegun(f"Spark's JVM cannot begin now: {java}: {error}")
    return _judged(java, done.returncode, done.stderr + done.stdout)


def _judged(java: str, code: int, text: str) -> NoJvm | NotBegun | None:
    found = [line.strip(" #") for line in text.splitlines()]
    lines = [line for line in found if line and not line.startswith(_TOLD)]
    if code:
        said = (lines or [f"it ended with {code}"])[0][:_SAID_CHARACTERS]
        if _PASSING.search(text) is not None or code < 0:
            return NotBegun(f"Spark's JVM cannot begin now: {java}: {said}")
        return NoJvm(
            f"Spark's JVM cannot begin: {java}: {said}; correct `conf` of the Spark service (spark.driver.extraJavaOptions,"
            " spark.driver.memory), JAVA_TOOL_OPTIONS or JAVA_HOME"
        )
    version = re.search(r'version "(?:1\.)?(\d+)', text)
    if version is not None and int(version[1]) < _JAVA_MIN:
        return NoJvm(
            f"Spark's JVM cannot begin: {java} is Java {version[1]}, and Spark needs {_JAVA_MIN}: install it, or name it by JAVA_HOME"
        )
    return None
