"""The gateway: events by HTTP into topics."""
