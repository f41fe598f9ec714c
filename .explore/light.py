import ctypes, gc, json, os, statistics as st, sys, time
os.environ['TEARDOWN_CUPTI'] = '1'
import torch
sys.path.insert(0, os.path.dirname(__file__))
import modes
from modes import P, A, conv, linears, downloads, gpt2

cupti = ctypes.CDLL('libcupti.so.13')
def dis(kind): return cupti.cuptiActivityDisable(kind)
KEEP = {211, 430, 41, 51, 131, 165, 135, 147, 137, 311, 20, 22, 24, 27, 31, 214, 225, 13, 430, 431, 435}
def only(keep):
    bad = 0
    for cb in range(1, 480):
        if cb not in keep: bad += cupti.cuptiActivityEnableRuntimeApi(cb, 0) != 0
    return bad

def host(step, n):
    torch.cuda.synchronize(); t = time.perf_counter()
    for _ in range(n): step()
    torch.cuda.synchronize(); return (time.perf_counter() - t) / n * 1e3

def main(name, n):
    step = globals()[name]()
    for _ in range(30): step()
    S = torch._C._profiler.RecordScope; U = {S.USER_SCOPE}
    C, G = A.CPU, A.CUDA
    sync = dict(enable_cuda_sync_events=True); nx = dict(disable_external_correlation=True)
    modes_ = {
        'today': ([C, G], None, sync, None),
        'noext': ([C, G], None, sync | nx, None),
        'user': ([C, G], U, sync | nx, None),
        'user nodriver': ([C, G], U, sync | nx, lambda: dis(4)),
        'user nodriver keep': ([C, G], U, sync | nx, lambda: (dis(4), only(KEEP))),
        'user nosync nodriver keep': ([C, G], U, nx, lambda: (dis(4), only(KEEP))),
        'noext nodriver keep': ([C, G], None, sync | nx, lambda: (dis(4), only(KEEP))),
        'cuda': ([G], None, {}, None),
        'user no kernels': ([C, G], U, nx, lambda: (dis(10), dis(3))),
        'user no runtime': ([C, G], U, nx, lambda: (dis(5), dis(4))),
    }
    res = {m: [] for m in modes_}; plains = []; info = {}
    for r in range(3):
        for m, (acts, scopes, kw, extra) in modes_.items():
            plains.append(host(step, n))
            with P(acts, scopes, **kw) as p:
                if extra: info[m] = extra()
                for _ in range(2): step()
                rec = host(step, n)
            after = host(step, n)
            res[m].append(rec / ((plains[-1] + after) / 2))
            if m == 'today' and r == 0:
                ev = p.p.profiler.kineto_results.events()
                names = {}
                for e in ev: names[e.name()] = names.get(e.name(), 0) + 1
                info['calls'] = {k: round(v / (n + 2), 1) for k, v in sorted(names.items(), key=lambda x: -x[1]) if k.startswith('cu')}
                del ev
            del p
    print(name, 'plain', round(st.median(plains), 3), [round(min(plains), 3), round(max(plains), 3)], info)
    for m, v in res.items(): print(f'   {m:26} {st.median(v):.3f}  {[round(x, 3) for x in v]}')

def graphs():
    import faulthandler; faulthandler.enable()
    m = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(20)]).cuda()
    x = torch.randn(32, 256, device='cuda')
    g = torch.cuda.CUDAGraph()
    with torch.no_grad():
        for _ in range(3): m(x)
        torch.cuda.synchronize()
        with torch.cuda.graph(g): y = m(x)
    def step():
        g.replay()
    print('fresh', host(step, 200))
    for k in range(4):
        with P([A.CPU, A.CUDA], None, enable_cuda_sync_events=True) as p:
            for _ in range(5): step()
        n = sum(1 for e in p.p.profiler.kineto_results.events() if 'gemm' in e.name().lower() or 'sm90' in e.name())
        print('session', k, 'kernels', n, 'after', host(step, 200), flush=True)
        if k == 1:
            g2 = torch.cuda.CUDAGraph()
            with torch.no_grad(), torch.cuda.graph(g2): y = m(x)
            g2.replay(); torch.cuda.synchronize()
    c = torch.compile(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)).cuda(), mode='reduce-overhead')
    o = torch.optim.SGD(c.parameters(), 0.01)
    def tstep():
        torch.compiler.cudagraph_mark_step_begin(); o.zero_grad(); c(x).square().mean().backward(); o.step()
    for _ in range(5): tstep()
    print('compiled fresh', host(tstep, 50), flush=True)
    for k in range(4):
        with P([A.CPU, A.CUDA], None, enable_cuda_sync_events=True) as p:
            for _ in range(5): tstep()
        os.environ['TEARDOWN_CUPTI'] = '1'
        print('compiled session', k, 'after', host(tstep, 50), os.environ.get('TEARDOWN_CUPTI'), flush=True)
    print('graphs OK', flush=True)

if __name__ == '__main__':
    if sys.argv[1] == 'graphs': graphs()
    else: main(sys.argv[1], int(sys.argv[2]))
