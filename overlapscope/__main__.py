"""`python -m overlapscope`."""

import sys

from overlapscope.commands import console

if __name__ == "__main__":
    sys.exit(console())
