"""Connections in a capture: handshakes, pairing of flows, tracking of PSNs, tables."""
