"""Small programs that train in unusual places, end in unusual ways or look closely at their process.

Each behaves under `overlapscope run` as it does alone: exit code, output, tracebacks and results.
"""

from __future__ import annotations

_TRAIN = """
import torch

def train(steps=45, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.rand(8, 8, generator=generator, requires_grad=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    with torch.no_grad():
        for parameter in model.parameters(): parameter.fill_(0.1)
    optimizer = torch.optim.SGD([*model.parameters(), weight], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8) @ weight).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()
"""

_THREADS = {
    "one thread": """
        thread = threading.Thread(target=lambda: print(train())); thread.start(); thread.join()
    """,
    "three threads with models of their own": """
        results = {}
        def work(seed): results[seed] = train(60, seed)
        threads = [threading.Thread(target=work, args=[seed]) for seed in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(sorted(results.items()))
    """,
    "threads that end before the recording": """
        for seed in range(6):
            thread = threading.Thread(target=lambda: print(train(8, seed))); thread.start(); thread.join()
        print(train())
    """,
    "a thread that outlives the main one": """
        threading.Thread(target=lambda: print(train())).start()
        print("the end", flush=True)
    """,
    "a thread, then the main one": """
        thread = threading.Thread(target=lambda: print(train(5))); thread.start(); thread.join()
        print(train())
    """,
    "the main one, then a thread": """
        print(train(3))
        thread = threading.Thread(target=lambda: print(train())); thread.start(); thread.join()
    """,
    "a daemon that waits": """
        ready = threading.Event()
        def work():
            train(20); ready.set(); threading.Event().wait()
        threading.Thread(target=work, daemon=True).start()
        ready.wait(); print(train(20))
    """,
    "a thread with a long op": """
        done = threading.Event()
        def work():
            torch.set_num_threads(1)
            big = torch.ones(900, 900)
            while not done.is_set(): big @ big
        other = threading.Thread(target=work); other.start()
        print(train(60)); done.set(); other.join()
    """,
    "a thread with ranges of its own": """
        done = threading.Event()
        def work():
            while not done.is_set():
                with torch.profiler.record_function("outer"):
                    with torch.profiler.record_function("inner"): torch.ones(4) + 1
        other = threading.Thread(target=work); other.start()
        print(train(60)); done.set(); other.join()
    """,
    "short threads beside the steps": """
        main = threading.Thread(target=lambda: print(train(80))); main.start()
        while main.is_alive():
            short = threading.Thread(target=lambda: torch.ones(4) + 1); short.start(); short.join()
    """,
    "asyncio.to_thread": """
        import asyncio
        async def main(): print(await asyncio.gather(*(asyncio.to_thread(train, 45, seed) for seed in range(2))))
        asyncio.run(main())
    """,
    "asyncio in the main thread": """
        import asyncio
        async def main():
            for seed in range(3):
                print(train(15, seed)); await asyncio.sleep(0)
        asyncio.run(main())
    """,
    "an executor": """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(2) as pool: print(list(pool.map(train, [20] * 4, range(4))))
    """,
    "multiprocessing.dummy": """
        from multiprocessing.dummy import Pool
        with Pool(2) as pool: print(pool.starmap(train, [(20, seed) for seed in range(4)]))
    """,
    "a Timer": """
        timer = threading.Timer(0.01, lambda: print(train())); timer.start(); timer.join()
    """,
    "backward in a thread, the step in another": """
        from concurrent.futures import ThreadPoolExecutor
        model = torch.nn.Linear(4, 4); torch.nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
            for _ in range(30):
                one.submit(lambda: model(torch.ones(2, 4)).sum().backward()).result()
                other.submit(optimizer.step).result()
        print(model.weight.sum().item())
    """,
    "a thread that fails": """
        def work():
            train(30); raise KeyError("in a thread")
        thread = threading.Thread(target=work, name="worker"); thread.start(); thread.join(); print("after")
    """,
    "a thread that exits": """
        def work():
            train(30); sys.exit("only the thread")
        thread = threading.Thread(target=work); thread.start(); thread.join(); print("after")
    """,
    "os._exit in a thread": """
        def work():
            train(30); print("leaves", flush=True); os._exit(9)
        threading.Thread(target=work).start(); threading.Event().wait()
    """,
    "a crash beside a thread": """
        threading.Thread(target=lambda: print(train(60))).start()
        raise ValueError("the main thread")
    """,
}

_PROCESSES = {
    "fork": """
        print(train(20), flush=True)
        if child := os.fork(): print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        else: print(train(5), flush=True); os._exit(3)
    """,
    "a forked child at the end": """
        print(train(20), flush=True)
        if os.fork(): os.wait()
        print("both", flush=True)
    """,
    "a Pool of forks": """
        import multiprocessing
        with multiprocessing.get_context("fork").Pool(2) as pool: print(pool.map(abs, [-1, -2]))
        print(train(20))
    """,
    "a forked process that fails": """
        import multiprocessing
        def work(): raise SystemExit(4)
        process = multiprocessing.get_context("fork").Process(target=work); process.start(); process.join()
        print(process.exitcode, train(20))
    """,
    "spawn": """
        import multiprocessing
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool: print(pool.map(abs, [-3]))
            print(train(20))
    """,
    "subprocess": """
        import subprocess
        print(train(20), flush=True)
        print(subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True))
    """,
    "a program that is missing": """
        import subprocess
        train(5); subprocess.run(["/no/such/program"])
    """,
    "exec": """
        print(train(20), flush=True); os.execv(sys.executable, [sys.executable, "-c", "print('another')"])
    """,
    "exec of a missing program": """
        train(5); os.execv("/no/such/program", ["program"])
    """,
    "a DataLoader with workers": """
        loader = torch.utils.data.DataLoader(torch.arange(8.0), num_workers=1)
        print([batch.item() for batch in loader], train(20))
    """,
    "a DataLoader that fails": """
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, index): raise OSError(index)
        train(5)
        for batch in torch.utils.data.DataLoader(Data()): pass
    """,
    "child processes to wait for": """
        train(5)
        try: os.wait()
        except ChildProcessError as error: print(error)
    """,
}

_ENDINGS = {
    "its end": "print(train())",
    "sys.exit()": "train(5); sys.exit()",
    "sys.exit(3)": "train(5); sys.exit(3)",
    "sys.exit(-1)": "train(5); sys.exit(-1)",
    "sys.exit(True)": "train(5); sys.exit(True)",
    "sys.exit of a text": "train(5); sys.exit('a text\\nof two lines')",
    "sys.exit of a list": "train(5); sys.exit(['a', 1])",
    "SystemExit of a class": """
        class Stop(SystemExit): pass
        train(5); raise Stop(7)
    """,
    "os._exit": "print(train(5), flush=True); os._exit(5)",
    "os.abort": "train(5); os.abort()",
    "an exception": "train(5); {}['key']",
    "an exception after the recording": "train(); 1 / 0",
    "chained exceptions": """
        train(5)
        try: 1 / 0
        except ZeroDivisionError as error: raise ValueError("two\\nlines") from error
    """,
    "an exception while another is handled": """
        train(5)
        try: torch.ones(2, 3) @ torch.ones(2, 3)
        except RuntimeError: undefined
    """,
    "a group of exceptions": """
        train(5); raise ExceptionGroup("several", [KeyError(1), OSError(2, "two")])
    """,
    "an exception with notes": """
        train(5); error = ValueError("text"); error.add_note("a note"); raise error
    """,
    "an exception in a module": """
        train(5)
        class Net(torch.nn.Module):
            def forward(self, x): return x @ x
        torch.nn.Sequential(Net())(torch.ones(2, 3))
    """,
    "an exception in backward": """
        train(5)
        class Bad(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return x * 2
            @staticmethod
            def backward(ctx, grad): raise ValueError("bad")
        Bad.apply(torch.ones(2, requires_grad=True)).sum().backward()
    """,
    "an exception in an optimizer's step": """
        optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
        for _ in range(4): optimizer.step()
        def closure(): raise RuntimeError("closure")
        optimizer.step(closure)
    """,
    "a traceback that the program prints": """
        import traceback
        train(5)
        try: torch.nn.Linear(2, 3)(torch.ones(4))
        except RuntimeError: traceback.print_exc()
    """,
    "a syntax error": "x = = 1",
    "a syntax error in an import": """
        open("broken.py", "w").write("def f(:\\n"); train(5); import broken
    """,
    "a missing module": "train(5); import nowhere_to_be_found",
    "deep recursion": """
        def down(): down()
        train(5)
        try: down()
        except RecursionError as error: print(error)
    """,
    "an excepthook": """
        sys.excepthook = lambda kind, error, trace: print("hook", kind, error, trace.tb_lineno, trace.tb_next)
        train(5); 1 / 0
    """,
    "an excepthook that exits": "sys.excepthook = lambda *_: sys.exit(6); train(5); 1 / 0",
    "the last exception at exit": """
        import atexit
        def show():
            trace = sys.last_traceback
            while trace.tb_next is not None: trace = trace.tb_next
            print(repr(sys.last_value), trace.tb_lineno)
        atexit.register(show)
        train(5); 1 / 0
    """,
    "KeyboardInterrupt": "train(5); raise KeyboardInterrupt",
    "SIGINT": "import signal; train(5); signal.raise_signal(signal.SIGINT)",
    "SIGTERM": "import signal; train(5); print('out', flush=True); os.kill(os.getpid(), signal.SIGTERM)",
    "a handler of signals": """
        import signal
        signal.signal(signal.SIGUSR1, lambda number, frame: print("handler", number, frame.f_lineno))
        train(5); os.kill(os.getpid(), signal.SIGUSR1); print(train())
    """,
    "an alarm that raises": """
        import signal
        def stop(number, frame): raise TimeoutError("alarm")
        signal.signal(signal.SIGALRM, stop)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            while True: torch.ones(4) + 1
        except TimeoutError as error: print(error)
        print(train())
    """,
}

_TEARDOWN = {
    "exit handlers": """
        import atexit
        for number in range(3): atexit.register(print, "exit", number)
        atexit.register(lambda: print(train(3)))
        train(20)
    """,
    "a finalizer": """
        import weakref
        class Thing: pass
        thing, other = Thing(), Thing()
        weakref.finalize(thing, print, "thing"); weakref.finalize(other, print, "other")
        train(20); del thing; print("deleted")
    """,
    "an optimizer that is dropped": """
        import weakref
        optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
        weakref.finalize(optimizer, print, "gone")
        for _ in range(3): optimizer.step()
        del optimizer; print("after")
    """,
    "destructors of globals": """
        class Thing:
            def __init__(self, name): self.name = name
            def __del__(self): print("del", self.name)
        first, second = Thing("first"), Thing("second")
        train(20)
        third = Thing("third")
    """,
    "destructors of locals": """
        class Thing:
            def __del__(self): print("del")
        def main():
            thing = Thing(); train(5); sys.exit(2)
        main()
    """,
    "a generator that is left": """
        def numbers():
            try: yield 1
            finally: print("closed")
        iterator = numbers(); next(iterator); print(train(20))
    """,
    "closed descriptors": "train(5); os.closerange(3, 200); print('bye')",
    "all descriptors closed": "train(5); os.closerange(0, 4096)",
    "numbers of descriptors": "train(); print(os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_RDONLY))",
    "stdout closed": "train(5); sys.stdout.close()",
    "stderr closed": "train(5); sys.stderr.close(); print('out')",
    "stderr redirected": """
        train(5); os.dup2(os.open("log", os.O_CREAT | os.O_WRONLY), 2)
        import atexit
        atexit.register(lambda: os.write(1, open("log", "rb").read()))
        sys.stderr.write("logged\\n")
    """,
    "a file that is left open": """
        file = open("out", "w"); file.write("flushed"); train(5)
        import atexit
        atexit.register(lambda: (file.flush(), print(open("out").read())))
    """,
}

_WORLD = {
    "names of its module": "print(__name__, __file__, __doc__, __spec__); train(5)",
    "arguments": "print(sys.argv); train(5)",
    "runpy": """
        import runpy
        open("part.py", "w").write("import sys\\nprint(__name__, sys.argv[0])\\nvalue = 3\\n")
        train(5); print(runpy.run_path("part.py", run_name="part")["value"])
    """,
    "pickles of its classes": """
        import pickle
        class Point: pass
        train(5); print(type(pickle.loads(pickle.dumps(Point()))) is Point)
    """,
    "warnings": """
        import warnings
        train(5); warnings.warn("a warning"); warnings.warn("another", DeprecationWarning, stacklevel=1)
    """,
    "warnings as errors": "import warnings; warnings.simplefilter('error'); train(5); warnings.warn('an error')",
    "logging of an exception": """
        import logging
        train(5)
        try: torch.ones(2).view(3)
        except RuntimeError: logging.exception("failed")
    """,
    "faulthandler": "import faulthandler; faulthandler.enable(); print(train(5), faulthandler.is_enabled())",
    "the garbage collector": """
        import gc
        train(20); print(gc.isenabled(), gc.get_threshold(), gc.callbacks)
    """,
    "a garbage collector that is off": "import gc; gc.disable(); train(20); print(gc.isenabled())",
    "random numbers": """
        import random
        torch.manual_seed(1); random.seed(1); train(45); print(torch.rand(3), random.random())
    """,
    "torch's settings": "train(); print(torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype())",
    "a working directory that changes": "os.mkdir('inner'); train(5); os.chdir('inner'); print(train(), os.listdir())",
    "stdin": "print(train(5), repr(sys.stdin.read()))",
    "a subclass of a module": """
        class Net(torch.nn.Linear):
            def __call__(self, *args, **options): return super().__call__(*args, **options)
        net = Net(2, 2)
        for _ in range(12): net(torch.ones(1, 2))
        print(type(net).__call__.__qualname__)
    """,
    "a profiler of Python's": """
        import cProfile
        profile = cProfile.Profile(); profile.enable(); train(20); profile.disable()
        print(len(profile.getstats()) > 3)
    """,
}


def _text(body: str) -> str:
    import textwrap

    return f"import os, sys, threading{_TRAIN}\n{textwrap.dedent(body).strip()}\n"


PROGRAMS = {
    name: _text(body) for kind in (_THREADS, _PROCESSES, _ENDINGS, _TEARDOWN, _WORLD) for name, body in kind.items()
}
"""Texts of the programs, by what is special about them."""
