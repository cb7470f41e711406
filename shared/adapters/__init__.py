"""Implementations of `tidemark.shared.ports`: Kafka, files, S3, SQL, the system clock; and memory, for simulation."""
