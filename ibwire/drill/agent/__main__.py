"""`python -m ibwire.drill.agent`: start the agent."""

from ibwire.drill.agent.agent import main

main()
