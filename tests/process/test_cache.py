"""The cache of read traces, where processes share it, are killed, or lack packages."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import overlapscope as ov
from overlapscope.reading.cache import reader_files
from tests.core.reading.test_cache import SMALL, cache_in, load
from tests.support.helpers import TRACES


def test_the_digest_of_the_reader_covers_all_that_it_is_made_of() -> None:
    code = (
        f"import sys\nfrom overlapscope.reading import kineto\nkineto.read({str(SMALL)!r})\n"
        "files = [module.__file__ for name, module in sys.modules.items() if name.startswith('overlapscope')]\n"
        "print(*files, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # The version is part of the digest, too; errors do not affect the result of reading.
    modules = {"__init__.py", "version.py", "errors.py", "plugins/__init__.py"}
    package = Path(ov.__file__).parent
    # Manifests of plugins that read no files.
    modules |= {str(path.relative_to(package)) for path in package.glob("plugins/*/__init__.py")}
    needed = {Path(line) for line in done.stdout.split()} - {package / name for name in modules}
    assert needed <= set(reader_files())
    assert all(file.is_file() for file in reader_files())


_FORKS = """
import os, random, signal, sys, time
from pathlib import Path
from overlapscope.reading import kineto
from overlapscope.reading.source import ReadRequest
from overlapscope.reading.cache import Cache
from overlapscope.reading.cache_folder import Folder

def columns(trace):
    return [trace.names, trace.gpu_ops.start_ns.tobytes(), trace.cpu_ops.thread.tobytes(), trace.damage, trace.rank]

folder = Folder(Path(sys.argv[1]))
paths = sys.argv[3:]
fresh = [columns(kineto.read(path, progress=False)) for path in paths]

def load(number, limit_bytes=1 << 30):
    cache = Cache(folder, limit_bytes, least_bytes=0, settled_ns=0)
    return columns(cache.load(paths[number], ReadRequest(progress=False)))

def fork(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid
"""


_KILLED = (
    _FORKS
    + """
trace = kineto.read(paths[0], progress=False)
load(0)
reads, writes = os.pipe()

def forever():
    cache = Cache(folder, 1 << 30, least_bytes=0, settled_ns=0)
    os.write(writes, b"!")
    while True:
        folder.clear()
        cache._keep(trace, cache.entry_name(Path(paths[0])))

interrupted = 0
for seed in range(300):
    pid = fork(forever)
    os.read(reads, 1)
    time.sleep(random.Random(seed).uniform(0, 0.01))
    until = time.monotonic() + 1
    while time.monotonic() < until and not any(folder.path.glob("*.part")):
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    interrupted += any(folder.path.glob("*.part"))
    assert load(0) == fresh[0]
    assert load(0) == fresh[0]
    # Whatever the process that died has left counts as any other file of the cache.
    folder.clear() if seed % 2 else folder.sweep(0)
    assert not list(folder.path.glob("*.part"))
    if interrupted == int(sys.argv[2]):
        break
print(interrupted)
"""
)


_READ_ONLY = (
    _FORKS
    + """
def work():
    if os.geteuid() == 0:
        os.setuid(65534)  # To root nothing is read-only.
    assert not os.access(folder.path, os.W_OK)
    assert [load(number) for number in range(2)] == fresh

_, status = os.waitpid(fork(work), 0)
assert status == 0
"""
)


_AT_ONCE = (
    _FORKS
    + """
def work(seed):
    rng = random.Random(seed)
    for turn in range(int(sys.argv[2])):
        number = rng.randrange(len(paths))
        # A limit for about two of the three, so that each removes what others are about to read.
        assert load(number, rng.choice([1 << 30, 400_000])) == fresh[number]
        if rng.random() < 0.1:
            folder.clear()

pids = [fork(lambda seed=seed: work(seed)) for seed in range(4)]
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
assert codes == [0] * 4, codes
assert not list(folder.path.glob("*.part"))
"""
)


def run_code(code: str, *args: str | Path) -> str:
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_killed_while_it_writes_leaves_nothing_wrong(tmp_path: Path) -> None:
    assert run_code(_KILLED, tmp_path / "cache", "20", TRACES / "pipeline_1stream.json.gz").strip() == "20"


def test_processes_that_share_a_cache_all_get_what_is_right(tmp_path: Path) -> None:
    paths = [SMALL, TRACES / "pipeline_1stream.json.gz", TRACES / "known_causes" / "host_sync_stacks.json.gz"]
    run_code(_AT_ONCE, tmp_path / "cache", "25", *paths)


def test_a_folder_that_may_only_be_read_serves_what_it_has() -> None:
    other = TRACES / "streamed1_pinned1.json.gz"
    # Not below pytest's own folder: only root may enter that where root runs this.
    with tempfile.TemporaryDirectory() as base:
        Path(base).chmod(0o755)
        cache = cache_in(Path(base) / "cache")
        load(cache, SMALL)
        before = {held.path: held for held in cache.folder.held()}
        for path in before:
            path.chmod(0o444)
        cache.folder.path.chmod(0o555)
        run_code(_READ_ONLY, cache.folder.path, "0", SMALL, other)
        assert {held.path: held for held in cache.folder.held()} == before
        cache.folder.path.chmod(0o755)
