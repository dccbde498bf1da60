"""Cases for a queue pair: its packets, operators, coverage and drill scripts."""
