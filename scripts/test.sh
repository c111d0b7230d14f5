#!/usr/bin/env bash
# All checks: lint, C++ tests, Python tests, and NVRTC over all kernels that these ran. All of them run, whatever fails; the
# summary and the exit status tell.
# STRICT=1 (continuous integration) makes a skipped part a failure.   PYTEST_ARGS="-k name" narrows pytest.
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

summary=()
failed=0
# part NAME PATTERN COMMAND...: runs the command; PATTERN finds its closing line in what it printed.
part() {
  local name=$1 pattern=$2 log="$logs/$1.log" status start=$SECONDS
  shift 2
  echo "---- $name"
  "$@" 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  local word=ok
  case $status in
    0) ;;
    77) word=SKIPPED && [ -z "${STRICT:-}" ] || failed=1 ;;
    *) word=FAILED && failed=1 ;;
  esac
  summary+=("$(printf '%-9s %-8s %4d s  %s' "$name" "$word" $((SECONDS - start)) "$(grep -E "$pattern" "$log" | tail -n 1)")")
}

cpp_tests() {
  if [ -e build/without-gtest ]; then
    echo "ctest: SKIPPED, the C++ tests were not built: GoogleTest is missing (apt-get install libgtest-dev)"
    return 77
  fi
  ctest --test-dir build --output-on-failure --no-tests=error -j "${MAX_JOBS:-$(nproc)}"
}

# A process for each processor; the tests of a file share one, with what is made for all of them.
python_tests() {
  # shellcheck disable=SC2086
  .venv/bin/python -m pytest -n "${MAX_JOBS:-$(nproc)}" --dist loadfile "$@" ${PYTEST_ARGS:-}
}

# Three quarters of the time go into compiling kernels. Those whose speed nobody asks about are compiled with -O1; these
# tests, and those in C++, ask what kernels compute that are compiled as users have them.
as_users_have_them=(tests/python/test_{showcase,numerics,one_number}.py)
quick_python_tests() {
  FUSEWRIGHT_TEST_CXX=${CXX:-g++} CXX=$PWD/tests/support/quick-g++ python_tests "${as_users_have_them[@]/#/--ignore=}"
}

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

part lint 'lint:' scripts/lint.sh
part ctest 'tests passed|SKIPPED|No tests' cpp_tests
passed='(passed|failed|error|no tests ran|SKIPPED).*'
if [ -n "${PYTEST_ARGS:-}" ]; then
  part pytest "$passed" python_tests
else
  .venv/bin/python scripts/setup.py --browser >"$logs/browser.log" 2>&1
  part optimised "$passed" python_tests "${as_users_have_them[@]}"
  part pytest "$passed" quick_python_tests
fi
part nvrtc 'nvrtc:' nvrtc_texts
# Not every machine can have a browser, so that this is no failure anywhere; but it is said.
[ -n "${PYTEST_ARGS:-}" ] || summary+=("$(printf '%-8s %s' browser "$(browser_line)")")

echo "---- summary"
printf '%s\n' "${summary[@]}"
exit $failed
