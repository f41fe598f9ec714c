"""What a result consists of when it is shown: headings, sentences, tables, charts, and their colours."""
