#!/usr/bin/env bash
# Checks layout and lint of everything we wrote; `scripts/lint.sh fix` mends what can be mended.
# Exit status 77: nothing was checked, because the tools cannot be had on this machine.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin

for tool in ruff clang-format; do
  if [ ! -x "$bin/$tool" ]; then
    echo "lint: SKIPPED, $tool is not installed and could not be fetched"
    exit 77
  fi
done

# ops.def is a table whose columns are set by hand.
mapfile -t cpp < <(find include src tests examples -name '*.cpp' -o -name '*.h' -o -name '*.cuh' | sort)

if [ "${1:-}" = fix ]; then
  "$bin/ruff" check --fix --quiet .
  "$bin/ruff" format --quiet .
  [ ${#cpp[@]} = 0 ] || "$bin/clang-format" -i "${cpp[@]}"
  exit 0
fi

status=0
"$bin/ruff" check . || status=1
"$bin/ruff" format --check . || status=1
[ ${#cpp[@]} = 0 ] || "$bin/clang-format" --dry-run -Werror "${cpp[@]}" || status=1
"$bin/python" scripts/includes.py || status=1
[ $status = 0 ] && echo "lint: clean (${#cpp[@]} C++ files)" || echo "lint: FAILED; \`make format\` mends layout"
exit $status
