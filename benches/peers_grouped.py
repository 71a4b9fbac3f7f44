"""Holds PyTorch's grouped product on one GPU, alone and with the dsReLU epilogue that `torch.compile` makes of plain operations.

`peers_grouped.py` speaks the protocol of `peers_timing.py` about cases {"name", "m", "n", "k", "experts", "ends"}.

Peers: `torch_dsrelu`, bf16 in, D in bf16 and dprob out (the yardstick: nothing on this GPU multiplies block-scaled operands); `torch_product`,
its product alone; `torch_fp8_product`, FP8 with a scale a row and no epilogue. Groups end where ours do; where `m / experts` rows is no multiple
of ours, `torch_dsrelu_even` gives every group the same number of rows instead.
"""
import torch
from peers_timing import DEVICE, Cuda, serve

PEERS = ["torch_dsrelu", "torch_dsrelu_even", "torch_product", "torch_fp8_product"]


def dsrelu(a, b, c, prob, ends):
    g = torch._grouped_mm(a, b.transpose(1, 2), offs=ends).float()
    r, wide = torch.relu(g), c.float()
    return (prob * 2 * wide * r).to(torch.bfloat16), (wide * r * r).sum(1)


def makers(case):
    torch._dynamo.reset()
    compiled = torch.compile(dsrelu, dynamic=False)
    m, n, k, experts = (case[key] for key in ("m", "n", "k", "experts"))
    a = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
    b = torch.randn(experts, n, k, device=DEVICE, dtype=torch.bfloat16)
    c = torch.randn(m, n, device=DEVICE, dtype=torch.bfloat16)
    prob = torch.rand(m, 1, device=DEVICE)
    ends = torch.tensor(case["ends"], device=DEVICE, dtype=torch.int32)
    even = torch.arange(1, experts + 1, device=DEVICE, dtype=torch.int32) * (m // experts)
    yield "torch_dsrelu", lambda: lambda: compiled(a, b, c, prob, ends)
    if not torch.equal(even, ends):
        yield "torch_dsrelu_even", lambda: lambda: compiled(a, b, c, prob, even)
    yield "torch_product", lambda: lambda: torch._grouped_mm(a, b.transpose(1, 2), offs=ends)

    def fp8():
        a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        rows, columns = torch.ones(m, device=DEVICE), torch.ones(experts, n, device=DEVICE)
        return lambda: torch._scaled_grouped_mm(a8, b8.transpose(1, 2), rows, columns, offs=ends, out_dtype=torch.bfloat16)

    yield "torch_fp8_product", fp8


if __name__ == "__main__":
    gpu = Cuda()
    serve(PEERS, lambda case, errors, _: gpu.prepared(makers(case), errors), gpu, f"torch {torch.__version__}")
