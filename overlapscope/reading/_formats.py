"""First bytes of formats: packed files, databases, and files that hold no trace."""

from __future__ import annotations

from typing import Final

GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
SQLITE: Final = b"SQLite format 3\x00"
FOREIGN: Final = {
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"BZh": "packed with bzip2: unpack it first",
    b"\xfd7zXZ\x00": "packed with xz: unpack it first",
    b"\x80\x02": "a Python pickle: pass a Chrome trace of torch.profiler (`export_chrome_trace`)",
    b"\xff\xfe": "UTF-16 text: save it as UTF-8",
    b"\xfe\xff": "UTF-16 text: save it as UTF-8",
}
