"""Programs with several threads, tasks or processes.

Bodies of programs by their names. They may call `train` (`tests.programs.ways_to_run`).
"""

from __future__ import annotations

THREADS = {
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
    "a pool of threads": """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(3) as pool: print(list(pool.map(train, [30, 45, 60], range(3))))
    """,
    "a queue between threads": """
        import queue
        jobs, results = queue.Queue(), queue.Queue()
        def work():
            while (seed := jobs.get()) is not None: results.put((seed, train(20, seed)))
        threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
        for thread in threads: thread.start()
        for job in [*range(6), None, None]: jobs.put(job)
        for thread in threads: thread.join()
        print(sorted(results.get() for _ in range(6)))
    """,
    "an exception in a thread": """
        thread = threading.Thread(target=lambda: train(20) / 0); thread.start(); thread.join(); print(train())
    """,
    "threading.excepthook": """
        threading.excepthook = lambda args: print(args.exc_type, args.exc_value, args.thread.name)
        def work(): train(20); raise KeyError("lost")
        thread = threading.Thread(target=work, name="worker"); thread.start(); thread.join()
    """,
    "names and number of threads": """
        train(60); print(threading.active_count(), [thread.name for thread in threading.enumerate()])
        other = threading.Thread(target=lambda: print(threading.current_thread().name, train())); other.start()
        other.join(); print(threading.active_count(), threading.stack_size(), sys.getswitchinterval())
    """,
    "a daemon thread that waits at the end": """
        threading.Thread(target=threading.Event().wait, daemon=True).start(); print(train())
    """,
    "variables of a context": """
        import contextvars
        name = contextvars.ContextVar("name", default="none")
        def work(): name.set("inner"); return name.get(), train()
        print(contextvars.copy_context().run(work), name.get(), len(contextvars.copy_context()))
    """,
}

ASYNCIO = {
    "a subprocess of asyncio": """
        import asyncio
        async def main():
            command = [sys.executable, "-c", "print(6 * 7); raise SystemExit(3)"]
            child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            print(await child.communicate(), child.returncode, await asyncio.to_thread(train, 60))
        asyncio.run(main())
    """,
    "tasks that are cancelled": """
        import asyncio
        async def forever():
            try:
                while True: train(3); await asyncio.sleep(0)
            finally: print("cancelled")
        async def main():
            task = asyncio.create_task(forever())
            for _ in range(20): await asyncio.sleep(0)
            task.cancel(); print(await asyncio.gather(task, return_exceptions=True))
        asyncio.run(main())
    """,
    "a group of tasks that fails": """
        import asyncio
        async def fail(text): await asyncio.sleep(0); train(20); raise ValueError(text)
        async def main():
            async with asyncio.TaskGroup() as group: group.create_task(fail("one")); group.create_task(fail("two"))
        asyncio.run(main())
    """,
    "a signal in an event loop": """
        import asyncio, signal
        async def main():
            stop = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
            train(30); os.kill(os.getpid(), signal.SIGTERM)
            await stop.wait(); print("stopped", train())
        asyncio.run(main())
    """,
    "Ctrl-C in an event loop": """
        import asyncio, signal
        async def main():
            try: train(30); signal.raise_signal(signal.SIGINT); await asyncio.sleep(60)
            finally: print("closes")
        asyncio.run(main())
    """,
    "an asynchronous generator left open": """
        import asyncio
        async def batches():
            try:
                while True: yield train(2)
            finally: print("closed")
        async def main():
            async for loss in batches(): break
            print(train())
        asyncio.run(main())
    """,
}

PROCESSES = {
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
    "a forked child": """
        train(60)
        if not (child := os.fork()): train(20); os._exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """,
    "a forked child that reaches the end": """
        import atexit
        atexit.register(lambda: print("exit", flush=True)); print(train(), flush=True)
        child = os.fork()
        if child: print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        else: train(20); sys.exit(4)
    """,
    "a forked child that fails": """
        train(60); child = os.fork()
        if child: print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        else: raise ValueError("in the child")
    """,
    "a program that waits for all its children": """
        train(60)
        for number in range(2):
            if not os.fork(): os._exit(number)
        codes = []
        try:
            while True: codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
        except ChildProcessError as error: print(sorted(codes), error)
    """,
    "a pool of processes": """
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context
        def work(number): return 6 // number
        train(60)
        with ProcessPoolExecutor(2, get_context("fork")) as pool: print(list(pool.map(work, range(1, 5))))
        with ProcessPoolExecutor(1, get_context("fork")) as pool: print(repr(pool.submit(work, 0).exception()))
    """,
    "a pool of multiprocessing": """
        import multiprocessing
        with multiprocessing.get_context("fork").Pool(2) as pool: print(pool.map(abs, range(-4, 1)), train(60))
    """,
    "a spawned process": """
        import multiprocessing
        class Point:
            def __init__(self, x): self.x = x
        def work(queue): queue.put((__name__, Point(train())))
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn"); queue = context.Queue()
            child = context.Process(target=work, args=[queue]); child.start(); train(60)
            name, point = queue.get(); child.join(); print(name, type(point) is Point, point.x, child.exitcode)
    """,
    "a server that forks": """
        import multiprocessing
        def work(connection): connection.send(__name__)
        if __name__ == "__main__":
            train(60); context = multiprocessing.get_context("forkserver"); ours, theirs = context.Pipe()
            child = context.Process(target=work, args=[theirs]); child.start(); print(ours.recv()); child.join()
    """,
    "a manager": """
        import multiprocessing
        with multiprocessing.get_context("fork").Manager() as manager:
            shared = manager.dict(); shared["loss"] = train(60); print(dict(shared))
    """,
    "shared memory": """
        from multiprocessing.shared_memory import SharedMemory
        memory = SharedMemory(create=True, size=16); train(60)
        if not (child := os.fork()): memory.buf[0] = 7; os._exit(0)
        os.waitpid(child, 0); print(memory.buf[0]); memory.close(); memory.unlink()
    """,
    "a tensor shared with a child": """
        import torch.multiprocessing
        tensor = torch.zeros(3).share_memory_(); train(60)
        child = torch.multiprocessing.get_context("fork").Process(target=lambda: tensor.add_(1)); child.start()
        child.join(); print(tensor.tolist(), child.exitcode)
    """,
    "a DataLoader with workers": """
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 60
            def __getitem__(self, index): return torch.ones(2) * index, torch.utils.data.get_worker_info().id
        loader = torch.utils.data.DataLoader(Data(), 4, num_workers=2, persistent_workers=True)
        for _ in range(2): print(sum(batch.sum().item() + ids.sum().item() + train(3) for batch, ids in loader))
    """,
    "a worker that raises": """
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 60
            def __getitem__(self, index): return 60 // (20 - index)
        for batch in torch.utils.data.DataLoader(Data(), 4, num_workers=1): train(3)
    """,
    "itself as a child": """
        import subprocess
        print(sys.argv[1:], train(20), flush=True)
        if len(sys.argv) == 1: sys.exit(subprocess.run([sys.executable, __file__, "child"]).returncode + 5)
    """,
    "shells": """
        import subprocess
        train(60); print(os.system("exit 3"), os.popen("echo text").read(), flush=True)
        print(subprocess.run("cat; echo error >&2; kill -9 $$", shell=True, input=b"x", capture_output=True))
        print(os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0)[1])
    """,
    "exec of another program": """
        train(60); sys.stdout.flush(); os.execv(sys.executable, [sys.executable, "-c", "print('other'); exit(6)"])
    """,
    "exec of itself": """
        print(sys.argv[1:], train(20), flush=True)
        if len(sys.argv) < 3: os.execl(sys.executable, sys.executable, *sys.argv, "again")
    """,
    "a job of one process": """
        import torch.distributed as dist
        store = "file://" + os.path.abspath("store")
        if os.path.exists("store"): os.remove("store")
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(45): optimizer.zero_grad(); model(torch.ones(2, 4)).sum().backward(); optimizer.step()
        total = torch.ones(2); dist.all_reduce(total); print(total, dist.get_world_size(), model.module.weight.grad)
        dist.destroy_process_group()
    """,
}
