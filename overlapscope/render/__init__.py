"""Documents drawn: for the terminal, as markdown, as one HTML file."""
