"""What a task does with data: pure functions and state on Arrow batches. See base.py for the contract."""
