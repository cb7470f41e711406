"""Sources by origin: Kafka, files, documents, scripts. Each implements `shared.ports.source.Source`."""
