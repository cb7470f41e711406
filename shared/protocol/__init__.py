"""The protocol as state machines: events in, commands out. PROTOCOL.md beside this file has its rules, by name."""
