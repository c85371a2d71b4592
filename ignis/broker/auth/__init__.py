"""Who connects to a broker, and what they may do."""
