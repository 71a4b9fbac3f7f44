"""Holds the public Triton port of the NVFP4 QAT attention backward on a GPU that it does not support, and compares its numbers with ours.

`peers_qat.py` speaks the protocol of `peers_timing.py` about cases {"name", "b", "h", "s", "d", "causal"}; its one peer is `triton`.

`peers_qat.py compare PROGRAM FORWARD.json BACKWARD.json [ENGINE ..]` runs `frostgraph` on one problem without a mask and one with a causal
one, the backward by each engine (the best plan where none is named), and prints how far our results are from the peer's, as {"compare":
tensor, "mask", "engine", "max_abs", "rel_frobenius", "max_rel", "equal_share"} a line: `equal_share` of the elements have the same bits.

The port is the file set `cudnn/sdpa/bwd/qat` of the wheel nvidia-cudnn-frontend (1.32 or later), taken from FROSTGRAPH_QAT_PEER (a folder
that holds the files) or from the installed package. It refuses GPUs before Blackwell because of one instruction, the conversion to E2M1;
that one function is replaced here at run time by arithmetic that gives the same values, and the kernels are launched with four sets of
tiles, of which the fastest in a short trial takes the turns.
"""
import importlib
import importlib.util
import json
import os
import struct
import subprocess
import sys
import tempfile
import types

import torch
import triton
import triton.language as tl
from peers_timing import DEVICE, Cuda, reason, serve

# block_m, block_n, warps, stages of dQ, stages of dK/dV: the port's own two settings, then the two fastest of those tried on an H200.
TILES = ((32, 32, 4, 3, 3), (64, 64, 8, 2, 3), (64, 64, 4, 2, 2), (128, 64, 8, 2, 2))


@triton.jit
def fake_quantize(src, valid, rows: tl.constexpr, cols: tl.constexpr, dtype: tl.constexpr):
    """NVFP4 fake quantisation without the conversion instruction: E2M1 by one addition that rounds, E4M3 by the native conversion."""
    x = tl.where(valid, src.to(tl.float32), 0.0).reshape([rows, cols // 16, 16])
    a = tl.abs(x)
    amax = tl.max(a, axis=2, keep_dims=True)
    scale = tl.maximum(tl.div_rn(amax, 6.0), 0.001953125).to(tl.float8e4nv).to(tl.float32)
    q = tl.minimum(tl.div_rn(a, scale + tl.zeros_like(a)), 6.0)
    binade = (tl.maximum(q, 1.0).to(tl.uint32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    magic = binade * 4194304.0
    y = (q + magic) - magic
    y = tl.where(x < 0, -y, y) * scale
    return y.reshape([rows, cols]).to(dtype)


def peer():
    """The port's modules with the conversion replaced; the package around them needs a compiled library and is left out."""
    folder = os.environ.get("FROSTGRAPH_QAT_PEER")
    if folder is None:
        spec = importlib.util.find_spec("cudnn")
        folder = os.path.join(os.path.dirname(spec.origin), "sdpa", "bwd", "qat")
    package = types.ModuleType("qat_peer")
    package.__path__ = [folder]
    sys.modules["qat_peer"] = package
    quantiser = importlib.import_module("qat_peer._nvfp4")
    quantiser.fake_quantize_nvfp4 = fake_quantize
    kernels = importlib.import_module("qat_peer._kernels")
    kernels.fake_quantize_nvfp4 = fake_quantize
    return quantiser, importlib.import_module("qat_peer._interface"), importlib.import_module("qat_peer._workspace")


def backward(modules, q, k, v, o, d_o, lse, causal, tiles):
    """A closure that runs the port's whole chain, and its gradients."""
    _, interface, layout = modules
    _, size = layout.nvfp4_workspace_layout(tuple(q.shape), tuple(k.shape), tuple(v.shape), tuple(lse.shape))
    workspace = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    grads = [torch.empty_like(x) for x in (q, k, v)]
    block_m, block_n, warps, dq_stages, dkdv_stages = tiles

    def run():
        interface.run_nvfp4_attention_qat_backward(
            q, k, v, o, d_o, lse, *grads, workspace, softmax_scale=q.shape[-1] ** -0.5, is_causal=causal, block_m=block_m,
            block_n=block_n, num_warps=warps, dq_num_stages=dq_stages, dkdv_num_stages=dkdv_stages)

    return run, grads


def prepare(gpu, modules, case, errors, notes):
    shape = (case["b"], case["h"], case["s"], case["d"])
    q, k, v, o, d_o = (torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(5))
    kept = torch.arange(1, shape[2] + 1, device=DEVICE) if case["causal"] else torch.full((shape[2],), shape[2], device=DEVICE)
    lse = (kept.float().log() + 0.5).expand(shape[:3]).contiguous()
    trials, best = {}, None
    for tiles in TILES:
        try:
            run, _ = backward(modules, q, k, v, o, d_o, lse, case["causal"], tiles)
            run()
            ms, _ = gpu.turn(run, 20.0, 20.0)
        except Exception as error:  # tiles that do not fit are a result
            errors["triton"] = reason(error)
            continue
        trials[str(list(tiles))] = ms
        if best is None or ms < best[0]:
            best = (ms, tiles, run)
    if best is None:
        return {}
    errors.pop("triton", None)
    notes["triton"] = {"tiles": best[1], "trial_ms": trials}
    return {"triton": best[2]}


def emit(**fields):
    print(json.dumps(fields), flush=True)


# ------------------------------------------------------------------------------------------------ numbers beside ours

KINDS = {torch.bfloat16: "BF16", torch.float32: "F32"}


def save(path, tensors):
    header, blobs, at = {}, [], 0
    for name, t in tensors.items():
        blob = t.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": KINDS[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def load(path):
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    types_ = {name: dtype for dtype, name in KINDS.items()}
    out = {}
    for name, t in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            raw = torch.frombuffer(bytearray(data[8 + size + begin : 8 + size + end]), dtype=types_[t["dtype"]])
            out[name] = raw.reshape(t["shape"]).to(DEVICE)
    return out


def resized(path, shape, folder, causal):
    """The example graph with other extents."""
    with open(path) as f:
        graph = json.load(f)
    b, h, s, d = shape
    for t in graph["tensors"]:
        last = t["dim"][3]
        dim = [b, h, s, d if last > 1 else 1]
        t["dim"], t["stride"] = dim, [dim[1] * dim[2] * dim[3], dim[2] * dim[3], dim[3], 1]
    graph["nodes"][0]["attn_scale_value"] = struct.pack(">f", d**-0.5).hex().upper()
    graph["nodes"][0]["right_bound"] = 0 if causal else None
    out = os.path.join(folder, os.path.basename(path))
    with open(out, "w") as f:
        json.dump(graph, f)
    return out


def difference(name, ours, theirs, **which):
    a, b = ours.double(), theirs.double()
    off = (a - b).abs()
    emit(compare=name, max_abs=off.max().item(), rel_frobenius=(off.norm() / b.norm()).item(),
         max_rel=(off.max() / b.abs().max()).item(), equal_share=(ours == theirs).double().mean().item(), **which)


def auxiliaries(modules, q, k, v, causal):
    """O and LSE from the port's own quantiser and plain PyTorch, a few heads at a time: nothing of ours made them."""
    b, h, s, d = q.shape
    fake = [torch.empty_like(x) for x in (q, k, v)]
    for x, y in zip((q, k, v), fake):
        modules[0].fake_quantize_q[(triton.cdiv(s, 32), b * h)](
            x, y, *x.stride(), *y.stride(), h, s, block_m=32, head_dim=d, num_warps=4, num_stages=2)
    o, lse = torch.empty_like(q), torch.empty((b, h, s), device=DEVICE)
    hidden = torch.ones((s, s), dtype=torch.bool, device=DEVICE).triu(1) if causal else None
    for head in range(h):
        scores = fake[0][:, head].float() @ fake[1][:, head].float().transpose(1, 2) * d**-0.5
        if causal:
            scores.masked_fill_(hidden, float("-inf"))
        lse[:, head] = torch.logsumexp(scores, -1)
        o[:, head] = (torch.exp(scores - lse[:, head, :, None]) @ fake[2][:, head].float()).to(torch.bfloat16)
    return o, lse


def compare(modules, program, forward_json, backward_json, engines, shape=(1, 16, 4096, 128)):
    for causal in (False, True):
        compare_one(modules, program, forward_json, backward_json, engines or [None], shape, causal)


def compare_one(modules, program, forward_json, backward_json, engines, shape, causal):
    torch.manual_seed(7)
    q, k, v, d_o = (torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(4))
    b, h, s, _ = shape
    o, lse = auxiliaries(modules, q, k, v, causal)
    run, (dq, dk, dv) = backward(modules, q, k, v, o, d_o, lse, causal, TILES[0])
    run()
    torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        at = lambda name: os.path.join(folder, name)
        save(at("in"), {"Q": q, "K": k, "V": v, "high_precision_o": o, "dO": d_o, "lse": lse.reshape(b, h, s, 1)})
        runs = [(backward_json, engine, {"dQ": dq, "dK": dk, "dV": dv}) for engine in engines]
        runs.append((forward_json, None, {"High_precision_O": o, "Stats": lse}))
        for path, engine, theirs in runs:
            which = {"mask": "causal" if causal else "full", "engine": engine or "best"}
            graph = resized(path, shape, folder, causal)
            command = [program, "run", graph, "--device", "cuda:0", "--inputs", at("in"), "--outputs", at("out")]
            done = subprocess.run(command + (["--engine", engine] if engine else []), capture_output=True, text=True)
            if done.returncode != 0:
                why = (done.stderr or done.stdout).strip().splitlines()[-1][:300]
                emit(compare=os.path.basename(path), error=why, **which)
                continue
            ours = {name.split("::")[-1]: t for name, t in load(at("out")).items()}
            for name, t in theirs.items():
                difference(name, ours[name].reshape(t.shape), t, **which)


if __name__ == "__main__":
    loaded = peer()
    if sys.argv[1:2] == ["compare"]:
        emit(versions=f"nvidia-cudnn-frontend's Triton port, torch {torch.__version__}, triton {triton.__version__}")
        compare(loaded, *sys.argv[2:5], sys.argv[5:])
    else:
        device = Cuda()
        serve(["triton"], lambda case, errors, notes: prepare(device, loaded, case, errors, notes), device,
              f"nvidia-cudnn-frontend's Triton port, torch {torch.__version__}, triton {triton.__version__}")
