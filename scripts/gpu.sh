#!/usr/bin/env bash
# The checks that need a GPU, on a machine that has torch with CUDA, cmake and ninja, and no network.
#   scripts/gpu.sh build | tests [pytest's arguments] | sanitize [tool ...] | ulp [functions] | bench [arguments] |
#     models [warm | time] [arguments] | fuzz [graphs] | judge [arguments]
# Each can be started again: what is done already is not done twice (rm -r build/gpu-results starts over).
# Results go to build/gpu-results, and copies of them to $OUT if that is set. PYTHON picks the interpreter.
set -uo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
work=$PWD/build/gpu-results
mkdir -p "$work"
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
export FUSEWRIGHT_CACHE_DIR=${FUSEWRIGHT_CACHE_DIR:-$PWD/build/gpu-cache}
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$PWD/build/gpu-inductor}

# The libraries for this interpreter's torch, beside the package; parts for other versions are not touched.
build() {
  cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DFUSEWRIGHT_TESTS=OFF -DFUSEWRIGHT_EXAMPLES=OFF \
    -DPython_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')" >"$work/cmake.log" 2>&1 &&
    cmake --build build/gpu ${MAX_JOBS:+-j "$MAX_JOBS"} >"$work/build.log" 2>&1 || {
    tail -n 40 "$work/cmake.log" "$work/build.log"
    echo "gpu: the build failed"
    return 1
  }
  "$python" - <<'PY'
import torch, fusewright
core = fusewright._core
print(f"gpu: torch {torch.__version__}, {torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU'},",
      "fusewright sees it" if core.cuda_available() else core.cuda_unavailable_because())
PY
}

# One process a part, several at a time: a fault on the device ends a process, and compiling uses the cores.
tests() {
  local -A parts=([models]=test_models.py [table]=test_table.py [numbers]=test_numbers.py [tuning]=test_tuning.py
    [emit]=test_emit.py [bench]=test_bench.py [orders]=test_orders.py [products]=test_products.py [convolutions]=test_convolutions.py
    [cuda]="test_cuda.py -m not(big)" [big]="test_cuda.py -m big")
  local name status=0 pids=()
  mkdir -p "$work/tests"
  if [ $# -gt 0 ]; then
    "$python" -m pytest -q --tb=short tests/gpu "$@" 2>&1 | tee "$work/tests/chosen.log"
    return "${PIPESTATUS[0]}"
  fi
  for name in "${!parts[@]}"; do
    [ -e "$work/tests/$name.ok" ] && cat "$work/tests/$name.summary" && continue
    (
      # shellcheck disable=SC2086
      timeout 420 "$python" -m pytest -q --tb=short --durations=5 tests/gpu/${parts[$name]} >"$work/tests/$name.log" 2>&1
      code=$?
      [ $code = 124 ] && echo "ran out of time" >>"$work/tests/$name.log"
      [ $code = 0 ] && touch "$work/tests/$name.ok"
      # As soon as it is known: a machine may be taken back before the rest is.
      {
        grep -E '^(FAILED|ERROR)|Fatal|CUDA error' "$work/tests/$name.log" | head -n 40
        printf '%-10s %s\n' "$name" "$(tail -n 1 "$work/tests/$name.log")"
      } | tee "$work/tests/$name.summary"
      exit $code
    ) &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  return $status
}

# The caching allocator would hide an access beyond a tensor: it is off. initcheck must see every kernel that writes, the
# others only ours; what it finds in the library's kernels is counted, and not ours.
sanitize() {
  local tools=("$@") tool status=0 pids=()
  [ ${#tools[@]} = 0 ] && tools=(memcheck racecheck initcheck synccheck)
  command -v compute-sanitizer >/dev/null || { echo "gpu: no compute-sanitizer on this machine" && return 77; }
  mkdir -p "$work/sanitize"
  export PYTORCH_NO_CUDA_MEMORY_CACHING=1 FUSEWRIGHT_TUNE=0
  # Kernels are compiled before, without the sanitizer, so that only loading is left.
  "$python" -X faulthandler tests/gpu/sanitize.py >"$work/sanitize/plain.log" 2>&1 || { tail "$work/sanitize/plain.log" && return 1; }
  for tool in "${tools[@]}"; do
    [ -e "$work/sanitize/$tool.ok" ] && continue
    local options=(--kernel-regex kns=fw_ --print-limit 20) cases=()
    [ "$tool" = initcheck ] && options=(--print-limit 1000000)
    [ "$tool" = racecheck ] && cases=(--leave-out conv) # see there
    (
      timeout 420 compute-sanitizer --tool "$tool" "${options[@]}" --error-exitcode 99 \
        "$python" tests/gpu/sanitize.py --seconds 380 "${cases[@]}" >"$work/sanitize/$tool.log" 2>&1
      code=$?
      [ $code = 124 ] && echo "sanitize: out of time" >>"$work/sanitize/$tool.log"
      if [ "$tool" = initcheck ] && [ $code = 99 ] && grep -q 'sanitize: [0-9]* cases' "$work/sanitize/$tool.log"; then
        grep -qE '^=========     at .*\bfw_' "$work/sanitize/$tool.log" || code=0
        grep -E '^=========     at ' "$work/sanitize/$tool.log" | sed 's/[<(].*//' | sort | uniq -c |
          sed 's/^/========= reads of memory that nobody wrote: /' >>"$work/sanitize/$tool.log"
      fi
      [ $code = 0 ] && touch "$work/sanitize/$tool.ok"
      exit $code
    ) &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  for tool in "${tools[@]}"; do
    echo "== $tool $([ -e "$work/sanitize/$tool.ok" ] && echo ok || echo FAILED)"
    grep -E '=========|sanitize: (out|[0-9]+ cases)' "$work/sanitize/$tool.log" | tail -n 12
  done | tee "$work/sanitize/summary.txt"
  return $status
}

# Random graphs (2,000, unless told) in four processes, beside them random programs of PyTorch.
fuzz() {
  local graphs=${1:-2000} shards=4 i status=0 pids=() folders
  cmake build/gpu -DFUSEWRIGHT_FUZZ=ON >>"$work/cmake.log" 2>&1 && cmake --build build/gpu --target fuzz >>"$work/build.log" 2>&1 || {
    tail -n 40 "$work/build.log"
    return 1
  }
  folders=$("$python" -c 'from fusewright import devices; print(":".join(devices.library_directories()))')
  mkdir -p "$work/fuzz"
  for ((i = 0; i < shards; ++i)); do
    MAX_JOBS=$(((${MAX_JOBS:-$(nproc)} + shards - 1) / shards)) timeout 560 build/gpu/tests/fuzz/fuzz --gpu --graphs "$graphs" \
      --shard "$i/$shards" --seconds 520 --libraries "$folders" >"$work/fuzz/graphs-$i.log" 2>&1 &
    pids+=($!)
  done
  FUSEWRIGHT_TEST_DEVICE=cuda FUSEWRIGHT_TUNE=0 timeout 560 "$python" tests/python/programs.py --programs $((graphs / 10)) \
    --seconds 400 >"$work/fuzz/programs.log" 2>&1 &
  pids+=($!)
  for i in "${pids[@]}"; do wait "$i" || status=1; done
  grep -hE '^FAILED|^signal' "$work"/fuzz/*.log | head -n 20
  for i in "$work"/fuzz/*.log; do echo "$(basename "$i" .log): $(tail -n 1 "$i")"; done
  return $status
}

ulp() { timeout 450 "$python" bench/gpu_ulp.py --out "$work" "$@"; }
bench() { timeout 470 "$python" bench/gpu_chains.py --out "$work" "$@"; }

# What was measured stays when the time is up, and a second start goes on behind it.
models() { timeout 590 "$python" bench/gpu_models.py --out "$work" --resume --limit-seconds 500 "$@"; }

# A sample of PyTorch's operators (docs/judge.md), by several processes: compiling is most of it.
judge() {
  local part parts=8 pids=()
  export PYTHONPATH=$PWD/tests:$PYTHONPATH
  for ((part = 0; part < parts; part++)); do
    "$python" -m judge --device cuda --draw-operators 150 --part "$part/$parts" --results "$work/judge.jsonl" \
      --limit-seconds 500 "$@" >"$work/judge-$part.log" 2>&1 &
    pids+=($!)
  done
  for part in "${pids[@]}"; do wait "$part"; done
  "$python" -m judge --table --results "$work/judge.jsonl" | tee "$work/judge.md"
  return "${PIPESTATUS[0]}"
}

# What comes back from a lent machine: few files, few folders.
collect() {
  [ -n "${OUT:-}" ] || return 0
  local file
  for file in "$work"/*.json "$work"/*.jsonl "$work"/*.md; do [ -e "$file" ] && cp "$file" "$OUT/"; done
  tar -C "$work" -czf "$OUT/gpu-results.tar.gz" . 2>/dev/null
}

trap 'collect; exit 143' TERM

what=${1:-}
[ $# -gt 0 ] && shift
case $what in
  build) build ;;
  tests | sanitize | ulp | bench | models | fuzz | judge) build && "$what" "$@" ;;
  *)
    sed -n '2,7s/^# //p' "$0"
    exit 2
    ;;
esac
status=$?
collect
exit $status
