"""Where the installation on a folder of this machine writes its address: for callers that ask it without running anything."""

from typing import Final

ADDRESS_FILE: Final = "control.json"
"""The control service's URL and the file of its token, while it runs."""
BROKER_VARIABLE: Final = "LOCAL_KAFKA"
"""The variable that a local installation sets for documents: the address of its own broker. `KAFKA` is the user's."""
