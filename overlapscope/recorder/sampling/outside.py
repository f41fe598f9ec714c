"""The sampler of this process, a process that runs `outside_script.py`."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from overlapscope.base.child import Child

# -- Address of Python's global interpreter lock, by which a wait for it is recognized -------------------

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


# -- A process ---------------------------------------------------------------------------------------

_SCRIPT = Path(__file__).with_name("outside_script.py")
_LIMIT_S = 30
"""Maximum time after which the process ends by itself."""
_PR_SET_PTRACER = 0x59616D61


class OutsideSampler:
    """A process that samples this one, and the state of one of its threads."""

    def __init__(self, thread: int) -> None:
        """Start it for the thread of this number. Raises OSError or AttributeError where the system cannot."""
        self._result = os.memfd_create("overlapscope")
        # Unlike a pipe, a socket never raises SIGPIPE, which the program may have set to end it.
        self._socket, other = socket.socketpair()
        gil = gil_addresses()
        numbers = os.getpid(), thread, gil.start, gil.stop, _LIMIT_S
        try:
            self._child = Child(
                [sys.executable, "-I", "-S", str(_SCRIPT), *map(str, numbers), _py_spy()],
                stdin=other,
                stdout=self._result,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            self._close()
            raise
        finally:
            other.close()
        # Yama lets only ancestors read a process, and another process that it names, with the children of that process.
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(self._child.pid), 0, 0, 0)
        self._send()

    @property
    def ready(self) -> bool:
        """True once `begin` may be called."""
        return os.fstat(self._result).st_size > 0

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self._child.poll() is not None

    @property
    def has_stacks(self) -> bool:
        """True if py-spy samples. Valid once it is ready."""
        return os.pread(self._result, 1, 0) == b"+"

    def begin(self) -> None:
        """Begin to sample."""
        self._send()

    def end(self) -> None:
        """Stop sampling."""
        self._send()

    def result(self, within_s: float) -> dict[str, Any] | None:
        """Return its samples, after `end`; None if it does not end within this time, or has failed."""
        if self._child.ends_within(within_s):
            with suppress(OSError, ValueError):
                content = json.loads(os.pread(self._result, os.fstat(self._result).st_size, 1))
                return content if isinstance(content, dict) else None
        return None

    def stop(self) -> None:
        """End the process."""
        self._child.end()
        self._close()

    def _close(self) -> None:
        self._socket.close()
        os.close(self._result)

    def _send(self) -> None:
        with suppress(OSError):
            self._socket.send(b".", getattr(socket, "MSG_NOSIGNAL", 0))


def _py_spy() -> str:
    """Return the path of py-spy where its package has it, or else the shell's; empty without one."""
    with suppress(importlib.metadata.PackageNotFoundError, OSError):
        package = importlib.metadata.distribution("py-spy")
        stated = [file for file in package.files or () if file.name == "py-spy"]
        # `pip install --target` puts it elsewhere than it states.
        for file in (*stated, Path("bin", "py-spy")):
            if (path := Path(str(package.locate_file(file)))).is_file():
                return str(path.resolve())
    return shutil.which("py-spy") or ""
