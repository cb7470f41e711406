"""The whole system in one thread, on virtual time, with faults. `tests/simulation/README.md` says what it does and how to read it."""
