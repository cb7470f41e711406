"""Operators, the work that a task does on data: pure functions and state on Arrow batches. See base.py for the contract."""
