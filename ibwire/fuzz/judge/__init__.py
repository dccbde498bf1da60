"""What counts as a difference, what it is called and which rule it breaks."""
