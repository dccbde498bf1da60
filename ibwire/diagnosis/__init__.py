"""What went wrong in a connection: incidents with cause and effect, and their description."""
