"""An examination of the installation: parts that work, are missing, or are broken."""
