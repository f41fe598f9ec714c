"""`python -m overlapscope`."""

import os
import sys

if not sys.flags.safe_path and sys.path[0] != os.path.dirname(os.path.dirname(__file__)):
    # The current directory may have modules that are called as the library's are; `run` fills this place again.
    sys.path[0] = os.devnull

from overlapscope.start import console

if __name__ == "__main__":
    sys.exit(console())
