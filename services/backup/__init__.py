"""Backup and restore of an installation: store, blobs and topics together; see README.md."""
