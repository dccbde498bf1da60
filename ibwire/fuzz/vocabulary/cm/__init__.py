"""Cases for a connection manager: its messages, operators, coverage and drill scripts."""
