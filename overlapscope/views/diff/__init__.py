"""A diff for people: the same tables in a terminal, as markdown, as HTML and on the dashboard's page Compare."""
