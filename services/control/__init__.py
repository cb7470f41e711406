"""The control service: REST and a web page for people, commands and events on topics for other systems."""
