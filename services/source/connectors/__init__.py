"""Sources by origin: Kafka, files, documents, scripts. Each implements `tidemark.shared.ports.source.Source`."""
