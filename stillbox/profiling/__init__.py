"""Which steps are traced, and their trace."""
