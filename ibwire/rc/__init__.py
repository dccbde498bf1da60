"""The reliable-connection transport, and UC, UD and XRC on the same machinery, sans I/O."""
