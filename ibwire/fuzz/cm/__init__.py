"""The connection manager as what is attacked: cases of MADs and commands, and their reference."""
