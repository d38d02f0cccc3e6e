"""CleanRL's and LeanRL's PPO made to run on today's libraries: edited copies of their files.

    python benchmarks/peers/cleanrl_leanrl.py --cleanrl ../cleanrl --leanrl ../LeanRL --out ../peers
    cd ../peers && python leanrl_ppo_continuous_action_torchcompile.py --compile

The folders are clones of https://github.com/vwxyzjn/cleanrl, commit fe8d8a03c4, and of
https://github.com/pytorch-labs/LeanRL, commit 8dbb6336b7. Edited is what EnvPool 1.2, Gymnasium 1
and NumPy 2 ask for, and what a comparison needs: `SPS: x` after each iteration, of the steps after
the first 3, and `global_step=N, episodic_return=X` after each episode. What they compute stays.
"""

import argparse
import sys
from pathlib import Path

COMMITS = {"cleanrl": "fe8d8a03c4", "leanrl": "8dbb6336b7"}
FINISHED = """\
[{"episode": {k: infos["final_info"]["episode"][k][i] for k in "rl"}} \
for i in np.flatnonzero(infos["_final_info"])]:"""
PRINT = 'print(f"global_step={%s}, episodic_return={%s}")'
ROLLOUT_STEP = "global_step + (step + 1) * args.num_envs"  # there global_step stands still

# edits (old, new, reason); an old text that comes several times is replaced everywhere
ENVPOOL = [
    ("\nimport gym\n", "\nimport gymnasium as gym\n", "gym does not work with NumPy 2"),
    ("(gym.Wrapper)", "(gym.vector.VectorWrapper)", "EnvPool's are vector environments"),
    ('        self.num_envs = getattr(env, "num_envs", 1)\n', "", "EnvPool has it, read-only"),
    ("    envs.num_envs = args.num_envs\n", "", "the same"),
    ("    envs.single_action_space = envs.action_space\n", "", "the same"),
    ("    envs.single_observation_space = envs.observation_space\n", "", "the same"),
    ("(envs.action_space,", "(envs.single_action_space,", "the other is the batch's"),
    ("observations = super()", "observations, _ = super()", "reset gives two values"),
    (
        "dones, infos = super().step(action)",
        "ended, cut, infos = super().step(action)\n        dones = ended | cut",
        "step gives five values",
    ),
]
SAME_STEP = "autoreset_mode=gym.vector.AutoresetMode.SAME_STEP"
GYMNASIUM = [
    ("in range(args.num_envs)]", f"in range(args.num_envs)], {SAME_STEP}", "as version 0.29 did"),
    ('infos["final_info"]:', FINISHED, "arrays in place of a dictionary an environment"),
]
MUJOCO = [("np.clip(obs, -10, 10))", "np.clip(obs, -10, 10), None)", "asks for a space, or None")]
CLEANRL = [
    ("start_time = time.time()", "start_time, start_step = time.time(), 0", "a clock"),
    (
        "# Annealing the rate",
        "if iteration == 4:\n            start_time, start_step = time.time(), global_step\n"
        "        # Annealing the rate",
        "that starts after 3 iterations",
    ),
    ("int(global_step / (", "float((global_step - start_step) / (", "and is read"),
]
LEANRL = [
    ("import wandb", "import unittest.mock; wandb = unittest.mock.Mock()", "wandb off"),
    ("for iteration in pbar", "clock = 0, time.time()\n    for iteration in pbar", "a clock"),
    (
        "if iteration == args.measure_burnin:",
        "if iteration == args.measure_burnin + 1:\n            clock = global_step, time.time()",
        "that starts after 3 iterations",
    ),
    (
        "if global_step_burnin is not",
        'print("SPS:", round((global_step - clock[0]) / (time.time() - clock[1]), 1))\n'
        "        if global_step_burnin is not",
        "and is read",
    ),
]


def then(old: str, new: str) -> tuple[str, str, str]:
    """The edit that puts a statement after another."""
    return old, f"{old}; {new}", "returns are printed"


EAGER = [then("avg_returns.append(r)", PRINT % ("global_step", "r"))]
INFERENCE = (
    "agent_inference_p.to_module(agent_inference)",
    "agent_inference_p.to_module(agent_inference); agent_inference.requires_grad_(False)",
    "acting is to make no graph: without it the second update raises",
)
COMPILED = [INFERENCE, then("avg_returns.append(r)", PRINT % (ROLLOUT_STEP, "r"))]
EACH = f"[{PRINT % (ROLLOUT_STEP, 'x')} for x in r[idx].tolist()]"
COMPILED_ATARI = [INFERENCE, then("avg_returns.extend(r[idx])", EACH)]
FILES = {
    "cleanrl/ppo.py": GYMNASIUM + CLEANRL,
    "cleanrl/ppo_continuous_action.py": GYMNASIUM + MUJOCO + CLEANRL,
    "cleanrl/ppo_atari_envpool.py": ENVPOOL + CLEANRL,
    "leanrl/ppo_continuous_action.py": GYMNASIUM + MUJOCO + LEANRL + EAGER,
    "leanrl/ppo_continuous_action_torchcompile.py": GYMNASIUM + MUJOCO + LEANRL + COMPILED,
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
    parser.add_argument("--cleanrl", type=Path, required=True, help="a clone of it")
    parser.add_argument("--leanrl", type=Path, required=True, help="a clone of it")
    parser.add_argument("--out", type=Path, required=True, help="folder of the edited copies")
    args = parser.parse_args()
    clones = {"cleanrl": args.cleanrl, "leanrl": args.leanrl}
    try:
        texts = {}
        for name, edits in FILES.items():
            project, _, file = name.partition("/")
            texts[f"{project}_{file}"] = edited(clones[project] / name, edits, COMMITS[project])
        args.out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (args.out / name).write_text(text)
            print(args.out / name)
    except (OSError, ValueError) as error:
        print(f"cleanrl_leanrl.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
