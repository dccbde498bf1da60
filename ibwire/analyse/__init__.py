"""Connections in captures: who talks to whom, what was lost, sent again, refused or slowed down."""
