"""Where what runs on a folder of this machine tells how it is reached: for who asks it without running anything."""

from typing import Final

ADDRESS_FILE: Final = "control.json"
"""The control service's URL and the file of its token, while it runs."""
BROKER_VARIABLE: Final = "LOCAL_KAFKA"
"""What a local installation sets for documents: the address of its own broker. `KAFKA` is the user's."""
