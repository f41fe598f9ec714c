"""Finds the browser that the tests use: `python -m tests.browser.chromium` prints its path."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

NAMES = (
    # Without the windows of a whole browser, pages take a sixth less CPU time.
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
)
MACOS = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
MISSING = "There is no Chromium or Chrome for the dashboard's tests: install it, or name its program in CHROMIUM."


def find() -> str | None:
    """Return the path of a Chromium or Chrome: the value of CHROMIUM, else the first installed browser."""
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    on_path = (path for name in NAMES if (path := shutil.which(name)))
    return next(on_path, None) or next((path for path in MACOS if Path(path).exists()), None)


if __name__ == "__main__":
    browser = find()
    if browser is None:
        sys.exit(MISSING)
    print(browser)
