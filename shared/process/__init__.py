"""Shared by the processes of all services: settings from the environment, ports, logs, signals."""
