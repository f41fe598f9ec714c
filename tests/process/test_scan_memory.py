"""The compiled reader reads and writes nothing but its own memory, whatever the bytes are."""

from __future__ import annotations

import json
import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from tests.core.reading.test_scan import EVENTS, PIECES

SOURCE = Path(__file__).parents[2] / "overlapscope" / "reading" / "scan.c"
PROGRAM = """
#include SOURCE
#include <stdio.h>

int main(void) {
    static const Word categories[] = {
        {"kernel", 6, OP, ""}, {"cuda_runtime", 12, CALL, ""}, {"cpu_op", 6, PLAIN, ""}, {"cuda_sync", 9, OP, ""},
        {"ac2g", 4, PASSED_OVER, "stf"}, {"python_function", 15, PLAIN, ""}, {"gpu_memcpy", 10, OP, ""},
        {"gpu_user_annotation", 19, OP, ""}, {"Trace", 5, PLAIN, ""},
    };
    static const Word arguments[] = {
        {"device", 6, INTEGER, ""}, {"stream", 6, INTEGER, ""}, {"correlation", 11, INTEGER, ""},
        {"memory bandwidth (GB/s)", 23, RAW, ""}, {"Collective name", 15, STRING, ""}, {"dtype", 5, STRING, ""},
    };
    static const int64_t defaults[] = {-1, -2, -1, -1, -1, -1};
    Wanted wanted = {categories, arguments, 9, 6, 2, defaults};
    Scanner *scanner = overlapscope_scanner(&wanted, 1);
    int64_t length;
    int taken = 0;
    while (fread(&length, 8, 1, stdin) == 1) {
        /* Of just the array's size, so that a byte too far is noticed. */
        unsigned char *array = malloc((size_t)length);
        if (fread(array, 1, (size_t)length, stdin) != (size_t)length) return 2;
        taken += overlapscope_scan(scanner, array, length);
        free(array);
    }
    overlapscope_free(scanner);
    printf("%d", taken);
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_no_bytes_lead_it_out_of_its_memory(tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(PROGRAM.replace("SOURCE", json.dumps(str(SOURCE))))
    sanitizers = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["cc", *sanitizers, "-o", "program", "program.c", "-lm"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "program"], input=b"".join(arrays(20_000)), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert int(done.stdout) > 1000


def arrays(count: int) -> list[bytes]:
    """Return events of all kinds, changed in a few places and cut anywhere, each preceded by its length."""
    chance = random.Random(1)
    events = []
    for number in range(count):
        array = bytearray(json.dumps(chance.choices(EVENTS, k=chance.randrange(1, 4))).encode())
        for _ in range(number % 4):
            at = chance.randrange(1, len(array))
            array[at : at + chance.randrange(3)] = chance.choice(PIECES)
        if number % 3 == 0:
            del array[chance.randrange(1, len(array)) :]
        array[-1:] = b"]" if number % 50 else array[-1:]
        events.append(struct.pack("<q", len(array)) + array)
    return events
