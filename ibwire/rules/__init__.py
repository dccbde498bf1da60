"""The rules that traffic is checked by, one family a module."""
