"""Times PyTorch's grouped product on one GPU, alone and with the dsReLU epilogue that `torch.compile` makes of plain operations.

`peers_grouped.py dsrelu` reads cases as JSON on stdin ([{"name", "m", "n", "k", "experts", "ends"}, ..]) and writes one JSON object a line:
{"case", "peer", "ms"} or {"case", "peer", "error"}, after {"versions"} and {"ceiling", "tflops"}. `gpu_bench --suite grouped_gemm --peers` runs it.

Peers: `torch_dsrelu`, bf16 in, D in bf16 and dprob out (the yardstick: nothing on this GPU multiplies block-scaled operands); `torch_product`,
its product alone; `torch_fp8_product`, FP8 with a scale a row and no epilogue. Groups end where ours do; where `m / experts` rows is no multiple
of ours, `torch_dsrelu_even` gives every group the same number of rows instead.
"""
import json
import sys

import torch
from peers_timing import DEVICE, emit, limit, median_ms, reason

BUDGET_MS = 100.0


def dsrelu(a, b, c, prob, ends):
    g = torch._grouped_mm(a, b.transpose(1, 2), offs=ends).float()
    r, wide = torch.relu(g), c.float()
    return (prob * 2 * wide * r).to(torch.bfloat16), (wide * r * r).sum(1)


def timed(case, peer, work):
    try:
        emit(case=case["name"], peer=peer, ms=median_ms(work, BUDGET_MS))
    except Exception as error:  # a peer that does not serve a case is a result
        emit(case=case["name"], peer=peer, error=reason(error))


def measure(case, compiled):
    m, n, k, experts = (case[key] for key in ("m", "n", "k", "experts"))
    a = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
    b = torch.randn(experts, n, k, device=DEVICE, dtype=torch.bfloat16)
    c = torch.randn(m, n, device=DEVICE, dtype=torch.bfloat16)
    prob = torch.rand(m, 1, device=DEVICE)
    ends = torch.tensor(case["ends"], device=DEVICE, dtype=torch.int32)
    even = torch.arange(1, experts + 1, device=DEVICE, dtype=torch.int32) * (m // experts)
    timed(case, "torch_dsrelu", lambda: compiled(a, b, c, prob, ends))
    if not torch.equal(even, ends):
        timed(case, "torch_dsrelu_even", lambda: compiled(a, b, c, prob, even))
    timed(case, "torch_product", lambda: torch._grouped_mm(a, b.transpose(1, 2), offs=ends))
    a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    rows, columns = torch.ones(m, device=DEVICE), torch.ones(experts, n, device=DEVICE)
    timed(case, "torch_fp8_product", lambda: torch._scaled_grouped_mm(
        a8, b8.transpose(1, 2), rows, columns, offs=ends, out_dtype=torch.bfloat16))


if __name__ == "__main__":
    limit()
    emit(versions=f"torch {torch.__version__}")
    size = 8192
    x, y = (torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    emit(ceiling="bf16 matmul 8192", tflops=2 * size**3 / median_ms(lambda: x @ y) / 1e9)
    del x, y
    for item in json.load(sys.stdin):
        torch._dynamo.reset()
        try:
            measure(item, torch.compile(dsrelu, dynamic=False))
        except Exception as error:
            emit(case=item["name"], peer="torch_dsrelu", error=reason(error))
        torch.cuda.empty_cache()
