"""CleanRL's and LeanRL's PPO made to run on today's libraries: edited copies of their files.

    python benchmarks/peers.py --cleanrl ../cleanrl --leanrl ../LeanRL --out ../peers
    cd ../peers && python leanrl_ppo_continuous_action_torchcompile.py --compile

The folders are clones of https://github.com/vwxyzjn/cleanrl, commit fe8d8a03c4, and of
https://github.com/pytorch-labs/LeanRL, commit 8dbb6336b7; where a text is missing that an edit
replaces, nothing is written. Edited is what EnvPool 1.2, Gymnasium 1 and NumPy 2 ask for, and what
a comparison needs: `SPS: x` after each iteration, of the steps after the first 3 of them as ours,
and `global_step=N, episodic_return=X` after each episode. What they compute stays as it is.
"""

import argparse
import sys
from pathlib import Path

COMMITS = {"cleanrl": "fe8d8a03c4", "leanrl": "8dbb6336b7"}
FINISHED = """\
[{"episode": {k: infos["final_info"]["episode"][k][i] for k in "rl"}} \
for i in np.flatnonzero(infos["_final_info"])]:"""
RETURN = 'print(f"global_step={%s}, episodic_return={%s}")'
ROLLOUT_STEP = "global_step + (step + 1) * args.num_envs"  # global_step is the rollout's first

# edits: (old, new, reason); an old text that comes several times is replaced everywhere
ENVPOOL = [
    ("\nimport gym\n", "\nimport gymnasium as gym\n", "gym does not work with NumPy 2"),
    ("(gym.Wrapper)", "(gym.vector.VectorWrapper)", "EnvPool's are vector environments"),
    ('        self.num_envs = getattr(env, "num_envs", 1)\n', "", "EnvPool has it, read-only"),
    ("    envs.num_envs = args.num_envs\n", "", "the same"),
    ("    envs.single_action_space = envs.action_space\n", "", "the same"),
    ("    envs.single_observation_space = envs.observation_space\n", "", "the same"),
    ("(envs.action_space,", "(envs.single_action_space,", "the other is the batch's"),
    ("observations = super()", "observations, _ = super()", "reset gives (obs, info)"),
    (
        "observations, rewards, dones, infos = super().step(action)",
        "observations, rewards, terminated, truncated, infos = super().step(action)\n"
        "        dones = terminated | truncated",
        "step gives five values",
    ),
]
VECTOR = [
    (
        "for i in range(args.num_envs)]",
        "for i in range(args.num_envs)], autoreset_mode=gym.vector.AutoresetMode.SAME_STEP",
        "as Gymnasium 0.29 did, for which they were written",
    ),
    ('infos["final_info"]:', FINISHED, "a dictionary of arrays, no longer one of each environment"),
]
MUJOCO = [("np.clip(obs, -10, 10))", "np.clip(obs, -10, 10), None)", "asks for a space, or None")]
CLEANRL = [
    ("start_time = time.time()", "start_time, start_step = time.time(), 0", "the clock"),
    (
        "        # Annealing the rate",
        "        if iteration == 4:\n"
        "            start_time, start_step = time.time(), global_step\n"
        "        # Annealing the rate",
        "starts after 3 iterations",
    ),
    (
        "int(global_step / (time.time() - start_time))",
        "round((global_step - start_step) / (time.time() - start_time), 1)",
        "and is read",
    ),
]
LEANRL = [
    ("import wandb", "import unittest.mock; wandb = unittest.mock.Mock()", "wandb off"),
    ("for iteration in pbar", "clock = 0, time.time()\n    for iteration in pbar", "the clock"),
    (
        "if iteration == args.measure_burnin:",
        "if iteration == args.measure_burnin + 1:\n            clock = global_step, time.time()",
        "starts after 3 iterations",
    ),
    (
        "if global_step_burnin is not",
        'print("SPS:", round((global_step - clock[0]) / (time.time() - clock[1]), 1))\n'
        "        if global_step_burnin is not",
        "and is read",
    ),
]
EAGER = [
    (
        "avg_returns.append(r)",
        f"avg_returns.append(r); {RETURN % ('global_step', 'r')}",
        "returns are printed",
    )
]
INFERENCE = (
    "agent_inference_p.to_module(agent_inference)",
    "agent_inference_p.to_module(agent_inference); agent_inference.requires_grad_(False)",
    "acting is to make no graph: without it the second update raises",
)
COMPILED = [
    INFERENCE,
    (
        "avg_returns.append(r)",
        f"avg_returns.append(r); {RETURN % (ROLLOUT_STEP, 'r')}",
        "returns are printed",
    ),
]
COMPILED_ATARI = [
    INFERENCE,
    (
        "avg_returns.extend(r[idx])",
        f"avg_returns.extend(r[idx]); [{RETURN % (ROLLOUT_STEP, 'x')} for x in r[idx].tolist()]",
        "returns are printed",
    ),
]
FILES = {
    "cleanrl/ppo.py": VECTOR + CLEANRL,
    "cleanrl/ppo_continuous_action.py": VECTOR + MUJOCO + CLEANRL,
    "cleanrl/ppo_atari_envpool.py": ENVPOOL + CLEANRL,
    "leanrl/ppo_continuous_action.py": VECTOR + MUJOCO + LEANRL + EAGER,
    "leanrl/ppo_continuous_action_torchcompile.py": VECTOR + MUJOCO + LEANRL + COMPILED,
    "leanrl/ppo_atari_envpool.py": ENVPOOL + LEANRL + EAGER,
    "leanrl/ppo_atari_envpool_torchcompile.py": ENVPOOL + LEANRL + COMPILED_ATARI,
}


def edited(path: Path, edits: list[tuple[str, str, str]], commit: str) -> str:
    """A file's text with its edits; ValueError if it has no place for one."""
    text = path.read_text()
    for old, new, reason in edits:
        if old not in text:
            raise ValueError(f"{path} lacks {old!r} ({reason}): is it of commit {commit}?")
        text = text.replace(old, new)
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cleanrl", type=Path, help="a clone of it")
    parser.add_argument("--leanrl", type=Path, help="a clone of it")
    parser.add_argument("--out", type=Path, required=True, help="folder of the edited copies")
    args = parser.parse_args()
    clones = {"cleanrl": args.cleanrl, "leanrl": args.leanrl}
    try:
        if not any(clones.values()):
            raise ValueError("give --cleanrl or --leanrl, or both")
        texts = {}
        for name, edits in FILES.items():
            project, _, file = name.partition("/")
            if clones[project] is not None:
                path = clones[project] / name
                texts[f"{project}_{file}"] = edited(path, edits, COMMITS[project])
        args.out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (args.out / name).write_text(text)
            print(args.out / name)
    except (OSError, ValueError) as error:
        print(f"peers.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
