"""One turn: plan, steps, answer, tool calls, and the runs beside it (titles, summaries, sub-agents)."""
