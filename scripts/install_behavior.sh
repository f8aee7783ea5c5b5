#!/usr/bin/env bash
# Install what BEHAVIOR-1K stands on: Isaac Sim 4.5.0, OmniGibson 3.7.2 in an environment of its own, and the datasets.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/install_behavior.sh [options]

Install, in three steps that can be run one by one: Isaac Sim 4.5.0 (isaac), OmniGibson 3.7.2 in a virtual environment
for workers (omnigibson), and BEHAVIOR's datasets (data: robots, houses, instances of the challenge). No root is needed;
75 GB of disk are. What is there already is left as it is. You are asked to accept NVIDIA's and BEHAVIOR's licences.

  --prefix DIR       where Isaac Sim is to lie (default: $ISAAC_PATH, or else $HOME/isaac-sim)
  --data DIR         where the datasets are to lie (default: $OMNIGIBSON_DATA_PATH, or else $HOME/BEHAVIOR-1K-datasets)
  --venv DIR         the virtual environment of the workers (default: .venvs/behavior of this checkout)
  --python PROGRAM   the Python 3.10 to make it with (default: python3.10)
  --source WHICH     BEHAVIOR-1K: a repository, or a folder that holds a checkout
  --ref NAME         the branch or tag to take (default: v3.7.2); of 3.7 only, others stand on another Isaac Sim
  --fork             take RLinf's fork instead, which resets single scenes and leaves out observations nobody sees
  --torch-index URL  where PyTorch comes from (default: its own index for CUDA 12.4)
  --url URL          download Isaac Sim from here instead
  --archive FILE     unpack this zip instead of downloading one
  --sha256 SUM       refuse a zip with another checksum
  --cache DIR        where a download is kept until it is complete (default: ~/.cache/manyarms)
  --only STEPS       isaac, omnigibson, data, or some of them with commas between
  --accept-licences  yes to both licences; read them first
  --no-bashrc        leave ~/.bashrc alone, only print the variables
  --dry-run          print what would be done, change nothing
  --help

The policy is not part of this. OpenVLA-OFT for BEHAVIOR, from Hugging Face or from ModelScope:
  hf download RLinf/RLinf-OpenVLAOFT-Behavior --local-dir DIR             (pip install huggingface-hub)
  modelscope download --model RLinf/RLinf-OpenVLAOFT-Behavior --local_dir DIR   (pip install modelscope)
TEXT
}

version=4.5.0
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=/dev/null # fail, run
. "$here/scripts/telling.sh"
# shellcheck source=/dev/null # write_block
. "$here/scripts/bashrc_block.sh"
prefix=${ISAAC_PATH:-${HOME:?}/isaac-sim} data=${OMNIGIBSON_DATA_PATH:-$HOME/BEHAVIOR-1K-datasets}
venv=$here/.venvs/behavior python='' source=https://github.com/StanfordVL/BEHAVIOR-1K.git ref=''
torch_index=https://download.pytorch.org/whl/cu124
url=https://download.isaacsim.omniverse.nvidia.com/isaac-sim-standalone-$version-linux-x86_64.zip
archive='' sum='' cache=${XDG_CACHE_HOME:-$HOME/.cache}/manyarms only=isaac,omnigibson,data
accepted='' bashrc=$HOME/.bashrc dry='' fork=''

wrong() { # MESSAGE
  echo "error: $1" >&2
  usage >&2
  exit 2
}

while [ $# -gt 0 ]; do
  case $1 in
    --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" && continue ;;
    --prefix | --data | --venv | --python | --source | --ref | --torch-index | --url | --archive | --sha256 | --cache | --only)
      [ "${2:-}" ] || wrong "$1 needs a value"
      name=${1#--} && [ "$name" != sha256 ] || name=sum
      printf -v "${name/-/_}" %s "$2"
      shift
      ;;
    --fork) fork=1 ;;
    --accept-licences) accepted=1 ;;
    --no-bashrc) bashrc='' ;;
    --dry-run) dry=1 ;;
    --help | -h) usage && exit ;;
    *) wrong "unknown option $1" ;;
  esac
  shift
done
[[ ,$only, =~ ^,((isaac|omnigibson|data),)+$ ]] || wrong "--only takes isaac, omnigibson and data"
[ -z "$fork" ] || source=https://github.com/RLinf/BEHAVIOR-1K.git ref=${ref:-RLinf/v3.7.2}
ref=${ref:-v3.7.2}

refuse_release() { # WHAT VERSION
  fail "$1 is OmniGibson $2" "this installs what 3.7 stands on: Isaac Sim $version, Python 3.10, PyTorch 2.6, the instances of 2025" \
    "leave --ref out; for 3.9.1 (Isaac Sim 5.1.0, Python 3.11) follow BEHAVIOR-1K's own setup.sh, which manyarms then runs with --python"
}
# A name without a version, such as main, is looked at when it is there.
[[ ! $ref =~ ([0-9]+\.[0-9]+) ]] || [ "${BASH_REMATCH[1]}" = 3.7 ] || refuse_release "--ref $ref" "${BASH_REMATCH[1]}"

wanted() { # STEP
  [[ ,$only, == *,$1,* ]]
}

ask_licences() {
  local answer
  [ -z "$accepted" ] || return 0
  echo "Isaac Sim is under NVIDIA's licence: https://www.nvidia.com/en-us/agreements/enterprise-software/nvidia-software-license-agreement"
  echo "BEHAVIOR's data is for academic research without commerce, only within OmniGibson, and not to be passed on or decrypted:"
  echo "https://github.com/StanfordVL/BEHAVIOR-1K (BEHAVIOR Data Bundle End User License Agreement)"
  [ -z "$dry" ] || { echo "(you would be asked to accept both)" && return; }
  if ! { [ -t 0 ] && read -r -p "Do you accept both? [y/N] " answer && [[ $answer == [yY]* ]]; }; then
    fail "the licences were not accepted" "nothing is installed without; there is no terminal to ask on, or the answer was no" \
      "read them, then run this again and say y, or give --accept-licences"
  fi
  accepted=1
}

check_machine() {
  local tool
  [ "$(uname -s) $(uname -m)" = "Linux x86_64" ] ||
    fail "Isaac Sim $version does not run on $(uname -s) $(uname -m)" "NVIDIA built it for Linux on x86_64" "use an x86_64 Linux machine with an NVIDIA GPU"
  for tool in curl unzip; do
    ! wanted isaac || [ -f "$prefix/VERSION" ] || command -v "$tool" >/dev/null ||
      fail "$tool is not installed" "Isaac Sim is downloaded with curl and unpacked with unzip" "sudo apt-get install curl unzip"
  done
  command -v nvidia-smi >/dev/null || echo "warning: there is no nvidia-smi here: Isaac Sim runs on NVIDIA GPUs only" >&2
}

check_room() { # FOLDER GIGABYTES WHAT
  local parent=$1 free
  while [ ! -e "$parent" ]; do parent=$(dirname "$parent"); done
  [ -w "$parent" ] || fail "$1 cannot be written" "$parent is read-only for $(id -un)" "give another folder (see --help)"
  free=$(df -k --output=avail "$parent" | tail -1)
  [ "$((free / 1024 / 1024))" -ge "${MANYARMS_ROOM:-$2}" ] ||
    fail "there is no room for $3 in $1" "it takes about $2 GB, and $((free / 1024 / 1024)) GB are free" "make room, or give another folder (see --help)"
}

# -- Isaac Sim ----------------------------------------------------------------------------------------------------------

version_of() { # FOLDER: the version of the Isaac Sim in it, or nothing
  sed -n '1s/^\([0-9]*\.[0-9]*\.[0-9]*\).*/\1/p' "$1/VERSION" 2>/dev/null || true
}

fetch() { # sets archive
  archive=$cache/$(basename "${url%%\?*}")
  [ ! -f "$archive" ] || { echo "downloaded already: $archive" && return; }
  run mkdir -p "$cache"
  [ ! -s "$archive.part" ] || echo "going on with $archive.part ($(stat -c %s "$archive.part") bytes are there)"
  echo "downloading $url"
  run curl --fail --location --continue-at - --retry 3 --connect-timeout 20 --speed-limit 1000 --speed-time 60 \
    --no-progress-meter --output "$archive.part" "$url" ||
    fail "Isaac Sim could not be downloaded" "no network, an address that is gone, a full disk, or a connection that broke (see above)" \
      "run this again: it goes on where it ended; or download $url elsewhere and give --archive FILE"
  run mv "$archive.part" "$archive"
}

discard() { # a download that is no good; never the user's own file
  [ "$archive" != "$cache/$(basename "$archive")" ] || rm -f "$archive"
}

check_archive() {
  local actual
  [ -f "$archive" ] || fail "there is no file $archive" "--archive names the zip to unpack" "give its path"
  if [ "$sum" ]; then
    actual=$(sha256sum "$archive" | cut -d' ' -f1)
    [ "$actual" = "${sum,,}" ] || {
      discard
      fail "$archive is not the file that was meant" "its SHA-256 is $actual, not $sum" "run this again to download it anew, or correct --sha256"
    }
  fi
  unzip -tqq "$archive" >/dev/null 2>&1 || {
    discard
    fail "$archive is no complete zip file" "the download was cut short, or the server sent something else" "run this again"
  }
}

unpack() {
  local parent top
  parent=$(dirname "$prefix")
  echo "unpacking into $prefix"
  if [ "$dry" ]; then
    run unzip -q "$archive" -d "$parent/.isaac-sim.XXXXXX"
    run mv -T "$parent/.isaac-sim.XXXXXX" "$prefix"
    return
  fi
  mkdir -p "$parent"
  # Unpacked beside its place and renamed: whoever looks sees all of it or nothing.
  unpacked=$(mktemp -d "$parent/.isaac-sim.XXXXXX")
  unzip -q "$archive" -d "$unpacked" || fail "$archive could not be unpacked" "see unzip's message above; the disk may be full" "make room, or give another --prefix"
  top=$unpacked
  [ -f "$top/VERSION" ] || top=$(find "$unpacked" -mindepth 2 -maxdepth 2 -name VERSION -printf '%h\n' -quit)
  [ "$top" ] && [ "$(version_of "$top")" = "$version" ] ||
    fail "$archive does not hold Isaac Sim $version" "its file VERSION says ${top:+$(version_of "$top")}${top:-nothing}" "give the zip of $version"
  chmod 755 "$top"
  [ ! -d "$prefix" ] || rmdir "$prefix"
  mv -T "$top" "$prefix"
}

install_isaac() {
  local there own=$archive
  if [ -e "$prefix" ] && [ -n "$(ls -A "$prefix")" ]; then
    there=$(version_of "$prefix")
    [ "$there" = "$version" ] || fail "$prefix holds ${there:+Isaac Sim $there}${there:-something else than Isaac Sim}" \
      "OmniGibson 3.7.2 is made for $version" "move it away, or give another --prefix"
    echo "Isaac Sim $version is there already: $prefix"
    return
  fi
  check_room "$prefix" 25 "Isaac Sim"
  [ "$archive" ] || fetch
  [ "$dry" ] && [ ! -f "$archive" ] || check_archive
  unpack
  [ "$own" ] || run rm -f "$archive"
}

# -- OmniGibson ---------------------------------------------------------------------------------------------------------

find_python() {
  [ "$python" ] || python=$(command -v python3.10 || true)
  "${python:-false}" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 10))' 2>/dev/null ||
    fail "there is no Python 3.10${python:+ at $python}" "Isaac Sim $version is built for it" \
      "install one (apt-get install python3.10-venv, pyenv, or uv python install 3.10) and name it: --python PROGRAM"
}

install_omnigibson() {
  local checkout=$venv/BEHAVIOR-1K recipe mark=$venv/manyarms-behavior.txt pip told
  [ ! -d "$source" ] || source=$(realpath "$source")
  recipe="$source $ref"
  if [ -f "$mark" ] && [ "$(<"$mark")" = "$recipe" ]; then
    echo "OmniGibson is there already: $venv"
    return
  fi
  check_room "$venv" 12 "OmniGibson and PyTorch"
  find_python
  [ -x "$venv/bin/python" ] || run "$python" -m venv "$venv"
  if [ -d "$source" ]; then
    checkout=$source
  elif [ ! -d "$checkout/OmniGibson" ] || [ -f "$mark" ]; then # that of another recipe
    run rm -rf "$checkout"
    run git clone --quiet --depth 1 --branch "$ref" "$source" "$checkout" ||
      fail "BEHAVIOR-1K could not be fetched from $source" "see git's message above" "check the network; or clone it elsewhere, and name the folder: --source DIR"
  fi
  told=$(sed -n 's/^__version__ = .*"\([0-9][0-9.]*\)".*/\1/p' "$checkout/OmniGibson/omnigibson/__init__.py" 2>/dev/null || true)
  if [ "$told" ] && [[ $told != 3.7.* ]]; then
    [ "$checkout" = "$source" ] || rm -rf "$checkout"
    refuse_release "$source $ref" "$told"
  fi
  pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
  # numpy 2 breaks Isaac Sim's own modules, and newer setuptools the editable installation.
  run "${pip[@]}" 'numpy<2' 'setuptools<=79' wheel
  run "${pip[@]}" --index-url "$torch_index" torch==2.6.0 torchvision==0.21.0
  run "${pip[@]}" -e "$checkout/bddl3" -e "$checkout/OmniGibson"
  run "${pip[@]}" 'numpy<2' cffi==1.17.1
  write_launcher
  [ "$dry" ] || echo "$recipe" >"$mark"
}

# Python with the paths that Isaac Sim's own python.sh would set: it is what make_vec(python=...) is given.
write_launcher() {
  local launcher=$venv/bin/behavior-python
  [ -z "$dry" ] || { echo "+ write $launcher" && return; }
  cat >"$launcher" <<LAUNCHER
#!/usr/bin/env bash
export ISAAC_PATH=\${ISAAC_PATH:-$(printf %q "$prefix")}
export OMNIGIBSON_DATA_PATH=\${OMNIGIBSON_DATA_PATH:-$(printf %q "$data")}
export CARB_APP_PATH=\${CARB_APP_PATH:-\$ISAAC_PATH/kit} EXP_PATH=\${EXP_PATH:-\$ISAAC_PATH/apps}
SCRIPT_DIR=\$ISAAC_PATH
[ ! -f "\$ISAAC_PATH/setup_python_env.sh" ] || . "\$ISAAC_PATH/setup_python_env.sh"
[ ! -f "\$ISAAC_PATH/kit/libcarb.so" ] || export LD_PRELOAD=\$ISAAC_PATH/kit/libcarb.so\${LD_PRELOAD:+:\$LD_PRELOAD}
exec $(printf %q "$venv/bin/python") "\$@"
LAUNCHER
  chmod 755 "$launcher"
}

# -- datasets -----------------------------------------------------------------------------------------------------------

download_dataset() { # FOLDER CALL
  local begun=$data/.begun-$1
  # OmniGibson takes any folder for a complete one, also what an interrupted download has left.
  [ ! -f "$begun" ] || { echo "$1: an earlier download was interrupted, starting again" && run rm -rf "${data:?}/$1"; }
  [ ! -d "$data/$1" ] || { echo "$1 is there already" && return; }
  echo "downloading $1"
  run touch "$begun"
  run env OMNIGIBSON_DATA_PATH="$data" OMNI_KIT_ACCEPT_EULA=YES "$venv/bin/behavior-python" -c \
    "from omnigibson.utils.asset_utils import ${2%%(*}; $2" ||
    fail "$1 could not be downloaded" "see above: no network, a full disk, or OmniGibson cannot be imported" "mend that and run this again"
  run rm -f "$begun"
}

install_data() {
  [ "$dry" ] || [ -x "$venv/bin/behavior-python" ] || fail "there is no OmniGibson in $venv" "it downloads the datasets" "run this without --only, or give --venv DIR"
  [ -d "$data/behavior-1k-assets" ] || check_room "$data" 35 "the datasets"
  run mkdir -p "$data"
  download_dataset omnigibson-robot-assets 'download_omnigibson_robot_assets()'
  download_dataset behavior-1k-assets 'download_behavior_1k_assets(accept_license=True)'
  download_dataset 2025-challenge-task-instances 'download_2025_challenge_task_instances()'
}

# -- variables ----------------------------------------------------------------------------------------------------------

exports() {
  printf 'export ISAAC_PATH=%q\nexport OMNIGIBSON_DATA_PATH=%q\n' "$prefix" "$data"
}

unpacked=''
trap '[ -z "$unpacked" ] || rm -rf "$unpacked"' EXIT
trap 'echo "interrupted: run this again, it goes on where it ended" >&2; exit 130' INT TERM

prefix=$(realpath -m "$prefix") data=$(realpath -m "$data") venv=$(realpath -m "$venv")
check_machine
ask_licences
! wanted isaac || install_isaac
! wanted omnigibson || install_omnigibson
! wanted data || install_data
echo "workers need these variables:"
exports
[ -z "$bashrc" ] || write_block "$bashrc" BEHAVIOR "$(exports)"
echo "next: manyarms doctor behavior --python $venv/bin/behavior-python"
echo "the policy: hf download RLinf/RLinf-OpenVLAOFT-Behavior (or from modelscope.cn; see --help)"
