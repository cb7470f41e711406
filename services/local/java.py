"""The Java that runs the broker and Spark: found as they find it, and new enough.

``JAVA_HOME`` wins over the search path, as in the start scripts of both.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemark.services.local.hints import to_install_java

JAVA_MAJOR_MIN: Final = 17
_VERSION_TIMEOUT_S: Final = 30
"""For Java to say its version."""
LOCALE: Final = "C.UTF-8"
"""Of each JVM: English words, and names of files in UTF-8, as Python has them."""
_REMEDY: Final = f"install Java {JAVA_MAJOR_MIN} or newer{to_install_java()} or let JAVA_HOME name one"


class JavaError(Exception):
    """No Java, or too old a one; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class Java:
    """An executable and its major version (17 of ``17.0.15``, 8 of ``1.8.0``)."""

    executable: Path
    major: int


def find_java() -> Java:
    """The Java of ``JAVA_HOME``, else the first on the search path.

    Raises:
        JavaError: there is none, it does not run, or it is older than ``JAVA_MAJOR_MIN``.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    if found is None:
        place = f"JAVA_HOME is {home}, which holds no bin/java" if home else "there is no java on the search path"
        raise JavaError(f"Java is missing: {place}; {_REMEDY}")
    try:
        told = subprocess.run(
            [str(Path(found).absolute()), "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=True,
            cwd=os.sep,  # this process' own may have been removed, and no JVM begins there
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaError(f"{found} does not run ({error}); {_REMEDY}") from error
    major = parse_major(told.stderr + told.stdout)
    if major is None:
        raise JavaError(f"{found} -version does not name a version: {told.stderr.strip()!r}; {_REMEDY}")
    if major < JAVA_MAJOR_MIN:
        raise JavaError(f"{found} is Java {major}, Kafka and Spark need {JAVA_MAJOR_MIN}; {_REMEDY}")
    return Java(Path(found), major)


def java_environment() -> dict[str, str]:
    """This process' environment, for a JVM: it takes names of files, and what is an upper case letter, from the user's locale.

    Without letters beyond ASCII in it, or with Turkish ones, a path or a keyword becomes another.
    """
    return os.environ | {"LC_ALL": LOCALE}


def parse_major(told: str) -> int | None:
    """The major version in the output of ``java -version``, or None."""
    match = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(match.group(1)) if match else None
