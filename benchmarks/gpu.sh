#!/usr/bin/env bash
# What only a CUDA device can show, in parts of at most 9 minutes each, the most telling first.
#
#   bash benchmarks/gpu.sh PART [RESULTS]   records go to RESULTS, or to benchmarks/results
#   bash benchmarks/gpu.sh --dry-run        every command in small, uncompiled, on whatever is here;
#                                           status 1 if one failed
#
# 1 tests, and Atari's modes; 2 more games, where the device's time goes; 3 what each trick buys, the
# other scripts; 4 Breakout to 10 million steps, 3 seeds, their runs in RUNS, or in RESULTS/runs:
# part 4 again goes on with them. Parts 1 to 4 take 8, 6, 5 and 6 minutes: when these are over, what
# still runs is interrupted and what comes after it is left out; records are there as runs end.
# COMMIT is put down where git knows none. Other people's scripts join where PEERS holds their
# --peer='NAME=COMMAND' and --peer-sps='REGEX'.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
atari=ppo_atari_envpool fast=ppo_atari_envpool_torchcompile full=$fast:compile+cudagraphs
rounds=3 iterations=40 steps=10000000 minutes=5 more="64 128" most=128 slow=120 dry= failed=0
declare -a limits=(0 480 360 300 360) peers=()
[ -z "${PEERS:-}" ] || eval "peers=($PEERS)"

run() { # SECONDS COMMAND..., at most so long and within the part; what fails does not stop the part
  local most=${dry:+$limit} left=$((limit - SECONDS)) begin=$SECONDS
  most=${most:-$1}
  shift
  echo "$ $*"
  if [ $left -lt 5 ]; then
    echo "gpu.sh: no time left" >&2
    return
  fi
  timeout -s INT -k 20 $((most < left ? most : left)) "$@" || {
    echo "gpu.sh: status $?: $*" >&2
    failed=1
  }
  echo "# $((SECONDS - begin)) s"
}

tests() { # six processes at a time, ten of them each
  local all
  TORCHINDUCTOR_CACHE_DIR=$(mktemp -d) # one for all of them: what one has compiled the next finds
  export TORCHINDUCTOR_CACHE_DIR
  all=$(python3 -m pytest -q tests -m gpu --collect-only | grep ::)
  xargs -P 6 -n 10 python3 -m pytest -q --tb=short -p no:cacheprovider ${dry:+--collect-only} <<<"$all"
}
export -f tests

throughput() { run 600 python3 benchmarks/throughput.py --results "$results" --timeout $slow "$@"; }

part() {
  limit=$((SECONDS + limits[$1]))
  case $1 in
    1)
      run 200 bash -c tests
      throughput --rounds $rounds --iterations $iterations --variants $full $full+bfloat16 $atari \
        $fast:compile $fast:cudagraphs $fast "${peers[@]}"
      ;;
    2)
      throughput --rounds 1 --iterations $((iterations / 4 + 2)) --num-envs $more \
        --variants $full $full+bfloat16 $atari
      run 90 python3 benchmarks/kernels.py $fast --compile --cudagraphs
      run 90 python3 benchmarks/kernels.py $fast --compile --cudagraphs --num-envs $most
      ;;
    3)
      run 180 python3 benchmarks/ablation.py --results "$results" --pairs $atari --rounds 1 \
        --iterations $((iterations / 2 + 2)) --timeout $slow
      for name in ppo_continuous_action ppo_continuous_action_envpool; do
        throughput --rounds 1 --iterations $((iterations / 4 + 2)) --variants $name \
          ${name}_torchcompile:compile+cudagraphs ${name}_torchcompile:compile \
          ${name}_torchcompile:compile+no-cuda
      done
      ;;
    4)
      run 600 python3 benchmarks/learning.py --results "$results" --minutes $minutes --jobs 3 \
        --runs-dir "${RUNS:-$results/runs}" --env-ids Breakout-v5 --seeds 1 2 3 \
        --total-timesteps $steps --variants $full
      ;;
  esac
}

if [ "${1:-}" = --dry-run ]; then
  export TORCH_COMPILE_DISABLE=1 dry=1
  rounds=1 iterations=8 steps=4096 minutes=1 more="2 4" most=2 slow=3600
  limits=(0 3600 3600 3600 3600)
  results=$(mktemp -d)
  trap 'rm -rf "$results"' EXIT
  for number in 1 2 3 4; do
    echo "== part $number"
    part $number
  done
  exit $failed
elif [[ ${1:-} == [1-4] ]]; then
  results=${2:-benchmarks/results}
  mkdir -p "$results"
  part "$1"
else
  echo "usage: bash benchmarks/gpu.sh 1|2|3|4 [RESULTS], or --dry-run" >&2
  exit 2
fi
