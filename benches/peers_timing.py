"""What the scripts that measure peers share: lines of JSON, event timing, children with a time limit."""
import json
import os
import signal
import statistics
import sys
import threading
import time
import traceback

DEVICE = "cuda"
# The L2 cache is overwritten so many times before a run: a slow caller has queued its launches by then (about 0.3 ms). `gpu_bench` does the same.
FLUSHES = 4


def emit(**fields):
    print(json.dumps(fields), flush=True)


def median_ms(work, budget_ms=150.0, most=100):
    """Median over CUDA events, the L2 cache overwritten before each run; what the host spends on a call is not in it."""
    import torch

    flush = torch.empty(256 << 20, dtype=torch.uint8, device=DEVICE)
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    times, spent = [], 0.0
    while (spent < budget_ms or len(times) < 5) and len(times) < most:
        for _ in range(FLUSHES):
            flush.zero_()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
        spent += times[-1]
    return statistics.median(times)


def reason(error):
    """The first line of an exception, short enough for a result file."""
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def limit():
    """Ends this process after FROSTGRAPH_PEER_SECONDS, where that is set; what it has told by then counts."""
    signal.alarm(int(os.environ.get("FROSTGRAPH_PEER_SECONDS", "0")))


def forked(name, work, cases, peers):
    """Runs `work(cases)` in a child and passes its lines on.

    The child begins as a copy of this process, which has imported PyTorch and must not have touched the device. A child that dies or
    outlasts FROSTGRAPH_PEER_SECONDS (200) is a result: one error for each case and peer that it had not spoken of.
    """
    seconds = float(os.environ.get("FROSTGRAPH_PEER_SECONDS", "200"))
    sys.stdout.flush()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.dup2(writer, sys.stdout.fileno())
        code = 1
        try:
            work(cases)
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)
    os.close(writer)
    began = time.monotonic()
    timer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
    timer.start()
    spoken = set()
    with os.fdopen(reader) as lines:
        for line in lines:
            try:
                found = json.loads(line)
            except ValueError:
                continue
            spoken.add((found.get("case"), found.get("peer")))
            print(line, end="", flush=True)
    # The timer ends before the child is waited for: its number cannot be another process's by then.
    timer.cancel()
    timer.join()
    _, status = os.waitpid(pid, 0)
    took = time.monotonic() - began
    print(f"{name}: {took:.1f} s", file=sys.stderr, flush=True)
    if status != 0:
        why = f"stopped after {seconds:.0f} s" if took >= seconds else f"ended with status {status}"
        for case in cases:
            for peer in peers:
                if (case["name"], peer) not in spoken:
                    emit(case=case["name"], peer=peer, error=why)
