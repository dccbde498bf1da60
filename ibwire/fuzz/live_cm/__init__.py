"""The connection manager of a device on a link as what is attacked."""
