"""`python -m ibwire`."""

from ibwire.cli import main

main(prog_name="ibwire")
