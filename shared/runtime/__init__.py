"""The drivers: they feed the protocol's state machines and carry their commands out, through ports alone."""
