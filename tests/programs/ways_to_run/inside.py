"""Programs that look closely at their process, or use much of torch.

Bodies of programs by their names. They may call `train` (`tests.programs.ways_to_run`).
"""

from __future__ import annotations

LOOKS = {
    "arguments, file and names": """
        print(sys.argv, sys.orig_argv[-1], __file__, __name__, __spec__, __package__, __doc__)
        print([name for name in globals() if name[:2] != "__"], sys.flags.interactive)
        print(sys.path[0] == os.path.dirname(__file__), train(60))
    """,
    "the environment": """
        before = dict(os.environ); train(60); print(before == dict(os.environ), sorted(before))
    """,
    "imports": """
        mine = sys.modules["__main__"]; train(60)
        print(mine.train is train, vars(mine) is globals(), sys.modules["__main__"] is mine)
        print([name for name in ("torch._inductor.config", "torch.onnx", "pandas", "rich") if name in sys.modules])
    """,
    "no optimizer, and no compiler": """
        net = torch.nn.Linear(4, 4)
        for _ in range(60): net(torch.ones(4))
        print([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])
    """,
    "a finder and modules of its own": """
        import importlib, importlib.abc, types
        class Finder(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                if name.startswith("made"): print("finds", name); return importlib.util.spec_from_loader(name, self)
            def create_module(self, spec): return None
            def exec_module(self, module): module.value = train(20)
        sys.meta_path.insert(0, Finder()); import made; print(made.value); importlib.reload(made)
        sys.modules["config"] = types.SimpleNamespace(steps=60); import config; print(train(config.steps))
    """,
    "another import": """
        import builtins
        names = []; theirs = builtins.__import__
        def ours(name, *rest, **options):
            if sys._getframe(1).f_globals is globals(): names.append(name)
            return theirs(name, *rest, **options)
        builtins.__import__ = ours; import json; print(train(60), names); builtins.__import__ = theirs
    """,
    "pickles of its own classes": """
        import copy, io, pickle
        class Net(torch.nn.Module):
            def __init__(self): super().__init__(); self.layer = torch.nn.Linear(2, 1)
            def forward(self, x): return self.layer(x)
        torch.manual_seed(0); net = Net(); optimizer = torch.optim.Adam(net.parameters())
        for _ in range(45): optimizer.zero_grad(); net(torch.ones(2)).sum().backward(); optimizer.step()
        file = io.BytesIO(); torch.save([net, optimizer], file); file.seek(0)
        again, its = torch.load(file, weights_only=False); print(type(again) is Net, sorted(vars(again)), type(its))
        print(Net.__module__, pickle.loads(pickle.dumps(train)) is train, sorted(optimizer.state_dict()))
        its = copy.deepcopy(optimizer); its.step()
        print(its.state_dict()["state"][0]["step"], copy.copy(net)(torch.ones(2)))
    """,
    "random numbers": """
        import random
        torch.manual_seed(7); random.seed(7); print(train(60), torch.rand(2), random.random(), torch.initial_seed())
    """,
    "its source": """
        import inspect, traceback
        print(inspect.getsource(train)[:20], train(60), inspect.getmodule(train).__name__)
        print(traceback.extract_stack()[-1].lineno, sys._getframe().f_code.co_filename)
    """,
    "lines from standard input": """
        name = input("name? "); print(name, train(60)); print(sys.stdin.read(), sys.stdin.isatty())
    """,
    "sys.settrace": """
        lines = []
        def trace(frame, event, argument):
            if frame.f_code is train.__code__: lines.append(event); return trace
        sys.settrace(trace); train(60); sys.settrace(None); print(len(lines), lines[0], lines[-1], sys.gettrace())
    """,
    "sys.setprofile": """
        calls = []
        def profile(frame, event, argument): frame.f_code is train.__code__ and event == "call" and calls.append(1)
        sys.setprofile(profile); train(30); train(30); print(sys.getprofile() is profile, len(calls))
    """,
    "cProfile": """
        import cProfile, pstats
        profile = cProfile.Profile(); profile.runcall(train, 60)
        print([row[:2] for name, row in pstats.Stats(profile).stats.items() if name[2] in ("train", "linear_")])
    """,
    "tracemalloc": """
        import tracemalloc
        tracemalloc.start(); kept = bytearray(500_000); train(60); snapshot = tracemalloc.take_snapshot()
        mine = snapshot.filter_traces([tracemalloc.Filter(True, __file__)]).statistics("lineno")
        print(mine[0].traceback[0].lineno, mine[0].size // 1000)
    """,
    "tests in a program": """
        import io, unittest
        class Tests(unittest.TestCase):
            def test_loss(self): self.assertLess(train(60), 0)
        suite, text = unittest.defaultTestLoader.loadTestsFromTestCase(Tests), io.StringIO()
        result = unittest.TextTestRunner(text).run(suite); print(result.failures[0][1])
        sys.exit(not result.wasSuccessful())
    """,
    "another script": """
        import runpy
        open("other.py", "w").write("import sys\\nprint(__name__, sys.argv, result)\\n")
        runpy.run_path("other.py", {"result": train(60)}, "other")
    """,
}

TORCH = {
    "a profiler of its own": """
        from torch.profiler import ProfilerActivity, profile, schedule
        plan = schedule(wait=1, warmup=1, active=2, repeat=1)
        with profile(activities=[ProfilerActivity.CPU], schedule=plan) as profiler:
            for _ in range(6): train(2); profiler.step()
        print({row.key: row.count for row in profiler.key_averages() if row.key == "aten::relu"}, train(60))
    """,
    "autograd's profiler": """
        with torch.autograd.profiler.profile() as profiler: train(6)
        print({row.key: row.count for row in profiler.key_averages() if row.key == "aten::relu"}, train(60))
    """,
    "two optimizers": """
        nets = [torch.nn.Linear(2, 1, bias=False) for _ in range(2)]
        for net in nets: torch.nn.init.ones_(net.weight)
        optimizers = [torch.optim.SGD(nets[0].parameters(), lr=0.01), torch.optim.Adam(nets[1].parameters())]
        for step in range(60):
            for net, optimizer in zip(nets, optimizers):
                optimizer.zero_grad(); net(torch.ones(2)).square().sum().backward(); optimizer.step()
        print([net.weight.tolist() for net in nets])
    """,
    "a closure and a scheduler": """
        weight = torch.ones(2, requires_grad=True); optimizer = torch.optim.LBFGS([weight], lr=0.1, max_iter=2)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        def closure(): optimizer.zero_grad(); loss = (weight - 3).square().sum(); loss.backward(); return loss
        for _ in range(45): optimizer.step(closure); scheduler.step()
        print(weight.tolist(), scheduler.get_last_lr(), optimizer.step.__name__, scheduler.last_epoch)
    """,
    "hooks of an optimizer": """
        from torch.optim.optimizer import register_optimizer_step_post_hook
        weight = torch.ones(2, requires_grad=True); optimizer = torch.optim.SGD([weight], lr=0.1); seen = []
        optimizer.register_step_pre_hook(lambda *_: seen.append("pre"))
        handle = register_optimizer_step_post_hook(lambda *_: seen.append("global"))
        optimizer.register_step_post_hook(lambda *_: seen.append("post"))
        for _ in range(45): weight.sum().backward(); optimizer.step()
        print(len(seen), seen[:3]); handle.remove(); optimizer.step(); print(len(seen))
    """,
    "an optimizer of its own": """
        class Half(torch.optim.Optimizer):
            def __init__(self, parameters): super().__init__(parameters, {}); self.calls = 0
            def step(self):
                self.calls += 1; [p.data.mul_(0.5) for group in self.param_groups for p in group["params"]]
                return self
        weight = torch.ones(2, requires_grad=True); optimizer = Half([weight])
        for _ in range(45): assert optimizer.step() is optimizer
        print(weight.tolist(), optimizer.calls, type(optimizer).step.__qualname__)
    """,
    "a gradient scaler": """
        weight = torch.ones(2, requires_grad=True); optimizer = torch.optim.SGD([weight], lr=0.01)
        scaler = torch.amp.GradScaler("cpu")
        for step in range(45):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16): loss = weight.sum() * (float("inf") if step == 9 else 1)
            scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
        print(weight.tolist(), scaler.get_scale())
    """,
    "hooks of modules": """
        calls = []; net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        net.register_forward_hook(lambda module, *_: calls.append(type(module).__name__))
        net[0].register_full_backward_hook(lambda module, *_: calls.append("backward"))
        handle = torch.nn.modules.module.register_module_forward_pre_hook(lambda module, args: calls.append("pre"))
        for _ in range(60): net(torch.ones(2, requires_grad=True)).sum().backward()
        handle.remove(); print(len(calls), calls[:5])
    """,
    "functions of autograd": """
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): ctx.save_for_backward(x); return x * 2
            @staticmethod
            def backward(ctx, grad): return grad * 2 * ctx.saved_tensors[0]
        weight = torch.ones(2, requires_grad=True); packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(1) or x, lambda x: x):
            for _ in range(60): Double.apply(weight).sum().backward()
        same = torch.autograd.gradcheck(Double.apply, torch.ones(2, dtype=torch.double, requires_grad=True))
        print(weight.grad, len(packed), same)
    """,
    "modes that see each op": """
        from collections import Counter
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode
        ops, functions = Counter(), Counter()
        class Ops(TorchDispatchMode):
            def __torch_dispatch__(self, op, types, args=(), kwargs=None):
                ops[str(op)] += 1; return op(*args, **kwargs or {})
        class Functions(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                functions[function.__name__] += 1; return function(*args, **kwargs or {})
        with Ops(), Functions(): print(train(60))
        print(sorted((op, count) for op, count in ops.items() if op.startswith("aten")), functions["linear"])
    """,
    "torch.compile": """
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()); torch.nn.init.ones_(net[0].weight)
        graphs = []
        def backend(graph, inputs): graphs.append(len(graph.graph.nodes)); return graph.forward
        compiled = torch.compile(net, backend=backend); optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        for _ in range(45): compiled(torch.ones(2)).sum().backward(); optimizer.step()
        print(graphs, torch.compile(lambda x: x + 1, backend="eager", fullgraph=True)(torch.ones(1)))
    """,
    "TorchScript": """
        net = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
        traced = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(2))
        for _ in range(60): net(torch.ones(2)); traced(torch.ones(2))
        print(net.code, traced.graph.findNode("aten::linear") is not None)
    """,
    "torch.fx and torch.func": """
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        graph = torch.fx.symbolic_trace(net); print(graph.code)
        square = torch.func.vmap(torch.func.grad(lambda x: x.square().sum()))
        for _ in range(60): graph(torch.ones(2)); slopes = square(torch.ones(3, 2))
        print(slopes, train(60))
    """,
    "settings of torch": """
        torch.set_num_interop_threads(2); torch.set_num_threads(1); torch.use_deterministic_algorithms(True)
        torch.set_default_dtype(torch.float64); print(train(60), torch.ones(1).dtype, torch.get_num_interop_threads())
        with torch.inference_mode(): print(torch.ones(1).is_inference(), torch.is_grad_enabled())
        print(torch.autograd.profiler._is_profiler_enabled, torch.is_grad_enabled(), torch.get_default_device())
    """,
    "anomalies": """
        import warnings
        warnings.simplefilter("ignore"); torch.autograd.set_detect_anomaly(True)
        print(train(60)); x = torch.zeros(1, requires_grad=True)
        try: (x.sqrt() * 0).sum().backward()
        except RuntimeError as error: print(error)
    """,
    "other tensors": """
        class Tagged(torch.Tensor): pass
        tagged = torch.ones(2).as_subclass(Tagged); net = torch.nn.LazyLinear(2)
        for _ in range(60): out = net(tagged)
        print(type(out), torch.empty(2, device="meta").sum().device, type(net), train(60))
    """,
}
