"""Sinks by target: files, Kafka, SQL, memory. Each implements `shared.ports.sink.Sink`; their common code is in `staging` and `markers`."""
