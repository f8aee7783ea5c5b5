#!/usr/bin/env bash
# Build PyRep and RLBench against the CoppeliaSim that is installed, and install them.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/reinstall_rlbench.sh [options]

Build PyRep and RLBench against CoppeliaSim 4.1.0 and install them. To be run again whenever CoppeliaSim was changed,
as PyRep is linked against it. What is installed stays as it is until both have been built.

  --python PROGRAM   the interpreter to install into (default: the active virtual environment, or this checkout's .venv)
  --coppeliasim DIR  default: $COPPELIASIM_ROOT, or else $HOME/CoppeliaSim
  --pyrep WHICH      a commit (all of it), branch or tag, or a folder that holds a checkout (default: 4.1.0.3, 8f420be)
  --rlbench WHICH    the same (default: 1.2.0, 02720bba)
  --pyrep-url URL    the repository, of a fork say (default: https://github.com/stepjam/PyRep.git)
  --rlbench-url URL  the same (default: https://github.com/stepjam/RLBench.git)
  --force            build and install even if they are there
  --dry-run          print what would be done, change nothing
  --help
TEXT
}

version=4.1.0
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python='' coppeliasim=${COPPELIASIM_ROOT:-${HOME:?}/CoppeliaSim} force='' dry=''
pyrep=8f420be8064b1970aae18a9cfbc978dfb15747ef pyrep_url=https://github.com/stepjam/PyRep.git
rlbench=02720bba4c73fe02eb75df946b8791b806028a9d rlbench_url=https://github.com/stepjam/RLBench.git
# What builds them, RLBench's own list, less PyRep (it would be taken from another commit), and what importing it needs.
requirements=(setuptools wheel cffi numpy Pillow pyquaternion scipy natsort gymnasium)

# shellcheck source=/dev/null # fail, run
. "$(dirname "${BASH_SOURCE[0]}")/telling.sh"

while [ $# -gt 0 ]; do
  case $1 in
    --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" && continue ;;
    --python | --coppeliasim | --pyrep | --rlbench | --pyrep-url | --rlbench-url)
      [ "${2:-}" ] || { echo "error: $1 needs a value" >&2 && usage >&2 && exit 2; }
      name=${1#--}
      printf -v "${name/-/_}" %s "$2"
      shift
      ;;
    --force) force=1 ;;
    --dry-run) dry=1 ;;
    --help | -h) usage && exit ;;
    *) echo "error: unknown option $1" >&2 && usage >&2 && exit 2 ;;
  esac
  shift
done

# shellcheck source=/dev/null # version_of, version_in_name
. "$(dirname "${BASH_SOURCE[0]}")/coppeliasim_version.sh"

check_coppeliasim() {
  local found
  [ "$(uname -m)" = x86_64 ] || fail "CoppeliaSim $version does not run on $(uname -m)" "it was built for x86_64 only" "use an x86_64 Linux machine"
  coppeliasim=$(realpath -m "$coppeliasim")
  [ -f "$coppeliasim/libcoppeliaSim.so" ] || fail "there is no CoppeliaSim in $coppeliasim" "PyRep is linked against its libcoppeliaSim.so" \
    "scripts/install_coppeliasim.sh, or name its folder: --coppeliasim DIR"
  found=$(version_of "$coppeliasim")
  [ "$found" ] || fail "the version of the CoppeliaSim in $coppeliasim cannot be told" "neither its headers nor its readme.txt are there" \
    "scripts/install_coppeliasim.sh --prefix DIR installs $version; if you know that it is $version: echo CoppeliaSim_V4_1_0 > $coppeliasim/.manyarms-origin"
  [ "$found" = "$version" ] || fail "$coppeliasim holds CoppeliaSim $found, not $version" \
    "with other versions PyRep and RLBench fail, with \"Handle ... does not exist\" for one" \
    "scripts/install_coppeliasim.sh --prefix DIR, then this again with --coppeliasim DIR"
  for found in "$coppeliasim" "$coppeliasim/system"; do
    [ ! -e "$found" ] || [ -w "$found" ] || fail "$found cannot be written by $(id -un)" "building PyRep puts a script and a setting into it" \
      "run this as its owner, or install one of your own: scripts/install_coppeliasim.sh"
  done
}

check_python() {
  local each
  for each in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}" "$here/.venv"; do
    [ "$python" ] || [ -z "$each" ] || [ ! -x "$each/bin/python" ] || python=$each/bin/python
  done
  [ "$python" ] || fail "there is no Python environment to install into" "no virtual environment is active, and $here/.venv is not there" \
    "scripts/setup_remote.sh makes one; or name an interpreter: --python PROGRAM"
  python=$(command -v "$python") || fail "$python is not there" "--python names the interpreter to install into" "give its path"
  python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
  ask 'import pip' || fail "$python has no pip" "PyRep and RLBench are installed with it" "$python -m ensurepip, or name another interpreter: --python PROGRAM"
  site=$(ask 'import sysconfig; print(sysconfig.get_path("purelib"))')
  [ -w "$site" ] || fail "$site cannot be written by $(id -un)" "it is where $python keeps its packages" "use a virtual environment: --python DIR/bin/python"
  each=$(ask 'import sysconfig; print(sysconfig.get_path("include"))')
  [ -f "$each/Python.h" ] || fail "$each/Python.h is not there" "PyRep is compiled for $python" "sudo apt-get install python3-dev (python3.11-dev for Python 3.11, say)"
  for each in cc git; do
    command -v "$each" >/dev/null || fail "$each is not installed" "PyRep and RLBench are fetched with git and compiled with cc" "scripts/setup_remote.sh, or: sudo apt-get install build-essential git"
  done
}

ask() { # CODE [ARGUMENT…]: with the variables that CoppeliaSim needs, outside of any checkout, leaving no files
  (cd / && PYTHONDONTWRITEBYTECODE=1 COPPELIASIM_ROOT=$coppeliasim LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$coppeliasim \
    QT_QPA_PLATFORM_PLUGIN_PATH=$coppeliasim QT_QPA_PLATFORM=offscreen "$python" -c "$@") 2>"${errors:-/dev/null}"
}

installed() { # NAME: the version that is installed, or nothing
  ask 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$1" || true
}

importable() {
  ask 'import pyrep, pyrep.backend.sim, rlbench
print("PyRep", pyrep.__version__, "in", pyrep.__path__[0])
print("RLBench", rlbench.__version__, "in", rlbench.__path__[0])'
}

recipe() { # what is built from what; a changed library is another CoppeliaSim
  printf '%s\n' "$coppeliasim $(cksum <"$coppeliasim/libcoppeliaSim.so")" "$pyrep_url $pyrep" "$rlbench_url $rlbench"
}

there_already() {
  local each
  [ -z "$force" ] && [ -f "$record" ] && [ "$(<"$record")" = "$(recipe)" ] || return 1
  [ -z "$(installed opencv-python)$(installed opencv-contrib-python)" ] || return 1
  for each in "$pyrep" "$rlbench"; do
    [ ! -d "$each" ] || [ -z "$(find "$each" -name .git -prune -o -type f -newer "$record" -print -quit)" ] || return 1
  done
  importable
}

get() { # NAME WHICH URL: the sources, without what an earlier build left in them
  local log=$work/$1.log
  if [ -d "$2" ]; then
    echo "$1: from $2"
    run mkdir "$work/$1"
    run sh -c 'tar -C "$1" --exclude=./.git --exclude=./build --exclude="*.egg-info" -cf - . | tar -C "$2" -xf -' sh "$2" "$work/$1"
    return
  fi
  echo "$1: $2 of $3"
  run git init --quiet "$work/$1"
  [ -z "$dry" ] || log=/dev/null
  run git -C "$work/$1" fetch --quiet --depth 1 "$3" "$2" 2>"$log" ||
    fail "$1 could not be fetched from $3" "$(explain "$log")" \
      "check the network and https_proxy, and that $2 is a branch, a tag or a whole commit; or clone it elsewhere, and name the folder: --${1,,} DIR"
  run git -C "$work/$1" checkout --quiet FETCH_HEAD
}

explain() { # LOG: the likely reason
  if grep -qi 'no space left' "$1"; then
    echo "the disk is full"
  elif grep -qiE 'could not resolve|name resolution|connection|timed out|unreachable|no matching distribution' "$1"; then
    echo "no network, or no package index: $(grep -iE 'could not resolve|name resolution|connection|timed out|unreachable|no matching distribution' "$1" | tail -1)"
  else
    grep -v '^ *$' "$1" | tail -1
  fi
}

pip() { # WHAT-FOR ARGUMENT…
  local what=$1 log=$work/pip.log
  shift
  set -- "$python" -m pip --disable-pip-version-check "$@"
  [ -z "$dry" ] || { run "$@" && return; }
  "$@" >"$log" 2>&1 || {
    tail -40 "$log" >&2
    fail "$what failed" "$(explain "$log")" "mend that and run this again; the last lines of pip are above"
  }
}

replace_opencv() { # the Qt in opencv-python clashes with CoppeliaSim's
  local each found
  for each in opencv-python opencv-contrib-python; do
    found=$(installed "$each")
    [ "$found" ] || continue
    echo "replacing $each $found by $each-headless: the Qt in it clashes with CoppeliaSim's"
    pip "getting $each-headless" download --quiet --no-deps --dest "$work/opencv" "$each-headless==$found"
    pip "removing $each" uninstall --quiet --yes "$each"
    pip "installing $each-headless" install --quiet --no-deps --force-reinstall --no-index --find-links "$work/opencv" "$each-headless==$found"
  done
}

remove_namesake() {
  local found
  found=$(installed pyrep)
  [ -z "$found" ] || ask 'import importlib.metadata as m, sys; sys.exit(not any(str(f) == "pyrep/backend/sim.py" for f in m.files("pyrep") or ()))' || {
    echo "removing pyrep $found of PyPI, something else of the same name"
    pip "removing pyrep" uninstall --quiet --yes pyrep
  }
}

verify() {
  errors=$work/import.log
  importable || {
    tail -20 "$errors" >&2
    fail "PyRep and RLBench are installed, but cannot be imported" "$(tail -1 "$errors")" \
      "\"libGL\", \"libxcb\" or other libraries missing: scripts/setup_remote.sh; \"libcoppeliaSim\" or \"undefined symbol\": $coppeliasim is not whole, or not $version: install it anew; then: manyarms doctor rlbench"
  }
  errors=''
}

errors='' site=''
check_coppeliasim
check_python
record=$site/manyarms-rlbench.txt
for each in pyrep rlbench; do [ ! -d "${!each}" ] || printf -v "$each" %s "$(realpath "${!each}")"; done
if there_already; then
  echo "built against $coppeliasim already: nothing to do (--force builds them again)"
  exit
fi

if [ "$dry" ]; then work=${TMPDIR:-/tmp}/manyarms-rlbench.XXXXXX; else work=$(mktemp -d -t manyarms-rlbench.XXXXXX); fi
trap '[ "$dry" ] || rm -rf "$work"' EXIT
trap 'echo "interrupted: run this again" >&2; exit 130' INT TERM
export COPPELIASIM_ROOT=$coppeliasim LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$coppeliasim

# PyRep makes this link itself, but not over one that leads nowhere.
[ -e "$coppeliasim/libcoppeliaSim.so.1" ] || run ln -sfn libcoppeliaSim.so "$coppeliasim/libcoppeliaSim.so.1"
get PyRep "$pyrep" "$pyrep_url"
get RLBench "$rlbench" "$rlbench_url"
if ! ask 'import importlib.metadata as m, sys; [m.version(name) for name in sys.argv[1:]]' "${requirements[@]}"; then
  echo "installing what they need into $python"
  pip "installing what PyRep and RLBench need" install --quiet "${requirements[@]}"
fi
echo "building PyRep against $coppeliasim, and RLBench"
pip "building PyRep and RLBench" wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/wheels" "$work/PyRep" "$work/RLBench"
remove_namesake
run rm -f "$record"
pip "installing PyRep and RLBench" install --quiet --no-deps --force-reinstall --no-index --find-links "$work/wheels" PyRep rlbench
replace_opencv
[ -z "$dry" ] || exit 0
verify
recipe >"$record"
echo "done. To check everything, a display included: manyarms doctor rlbench"
