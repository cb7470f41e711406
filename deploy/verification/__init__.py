"""The compose installation, really run: built, fed, scaled, killed, taken down and brought up again, and its result compared."""
