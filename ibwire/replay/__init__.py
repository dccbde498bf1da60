"""A recorded connection with one half replaced by the emulator, and how the two differ."""
