"""What the scripts that hold peers share: a line protocol on stdin and stdout, and turns timed by CUDA events.

`gpu_bench` starts a script, asks by lines of JSON and gets one line of JSON for each:

    (at its start)                             {"ready": [its peers], "versions": text}; with nothing to offer {"ready": []}
    {"ceiling": true}                          {"ceiling": what, "tflops": number}
    {"prepare": case}                          {"peers": [those that can run it], "errors": {peer: why}, "notes": {peer: {..}}}
    {"turn": peer, "warm_ms", "measure_ms"}    {"ms": median of the launches, "launches": how many} or {"error": why}
    {"free": true}                             {"free": true}

The script holds what a case needs from "prepare" to "free", and ends when its stdin does. Whatever else writes to stdout goes to stderr. One
answer may take FROSTGRAPH_PEER_SECONDS (60): `gpu_bench` ends a script that is late, and the script itself does ten seconds later.
"""
import ctypes
import gc
import json
import os
import signal
import statistics
import sys
import time

DEVICE = "cuda"
# The L2 cache is overwritten so many times before a run: a slow caller has queued its launches by then (about 0.3 ms). `gpu_bench` does the same.
FLUSHES, FLUSH_BYTES = 4, 256 << 20
LEAST, MOST = 2, 100
# Launches are waited for in batches so long or up to twice as long, as `gpu_bench`'s are: a warm-up ends at most one batch late.
BATCH_MS = 8.0


class Cuda:
    """Turns on the GPU, as `Gpu::turn` of `gpu_bench` takes them."""

    def __init__(self):
        import torch

        self.torch = torch
        self.driver = None
        self.flush = None

    def overwrite_cache(self, byte):
        """Puts other bytes into the L2 cache, by the driver call that `gpu_bench` makes: under a power limit, how long and how hard a device
        works between two launches decides at which clock they run."""
        if self.flush is None:
            self.driver = ctypes.CDLL("libcuda.so.1")
            self.flush = self.torch.empty(FLUSH_BYTES, dtype=self.torch.uint8, device=DEVICE)
        at, stream = self.flush.data_ptr(), self.torch.cuda.current_stream().cuda_stream
        for _ in range(FLUSHES):
            failed = self.driver.cuMemsetD8Async(
                ctypes.c_uint64(at), ctypes.c_ubyte(byte % 256), ctypes.c_size_t(FLUSH_BYTES), ctypes.c_void_p(stream)
            )
            if failed:
                raise RuntimeError(f"cuMemsetD8Async: CUDA error {failed}")

    def launch(self, work, times):
        """Milliseconds of each of so many runs, all queued before the first is waited for; what the host spends on a call is not in them."""
        events = self.torch.cuda.Event
        marks = [(events(enable_timing=True), events(enable_timing=True)) for _ in range(times)]
        for n, (start, stop) in enumerate(marks):
            self.overwrite_cache(n)
            start.record()
            work()
            stop.record()
        self.torch.cuda.synchronize()
        return [start.elapsed_time(stop) for start, stop in marks]

    def turn(self, work, warm_ms, measure_ms):
        """The same work for `warm_ms` unmeasured, then the median of the launches that fill `measure_ms`, and their number."""
        began, batch = time.monotonic(), 1
        while True:
            at = time.monotonic()
            self.launch(work, batch)
            now = time.monotonic()
            took = (now - at) * 1e3
            if (now - began) * 1e3 >= warm_ms:
                break
            if took < min(warm_ms / 8, BATCH_MS):
                batch *= 2
        launches = min(MOST, max(LEAST, round(measure_ms * batch / took)))
        return statistics.median(self.launch(work, launches)), launches

    def prepared(self, makers, errors):
        """The works, by name, of those makers whose first runs succeed; why the others' did not goes into `errors`."""
        works = {}
        for name, make in makers:
            try:
                work = make()
                for _ in range(2):
                    work()
                self.torch.cuda.synchronize()
                works[name] = work
            except Exception as error:  # a peer that does not serve a case is a result
                errors[name] = reason(error)
        return works

    def release(self):
        gc.collect()
        self.torch.cuda.empty_cache()

    def broken(self):
        """Whether an earlier run has left the device unusable for this process."""
        try:
            self.torch.cuda.synchronize()
            return False
        except Exception:
            return True

    def ceiling(self):
        size = 8192
        a, b = (self.torch.randn(size, size, device=DEVICE, dtype=self.torch.bfloat16) for _ in range(2))
        return "bf16 matmul 8192", 2 * size**3 / self.turn(lambda: a @ b, 200.0, 100.0)[0] / 1e9


def reason(error):
    """The first line of an exception, short enough for a result file."""
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def serve(names, prepare, device, versions):
    """Speaks the protocol for these peers until stdin ends.

    `prepare(case, errors, notes)` returns the works by name and tells why others cannot run. `device` takes the turns: a `Cuda`, or anything
    with `turn`, `release`, `broken` and `ceiling`.
    """
    seconds = int(float(os.environ.get("FROSTGRAPH_PEER_SECONDS", "60"))) + 10
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(**fields):
        print(json.dumps(fields), file=answers, flush=True)

    def failed(error):
        if device.broken():
            answer(error=reason(error))
            os._exit(1)
        return reason(error)

    works = {}
    answer(ready=names, versions=versions)
    for line in sys.stdin:
        asked = json.loads(line)
        signal.alarm(seconds)
        if "prepare" in asked:
            errors, notes = {}, {}
            try:
                works = prepare(asked["prepare"], errors, notes)
            except Exception as error:
                works, why = {}, failed(error)
                errors = {name: why for name in names}
            answer(peers=list(works), errors=errors, notes=notes)
            if errors and device.broken():
                os._exit(1)
        elif "turn" in asked:
            try:
                ms, launches = device.turn(works[asked["turn"]], asked["warm_ms"], asked["measure_ms"])
                answer(ms=ms, launches=launches)
            except Exception as error:
                answer(error=failed(error))
        elif "free" in asked:
            works = {}
            device.release()
            answer(free=True)
        elif "ceiling" in asked:
            what, tflops = device.ceiling()
            answer(ceiling=what, tflops=tflops)
        signal.alarm(0)
