"""Programs that handle signals, end in unusual ways, or leave something for the end.

Bodies of programs by their names. They may call `train` (`tests.programs.ways_to_run`).
"""

from __future__ import annotations

SIGNALS = {
    "SIGTERM": "import signal; print(train(), flush=True); os.kill(os.getpid(), signal.SIGTERM); signal.pause()",
    "an abort": "print(train(), flush=True); os.abort()",
    "SIGTERM with a handler": """
        import signal
        def save(number, frame): print("saves", frame.f_code.co_name); sys.exit(128 + number)
        signal.signal(signal.SIGTERM, save)
        train(30); os.kill(os.getpid(), signal.SIGTERM)
        while True: train(3)
    """,
    "Ctrl-C": """
        import signal
        def epoch():
            for number in range(60): train(1); number == 40 and signal.raise_signal(signal.SIGINT)
        epoch()
    """,
    "Ctrl-C that the program catches": """
        import signal
        try: train(30); signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt: print("stops early", train())
    """,
    "Ctrl-C from a thread": """
        import _thread
        threading.Timer(0.2, _thread.interrupt_main).start()
        def endless():  # An exception of a signal at the end of a loop misses a handler around it (Python 3.11).
            while True: train(3)
        try: endless()
        except KeyboardInterrupt: print("interrupted"); sys.exit(7)
    """,
    "handlers of all signals but SIGURG": """
        import signal
        numbers = signal.valid_signals() - {signal.SIGURG}
        def handlers(): return {number: signal.getsignal(number) for number in numbers}
        before = handlers(); train(60); print(before == handlers(), signal.pthread_sigmask(signal.SIG_BLOCK, []))
        print([number.name for number, handler in before.items() if handler not in (signal.SIG_DFL, None)])
    """,
    "set_wakeup_fd": """
        import signal, socket
        ours, theirs = socket.socketpair(); theirs.setblocking(False); signal.set_wakeup_fd(theirs.fileno())
        seen = []; signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
        for _ in range(3): train(20); signal.raise_signal(signal.SIGUSR1)
        print(ours.recv(99), seen, signal.set_wakeup_fd(-1) == theirs.fileno())
    """,
    "SIGCHLD with a handler": """
        import signal, subprocess
        ended = []; signal.signal(signal.SIGCHLD, lambda *_: ended.append("child"))
        train(60); subprocess.run(["true"]); train(20); print(ended)
    """,
    "children that nobody waits for": """
        import signal
        signal.signal(signal.SIGCHLD, signal.SIG_IGN); train(60)
        if not os.fork(): os._exit(3)
        print(os.system("exit 3"), train())
    """,
    "a blocked signal": """
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); os.kill(os.getpid(), signal.SIGUSR1); train(60)
        print(signal.sigpending(), signal.sigwait([signal.SIGUSR1]))
    """,
    "an interval of CPU time": """
        import signal
        ticks = []; signal.signal(signal.SIGPROF, lambda *_: ticks.append(1))
        signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)
        while len(ticks) < 9: train(3)
        signal.setitimer(signal.ITIMER_PROF, 0); print("ticks")
    """,
    "a reader that is gone": """
        read, write = os.pipe(); os.close(read); os.dup2(write, 1)
        train(60); print("lost", flush=True)
    """,
    "faulthandler": """
        import faulthandler
        faulthandler.enable(open("faults", "w")); train(60); print(faulthandler.is_enabled(), flush=True)
        import signal; os.kill(os.getpid(), signal.SIGSEGV)
    """,
}

ENDINGS = {
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
    "sys.exit with a number": "train(60); sys.exit(259)",
    "sys.exit with a text": "train(60); sys.exit('no data')",
    "sys.exit with an object": "print(train(60)); sys.exit({'loss': 1})",
    "sys.exit in a module": """
        class Net(torch.nn.Module):
            def forward(self, x): sys.exit("in forward")
        train(60); Net()(torch.ones(1))
    """,
    "os._exit": "print('lost'); train(60); os._exit(5)",
    "exit handlers": """
        import atexit
        atexit.register(lambda: print("first registered, last called", train()))
        @atexit.register
        def fail(): raise OSError("in a handler")
        atexit.register(print, "last registered"); train(60)
    """,
    "a chain of exceptions": """
        try: train(60); {}["key"]
        except KeyError as error:
            error.add_note("while it looked"); raise RuntimeError("two\\nlines") from error
    """,
    "an exception while another is handled": """
        try: train(60); open("/no/such/file")
        finally: torch.ones(2) @ torch.ones(3)
    """,
    "a group of exceptions": """
        def fails(error): raise error
        errors = []
        for error in (KeyError(1), OSError(2, "two")):
            try: fails(error)
            except Exception as caught: errors.append(caught)
        train(60); raise ExceptionGroup("several", errors)
    """,
    "a module that cannot be compiled": """
        open("broken.py", "w").write("x = = 1\\n"); train(60)
        import broken
    """,
    "code from a text": "train(60); exec(compile('def f(): 1 / 0\\nf()', '<made>', 'exec'))",
    "sys.excepthook": """
        def hook(kind, error, trace): print("hook", kind, error, trace.tb_frame.f_code.co_name, trace.tb_next)
        sys.excepthook = hook; train(60); 1 / 0
    """,
    "sys.unraisablehook": """
        sys.unraisablehook = lambda error: print("unraisable", error.exc_value, error.object is Bad.__del__)
        class Bad:
            def __del__(self): raise ValueError("in del")
        bad = Bad(); train(60); del bad
    """,
    "a destructor that raises": """
        class Bad:
            def __del__(self): raise ValueError("in del")
        bad = Bad(); train(60); del bad
    """,
    "warnings": """
        import warnings
        warnings.warn("about the data"); train(60); warnings.warn("old", DeprecationWarning)
        scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.ones(1)], lr=0.1), 1); scheduler.step()
    """,
    "warnings as errors": """
        import warnings
        warnings.simplefilter("error"); print(train(60), len(warnings.filters) > 0); warnings.warn("about the data")
    """,
    "a recursion without end": """
        def deeper(): return deeper() + 1
        try: deeper()
        except RecursionError as error: print(error, train(60), sys.getrecursionlimit())
    """,
    "a deep traceback through torch": """
        class Net(torch.nn.Module):
            def forward(self, x): return self.inner(x) if hasattr(self, "inner") else torch.cat([x, 1])
        outer, inner = Net(), Net(); outer.inner = inner; train(60)
        with torch.no_grad(): torch.utils.checkpoint.checkpoint(outer, torch.ones(2), use_reentrant=False)
    """,
    "a hook that raises": """
        def hook(grad): raise ValueError("in a hook")
        weight = torch.ones(2, requires_grad=True); weight.register_hook(hook); train(60); weight.sum().backward()
    """,
    "an error of argparse": """
        import argparse
        parser = argparse.ArgumentParser(description="trains"); parser.add_argument("--steps", type=int)
        train(60); parser.parse_args(["--steps", "many"])
    """,
    "logging": """
        import logging
        logging.basicConfig(level=logging.DEBUG, format="%(name)s %(message)s"); log = logging.getLogger("train")
        log.info("loss %s", train(60))
        try: 1 / 0
        except ZeroDivisionError: log.exception("failed")
    """,
}

TEARDOWN = {
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
    "finalizers": """
        import weakref
        class Thing: pass
        kept, dropped = Thing(), Thing()
        weakref.finalize(kept, print, "kept"); weakref.finalize(dropped, print, "dropped")
        train(60); del dropped; print("end")
    """,
    "objects that live on": """
        import gc, weakref
        class Net(torch.nn.Linear): pass
        def epoch():
            net = Net(2, 2); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(45): optimizer.zero_grad(); net(torch.ones(2)).sum().backward(); optimizer.step()
            return weakref.ref(net), weakref.ref(optimizer)
        refs = epoch(); gc.collect(); print([ref() for ref in refs])
        print([kind for kind in map(type, gc.get_objects()) if kind is Net])
    """,
    "no garbage collection": """
        import gc
        gc.disable(); train(60); print(gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() < 0, gc.garbage)
    """,
    "callbacks of the garbage collector": """
        import gc
        phases = []; callback = lambda phase, info: phases.append(phase)
        gc.callbacks.append(callback); train(60); gc.collect(); gc.callbacks.remove(callback)
        print(phases[-2:], phases.count("start") == phases.count("stop"))
    """,
    "no streams": "train(60); sys.stdout = sys.stderr = None; print('nowhere')",
    "stdout closed": "train(60); print('before'); sys.stdout.close()",
    "stdout replaced": """
        import contextlib, io
        class Tee:
            def write(self, text): lines.append(text); return sys.__stdout__.write(text.upper())
            def flush(self): sys.__stdout__.flush()
        lines = []; sys.stdout = Tee(); print("loss", train(60))
        with contextlib.redirect_stdout(io.StringIO()) as text: print(train(5))
        print(len(lines), len(text.getvalue()) > 2)
    """,
    "stderr replaced": """
        import io
        sys.stderr = io.StringIO(); train(60); print("lost", file=sys.stderr); print(sys.stderr.getvalue()); 1 / 0
    """,
    "much output": "print('x' * 200_000); train(60); sys.stderr.write('e' * 70_000 + '\\n')",
    "another folder": """
        import tempfile
        folder = tempfile.mkdtemp(); os.chdir(folder); print(train(60), os.getcwd() == folder); os.rmdir(folder)
        try: os.getcwd()
        except FileNotFoundError as error: print(error, train())
    """,
    "few descriptors": """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
        print(train(60), resource.getrlimit(resource.RLIMIT_NOFILE))
    """,
    "a file that may not grow": """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)); print(train(60))
        with open("grown", "w") as file: file.write("x" * 9000)
    """,
    "a mask of permissions": """
        os.umask(0o77); train(60); print(oct(os.umask(0)), oct(os.stat("program.py").st_mode & 0o700))
    """,
}
