"""The ranks of a job for people: the same answer and tables in a terminal, as markdown, as HTML, on the page Ranks."""
