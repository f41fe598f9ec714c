"""Compare what every command prints about the bundled recordings with the committed digests: `make outputs`.

    python -m tests.outputs             # print the lines whose output has changed
    python -m tests.outputs --update    # renew digests.txt
    python -m tests.outputs --against OTHER_CHECKOUT  # print the changes as a diff

The texts stay in `.cache/outputs`. To see changes as diffs, run this in two checkouts,
then once `--against` the other.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import sys
from pathlib import Path

from tests.outputs.outputs import DIGESTS, TEXTS, changed, digest, file_of, outputs

ROOT = Path(__file__).parents[2]
_MOST_LINES = 400
"""Maximum length of a diff, in lines."""


def main() -> int:
    """Return 1 if something has changed and is not renewed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.outputs", description=__doc__.partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="renew the digests")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="print the changes from the texts in CHECKOUT")
    options = parser.parse_args()
    texts = outputs()
    folder = ROOT / TEXTS
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for line, text in texts.items():
        (folder / file_of(line)).write_text(f"{line}\n{text}", errors="surrogateescape")
    lines = changed(texts)
    if options.update:
        DIGESTS.write_text("".join(f"{digest(text)} {line}\n" for line, text in sorted(texts.items())))
    for line in lines:
        print(line)
        if options.against:
            before, after = (_text(checkout / TEXTS / file_of(line)) for checkout in (options.against, ROOT))
            for row in itertools.islice(difflib.unified_diff(before, after, n=1, lineterm=""), 2, _MOST_LINES):
                print(f"  {row[:500]}")
    print(f"{len(lines)} of {len(texts)} outputs have changed.")
    return 1 if lines and not options.update else 0


def _text(path: Path) -> list[str]:
    return path.read_text(errors="surrogateescape").splitlines() if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
