#!/usr/bin/env bash
# All checks: lint, C++ tests, Python tests, and NVRTC over all kernels that these ran. All of them run, whatever fails; the
# summary and the exit status tell.
# STRICT=1 (continuous integration) makes a skipped part a failure.   PYTEST_ARGS="-k name" narrows pytest.
# Every part has a budget of time, and fails beyond it: a change that makes the tests slow is seen when it is made.
set -uo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$PWD/.venv/bin"

# Tests start from an empty cache of their own, never from the user's.
logs=build/logs
rm -rf build/test-cache "$logs"
mkdir -p "$logs"
export FUSEWRIGHT_CACHE_DIR=${FUSEWRIGHT_CACHE_DIR:-$PWD/build/test-cache}
# What runs in the emulator leaves its text there, for the real NVRTC.
export FUSEWRIGHT_EMULATOR_TEXTS=$PWD/build/texts
rm -rf "$FUSEWRIGHT_EMULATOR_TEXTS"

# What the compiler makes of a text is kept for the next run; what no run wanted for a week is not.
export FUSEWRIGHT_TEST_CXX=${CXX:-$(command -v g++ || command -v c++ || command -v clang++)}
export FUSEWRIGHT_TEST_OBJECTS=$PWD/build/kept-objects
export CXX=$PWD/tests/support/kept-g++
[ ! -d "$FUSEWRIGHT_TEST_OBJECTS" ] || find "$FUSEWRIGHT_TEST_OBJECTS" -type f -mtime +7 -delete

# Budgets are seconds on two processors that compile this file, side by side, in `usual` milliseconds. A slower machine,
# or one with other work to do, has more time.
usual=3000
pace() {
  local start job
  start=$(date +%s%N)
  for job in 1 2; do
    $FUSEWRIGHT_TEST_CXX -std=c++20 -O2 -Isrc -Iinclude -c src/ir/size.cpp -o "$logs/pace$job.o" &
  done
  wait
  local took=$((($(date +%s%N) - start) / 1000000)) processors=${MAX_JOBS:-$(nproc)}
  percent=$((took > usual ? took * 100 / usual : 100))
  [ "$processors" -ge 2 ] || percent=$((percent * 2))
}
pace

summary=()
failed=0
# part NAME BUDGET PATTERN COMMAND...: runs the command; PATTERN finds its closing line in what it printed.
part() {
  local name=$1 budget=$(($2 * percent / 100)) pattern=$3 log="$logs/$1.log" status start=$SECONDS seconds
  shift 3
  echo "---- $name"
  "$@" 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  seconds=$((SECONDS - start))
  local word=ok
  case $status in
    0) [ $seconds -le $budget ] || { word=SLOW && failed=1; } ;;
    77) word=SKIPPED && [ -z "${STRICT:-}" ] || failed=1 ;;
    *) word=FAILED && failed=1 ;;
  esac
  summary+=("$(printf '%-9s %-8s %4d s of %4d  %s' "$name" "$word" $seconds $budget "$(grep -E "$pattern" "$log" | tail -n 1)")")
}

# Most of the time goes into compiling kernels. Kernels are compiled with -O1, in a third of the time, but for these tests:
# they ask what kernels compute that are compiled as users have them.
optimised_cpp='^(kernels/Kernels|runtime/(Accuracy|ElementTypes|Softmax|NaN|Threads|NativeCompiler))'
optimised_python=(tests/python/test_{showcase,numerics,one_number}.py)

cpp_tests() {
  if [ -e build/without-gtest ]; then
    echo "ctest: SKIPPED, the C++ tests were not built: GoogleTest is missing (apt-get install libgtest-dev)"
    return 77
  fi
  ctest --test-dir build --output-on-failure --no-tests=error -j "${MAX_JOBS:-$(nproc)}" "$@"
}

# A process for each processor; the tests of a file share one, with what is made for all of them. Files come in the order
# of tests/python/conftest.py.
python_tests() {
  # shellcheck disable=SC2086
  .venv/bin/python -m pytest -n "${MAX_JOBS:-$(nproc)}" --dist loadfile --no-loadscope-reorder "$@" ${PYTEST_ARGS:-}
}

quickly() { CXX=$PWD/tests/support/quick-g++ "$@"; }

# The report is opened in Chromium. Only tests want it, so it is fetched here and not by `make setup`.
browser_line() {
  local skipped
  skipped=$(grep -hE '^SKIPPED .*Chromium' "$logs/pytest.log" | tail -n 1)
  echo "${skipped:-ok       the report was opened in Chromium}"
}

nvrtc_texts() {
  if [ -e build/without-gtest ]; then
    echo "nvrtc: SKIPPED, the C++ tests were not built: GoogleTest is missing (apt-get install libgtest-dev)"
    return 77
  fi
  build/tests/nvrtc_texts "$FUSEWRIGHT_EMULATOR_TEXTS" build/texts-known
}

part lint 60 'lint:' scripts/lint.sh
part ctest 480 'tests passed|SKIPPED|No tests' quickly cpp_tests -E "$optimised_cpp"
part ctest-O3 60 'tests passed|SKIPPED|No tests' cpp_tests -R "$optimised_cpp"
passed='(passed|failed|error|no tests ran|SKIPPED).*'
if [ -n "${PYTEST_ARGS:-}" ]; then
  part pytest 2000 "$passed" python_tests
else
  .venv/bin/python scripts/setup.py --browser >"$logs/browser.log" 2>&1
  part pytest-O3 540 "$passed" python_tests "${optimised_python[@]}"
  part pytest 2000 "$passed" quickly python_tests "${optimised_python[@]/#/--ignore=}"
fi
part nvrtc 600 'nvrtc:' nvrtc_texts
# Not every machine can have a browser, so that this is no failure anywhere; but it is said.
[ -n "${PYTEST_ARGS:-}" ] || summary+=("$(printf '%-8s %s' browser "$(browser_line)")")

echo "---- summary"
printf '%s\n' "${summary[@]}"
exit $failed
