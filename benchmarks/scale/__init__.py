"""How far a cluster goes: what things cost its PostgreSQL, measured, and what follows from that."""
