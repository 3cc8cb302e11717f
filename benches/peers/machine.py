"""Processor time of processes and of the whole machine, and what else ran meanwhile."""

import os
import time

TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid):
    """User and system seconds of a process, all its threads, those that have ended included.

    The process clock has nanoseconds; /proc/PID/stat, in hundredths of a second, stands in where it is refused.
    """
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICK


def busy_seconds():
    """Seconds in which the processors did anything, stolen time included, summed over all of them."""
    with open("/proc/stat", encoding="utf-8") as f:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, f.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICK


class Meter:
    """Wall time, own processor time by process, and the share of the machine that others took, from `start` to `stop`.

    `pids` maps a label to a process; the measuring process itself is always there, as `client`.
    """

    def __init__(self, pids, idle=()):
        self.pids = {"client": os.getpid(), **pids}
        self.idle = list(idle)
        self.start()

    def _read(self):
        own = {label: cpu_seconds(pid) for label, pid in self.pids.items()}
        beside = sum(cpu_seconds(pid) for pid in self.idle)
        return time.perf_counter(), busy_seconds(), own, beside

    def start(self):
        """Begin anew."""
        self.begin = self._read()

    def stop(self):
        """What has gone by: `wall_s`, `cpu_s` by label, and `foreign`, a share of the whole machine from 0 to 1."""
        (t0, busy0, own0, beside0), (t1, busy1, own1, beside1) = self.begin, self._read()
        cpu = {label: own1[label] - own0[label] for label in own0}
        others = busy1 - busy0 - sum(cpu.values()) - (beside1 - beside0)
        wall = max(t1 - t0, 1e-9)
        return {"wall_s": wall, "cpu_s": cpu, "foreign": max(others, 0.0) / (wall * os.cpu_count())}


def describe():
    """The machine, for the report."""
    model, flags = "unknown", []
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            elif key.strip() == "flags":
                flags = value.split()
    wanted = ["avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16"]
    return {"cpu": model, "cores": os.cpu_count(), "isa": [f for f in wanted if f in flags], "load": os.getloadavg()}
