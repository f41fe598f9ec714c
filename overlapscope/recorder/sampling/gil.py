"""Address of Python's global interpreter lock, by which a wait for it is recognized."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_RTLD_DL_SYMENT = 1


class _Symbol(ctypes.Structure):
    """`Elf64_Sym`."""

    _fields_ = (
        ("name", ctypes.c_uint32),
        ("info", ctypes.c_ubyte),
        ("other", ctypes.c_ubyte),
        ("section", ctypes.c_uint16),
        ("value", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
    )


class _Found(ctypes.Structure):
    """`Dl_info`."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def gil_addresses() -> range:
    """Return the addresses of Python's runtime state, which contains the main interpreter's lock; empty if unknown."""
    with suppress(AttributeError, ValueError, OSError):
        address = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
        found, symbol = _Found(), ctypes.POINTER(_Symbol)()
        dladdr1 = ctypes.CDLL(None).dladdr1
        if dladdr1(ctypes.c_void_p(address), ctypes.byref(found), ctypes.byref(symbol), _RTLD_DL_SYMENT):
            # ValueError if it is a null pointer.
            return range(address, address + symbol.contents.size)
    return range(0)
