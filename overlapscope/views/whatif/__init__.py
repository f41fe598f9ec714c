"""A prediction for people: the same sentences and tables in a terminal and as markdown."""
