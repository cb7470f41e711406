"""The token of a service that listens: from a file that is its owner's alone, or from the environment."""

import os
import secrets
from pathlib import Path

from tidemark.shared.process.settings import ProcessSettingsError

TOKEN_CHARACTERS_MIN = 16


def read_token(token_file: str) -> str:
    """The token; one is made where its file is not there. ProcessSettingsError where there is none, or a short one."""
    if not token_file:
        token = os.environ.get("TIDEMARK_TOKEN", "")
        place = "TIDEMARK_TOKEN"
    else:
        path = Path(token_file)
        place = str(path)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            token = path.read_text().strip()
        else:
            token = secrets.token_urlsafe(32)
            with os.fdopen(handle, "w") as out:
                out.write(token + "\n")
    if len(token) < TOKEN_CHARACTERS_MIN:
        message = f"{place}: expected a token of at least {TOKEN_CHARACTERS_MIN} characters, found {len(token)}"
        raise ProcessSettingsError(message)
    return token
