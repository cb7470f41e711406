"""Kafka clusters that are not ours: other versions, other settings of brokers, users with few rights."""
