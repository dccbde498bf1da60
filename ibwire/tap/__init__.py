"""A plan of faults in the path, between two interfaces or from capture to capture."""
