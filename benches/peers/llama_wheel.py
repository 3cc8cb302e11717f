#!/usr/bin/env python3
"""llama.cpp's server out of the PyPI wheel xllamacpp, for the flags that `servers.py` uses: a minute instead of twenty.

The wheel's kernels are AVX2, which its makers could assume of every machine. So this is the peer on equal vector
instructions where ours are AVX2 too, and not the best that llama.cpp does where AVX-512 is there: that is the build
that `setup.sh` makes.
The server's threads are C++; Python only starts them and waits. Run it with a Python that has xllamacpp.
"""

import os
import signal
import sys
import time

import xllamacpp


def value(flag):
    """What follows a flag on the command line."""
    return sys.argv[sys.argv.index(flag) + 1]


def main():
    """Serve until SIGTERM."""
    if "--version" in sys.argv:
        print(f"xllamacpp {xllamacpp.__version__}\n{xllamacpp.get_system_info()}")
        return
    params = xllamacpp.CommonParams()
    params.model.path = value("-m")
    params.hostnames, params.port = [value("--host")], int(value("--port"))
    params.n_ctx, params.n_parallel = int(value("-c")), int(value("-np"))
    params.cpuparams.n_threads = int(value("-t"))
    params.cpuparams_batch.n_threads = int(value("-tb"))
    params.cache_ram_mib = int(value("--cache-ram"))
    params.fit_params = False
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    print(xllamacpp.get_system_info(), flush=True)
    server = xllamacpp.Server(params)
    while server:
        time.sleep(3600)


if __name__ == "__main__":
    main()
