"""Applies a fault plan to frames between two interfaces, or from capture to capture."""
