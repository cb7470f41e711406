"""What the processes of all services share: settings from the environment, ports, logs, signals."""
