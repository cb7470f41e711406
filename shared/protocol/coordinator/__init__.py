"""The coordinator as a state machine: `CoordinatorMachine.handle(event) -> commands`. README of `shared.protocol` has the table."""
