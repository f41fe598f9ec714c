"""Building blocks of every result shown to a user: headings, sentences, tables, charts and their colors."""
