"""Times the peers' attention backward on one GPU: PyTorch's flash backend (FlashAttention-2) and its cuDNN backend.

Reads a list of cases as JSON on stdin ([{"name", "b", "h_q", "h_kv", "s", "d_qk", "d_v", "causal", "window"}, ..]) and writes one JSON object a
line: {"case", "peer", "bwd_ms"} or {"case", "peer", "error"}, and one {"ceiling": name, "tflops"} line first. `gpu_sdpa --peers` runs it.
Times are medians over CUDA events with the L2 cache overwritten before each run. A window is measured only by peers that have one.
"""
import json
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICE = "cuda"
PEERS = (("fa2", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION))


def emit(**fields):
    print(json.dumps(fields), flush=True)


def median_ms(work, budget_ms=150.0):
    flush = torch.empty(256 << 20, dtype=torch.uint8, device=DEVICE)
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    times, spent = [], 0.0
    while (spent < budget_ms or len(times) < 5) and len(times) < 100:
        flush.zero_()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
        spent += times[-1]
    return statistics.median(times)


def ceiling():
    n = 8192
    a = torch.randn(n, n, device=DEVICE, dtype=torch.bfloat16)
    b = torch.randn(n, n, device=DEVICE, dtype=torch.bfloat16)
    emit(ceiling="bf16 matmul 8192", tflops=2 * n**3 / median_ms(lambda: a @ b) / 1e9)


def operand(case, heads, dim, grad=True):
    shape = (case["b"], case["s"], heads, dim)
    return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16).transpose(1, 2).requires_grad_(grad)


def measure(case):
    q = operand(case, case["h_q"], case["d_qk"])
    k = operand(case, case["h_kv"], case["d_qk"])
    v = operand(case, case["h_kv"], case["d_v"])
    d_o = operand(case, case["h_q"], case["d_v"], grad=False)
    for name, backend in PEERS:
        try:
            if case.get("window") is not None:
                raise RuntimeError("no sliding window through this interface")
            with sdpa_kernel(backend):
                o = F.scaled_dot_product_attention(q, k, v, is_causal=case["causal"], enable_gqa=case["h_q"] != case["h_kv"])
                ms = median_ms(lambda: torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True))
            emit(case=case["name"], peer=name, bwd_ms=ms)
        except Exception as error:  # a peer that does not serve a case is a result
            emit(case=case["name"], peer=name, error=str(error).splitlines()[0][:160])
        torch.cuda.empty_cache()


if __name__ == "__main__":
    emit(versions=f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    ceiling()
    for item in json.load(sys.stdin):
        measure(item)
