#!/usr/bin/env bash
# Make an environment in which LIBERO runs, for workers: make_vec("libero/libero_object/0", python="ENV_DIR").
set -euo pipefail

usage() {
  cat <<'HELP'
usage: scripts/install_libero.sh [--dry-run] ENV_DIR [ASSETS]

Makes the virtual environment ENV_DIR (1.4 GB) with LIBERO, robosuite and MuJoCo in versions that fit each other, and
writes LIBERO's config into it, so that nothing is asked on standard input. What is there already is left alone.

  ASSETS      LIBERO's folder `assets` (scenes, objects, textures), which is not part of its package. It is linked, not
              copied. Without it, set LIBERO_ASSET_PATH when you run manyarms.
  --dry-run   say what would be done
  PYTHON      the interpreter to make it with: 3.10 to 3.13; default: the first of those on the path

Software rendering needs system libraries: apt-get install libosmesa6 libegl1 libgl1 libgl1-mesa-dri libglib2.0-0
HELP
}

# Nothing newer: robosuite 1.5 has another interface, MuJoCo 3.17 and later refuse robosuite's models.
PACKAGES=(
  bddl==1.0.1 cloudpickle==3.1.2 easydict==1.13 future==1.0.0 gymnasium==1.3.0 hf-libero==0.1.4 matplotlib==3.10.8
  mujoco==3.3.7 numba==0.63.1 opencv-python-headless==4.11.0.86 Pillow==12.1.0 PyYAML==6.0.3 robosuite==1.4.1
  scipy==1.15.3 termcolor==3.3.0
  "numpy==1.26.4; python_version < '3.13'" "numpy==2.2.6; python_version >= '3.13'"
)
# What they say they need is more than what they import: LIBERO would bring torch.
NO_DEPENDENCIES="^(hf-libero|robosuite|bddl)=="

fail() {
  echo "install_libero: $*" >&2
  exit 1
}

say_or_do() {
  if [ "$dry_run" = yes ]; then echo "would run: $*"; else "$@"; fi
}

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.10 python3.13 python3; do
    if "$candidate" -c 'import sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      echo "$candidate"
      return
    elif [ -n "${PYTHON:-}" ]; then
      fail "PYTHON is $PYTHON, which is not a Python from 3.10 to 3.13"
    fi
  done
  fail "there is no Python from 3.10 to 3.13 here. Install one, or name it: PYTHON=/path/to/python $0 …"
}

install_packages() {
  local pip=("$env_dir/bin/python" -m pip install --quiet --disable-pip-version-check) plain bare
  mapfile -t plain < <(printf '%s\n' "${PACKAGES[@]}" | grep -Ev "$NO_DEPENDENCIES")
  mapfile -t bare < <(printf '%s\n' "${PACKAGES[@]}" | grep -E "$NO_DEPENDENCIES")
  say_or_do "${pip[@]}" "${plain[@]}"
  say_or_do "${pip[@]}" --no-deps "${bare[@]}"
}

site_packages() {
  "$env_dir/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'
}

# The config that LIBERO would ask for at its first import, and robosuite's own settings: it would warn without them, and
# take EGL whatever MUJOCO_GL says.
write_config() {
  [ "$dry_run" = yes ] && echo "would write: $env_dir/libero/config.yaml" && return
  local site
  site=$(site_packages)
  mkdir -p "$env_dir/libero"
  cat >"$env_dir/libero/config.yaml" <<CONFIG
assets: $site/libero/libero/assets
bddl_files: $site/libero/libero/bddl_files
benchmark_root: $site/libero/libero
datasets: $env_dir/libero/datasets
init_states: $site/libero/libero/init_files
CONFIG
  [ -e "$site/robosuite/macros_private.py" ] || echo "MUJOCO_GPU_RENDERING = False" >"$site/robosuite/macros_private.py"
}

# An absolute link: it must not depend on where it lies.
link_assets() {
  [ -n "$assets" ] || return 0
  [ "$dry_run" = yes ] && echo "would link: LIBERO's assets -> $assets" && return
  local site
  site=$(site_packages)
  local link=$site/libero/libero/assets
  [ "$(readlink "$link")" = "$assets" ] && return
  [ ! -e "$link" ] || [ -L "$link" ] || fail "$link is a folder, not a link: remove it to link $assets"
  ln -sfn "$assets" "$link"
}

# robosuite's controller is compiled when it first runs: 12 s, unless the result lies on disk.
compile_controller() {
  say_or_do env "LIBERO_CONFIG_PATH=$env_dir/libero" MUJOCO_GL=disable HF_HUB_OFFLINE=1 "$env_dir/bin/python" -W ignore -c '
import numpy as np
import libero.libero
from robosuite.utils import control_utils as control, transform_utils as transforms

square = lambda n: np.asfortranarray(np.eye(n) + 0.01)
pose = np.eye(3)
jacobian = np.asfortranarray(np.eye(6, 7) + 0.01)
control.opspace_matrices(square(7), jacobian, jacobian[:3].copy("F"), jacobian[3:].copy("F"))
control.nullspace_torques(square(7), np.eye(7), np.zeros(7), np.zeros(7), np.zeros(7))
control.orientation_error(pose, pose)
quat = transforms.mat2quat(pose)
pose = transforms.pose2mat((np.zeros(3), transforms.convert_quat(np.array([1.0, 0, 0, 0]), to="xyzw")))
transforms.mat2pose(transforms.pose_in_A_to_pose_in_B(pose, transforms.pose_inv(pose)))
transforms.quat2mat(transforms.axisangle2quat(np.ones(3)))
print("LIBERO is in", libero.libero.__path__[0])
'
}

dry_run=no
arguments=()
for argument in "$@"; do
  case "$argument" in
    --help | -h) usage && exit ;;
    --dry-run) dry_run=yes ;;
    -*) fail "there is no option $argument; see --help" ;;
    *) arguments+=("$argument") ;;
  esac
done
[ "${#arguments[@]}" -ge 1 ] && [ "${#arguments[@]}" -le 2 ] || { usage >&2 && exit 2; }
env_dir=$(realpath -m "${arguments[0]}")
assets=${arguments[1]:+$(realpath -m "${arguments[1]}")}
[ -z "$assets" ] || [ -d "$assets/scenes" ] || fail "$assets has no folder scenes: give LIBERO's folder assets"

done_mark=$env_dir/libero/packages.txt
if [ "$(cat "$done_mark" 2>/dev/null)" != "${PACKAGES[*]}" ]; then
  if [ ! -x "$env_dir/bin/python" ]; then
    python=$(find_python)
    say_or_do "$python" -m venv "$env_dir"
  fi
  install_packages
  write_config
  compile_controller
  [ "$dry_run" = yes ] || echo "${PACKAGES[*]}" >"$done_mark"
fi
link_assets
[ "$dry_run" = yes ] || echo "ready: make_vec('libero/libero_object/0', python='$env_dir')"
