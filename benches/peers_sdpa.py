"""Times the peers' attention on one GPU: PyTorch's flash backend (FlashAttention-2), its cuDNN backend, its memory-efficient backend.

`peers_sdpa.py fwd|bwd` reads a list of cases as JSON on stdin ([{"name", "b", "h_q", "h_kv", "s", "s_kv" (absent: s), "d_qk", "d_v", "causal",
"window"}, ..]) and writes one JSON object a line: {"case", "peer", "fwd_ms" or "bwd_ms"} or {"case", "peer", "error"}, and lines about the
machine ({"versions"}, {"ceiling": name, "tflops"}) first. `gpu_sdpa --peers` runs it. Times are medians over CUDA events with the L2 cache
overwritten before each run. A window is measured only by peers that have one. With fewer queries than keys "causal" is from the bottom right.
"""
import json
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

DEVICE = "cuda"
BACKWARD = (("fa2", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION))
FORWARD = (*BACKWARD, ("efficient", SDPBackend.EFFICIENT_ATTENTION))


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


def operand(case, heads, length, dim, grad):
    shape = (case["b"], length, heads, dim)
    return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16).transpose(1, 2).requires_grad_(grad)


def call(case, q, k, v):
    grouped = case["h_q"] != case["h_kv"]
    if case["causal"] and q.shape[2] != k.shape[2]:
        mask = causal_lower_right(q.shape[2], k.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
    return F.scaled_dot_product_attention(q, k, v, is_causal=case["causal"], enable_gqa=grouped)


def measure(case, direction):
    backward = direction == "bwd"
    length = case.get("s_kv") or case["s"]
    q = operand(case, case["h_q"], case["s"], case["d_qk"], backward)
    k = operand(case, case["h_kv"], length, case["d_qk"], backward)
    v = operand(case, case["h_kv"], length, case["d_v"], backward)
    d_o = operand(case, case["h_q"], case["s"], case["d_v"], False) if backward else None
    for name, backend in BACKWARD if backward else FORWARD:
        try:
            if case.get("window") is not None:
                raise RuntimeError("no sliding window through this interface")
            with sdpa_kernel(backend):
                if backward:
                    o = call(case, q, k, v)
                    ms = median_ms(lambda: torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True))
                else:
                    with torch.no_grad():
                        ms = median_ms(lambda: call(case, q, k, v), 80.0)
            emit(case=case["name"], peer=name, **{f"{direction}_ms": ms})
        except Exception as error:  # a peer that does not serve a case is a result
            emit(case=case["name"], peer=name, error=str(error).splitlines()[0][:160])
    torch.cuda.empty_cache()


if __name__ == "__main__":
    emit(versions=f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    ceiling()
    for item in json.load(sys.stdin):
        measure(item, sys.argv[1])
