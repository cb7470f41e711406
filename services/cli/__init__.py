"""`tidemark`: the commands. The one place besides the local mode that may import every service."""
