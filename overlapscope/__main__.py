"""`python -m overlapscope`."""

import sys

from overlapscope.commands import main

if __name__ == "__main__":
    sys.exit(main())
