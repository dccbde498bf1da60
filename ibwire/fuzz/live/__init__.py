"""A device on a link as what is attacked, whose application is the agent of drill."""
