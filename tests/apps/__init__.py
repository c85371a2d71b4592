"""Applications whose handlers worker processes import."""
