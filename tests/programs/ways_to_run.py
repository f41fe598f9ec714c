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
    "asyncio.to_thread": """
        import asyncio
        async def main(): print(await asyncio.gather(*(asyncio.to_thread(train, 45, seed) for seed in range(2))))
        asyncio.run(main())
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
    "exec of a missing program": """
        train(5); os.execv("/no/such/program", ["program"])
    """,
    "a DataLoader that fails": """
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, index): raise OSError(index)
        train(5)
        for batch in torch.utils.data.DataLoader(Data()): pass
    """,
}

_ENDINGS = {
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
    "the last exception at exit": """
        import atexit
        def show():
            trace = sys.last_traceback
            while trace.tb_next is not None: trace = trace.tb_next
            print(repr(sys.last_value), trace.tb_lineno)
        atexit.register(show)
        train(5); 1 / 0
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
    "a step that outlives the name of its optimizer": """
        optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
        for _ in range(3): optimizer.step()
        step = optimizer.step
        del optimizer; print(step())
    """,
    "an optimizer whose step is another's": """
        class Trainer:
            def step(self): print("step of", type(self).__name__)
        optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
        optimizer.step(); optimizer.step = Trainer().step
        for _ in range(3): optimizer.step()
    """,
    "globals of two ages": """
        class Thing:
            def __del__(self): print("del")
        def numbers():
            try: yield 1
            finally: print("closed")
        import gc
        torch.ones(2) + 1; gc.collect()
        iterator = numbers(); next(iterator); gc.collect(0)
        thing = Thing()
    """,
    "closed descriptors": "train(5); os.closerange(3, 200); print('bye')",
    "all descriptors closed": "train(5); os.closerange(0, 4096)",
    "numbers of descriptors": "train(); print(os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_RDONLY))",
    "stderr redirected": """
        train(5); os.dup2(os.open("log", os.O_CREAT | os.O_WRONLY), 2)
        import atexit
        atexit.register(lambda: os.write(1, open("log", "rb").read()))
        sys.stderr.write("logged\\n")
    """,
}


def _text(body: str) -> str:
    import textwrap

    return f"import os, sys, threading{_TRAIN}\n{textwrap.dedent(body).strip()}\n"


PROGRAMS = {name: _text(body) for kind in (_THREADS, _PROCESSES, _ENDINGS, _TEARDOWN) for name, body in kind.items()}
"""Texts of the programs by their names."""
