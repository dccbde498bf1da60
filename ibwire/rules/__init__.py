"""The rules that traffic is judged by, one family a module."""
