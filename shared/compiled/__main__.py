"""`python -m tidemark.shared.compiled` compiles all that this room has, and keeps it: `make setup` and the images do so once."""

from tidemark.shared.compiled import building, keeping

keeping.keep(building.machine_code(building.everything()))
