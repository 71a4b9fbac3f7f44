"""Peers without a GPU, for the test of the protocol: `fake_peers.py FOLDER_OF_PEERS_TIMING LOG PEER,..`.

What a peer does is in its name: `a3` takes 3 ms, `erring` fails in its second turn, `hanging` never answers a turn, `dying` ends the process in
a turn, `breaking` fails and leaves the device unusable, `chatty` writes to stdout, `unable` cannot be prepared. A case may say {"die": true} or
{"hang": true} for the preparation itself. Every question is written to LOG.
"""
import os
import sys
import time

folder, log, names = sys.argv[1], sys.argv[2], [n for n in sys.argv[3].split(",") if n]
sys.path.insert(0, folder)
import peers_timing  # noqa: E402


class Fake:
    def __init__(self):
        self.taken = {}
        self.unusable = False

    def note(self, *words):
        with open(log, "a") as f:
            print(*words, file=f)

    def turn(self, work, warm_ms, measure_ms):
        name = work()
        self.note("turn", name, warm_ms, measure_ms)
        self.taken[name] = turns = self.taken.get(name, 0) + 1
        if name == "erring" and turns == 2:
            raise RuntimeError("the second turn\nand its details")
        if name == "hanging":
            time.sleep(600)
        if name == "dying":
            os._exit(3)
        if name == "breaking":
            self.unusable = True
            raise RuntimeError("an illegal address")
        if name == "chatty":
            print('{"ms": 123.0}')
            os.system('echo \'{"ms": 456.0}\'')
        digits = "".join(c for c in name if c.isdigit())
        # The third turn is slower: a median does not see it, the spread does.
        return float(digits or 7) * (2 if turns == 3 else 1), 5

    def release(self):
        self.note("free")

    def broken(self):
        return self.unusable

    def ceiling(self):
        return "nothing", 1.5


def prepare(case, errors, notes):
    device.note("prepare", case["name"])
    if case.get("die"):
        os._exit(4)
    if case.get("hang"):
        time.sleep(600)
    if case.get("refuse"):
        raise ValueError("no such case")
    works = {}
    for name in names:
        if name == "unable":
            errors[name] = "not this one"
        else:
            works[name] = lambda name=name: name
            notes[name] = {"tiles": [64, 32]}
    return works


device = Fake()
peers_timing.serve(names, prepare, device, "fake " + "+".join(names))
