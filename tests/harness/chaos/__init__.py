"""Real processes under faults drawn from a seed: kills, pauses, cuts and full disks, with two jobs side by side (README.md)."""
