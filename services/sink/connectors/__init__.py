"""Sinks by target: files, Kafka, SQL, memory. Each implements `shared.ports.sink.Sink`; what they share is in `staging` and `markers`."""
