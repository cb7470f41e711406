"""What all services speak: typed data, the protocol, the language, the engine, and the ports to the outside."""
