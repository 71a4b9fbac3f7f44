"""Holds the peers' attention on one GPU: FlashAttention-2 and cuDNN as PyTorch's backends, its memory-efficient backend, cuDNN through its
own frontend, FlashAttention-4.

`peers_sdpa.py fwd|bwd GROUP` speaks the protocol of `peers_timing.py` about cases {"name", "b", "h_q", "h_kv", "s", "s_kv" (absent: s), "d_qk",
"d_v", "causal", "window"}. A window is run only by peers that have one. With fewer queries than keys "causal" is from the bottom right.

Groups: `backends` are PyTorch's (`fa2`, `cudnn`, `efficient`); `cudnn_graph` is cuDNN through nvidia-cudnn-frontend and `fa4` is flash-attn-4,
each where it can be imported and for as many queries as keys; `cudnn_graph_deterministic` and `fa4_deterministic` are their deterministic
backwards. A group is a process of its own, so that one that dies or hangs takes no other with it.
"""
import importlib.metadata
import importlib.util
import sys

import torch
import torch.nn.functional as F
from peers_timing import DEVICE, Cuda, serve
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

BACKWARD = {"fa2": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
FORWARD = {**BACKWARD, "efficient": "EFFICIENT_ATTENTION"}


def operand(case, heads, length, dim, grad=False):
    """Memory order B, S, H, D."""
    return torch.randn((case["b"], length, heads, dim), device=DEVICE, dtype=torch.bfloat16).requires_grad_(grad)


def operands(case, grad):
    length = case.get("s_kv") or case["s"]
    q = operand(case, case["h_q"], case["s"], case["d_qk"], grad)
    k = operand(case, case["h_kv"], length, case["d_qk"], grad)
    v = operand(case, case["h_kv"], length, case["d_v"], grad)
    return q, k, v, operand(case, case["h_q"], case["s"], case["d_v"])


# ------------------------------------------------------------------------------------------------ PyTorch's backends


def call(case, q, k, v):
    grouped = case["h_q"] != case["h_kv"]
    if case["causal"] and q.shape[2] != k.shape[2]:
        mask = causal_lower_right(q.shape[2], k.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
    return F.scaled_dot_product_attention(q, k, v, is_causal=case["causal"], enable_gqa=grouped)


def backends(case, direction):
    backward = direction == "bwd"
    q, k, v, d_o = (x.transpose(1, 2) for x in operands(case, backward))

    def maker(backend):
        def make():
            if case.get("window") is not None:
                raise RuntimeError("no sliding window through this interface")
            if backward:
                with sdpa_kernel(getattr(SDPBackend, backend)):
                    o = call(case, q, k, v)
                return lambda: torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True)

            def forward():
                with torch.no_grad(), sdpa_kernel(getattr(SDPBackend, backend)):
                    return call(case, q, k, v)

            return forward

        return make

    return [(name, maker(backend)) for name, backend in (BACKWARD if backward else FORWARD).items()]


# ------------------------------------------------------------------------------------------------ cuDNN's own graphs


class Cudnn:
    """Graphs of one case, built by nvidia-cudnn-frontend with the plan that its heuristics put first."""

    def __init__(self, case):
        import cudnn

        self.cudnn, self.case = cudnn, case
        self.handle = cudnn.create_handle()
        cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)
        self.q, self.k, self.v, self.d_o = (x.transpose(1, 2) for x in operands(case, False))
        self.o = torch.randn_like(self.d_o)
        # Statistics as random scores would have them.
        kept = torch.arange(1, case["s"] + 1, device=DEVICE) if case["causal"] else torch.full((case["s"],), case["s"], device=DEVICE)
        kept = kept.clamp(max=case.get("window") or case["s"])
        self.stats = (kept.float().log() + 0.5).expand(case["b"], case["h_q"], -1).unsqueeze(-1).contiguous()
        self.options = {"attn_scale": case["d_qk"] ** -0.5, "use_causal_mask": case["causal"]}
        if case.get("window") is not None:
            self.options["sliding_window_length"] = case["window"]

    def graph(self):
        types = self.cudnn.data_type
        return self.cudnn.pygraph(
            io_data_type=types.BFLOAT16, intermediate_data_type=types.FLOAT, compute_data_type=types.FLOAT, handle=self.handle)

    def runnable(self, graph, pack):
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([self.cudnn.heur_mode.A, self.cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        workspace = torch.empty(max(1, graph.get_workspace_size()), device=DEVICE, dtype=torch.uint8)
        return lambda: graph.execute(pack, workspace, handle=self.handle)

    @staticmethod
    def output(port, like):
        port.set_output(True).set_dim(list(like.shape)).set_stride(list(like.stride()))
        return port

    def forward(self):
        graph = self.graph()
        q, k, v = (graph.tensor_like(x) for x in (self.q, self.k, self.v))
        o, stats = graph.sdpa(name="forward", q=q, k=k, v=v, generate_stats=True, **self.options)
        self.output(o, self.o)
        self.output(stats, self.stats).set_data_type(self.cudnn.data_type.FLOAT)
        return self.runnable(graph, {q: self.q, k: self.k, v: self.v, o: self.o, stats: self.stats})

    def backward(self, deterministic):
        graph = self.graph()
        given = (self.q, self.k, self.v, self.o, self.d_o, self.stats)
        q, k, v, o, d_o, stats = ports = tuple(graph.tensor_like(x) for x in given)
        grads = graph.sdpa_backward(
            name="backward", q=q, k=k, v=v, o=o, dO=d_o, stats=stats, use_deterministic_algorithm=deterministic, **self.options)
        tensors = tuple(torch.empty_like(x) for x in (self.q, self.k, self.v))
        pack = dict(zip(ports, given))
        for port, like in zip(grads, tensors):
            pack[self.output(port, like)] = like
        return self.runnable(graph, pack)


def cudnn_graph(case, direction):
    graphs = Cudnn(case)
    if direction == "fwd":
        return [("cudnn_graph", graphs.forward)]
    return [("cudnn_graph", lambda: graphs.backward(False)), ("cudnn_graph_deterministic", lambda: graphs.backward(True))]


# ------------------------------------------------------------------------------------------------ FlashAttention-4


def fa4(case, direction):
    from flash_attn.cute import flash_attn_func

    # Tensors that want gradients in both directions: with them the forward writes its statistics.
    q, k, v, d_o = operands(case, True)
    d_o = d_o.detach()
    window = (None, None) if case.get("window") is None else (case["window"] - 1, 0)

    def run(deterministic=False):
        o = flash_attn_func(q, k, v, causal=case["causal"], window_size=window, deterministic=deterministic)
        return o[0] if isinstance(o, tuple) else o

    if direction == "fwd":

        def forward():
            with torch.no_grad():
                return run()

        return [("fa4", lambda: forward)]

    def backward(deterministic):
        o = run(deterministic)
        return lambda: torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True)

    return [("fa4", lambda: backward(False)), ("fa4_deterministic", lambda: backward(True))]


# ------------------------------------------------------------------------------------------------ all of them


def there(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


GROUPS = {"backends": backends, "cudnn_graph": cudnn_graph, "fa4": fa4}


def offered(group, direction):
    """The group's peers on this machine, and their versions."""
    if group == "backends":
        return list(BACKWARD if direction == "bwd" else FORWARD), f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    module, package, title = {
        "cudnn_graph": ("cudnn", "nvidia-cudnn-frontend", "cudnn-frontend"),
        "fa4": ("flash_attn.cute", "flash-attn-4", "FlashAttention-4"),
    }[group]
    if not there(module):
        return [], None
    return [group] if direction == "fwd" else [group, f"{group}_deterministic"], f"{title} {version(package)}"


def main(direction, group):
    device = Cuda()

    def prepare(case, errors, _):
        if group != "backends" and case.get("s_kv") not in (None, case["s"]):
            return {}
        return device.prepared(GROUPS[group](case, direction), errors)

    names, versions = offered(group, direction)
    serve(names, prepare, device, versions)


if __name__ == "__main__":
    main(*sys.argv[1:])
