"""What recording costs, by option; and what stays behind after a profiler has stopped."""
import json, os, statistics as st, subprocess, sys, time
import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity as A
from torch.profiler.profiler import _KinetoProfile

def conv():
    m = torch.nn.Sequential(*[x for _ in range(24) for x in (torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.ReLU())]).cuda()
    o = torch.optim.SGD(m.parameters(), 0.01); b = torch.randn(4, 32, 32, 32, device='cuda')
    def step():
        o.zero_grad(); m(b).square().mean().backward(); o.step()
    return step

def linears():
    ls = [torch.nn.Linear(256, 256).cuda() for _ in range(60)]; b = torch.randn(32, 256, device='cuda')
    def step():
        with torch.no_grad():
            x = b
            for l in ls: x = torch.relu(l(x))
    return step

def downloads():
    xs = [torch.randn(4096, 256, device='cuda') for _ in range(40)]
    def step():
        return [x.norm().item() for x in xs]
    return step

def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    m = GPT2LMHeadModel(GPT2Config(n_layer=8, vocab_size=8192)).cuda(); o = torch.optim.AdamW(m.parameters(), 1e-4)
    ids = torch.randint(0, 8192, (4, 256), device='cuda')
    def step():
        o.zero_grad()
        with torch.autocast('cuda', torch.bfloat16):
            loss = m(input_ids=ids, labels=ids).loss
        loss.backward(); o.step()
    return step

def timed(step, n):
    evs = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
    hs = []
    for i in range(n):
        evs[i].record(); hs.append(time.perf_counter_ns()); step()
    evs[n].record(); hs.append(time.perf_counter_ns())
    torch.cuda.synchronize()
    g = [evs[i].elapsed_time(evs[i + 1]) for i in range(n)]
    h = [(b - a) / 1e6 for a, b in zip(hs, hs[1:])]
    q = sorted(g)
    return round(st.median(g), 4), round(st.median(h), 4), round(q[n // 4], 4), round(q[3 * n // 4], 4)

class P:
    def __init__(s, acts, scopes=None, stacks=False, **kw):
        s.p = _KinetoProfile(activities=acts, with_stack=stacks, experimental_config=_ExperimentalConfig(**kw)); s.scopes = scopes
    def __enter__(s):
        t = time.perf_counter(); s.p.prepare_trace(); s.prep = time.perf_counter() - t
        torch.cuda.synchronize(); t = time.perf_counter()
        if s.scopes is not None:
            orig = torch.autograd.profiler._enable_profiler
            torch.autograd.profiler._enable_profiler = lambda c, a, *r: orig(c, a, s.scopes)
            try: s.p.start_trace()
            finally: torch.autograd.profiler._enable_profiler = orig
        else: s.p.start_trace()
        s.start = time.perf_counter() - t
        return s
    def __exit__(s, *a):
        torch.cuda.synchronize(); t = time.perf_counter(); s.p.stop_trace(); s.stop = time.perf_counter() - t

def main(name, n):
    step = globals()[name]()
    for _ in range(30): step()
    torch.cuda.synchronize()
    out = {'prog': name, 'env': {k: os.environ.get(k) for k in ('TEARDOWN_CUPTI', 'DISABLE_CUPTI_LAZY_REINIT', 'KINETO_LOG_LEVEL')}}
    plain = lambda: timed(step, n)
    out['fresh'] = [plain() for _ in range(3)]
    S = torch._C._profiler.RecordScope
    C, G = A.CPU, A.CUDA
    modes = {
        'empty': None,
        'cuda': ([G], None, {}),
        'cpu+cuda': ([C, G], None, {}),
        'cpu+cuda noext': ([C, G], None, dict(disable_external_correlation=True)),
        'cpu+cuda+sync': ([C, G], None, dict(enable_cuda_sync_events=True)),
        'cpu+cuda+sync noext': ([C, G], None, dict(enable_cuda_sync_events=True, disable_external_correlation=True)),
        'user scope': ([C, G], {S.USER_SCOPE}, {}),
        'user scope noext': ([C, G], {S.USER_SCOPE}, dict(disable_external_correlation=True)),
        'user scope noext+sync': ([C, G], {S.USER_SCOPE}, dict(enable_cuda_sync_events=True, disable_external_correlation=True)),
        'cpu': ([C], None, {}),
        'stacks': ([C, G], None, dict(enable_cuda_sync_events=True)),
    }
    for mode, spec in modes.items():
        try:
            if spec is None:
                with P([C, G], None, enable_cuda_sync_events=True) as p: pass
                r = None
            else:
                with P(spec[0], spec[1], mode == 'stacks', **spec[2]) as p:
                    for _ in range(3): step()
                    r = timed(step, 10)
        except Exception as e:
            r = repr(e); p = None
        out[mode] = {'rec': r, 'took': p and (round(p.prep, 3), round(p.start, 3), round(p.stop, 3)), 'plain_after': plain()}
        del p
        if mode == 'cpu+cuda+sync':
            torch.cuda.synchronize()
    print(json.dumps(out))

if __name__ == '__main__':
    if len(sys.argv) > 1:
        main(sys.argv[1], int(sys.argv[2]))
    else:
        import concurrent.futures
        base = dict(os.environ)
        for env in ({}, {'TEARDOWN_CUPTI': '1'}, {'TEARDOWN_CUPTI': '0'}):
            for prog in ('gpt2', 'conv', 'linears', 'downloads'):
                if env.get('TEARDOWN_CUPTI') == '0' and prog != 'gpt2': continue
                r = subprocess.run([sys.executable, __file__, prog, '40'], env=base | env, capture_output=True, text=True, timeout=120)
                lines = [l for l in r.stdout.splitlines() if l.startswith('{')]
                if not lines:
                    print(prog, env, 'FAILED', r.stderr[-800:]); continue
                d = json.loads(lines[-1])
                print(prog, env, 'fresh', d.pop('fresh'))
                for k, v in d.items():
                    if isinstance(v, dict) and 'rec' in v: print(f"   {k:24} rec {v['rec']}  plain after {v['plain_after']}  took {v['took']}")
                sys.stdout.flush()
