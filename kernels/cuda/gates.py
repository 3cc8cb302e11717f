#!/usr/bin/env python3
"""Gates over the compiled kernels, without a GPU: reads the fat binaries that a build with `--features cuda` left.

    gates.py FATBINS TOOLS     FATBINS: a folder of *.fatbin; TOOLS: the folder with cuobjdump and nvdisasm

Checked against budget.txt beside this file, for sm_80 and for sm_90: every kernel is there and no other; bytes of
its parameter (the host's table is compared with the same file by tests/cuda/table.rs); registers; static shared
memory; no stack, no spills; tensor-core instructions where the budget says so; instructions per KB of weights (or of
keys and values) in the loop that holds them, summed over the warps of a block for attention.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ARCHES = ("sm_80", "sm_90")
# What the system keeps of a block's shared memory on sm_90, counted by cuobjdump.
RESERVED = 1024


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read_budget(path):
    """Kernel -> (parameter bytes, {arch: registers}, shared bytes, instructions per KB or None)."""
    budget = {}
    for line in path.read_text().splitlines():
        words = line.split("#")[0].split()
        if words:
            name, params, old, new, shared, per_kb = words
            limit = None if per_kb == "-" else float(per_kb)
            budget[name] = (int(params), {"sm_80": int(old), "sm_90": int(new)}, int(shared), limit)
    return budget


def resources(tools, cubin):
    """Kernel -> {REG, STACK, SHARED, LOCAL}."""
    found, name = {}, None
    for line in run(tools / "cuobjdump", "-res-usage", cubin).splitlines():
        if m := re.match(r"\s*Function (\w+):", line):
            name = m.group(1)
        elif name and "REG:" in line:
            found[name] = {key: int(value) for key, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", line)}
            name = None
    return found


def parameters(tools, cubin):
    """Kernel -> sizes of its parameters."""
    found, name = {}, None
    for line in run(tools / "cuobjdump", "-elf", cubin).splitlines():
        if m := re.match(r"\.nv\.info\.(\w+)$", line.strip()):
            name = m.group(1)
        elif name and (m := re.search(r"Ordinal : 0x\w+\s+Offset\s+: 0x\w+\s+Size\s+: 0x(\w+)", line)):
            found.setdefault(name, []).append(int(m.group(1), 16))
    return found


def listings(tools, cubin):
    """Kernel -> (instructions, {label: index of the instruction behind it})."""
    found, name = {}, None
    for line in run(tools / "nvdisasm", "-c", cubin).splitlines():
        if m := re.match(r"\.text\.(\w+):", line):
            name = m.group(1)
            found[name] = ([], {})
        elif line.lstrip().startswith(".section"):
            name = None
        elif name:
            code, labels = found[name]
            if m := re.match(r"\s*(\.L_x_\d+):", line):
                labels[m.group(1)] = len(code)
            elif m := re.search(r"/\*[0-9a-f]{4,6}\*/\s+(.*?);", line):
                code.append(m.group(1))
    return found


def tensor_loop(code, labels):
    """(instructions, HMMA) of the smallest loop that multiplies on tensor cores."""
    best = None
    for end, instruction in enumerate(code):
        m = re.search(r"\bBRA\b.*?`\((\.L_x_\d+)\)", instruction)
        start = labels.get(m.group(1), len(code)) if m else len(code)
        if start <= end:
            body = code[start : end + 1]
            hmma = sum("HMMA" in i for i in body)
            if hmma and (best is None or len(body) < best[0]):
                best = (len(body), hmma)
    return best


def instructions_per_kb(name, loop):
    """One HMMA takes 512 bytes of weights, each for NT tiles of tokens; an attention block of four warps, or eight,
    goes once around per unit of 64 keys and values."""
    count, hmma = loop
    if m := re.match(r"linear_(?:nt(\d+)|tiled)$", name):
        return count / (hmma / int(m.group(1) or 4) / 2)
    head_dim = int(re.search(r"hd(\d+)$", name).group(1))
    warps = 8 if "many" in name else 4
    return warps * count / (64 * 2 * head_dim * 2 / 1024)


def check(name, arch, budget, used, params, code, labels):
    """One row for the table and the complaints."""
    size, registers, shared, limit = budget
    wrong = []
    if params != [size]:
        wrong.append(f"parameters of {params} bytes, the host gives [{size}]")
    if used["REG"] > registers[arch]:
        wrong.append(f"{used['REG']} registers, budget {registers[arch]}")
    static = used["SHARED"] - (RESERVED if arch == "sm_90" and used["SHARED"] else 0)
    if static > shared:
        wrong.append(f"{static} bytes of static shared memory, budget {shared}")
    spills = sum(bool(re.search(r"\b(LDL|STL)\b", i)) for i in code)
    if used["STACK"] or used["LOCAL"] or spills:
        wrong.append(f"stack {used['STACK']}, local {used['LOCAL']}, {spills} loads and stores of local memory")
    hmma, per_kb = sum("HMMA" in i for i in code), "-"
    if limit is not None:
        loop = tensor_loop(code, labels)
        if loop is None:
            wrong.append("no loop with tensor-core instructions")
        else:
            found = instructions_per_kb(name, loop)
            per_kb = f"{found:.1f}"
            if found > limit:
                wrong.append(f"{found:.1f} instructions per KB, budget {limit}")
    elif hmma:
        wrong.append(f"{hmma} tensor-core instructions, and no budget per KB")
    row = f"{name:22} {arch} {used['REG']:4} registers {static:6} shared {hmma:4} HMMA {per_kb:>6} per KB"
    return row, [f"{name} ({arch}): {w}" for w in wrong]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    fatbins, tools = sorted(Path(sys.argv[1]).glob("*.fatbin")), Path(sys.argv[2]).resolve()
    budget = read_budget(Path(__file__).with_name("budget.txt"))
    wrong, seen = [], {arch: set() for arch in ARCHES}
    for fatbin in fatbins:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([tools / "cuobjdump", "-xelf", "all", fatbin.resolve()], check=True, cwd=folder,
                           capture_output=True)
            for cubin in sorted(Path(folder).glob("*.cubin")):
                arch = cubin.name.split(".")[-2]
                used, params, code = resources(tools, cubin), parameters(tools, cubin), listings(tools, cubin)
                for name in sorted(used):
                    seen[arch].add(name)
                    if name not in budget:
                        wrong.append(f"{name} ({arch}) has no budget")
                        continue
                    row, bad = check(name, arch, budget[name], used[name], params.get(name), *code[name])
                    print(row)
                    wrong += bad
    for arch in ARCHES:
        wrong += [f"{name} is missing for {arch}" for name in sorted(set(budget) - seen[arch])]
    for line in wrong:
        print("GATE:", line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
