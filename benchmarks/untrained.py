"""What a trained policy is worth: its games beside those of who stands still, or acts at random.

    python benchmarks/untrained.py runs/<run>     # 20 games of each; results/untrained.jsonl

All play the same games in the run's own environments, as ppo_eval does: the policy by its most
likely action, `still` by actions of 0, where they are continuous, `random` by any that the space
has. Where info says what a reward is made of, as MuJoCo Playground's reward_tracking_lin_vel, the
mean a step of each term is kept, too. Standing still can earn more than falling early does: a
return alone does not show that a robot walks.
"""

import argparse
import re
import sys
from collections import defaultdict
from pathlib import Path

import gymnasium as gym
import numpy as np
from lib.records import RESULTS, ROOT, append, machine, now
from tqdm import tqdm

sys.path.append(str(ROOT / "ppo"))
import ppo_eval


def actor(policy, who: str, rng):
    """A function that takes a game's observations and masks, and gives actions, (R, ...)."""
    if who == "policy":
        return policy.act_rows
    space = policy.space

    def act(obs, mask):
        rows = len(obs)
        if who == "still":
            return np.zeros((rows, *space.shape), space.dtype)
        if mask is not None:
            return np.array([rng.choice(np.flatnonzero(row)) for row in mask])
        if isinstance(space, gym.spaces.Discrete):
            return rng.integers(space.n, size=rows)
        return rng.uniform(space.low, space.high, (rows, *space.shape)).astype(space.dtype)

    return act


def play(policy, who: str, seed: int) -> tuple[float, int, dict]:
    """A game's return, its length, and of each entry of info about the reward the mean a step."""
    game = ppo_eval.Game(policy, seed)
    policy.reset(seed, rows=len(game.there))
    act, told = actor(policy, who, np.random.default_rng(seed)), defaultdict(list)
    while not game.over:
        action = act(game.obs, game.masks())
        if game.life_over:
            policy.reset(rows=len(game.there))
        game.step(action)
        for name, value in game.info.items():
            if name.startswith("reward_"):
                told[name].append(float(np.mean(value)))
    ppo_eval.close(game.envs)
    return game.total, len(game.actions), {name: np.mean(x) for name, x in told.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", help="a run's folder")
    parser.add_argument("--games", type=int, default=20, help="of each")
    parser.add_argument("--seed", type=int, default=1, help="of the games")
    parser.add_argument(
        "--records", type=Path, default=RESULTS / "untrained.jsonl", help="the file, gone on with"
    )
    args = parser.parse_args()
    gym.logger.min_level = gym.logger.ERROR
    try:
        policy = ppo_eval.load(args.run)
    except ppo_eval.CannotPlay as error:
        print(f"untrained.py: {error}", file=sys.stderr)
        return 2
    saved = policy.checkpoint
    seeds = np.random.SeedSequence(args.seed, spawn_key=(1,)).generate_state(args.games) >> 1
    moves = isinstance(policy.space, gym.spaces.Box)
    for who in ["policy", *["still"] * moves, "random"]:
        games = [play(policy, who, seed) for seed in tqdm(seeds.tolist(), desc=who, unit="game")]
        returns, lengths, told = zip(*games, strict=True)
        terms = {k: round(float(np.mean([x[k] for x in told])), 4) for k in told[0]}
        record = {"who": who, "env_id": saved["args"]["env_id"], "script": saved["format"]}
        record |= {"global_step": saved["global_step"], "args": saved["args"]}
        record |= {"returns": [round(x, 3) for x in returns], "lengths": lengths, "terms": terms}
        append(args.records, record | machine() | {"date": now()})
        shown = {name: x for name, x in terms.items() if re.search("tracking|success", name)}
        told = "".join(f", {name} {x}" for name, x in shown.items())
        returned = f"return {np.mean(returns):.2f} ± {np.std(returns):.2f}"
        print(f"{who:>6}: {returned}, {np.mean(lengths):.0f} steps{told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
