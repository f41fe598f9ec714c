"""Packing with zstd, by Python's own module (3.14 or later) or its backport."""

from __future__ import annotations

from typing import Any, Final

_LEVEL: Final = 9


def module() -> Any:
    """Return the module.

    Raises:
        ImportError: Neither module is installed.
    """
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        from backports import zstd  # type: ignore[no-redef,unused-ignore]
    return zstd


def pack(data: bytes) -> bytes:
    """Return bytes packed as a single frame, with a checksum."""
    zstd = module()
    options = {zstd.CompressionParameter.compression_level: _LEVEL, zstd.CompressionParameter.checksum_flag: 1}
    packed: bytes = zstd.compress(data, options=options)
    return packed


def unpack(packed: bytes, most_bytes: int) -> bytes:
    """Return the content of a single frame, unpacking at most `most_bytes`.

    Raises:
        ValueError: It is not a frame, is cut or followed by other bytes, or holds more than `most_bytes`.
    """
    zstd = module()
    unpacker = zstd.ZstdDecompressor()
    try:
        data: bytes = unpacker.decompress(packed, most_bytes + 1)
    except zstd.ZstdError as error:
        raise ValueError(f"it is not valid zstd data ({error})") from None
    if len(data) > most_bytes:
        raise ValueError(f"it holds more than {most_bytes:,} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("its zstd data does not end where the file does")
    return data
