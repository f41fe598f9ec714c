"""History: figures of many reports in a SQLite file, by job and commit, and changes of their levels."""
