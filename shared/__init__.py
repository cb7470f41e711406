"""The parts that all services share: typed data, the protocol, the language, the engine, and the ports to the outside."""
