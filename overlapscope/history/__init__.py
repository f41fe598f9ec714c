"""The history: figures of many reports, by job and commit, in one SQLite file, and since when one is worse."""
