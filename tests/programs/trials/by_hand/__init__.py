"""The scripts as a person edits them: `--edited workers=4,pin` makes the edits that are named, and no others."""
