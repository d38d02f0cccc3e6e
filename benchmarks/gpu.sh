#!/usr/bin/env bash
# What only a CUDA device can show, the most telling first; a part takes LIMIT seconds at most, or 240.
#
#   bash benchmarks/gpu.sh PART [RESULTS]   records go to RESULTS, or to benchmarks/results
#
# 1 tests, and Breakout with 8 games beside LeanRL and CleanRL; 2 HalfCheetah-v5 in 4,096 worlds of
# MuJoCo Warp, and Breakout with 64 games beside the same; 3 Pong by the flags in ppo/SCRIPTS.md; 4
# small scripts on the device, eager there, and on the CPU. A part goes on with its runs of learning.
# COMMIT is put down where git knows none. Copies of peers/cleanrl_leanrl.py are in the folder PEERS.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
atari=ppo_atari_envpool fast=ppo_atari_envpool_torchcompile full=$fast:compile+cudagraphs
pong="--num-envs 16 --num-minibatches 16 --update-epochs 3 --learning-rate 1e-3 --clip-coef 0.2"
pong+=" --no-clip-vloss --vf-coef 4"
warp=ppo_continuous_action_warp worlds=4096 warp_steps=16000000
rounds=3 iterations=16 steps=1800000 many=64 minutes=4 slow=90
limit=${LIMIT:-240} workers=${WORKERS:-8}

run() { # COMMAND..., within the part's time; what fails does not stop the part
  local left=$((until - SECONDS)) begin=$SECONDS
  echo "$ $*"
  [ $left -ge 5 ] || return 0
  timeout -s INT -k 20 $left "$@" || echo "gpu.sh: status $?: $*" >&2
  echo "# $((SECONDS - begin)) s"
}

throughput() { run python3 benchmarks/throughput.py --results "$results" --timeout $slow "$@"; }

learning() {
  run python3 benchmarks/learning.py --results "$results" --minutes $minutes --jobs 1 \
    --runs-dir "${RUNS:-$results/runs}" "$@"
}

beside() { # GAMES ITERATIONS: the peers of Breakout, as throughput.py's flags
  local name=${fast#ppo_} games
  games="--num-envs $1 --total-timesteps $(($2 * $1 * 128))"
  peers=()
  [ -n "${PEERS:-}" ] || return 0
  peers=(--peer "LeanRL --compile --cudagraphs=python3 $PEERS/leanrl_ppo_$name.py --compile --cudagraphs $games"
    --peer "CleanRL=python3 $PEERS/cleanrl_$atari.py $games")
}

part() {
  until=$((SECONDS + limit))
  case $1 in
    1)
      run python3 -m pytest -q -n $workers -p no:cacheprovider --show-capture=no -m gpu \
        tests/test_capture.py
      beside 8 $iterations
      throughput --rounds $rounds --iterations $iterations --variants $full "${peers[@]}"
      ;;
    2)
      learning --env-ids HalfCheetah-v5 --seeds 1 --total-timesteps $warp_steps --variants \
        "${warp}_torchcompile:compile+cudagraphs --num-envs $worlds --num-steps 16"
      throughput --rounds 1 --num-envs $worlds --variants ${warp}_torchcompile:compile+cudagraphs \
        ${warp}_torchcompile:cudagraphs+no-rollout-graph
      beside $many $((iterations / 2))
      throughput --rounds $((rounds - 1)) --iterations $((iterations / 2)) --num-envs $many \
        --variants $full "${peers[@]}"
      ;;
    3)
      learning --env-ids Pong-v5 --seeds 1 2 3 --total-timesteps $steps --variants "$full $pong"
      ;;
    4)
      for name in ppo ppo_continuous_action ppo_lstm ppo_pixels ppo_trxl; do
        throughput --rounds 1 --iterations $iterations --variants ${name}_torchcompile:compile+no-cuda \
          ${name}_torchcompile:compile+cudagraphs $name $name:no-cuda
      done
      ;;
  esac
}

if [[ ${1:-} != [1-4] ]]; then
  echo "usage: bash benchmarks/gpu.sh 1|2|3|4 [RESULTS]" >&2
  exit 2
fi
results=${2:-benchmarks/results}
mkdir -p "$results"
part "$1"
