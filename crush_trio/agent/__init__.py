"""What an active run does, and the record it leaves."""
