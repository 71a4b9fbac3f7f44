"""What the scripts that measure peers share: lines of JSON, event timing, children with a time limit."""
import json
import statistics
import subprocess
import sys
import threading
import time

DEVICE = "cuda"
# Clock ticks that the device waits before the first event, so that a slow caller has queued its launches by then (about 0.6 ms).
HEAD_START = 1_200_000


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
        flush.zero_()
        torch.cuda._sleep(HEAD_START)
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


class Child:
    """This script again with other arguments. It may import what it needs at once, and waits for its cases before it uses the device."""

    def __init__(self, argv, peers):
        self.peers = peers
        self.process = subprocess.Popen([sys.executable, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, cases, seconds):
        """Passes the child's lines on. A child that dies or outlasts its time is a result: one error for each case and peer that it had
        not spoken of."""
        timer = threading.Timer(seconds, self.process.kill)
        timer.start()
        began = time.monotonic()
        spoken = set()
        try:
            self.process.stdin.write(json.dumps(cases))
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        for line in self.process.stdout:
            try:
                found = json.loads(line)
            except ValueError:
                continue
            spoken.add((found.get("case"), found.get("peer")))
            print(line, end="", flush=True)
        code = self.process.wait()
        late = not timer.is_alive()
        timer.cancel()
        print(f"{' '.join(self.process.args[2:])}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        if code != 0:
            why = f"stopped after {seconds:.0f} s" if late else f"ended with {code}"
            for case in cases:
                for peer in self.peers:
                    if (case["name"], peer) not in spoken:
                        emit(case=case["name"], peer=peer, error=why)
