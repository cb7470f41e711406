"""The sinks, a module each; `emit` reads `$emit`. `$https` as a sink is in `stages.https`."""
