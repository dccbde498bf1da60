"""A device on a link: frames, verbs through its agent, liveness and restart."""
