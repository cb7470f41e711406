"""Frozen typed data that every other package speaks in: ids, time, frames, plan, messages, checkpoints."""
