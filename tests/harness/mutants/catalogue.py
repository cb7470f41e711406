"""All mutants that are run against the tree."""

from typing import Final

from tests.harness.mutants.coordinator import COORDINATOR
from tests.harness.mutants.model import Mutant
from tests.harness.mutants.operators import OPERATORS
from tests.harness.mutants.runtime import RUNTIME
from tests.harness.mutants.sinks import SINKS
from tests.harness.mutants.sources import SOURCES
from tests.harness.mutants.stores import STORES
from tests.harness.mutants.trees import TREES

MUTANTS: Final[tuple[Mutant, ...]] = (
    *RUNTIME,
    *COORDINATOR,
    *STORES,
    *SOURCES,
    *OPERATORS,
    *SINKS,
    *TREES,
)
