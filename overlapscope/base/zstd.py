"""Bytes packed with zstd: by Python's own module, from 3.14 on, or its backport."""

from __future__ import annotations

from typing import Any, Final

_LEVEL: Final = 9


def module() -> Any:
    """What packs and unpacks. Raises ImportError where neither is installed."""
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        from backports import zstd  # type: ignore[no-redef,unused-ignore]
    return zstd


def pack(data: bytes) -> bytes:
    """The bytes as one frame, with their checksum."""
    zstd = module()
    options = {zstd.CompressionParameter.compression_level: _LEVEL, zstd.CompressionParameter.checksum_flag: 1}
    packed: bytes = zstd.compress(data, options=options)
    return packed


def unpack(packed: bytes, most_bytes: int) -> bytes:
    """What one frame holds. Raises ValueError where it is none, is cut or followed by more, or holds more than
    `most_bytes`, of which no more is unpacked."""
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
