"""The one-machine mode: a supervisor of the processes and a Kafka broker of its own."""
