"""The laboratory's results, for a terminal, as markdown and as HTML."""
