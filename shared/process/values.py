"""The values of `${NAME}` in connections: a variable that the installation opens to documents, or a secret.

Secrets have a store of their own: a folder with a file of each (`TIDEMARK_SECRETS`, as Kubernetes and Compose mount them), and variables
`TIDEMARK_SECRET_NAME`. Nothing else of a process' environment is reached. A connection of the registry may name secrets; one that a
document brings itself names open variables alone (`services/coordinator/planning.py`), so a document names connections, never secrets.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemark.shared.process.allowed import Allowed, read_allowed
from tidemark.shared.process.settings import ProcessSettingsError

FOLDER_VARIABLE: Final = "TIDEMARK_SECRETS"
_PREFIX: Final = "TIDEMARK_SECRET_"
_BYTES_MAX: Final = 1 << 20
"""Size of a secret: the most that Kubernetes keeps."""


@dataclass(frozen=True, slots=True)
class SecretValues(Mapping[str, str]):
    """By name, read when it is asked for: a secret that is replaced counts from the next use on."""

    environment: Mapping[str, str]
    opened: tuple[str, ...]

    @staticmethod
    def of(environment: Mapping[str, str], allowed: Allowed | None = None) -> "SecretValues":
        """Of a process. ProcessSettingsError."""
        return SecretValues(environment, (allowed or read_allowed(environment)).variables)

    def __getitem__(self, name: str) -> str:
        """KeyError for a name that is neither; ProcessSettingsError for a secret that cannot be read."""
        if name in self.opened and name in self.environment:
            return self.environment[name]
        if (found := self.environment.get(_PREFIX + name)) is not None:
            return found
        folder = self.environment.get(FOLDER_VARIABLE, "")
        path = Path(folder) / name
        if not folder or not path.is_file():
            raise KeyError(name)
        try:
            with path.open("rb") as file:
                data = file.read(_BYTES_MAX + 1)
            if len(data) > _BYTES_MAX:
                message = f"{path}: expected a secret of at most {_BYTES_MAX} bytes"
                raise ProcessSettingsError(message)
            return data.decode().removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            message = f"{path}: expected a secret, a text that this process may read: {type(error).__name__}"
            raise ProcessSettingsError(message) from error

    def __contains__(self, name: object) -> bool:
        """Whether it stands for something."""
        try:
            return isinstance(name, str) and self[name] is not None
        except KeyError:
            return False

    def __iter__(self) -> Iterator[str]:
        """The names that are known."""
        names = {name for name in self.opened if name in self.environment}
        names |= {name.removeprefix(_PREFIX) for name in self.environment if name.startswith(_PREFIX)}
        if folder := self.environment.get(FOLDER_VARIABLE, ""):
            names |= {path.name for path in Path(folder).iterdir() if path.is_file() and not path.name.startswith(".")}
        return iter(sorted(names))

    def __len__(self) -> int:
        """How many names there are."""
        return sum(1 for _ in self)
