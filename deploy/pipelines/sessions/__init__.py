"""Session lengths of players on mobile devices and consoles."""
