"""Start and stop the servers of a comparison: llama.cpp's `llama-server`, and ours."""

import ctypes
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

START_S = 240
KV_DTYPE = "f16"


def _die_with_parent():
    # PR_SET_PDEATHSIG: no server stays behind when the script is killed.
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class Server:
    """A running server process on a local port."""

    def __init__(self, command, port, path, env=None):
        self.port = port
        self.log = os.path.join(tempfile.gettempdir(), f"peers-{port}.log")
        began = time.perf_counter()
        with open(self.log, "wb") as log:
            env = {**os.environ, **(env or {})}
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, preexec_fn=_die_with_parent, env=env
            )
        self.pid = self.process.pid
        while not self._answers(path):
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended at its start, see {self.log}: {' '.join(command)}")
            if time.perf_counter() - began > START_S:
                self.stop()
                raise SystemExit(f"the server did not start in {START_S} s, see {self.log}")
            time.sleep(0.02)
        self.start_s = time.perf_counter() - began

    def _answers(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=1) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def stop(self):
        """End the process and wait for it."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def llama(binary, gguf, port, slots, tokens_per_slot, threads=1):
    """llama-server with fixed slots, f16 KV cache, and nothing on that only costs time here.

    The passive wait policy keeps OpenMP's threads from spinning against each other on shared cores (with one thread it
    changes nothing). The host-memory prompt cache is off: with fixed slots it could only copy.
    """
    command = [binary, "-m", gguf, "--host", "127.0.0.1", "--port", str(port)]
    command += ["-t", str(threads), "-tb", str(threads), "-np", str(slots), "-c", str(slots * tokens_per_slot)]
    command += ["-ctk", KV_DTYPE, "-ctv", KV_DTYPE, "--cache-ram", "0", "--no-webui"]
    return Server(command, port, "/health", {"OMP_WAIT_POLICY": "passive"})


def tokenrouter(binary, models, port, max_model_len, memory, fraction=None, settings=()):
    """Our server on `models`, a list of (name, folder). One model has one thread; with `fraction` there are two with the
    default number of threads, and the route `pair` lets the second one write that share of the tokens. `settings` are
    further ones, KEY=VALUE.

    The prefix cache is off, as llama-server's is: prompts are random, and some begin alike in two cells.
    """
    lines, threads = [], 1 if fraction is None else 0
    for name, folder in models:
        lines += ["[[model]]", f'name = "{name}"', f'path = "{folder}"', f"threads = {threads}"]
    if fraction is not None:
        lines += ["[router]", 'name = "fixed"', f"fraction = {fraction}"]
    lines += ["[budget]", f'memory = "{memory}"', f'kv_dtype = "{KV_DTYPE}"', f"max_model_len = {max_model_len}"]
    lines += ["prefix_cache = false", "[server]", f'http = "127.0.0.1:{port}"', 'served_model_name = "pair"']
    path = os.path.join(tempfile.gettempdir(), f"peers-{port}.toml")
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")
    command = [binary, "serve", "--config", path]
    for setting in settings:
        command += ["--set", setting]
    return Server(command, port, "/ready")
