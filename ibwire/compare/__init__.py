"""Two captures of one path: what happened to each frame between the two points."""
