#!/usr/bin/env bash
# The front door: sets up .venv when it is missing or out of date, then trains, tests or measures.
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd) # where a link to it points, too
venv=$root/.venv
unset PYTHONSAFEPATH # the programs of benchmarks/ import what lies beside them

usage() {
  cat <<'TEXT'
PPO in PyTorch, in pairs: an eager version to be read, and its fast version.

  ./run.sh [FLAGS]          train Breakout: ppo_atari_envpool_torchcompile --compile --cudagraphs,
                            or ppo_atari_torchcompile where EnvPool has no wheel
  ./run.sh NAME [FLAGS]     train with ppo/NAME.py, or with a file of yours by its path, a process a
                            GPU if it imports torch.distributed; ppo_eval scores, films or exports,
                            with --follow while it trains
  ./run.sh NAME --help      the flags of that script
  ./run.sh fork NAME PATH   copy a pair to PATH.py and PATH_torchcompile.py; --patch IDEA, --edited
  ./run.sh check NAME       whether a pair, or a fork's, still is one, and how fast; --compile as well
  ./run.sh compare A B      which of two scripts returns more, over 10 seeds each; --help: its flags
  ./run.sh recipe [NAME]    the tasks of ppo/recipes.toml, trained in minutes on a core; runs one
  ./run.sh tune [FLAGS]     a search for hyper-parameters, for an environment of yours; --help
  ./run.sh test [ARGS]      lint, then pytest with ARGS, a worker a core; -m "not slow": quick ones
  ./run.sh bench [FLAGS]    a short round of benchmarks/throughput.py: a few minutes
  ./run.sh --help           this text

  ./run.sh --total-timesteps 50000
  ./run.sh ppo_atari_envpool --env-id Pong-v5 --seed 3

The first call sets up .venv with the versions of requirements/constraints.txt; it needs Python 3.11
or newer with venv and pip, which PYTHON=/path/to/python can name, and, for --compile, a C++ compiler.
Curves, checkpoint and summary go to runs/ in the folder where you are; Ctrl+C ends a run well, and
--resume runs/<run> goes on with it.
TEXT
  echo "Scripts: $(scripts)"
}

scripts() {
  for file in "$root"/ppo/*.py; do basename "$file" .py; done | tr '\n' ' '
}

die() {
  echo "run.sh: $1" >&2
  exit "${2:-1}"
}

find_script() { # the file that NAME or a path stands for, with or without .py
  local stem=${1%.py} file
  if [[ $stem == */* ]]; then set -- "$stem" "$root/$stem"; else set -- "$root/ppo/$stem" "$stem"; fi
  for file in "$@"; do
    if [ -f "$file.py" ]; then echo "$file.py"; return; fi
  done
  return 1
}

texts=() # of the scripts that a command runs
uses() { # whether one of them has such a line
  [ ${#texts[@]} -gt 0 ] && grep -qE "$1" "${texts[@]}"
}

fingerprint() { # of a requirements file, of this folder (a moved .venv is broken), of the interpreter
  { cat "$root/requirements/"{"$1",constraints}.txt && echo "$root $(readlink -f "$venv/bin/python")"; } | cksum
}

ready() { # whether what a requirements file lists is installed; its stamp is written last
  [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.$1" 2>/dev/null)" = "$(fingerprint "$1")" ]
}

find_python() { # that is new enough
  if [ "${PYTHON:-}" ]; then set -- "$PYTHON"; else set -- python3 python3.{14,13,12,11}; fi
  local python
  for python; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$python" && return
  done
  die "needs Python 3.11 or newer; '$python' is not. Set PYTHON=/path/to/python"
}

make_venv() {
  [ ! -L "$venv" ] || die "$venv is a link: setting it up anew would clear the folder that it points to"
  local python
  python=$(find_python) || exit
  echo "run.sh: setting up $venv (once; some minutes, as PyTorch is large)" >&2
  "$python" -m venv --clear "$venv" || die "'$python -m venv' failed; on Debian: apt install python3-venv"
}

install() { # into .venv, even where pip's settings name another --target
  "$venv/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check \
    --target= -r "$root/requirements/$1.txt" -c "$root/requirements/constraints.txt" >&2 ||
    die "the set-up failed (see above); the next call starts it again"
  # shellcheck disable=SC2046 # a word a package
  "$venv/bin/python" -m pip show --quiet $(grep -oE '^[a-z][a-z0-9-]*' "$root/requirements/$1.txt") 2>/dev/null ||
    die "pip has installed somewhere else than in $venv, as its settings say: pip config list"
  fingerprint "$1" >"$venv/.$1.new" && mv "$venv/.$1.new" "$venv/.$1"
}

set_up() { # what is missing of these requirements files, once at a time
  local name missing=
  for name in "$@"; do ready "$name" || missing=1; done
  [ "$missing" ] || return 0
  exec 9>"$root/.setup.lock" # a second call waits for the set-up of the first
  if command -v flock >/dev/null; then flock 9; fi
  ready requirements || make_venv
  for name in "$@"; do ready "$name" || install "$name"; done
  exec 9>&-
}

default=
case ${1:-} in
  -h | --help | help) usage; exit 0 ;;
  test | bench | recipe | check | compare | tune) task=$1; shift ;;
  fork)
    shift
    python=$venv/bin/python # it needs no packages
    [ -x "$python" ] || python=$(find_python) || exit
    exec "$python" "$root/benchmarks/fork.py" "$@"
    ;;
  "" | -*) default=1 task=ppo_atari_envpool_torchcompile; set -- --compile --cudagraphs "$@" ;;
  *)
    task=$1
    find_script "$task" >/dev/null || die "no script '$1'; there are: $(scripts)" 2
    shift
    ;;
esac

if [ "$task" = recipe ]; then
  set_up requirements
  words=$("$venv/bin/python" "$root/benchmarks/recipe.py" "${@:1:1}") || exit
  [[ $# -gt 0 && $1 != -* ]] || { echo "$words"; exit; }
  shift
  echo "./run.sh $words $*"
  eval "set -- $words "'"$@"' # recipe.py has quoted them
  task=$1; shift
fi
if [[ $root == *[[:blank:]]* && " $* " == *" --compile "* ]]; then
  echo "run.sh: PyTorch cannot --compile in a folder with a blank in its name (its issue 191010)" >&2
fi
case $task in
  test | bench) ;;
  check | compare | tune)
    for word in "$@"; do
      if file=$(find_script "${word%%[: ]*}"); then texts+=("$file"); fi
    done
    ;;
  *)
    script=$(find_script "$task")
    texts=("$script")
    if [ "$(basename "$script")" = ppo_eval.py ]; then # it plays the script that a run keeps
      texts=()
      for word in "$@"; do [ ! -f "$word/script.py" ] || texts+=("$word/script.py"); done
    fi
    ;;
esac
needs=(requirements)
case $task in
  test) needs+=(requirements-{dev,bench,pettingzoo,warp,onnx}) ;;
  bench | compare | tune) needs+=(requirements-bench) ;;
esac
# a script says what it needs in its first lines, or by what it imports
if uses '^#   "pettingzoo|parallel_env' || [[ $task == *ppo_eval* && $* == *pettingzoo* ]]; then
  needs+=(requirements-pettingzoo)
fi
if uses '^#   "mujoco-warp|^ *import mujoco_warp'; then needs+=(requirements-warp); fi
if [[ " $* " == *" --onnx "* ]]; then needs+=(requirements-onnx); fi
set_up "${needs[@]}"
# where EnvPool has no wheel, Atari is played by ALE itself
if [ "$default" ] && ! "$venv/bin/python" -c 'import envpool' 2>/dev/null; then
  script=$root/ppo/ppo_atari_torchcompile.py
fi

if [ "$task" = test ]; then
  echo "run.sh: lint, then all tests, some 9 minutes on two cores; -m 'not slow': 80 seconds" >&2
  cd "$root"
  "$venv/bin/ruff" check .
  "$venv/bin/ruff" format --check .
  "$venv/bin/codespell" ppo benchmarks examples tests requirements README.md CONTRIBUTING.md pyproject.toml run.sh
  exec "$venv/bin/python" -m pytest -n auto --dist worksteal "$@" # a worker a core
fi
if [ "$task" = bench ]; then
  exec "$venv/bin/python" "$root/benchmarks/throughput.py" --quick "$@"
fi
# no line from tensordict about each capture
export TD_LOGGING_LEVEL=${TD_LOGGING_LEVEL:-WARNING}
if [[ $task =~ ^(check|compare|tune)$ ]]; then
  exec "$venv/bin/python" "$root/benchmarks/$task.py" "$@"
fi
# records of an H200: this eager version is slower there than on the CPU beside it
if [[ $script == "$root"/ppo/ppo.py && -e /dev/nvidiactl && ! " $* " =~ \ --((no-)?cuda|resume)[\ =] ]]; then
  echo "run.sh: adds --no-cuda, as a GPU slows this eager version down; --cuda overrules it" >&2
  set -- --no-cuda "$@"
fi
if uses '^import torch\.distributed'; then
  processes=$("$venv/bin/python" -c 'import torch; print(torch.cuda.device_count() or 2)')
  exec "$venv/bin/torchrun" --standalone --nproc-per-node "$processes" "$script" "$@"
fi
if [[ $script == */ppo_eval.py && " $* " == *" --follow "* ]]; then script=$root/benchmarks/follow.py; fi
exec "$venv/bin/python" "$script" "$@"
