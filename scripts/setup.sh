#!/usr/bin/env bash
# Make the virtual environment with pinned packages, and install the system libraries that rendering needs.
# usage: scripts/setup.sh VENV demo|dev [DEBIAN_PACKAGE…]     demo: what running needs; dev: what testing needs as well
set -euo pipefail

venv=$1 purpose=$2
shift 2

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.11 python3.12 python3.13 python3.14; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "manyarms needs Python 3.11 or later. Install it, or name it: make PYTHON=/path/to/python test" >&2
  exit 1
}

missing_libraries() {
  local package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
  done
}

install_libraries() {
  command -v dpkg-query >/dev/null || {
    echo "note: for software rendering install your system's OSMesa and EGL libraries (on Debian: $*)" >&2
    return
  }
  local missing
  missing=$(missing_libraries "$@" | tr '\n' ' ')
  [ -z "$missing" ] && return
  if [ "$(id -u)" = 0 ]; then
    echo "installing $missing"
    # shellcheck disable=SC2086 # one word a package
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } >/dev/null
  else
    echo "note: rendering and tests need system packages that are not installed here. Run: sudo apt-get install $missing" >&2
  fi
}

install_libraries "$@"
python=$(find_python)
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
echo "installing Python packages into $venv"
install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$@"; }
if [ "$purpose" = demo ]; then
  install --constraint requirements/dev.txt -e '.[torch,video,gym,tensorboard]'
else
  install -r requirements/dev.txt
  install --no-deps -r requirements/bare.txt
  install --no-deps --no-build-isolation -e .
fi
# On all CPUs: pip would compile on one. Some packages hold files that are no Python of this version, which is no fault.
"$venv/bin/python" -m compileall -q -q -j 0 -x '/tests?/' "$venv"/lib/python*/site-packages || true
