"""The source service: reads splits, takes event time and watermarks, and sends frames (protocol, section 7)."""
