"""The sink service: stages the output of an epoch, and releases it once its checkpoint is committed (protocol, section 6)."""
