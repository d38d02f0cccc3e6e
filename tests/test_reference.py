"""The scripts against `reference.py` for whole iterations; resuming, clock, first weights.

The eager versions, and fast ones with --compile or --cudagraphs: of both modes all is run but the
compiler and the capture.
"""

import random
import re
import runpy
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from unittest import mock

import doors  # noqa: F401, registers Doors-v0
import envpool
import gymnasium as gym
import numpy as np
import pytest
import reference
from helpers import PPO, AtariSpaces, agent, run_main, scalars, spaces
from test_capture import on_a_cpu

import torch

LOSSES = "policy_loss value_loss entropy old_approx_kl approx_kl clipfrac grad_norm".split()
LOSSES += ["explained_variance"]


class ScriptedGames(AtariSpaces):
    """Games in place of EnvPool's that end by a script, a symbol a step: ends of all kinds, soon.

    L: a lost life; O: game over; T: cut by the time limit; B: game over in that very step. The step
    after one of those is a reset row, which pays 100 that nobody may count. N: a reset row after a
    lost life in which the game ends unsaid: lives are full again. U: one whose no-ops end the game,
    as in RoadRunner. G: a life won. Frames hang on the game's seed, the step and the action, raw
    rewards of -2 to 3 on the last two.
    """

    GAMES = (
        "--L-G-LN--O------LUO----",
        "----T--L-------B------L-",
        "---L-L-O----T-----L-----",
        "-------T-----O-------T--",
    )

    def __init__(self, env_id, num_envs, seed, stack_num=4, **options):
        assert options.pop("env_type") == "gym" and num_envs == len(seed) == len(self.GAMES)
        assert {*options} <= {"episodic_life", "reward_clip", "num_threads"}
        self.seed, self.episodic_life = seed, options.get("episodic_life", False)
        self.reward_clip, self.shape = options.get("reward_clip", False), (stack_num, 12, 12)
        self.single_observation_space = gym.spaces.Box(0, 255, (stack_num, 84, 84), np.uint8)
        self.t, self.lives, self.symbols = 0, np.full(num_envs, 3), ["-"] * num_envs

    def frames(self, actions):
        """Like a game's, mostly black."""
        cells = np.zeros((len(self.seed), *self.shape))
        for i, seed in enumerate(self.seed):
            rng = np.random.default_rng([seed, self.t, int(actions[i])])
            cells[i] = rng.integers(0, 256, self.shape) * (rng.random(self.shape) < 0.1)
        return np.kron(cells, np.ones((7, 7))).astype(np.uint8)

    def reset(self):
        return self.frames([0] * len(self.seed)), {"lives": self.lives.copy()}

    def step(self, actions):
        reset, renewed = self.among("LOTB"), self.among("OTB")
        self.symbols = [game[self.t % 24] for game in self.GAMES]
        self.t += 1
        raw = np.where(reset, 100, np.array([-2, 0, 3, 1])[(actions + self.t) % 4])
        lives = self.lives + self.among("G") * 1 - self.among("L") * 1
        self.lives = np.where(renewed | self.among("N"), 3, lives)
        self.lives[self.among("OBU")] = 0
        info = {"reward": raw.astype(np.float32), "lives": self.lives.copy()}
        info["terminated"] = self.among("OBU").astype(np.int32)
        reward = (np.sign(raw) if self.reward_clip else raw).astype(np.float32)
        terminated = self.among("LO" if self.episodic_life else "O")
        return self.frames(actions), reward, terminated, self.among("TB"), info

    def among(self, kinds):
        return np.array([symbol in kinds for symbol in self.symbols])

    def close(self):
        pass


class ScriptedALE(ScriptedGames):
    """The same in place of ALE's: a step that restarts a game follows O, T, B and X alone, and its
    frames, a few by no-ops, are counted anew. L: the game goes on. X: a life lost in the very step
    of the time limit, which is not said to be one."""

    GAMES = (
        "---L---L--O----T---L----",
        "----T--X------B------L--",
        "-L-----O-------L----X---",
        "-----L-T-----O-------T-L",
    )

    def __init__(self, env_id, num_envs, life_loss_info=False, reward_clipping=True, **options):
        assert env_id.startswith("ALE/") and options == {"repeat_action_probability": 0.0}
        seed, clip = [0] * num_envs, {"reward_clip": reward_clipping}
        super().__init__(env_id, num_envs, seed, env_type="gym", **clip)
        self.life_loss_info, self.counts = life_loss_info, np.arange(num_envs)

    def reset(self, seed):
        assert isinstance(seed, np.ndarray)
        self.seed = seed.tolist()
        return self.frames([0] * len(seed)), self.info()

    def info(self):
        return {"lives": self.lives.copy(), "episode_frame_number": self.counts.copy()}

    def step(self, actions):
        restart = self.among("OTBX")
        self.symbols = [game[self.t % 24] for game in self.GAMES]
        self.t += 1
        raw = np.where(restart, 0, np.array([-2, 0, 3, 1])[(actions + self.t) % 4])
        self.lives = np.where(restart, 3, self.lives - self.among("LX"))
        self.lives[self.among("OB")] = 0
        self.counts = np.where(restart, self.t % 30, self.counts + 4)
        terminated = self.among("OBLX" if self.life_loss_info else "OB")
        truncated = self.among("T" if self.life_loss_info else "TX")
        reward = (np.sign(raw) if self.reward_clip else raw).astype(np.int32)
        return self.frames(actions), reward, terminated, truncated, self.info()


class Diverging(gym.Wrapper):
    """Sees 30 once, in a step that hangs on its seed, and nan and inf where it terminates, as a
    diverged simulator may."""

    t = 0

    def reset(self, *, seed=None, **more):
        self.odd = self.odd if seed is None else seed % 200
        return self.env.reset(seed=seed, **more)

    def step(self, action):
        obs, reward, terminated, *rest = self.env.step(action)
        self.t += 1
        if terminated or self.t == self.odd:
            obs = obs.copy()
            obs[:2] = [np.nan, np.inf] if terminated else [obs[0], 30]
        return obs, reward, terminated, *rest


class Rare(gym.Wrapper):
    """Sees 1 first in an episode's 17th step alone, which is scaled beyond the clipping."""

    def reset(self, **more):
        self.t = 0
        obs, info = self.env.reset(**more)
        return self.marked(obs), info

    def step(self, action):
        self.t += 1
        obs, *rest = self.env.step(action)
        return self.marked(obs), *rest

    def marked(self, obs):
        return np.array([self.t == 17, *obs[1:]], dtype=np.float32)


@dataclass
class Job:
    """A short run of a script, and what of the reference replays it.

    The first policy is made bolder by `start`, a line of code: a network's own is so nearly uniform
    that neither entropies nor ratios tell much. `tolerance` is of a field, in parts of its largest
    entry; `drift` of the parameters together, in parts of the way that they went.
    """

    script: str
    flags: dict
    network: callable
    policy: callable
    games: type
    patch: tuple  # module, name, value: how script and reference make their environments
    start: str
    tolerance: float
    drift: float
    normalise: bool = False  # observations and rewards, by their running moments
    memory: tuple = ()  # shape of an environment's, with an LSTM
    window: tuple = ()  # shape of an environment's, with attention
    hides: tuple = ()  # entries of an observation that the script leaves out unasked
    agents: int = 1  # in an environment, each with a row
    mode: str = ""  # of a fast script
    batched: bool = False  # an iteration's games are logged by their mean, at its end

    def __post_init__(self):
        more = {"normalise": self.normalise, "memory": self.memory, "hide": self.hides}
        more |= {"window": self.window, "agents": self.agents}
        self.h = SimpleNamespace(**more | self.flags)
        self.steps = self.h.num_envs * self.h.num_steps  # of environments in an iteration

    def run(self, runs_dir, *flags, edit=None):
        """The script's variables at its end, its trace among them; `edit` is of its text."""
        words = []
        for name, value in self.flags.items():
            flag = f"--{name.replace('_', '-')}"
            if isinstance(value, bool):
                words.append(flag if value else flag.replace("--", "--no-", 1))
            elif isinstance(value, tuple):
                words += [flag, *value]
            elif value is not None:
                words += [flag, value]

        def both(text):
            text = recorded(edit(text) if edit else text, self.start)
            return on_a_cpu(text) if self.mode == "cudagraphs" else text

        words += [f"--{self.mode}"] * bool(self.mode)
        with mock.patch.object(torch, "compile", lambda function: function):
            return run_main(self.script, *words, *flags, runs_dir=runs_dir, edit=both)

    def replay(self, run, games=None):
        return reference.follow(
            self.h, self.network, self.policy, games or self.games, run.initial, run.trace
        )


ON = dict(  # PPO with all that belongs to it
    gamma=0.97, gae_lambda=0.9, anneal_lr=True, norm_adv=True, clip_vloss=True,
    clip_coef=0.1, ent_coef=0.01, vf_coef=0.5,
)  # fmt: skip
OFF = dict(anneal_lr=False, norm_adv=False, clip_vloss=False, clip_coef=0.2, target_kl=None)
FEW_GAMES = ON | dict(
    env_id="Breakout-v5", num_envs=4, num_steps=8, total_timesteps=100, num_minibatches=2,
    update_epochs=2, learning_rate=2.5e-4, max_grad_norm=2.0,
)  # fmt: skip
FEW_ROWS = ON | dict(
    num_envs=4, num_steps=24, total_timesteps=300, num_minibatches=3, update_epochs=4,
    learning_rate=1e-3, max_grad_norm=1.5,
)  # fmt: skip
MANY_GAMES = dict(num_envs=8, num_steps=15, total_timesteps=360, stagger=True)
WITH_MEMORY = dict(num_envs=6, total_timesteps=440, update_epochs=3)
ATARI = dict(
    script="ppo_atari_envpool",
    start="agent.actor.weight.data.mul_(200)",
    # seen: 1e-4 and 1e-5; but one ReLU that float32 sees on the other side of 0: 6e-4 and 3e-3
    tolerance=3e-3,
    drift=2e-2,
    network=reference.nature_cnn,
    policy=reference.categorical,
    games=reference.Atari,
    flags=FEW_GAMES,
)
ALE = ATARI | dict(
    script="ppo_atari", games=reference.ALE, flags=FEW_GAMES | {"env_id": "ALE/Breakout-v5"}
)
CONTINUOUS = dict(
    script="ppo_continuous_action",
    start="agent.actor_mean[4].weight.data.mul_(50), agent.actor_logstd.data.uniform_(-0.5, 0.5)",
    tolerance=5e-5,  # seen: 4e-6
    drift=1e-4,  # seen: 1e-5
    network=reference.two_perceptrons,
    policy=reference.gaussian,
    games=reference.Gymnasium,
    normalise=True,
    flags=FEW_ROWS | {"env_id": "Hopper-v4"},
)
MANY = CONTINUOUS | dict(
    script="ppo_continuous_action_envpool",
    network=reference.two_elu_perceptrons,
    games=reference.ManyEnvs,
)
WARP = MANY | dict(script="ppo_continuous_action_warp", games=reference.OnDevice, batched=True)
CARTPOLE = dict(
    script="ppo",
    start="[x.data.mul_(50) for x in agent.parameters() if x.dim() == 2 and 1 < len(x) < 9]",
    tolerance=5e-5,  # seen: 5e-6
    drift=1e-4,  # seen: 6e-6
    network=reference.two_perceptrons,
    policy=reference.categorical,
    games=reference.Gymnasium,
    flags=FEW_ROWS | {"env_id": "CartPole-v1"},
)
TRXL = CARTPOLE | dict(
    script="ppo_trxl",
    network=reference.attention,
    start="agent.actor.weight.data.mul_(50)",
    hides=(1, 3),
)


def job(base, patch, **more):
    """A Job; what is no field of its own is a flag."""
    fields = {key: more.pop(key) for key in [*more] if key in Job.__dataclass_fields__}
    return Job(**base | fields | {"patch": patch, "flags": base["flags"] | more})


def cut(module, steps, within=lambda env: env):
    """How environments are made that are cut after so many steps, in a wrapper."""
    make = module.make
    return module, "make", lambda *x, **more: within(make(*x, max_episode_steps=steps, **more))


AS_IT_IS = gym, "make", gym.make
SCRIPTED = envpool, "make", ScriptedGames
ATTENDS = dict(trxl_num_layers=2, trxl_num_heads=2, trxl_dim=8, max_grad_norm=8.0, update_epochs=3)
JOBS = {
    "atari_scripted": job(ATARI, SCRIPTED, seed=3, target_kl=0.015),
    "ale_scripted": job(
        ALE, (gym, "make_vec", ScriptedALE), seed=1, target_kl=0.015, update_epochs=3
    ),
    "pixels": job(
        ATARI, cut(gym, 12), script="ppo_pixels", games=reference.Images, tolerance=5e-5,
        drift=1e-4, network=reference.small_cnn, seed=18, env_id="MinAtar/Breakout-v1",
        num_steps=24, total_timesteps=300, num_minibatches=3, update_epochs=3,
        learning_rate=1e-3, max_grad_norm=1.0, target_kl=0.005, reward_scale=2.5,
    ),
    "ale_breakout": job(  # ALE's own, with frames skipped and time cut so that games end
        ALE, (gym, "make_vec", partial(gym.make_vec, max_num_frames_per_episode=720, frameskip=30)),
        seed=1, num_envs=2, num_steps=16, total_timesteps=96, **OFF | {"update_epochs": 1},
    ),
    "atari_breakout": job(  # EnvPool's, likewise
        ATARI, (envpool, "make", partial(envpool.make, max_episode_steps=24, frame_skip=30)),
        seed=20, num_envs=2, num_steps=16, total_timesteps=96, **OFF | {"update_epochs": 1},
    ),
    "cartpole": job(CARTPOLE, cut(gym, 18), seed=90, target_kl=0.0005),
    "small": job(
        CARTPOLE, cut(envpool, 20), script="ppo_envpool", games=reference.ManyEnvs, seed=9,
        target_kl=0.0005, **MANY_GAMES,
    ),
    "masked": job(
        CARTPOLE, AS_IT_IS, script="ppo_masked", network=reference.two_with_mask,
        policy=reference.possible, games=reference.Masked, seed=1, env_id="Doors-v0",
        target_kl=0.001,
    ),
    "pettingzoo": job(
        CARTPOLE, AS_IT_IS, script="ppo_pettingzoo", games=reference.Together, agents=3, seed=2,
        env_id="meadow", env_kwargs='{"limit": 9, "poor": true}', num_envs=3, num_steps=20,
        total_timesteps=190, target_kl=0.001,
    ),
    "rnd": job(
        CARTPOLE, cut(gym, 18, Rare), script="ppo_rnd", network=reference.two_values,
        start="agent.actor[4].weight.data.mul_(50)", seed=17, target_kl=0.0005, int_gamma=0.95,
        ext_coef=1.5, int_coef=0.7, update_proportion=0.4, num_iterations_obs_norm_init=2,
    ),
    "lstm": job(
        CARTPOLE, cut(gym, 18), script="ppo_lstm", network=reference.two_memories, memory=(64, 4),
        hides=(1, 3), seed=8, learning_rate=5e-3, target_kl=0.003, **WITH_MEMORY,
    ),
    "trxl": job(
        TRXL, cut(gym, 18), window=(5, 17), seed=34, target_kl=0.003, trxl_memory_length=5,
        **ATTENDS,
    ),
    "trxl_long": job(  # a window of more rows than a rollout
        TRXL, cut(gym, 24), window=(20, 17), seed=1, num_envs=8, num_steps=9, total_timesteps=220,
        target_kl=0.003, trxl_memory_length=20, **ATTENDS,
    ),
    "lstm_atari": job(
        ATARI, SCRIPTED, script="ppo_atari_envpool_lstm", network=reference.cnn_with_memory,
        memory=(128, 2), seed=18, target_kl=0.01,
    ),
    "hopper": job(CONTINUOUS, cut(gym, 20, Diverging), seed=1, target_kl=0.004),
    "many": job(MANY, cut(envpool, 20), seed=1, target_kl=0.004, **MANY_GAMES),
    "warp": job(
        WARP, AS_IT_IS, seed=6, env_id="worlds:Worlds", max_grad_norm=1.0, target_kl=0.002,
        **MANY_GAMES,
    ),
    "warp_off": job(
        WARP, AS_IT_IS, seed=5, env_id="worlds:Rare", num_steps=15, total_timesteps=180,
        max_grad_norm=1.8, stagger=False, **OFF | {"update_epochs": 2},
    ),
    "cheetah_run": job(
        MANY, cut(envpool, 20), seed=2, env_id="CheetahRun-v1", num_steps=15, total_timesteps=180,
        max_grad_norm=2.5, stagger=False, **OFF | {"update_epochs": 2},
    ),
    "lstm_hopper": job(  # without its velocities
        CONTINUOUS, cut(gym, 20, Diverging), script="ppo_continuous_action_lstm",
        network=reference.two_memories, start="agent.actor_mean.head.weight.data.mul_(50), "
        "agent.actor_logstd.data.uniform_(-0.5, 0.5)", memory=(64, 4), hide=(5, 6, 7, 8, 9, 10),
        seed=4, max_grad_norm=0.7, target_kl=0.0015, **WITH_MEMORY,
    ),
}  # fmt: skip


# seconds each: the quick tests have one of them
SLOW, IMAGES = pytest.mark.slow, "ale_scripted ale_breakout atari_breakout lstm_atari pixels"


def first_iteration(job):
    """Its run, ended after one iteration of one epoch, which most mistakes show in already."""
    return replace(job, flags=job.flags | {"total_timesteps": job.steps, "update_epochs": 1})


def fast(name, mode, **more):
    """A job of the fast version, in a mode."""
    slow = JOBS[name]
    return replace(slow, script=f"{slow.script}_torchcompile", mode=mode, flags=slow.flags | more)


FAST_JOBS = {
    f"{x}+cudagraphs": fast(x, "cudagraphs") for x in ("atari_scripted", "lstm_atari", "cartpole")
}
# with seed 3 float32, channels last, sees one more ReLU on the other side of 0
FAST_JOBS["atari_scripted+compile"] = fast("atari_scripted", "compile", seed=6)


RECORDS = {
    "    for iteration in range(first_iteration": """
    random_draws = random.random(), np.random.random()
    args.resume or (START)
    trace, initial = [], {k: v.clone() for k, v in agent.state_dict().items()}
    first_moments = __import__('copy').deepcopy(
        {k: optimizer.state.get(x, {}) for k, x in agent.named_parameters()})
""",
    "        # Rollout\n": """
        trace.append({'before': torch.get_rng_state(), 'b_inds': [], 'trains': []})
""",
    "        # Advantages\n": """
        trace[-1]['after'] = torch.get_rng_state()
""",
    "            losses.append(": """
            trace[-1]['b_inds'].append(b_inds.clone())
            trace[-1]['trains'].append(storage.get('trains', obs)[:T].clone())
""",
    "        # Log\n": """
        trace[-1] |= {k: v.clone() for k, v in storage.items() if k != 'trains'}
        trace[-1]['host'] = [x.copy() for x in (rewards, dones, terminations)]
""",
}


def recorded(text, start):
    """The script, keeping in `trace` what each iteration drew and computed."""
    for line, new in RECORDS.items():
        assert text.count(line) == 1, line
        text = text.replace(line, new.replace("START", start) + line)
    return text


def redraw(run, steps):
    """Adds to each iteration's trace the noise of its actions: what `probs.sample()` draws on a CPU
    in so many steps. That it drew this and nothing else shows in the generator's states, and in
    actions that the reference finds by this noise."""
    space, rng = run.envs.single_action_space, torch.Generator()
    discrete = isinstance(space, gym.spaces.Discrete)
    draw = torch.Tensor.exponential_ if discrete else torch.Tensor.normal_
    for trace in run.trace:
        rows = torch.empty(trace["actions"].shape[1], space.n if discrete else space.shape[0])
        rng.set_state(trace["before"])
        trace["noise"] = torch.stack([draw(rows.clone(), generator=rng) for _ in range(steps)])
        assert torch.equal(rng.get_state(), trace["after"]), "a draw for each action, no other"


def check_draws(job, trace):
    """Noise and permutations: the reference takes them as they are."""
    noise = torch.stack([each["noise"] for each in trace])
    assert len(noise.unique()) > 0.99 * noise.numel(), "no number is drawn twice"
    orders = torch.stack([b_inds.flatten() for each in trace for b_inds in each["b_inds"]])
    size = job.h.num_envs if job.memory else job.steps * job.agents
    assert orders.shape[1] == size, "whole environments, or rows"
    assert orders.sort(1).values.eq(torch.arange(size)).all(), "each once in an epoch"
    assert len(orders.unique(dim=0)) == len(orders), "an order of its own for every epoch"
    assert orders.diff(dim=1).ne(1).any(1).all(), "and never that of time"
    if hasattr(job.h, "int_coef"):
        shares = torch.stack([x for each in trace for x in each["trains"]]).flatten(1)
        assert len(shares.unique(dim=0)) == len(shares), "other rows in each epoch"
        spread = (job.h.update_proportion / shares.numel()) ** 0.5
        assert (shares.mean() - job.h.update_proportion).abs() < 4 * spread


def check_seeded(run, seed, warm_up=0):
    """Python's and NumPy's own generators, which environments may draw from, and steps of a
    warm-up do."""
    rng = np.random.RandomState(seed)
    for _ in range(warm_up):
        rng.randint(run.envs.single_action_space.n, size=run.N)
    assert run.random_draws == (random.Random(seed).random(), rng.random())


def close(found, expected, tolerance, what):
    """Within a part of the largest entry, which counts as 0.01 at least."""
    found, expected = np.asarray(found, dtype=float), np.asarray(expected, dtype=float)
    atol = tolerance * max(0.01, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(found, expected, 0, atol, equal_nan=False, err_msg=what)


def check_moments(job, run, expected):
    """Those of observations, in Agent's buffers, each entry by its own size."""
    assert hasattr(run.agent, "obs_rms") == (expected is not None)
    if expected:
        mean, var, count = (x.numpy() for x in run.agent.obs_rms.buffers())
        size = expected[1] ** 0.5
        close(mean / size, expected[0] / size, job.tolerance, "mean of observations")
        close(var / expected[1], np.ones_like(var), job.tolerance, "variance of observations")
        assert count == pytest.approx(expected[2], 1e-9), "count of observations"


def losses_of(job):
    """Names of what is logged, in the reference's order."""
    more = ["int_value_loss", "fwd_loss"] if hasattr(job.h, "int_coef") else []
    return [*LOSSES[:6], *more, *LOSSES[6:]]


def check(job, runs_dir, edit=None):
    """Runs a script, replays it and compares; returns the run and what the reference found."""
    h, T, curves, returns = job.h, job.h.num_steps, {}, []
    with mock.patch.object(*job.patch):
        run = job.run(runs_dir, edit=edit)
        assert len(run.trace) == h.total_timesteps // job.steps
        redraw(run, T)
        check_draws(job, run.trace)
        check_seeded(run, h.seed, getattr(h, "num_iterations_obs_norm_init", 0) * T)
        found = []
        for trace, expected in zip(run.trace, job.replay(run), strict=True):
            found.append(expected)
            valid = ~expected["over"][:T]
            rewards, dones, terminations = trace["host"]
            size = np.abs(expected["obs"]).max((0, 1)).clip(0.01)  # of each entry
            for what, a, b in (
                ("obs", trace["obs"].numpy() / size, expected["obs"] / size),
                ("actions", trace["actions"][:T], expected["actions"][:T]),
                ("dones", dones, expected["dones"]),
                ("terminations", terminations[1:], expected["terminations"][1:]),
                ("valid", trace["valid"][:T], valid),
                ("rewards", rewards[valid], expected["rewards"][valid]),
                ("logprobs", trace["logprobs"][:T][valid], expected["logprobs"][:T][valid]),
                ("values", trace["values"], expected["values"]),
                ("advantages", trace["advantages"][:T][valid], expected["advantages"][valid]),
                ("returns", trace["returns"][:T][valid], expected["returns"][valid]),
            ):
                close(a, b, job.tolerance, what)
            epochs, step = len(trace["b_inds"]), len(found) * job.steps
            assert epochs * h.num_minibatches == len(expected["logged"]), "epochs"
            goes_on = h.target_kl is None or expected["last_kl"] <= h.target_kl
            assert epochs == h.update_epochs or not goes_on, "too few epochs"
            if "bonus" in expected:
                for what in ("int_values", "int_returns"):
                    found_rows, rows = trace[what][:T][valid], expected[what][:T][valid]
                    close(found_rows, rows, job.tolerance, what)
                mean = float(expected["bonus"][valid].mean())
                curves.setdefault("charts/bonus", []).append((step, mean))
            if "diverged" in expected:
                curves.setdefault("charts/diverged", []).append((step, expected["diverged"]))
            for name, value in zip(losses_of(job), expected["losses"], strict=True):
                curves.setdefault(f"losses/{name}", []).append((step, value))
            curves.setdefault("charts/learning_rate", []).append((step, expected["rate"]))
            games = expected["episodes"]
            returns += [value for _, value, _ in games]
            if job.batched and games:
                games = [(step, *np.mean([game[1:] for game in games], 0))]
            for step, value, length in games:
                curves.setdefault("charts/episodic_return", []).append((step, value))
                curves.setdefault("charts/episodic_length", []).append((step, length))
    end = run.agent.state_dict()
    names = [key for key in end if not key.startswith("obs_rms.")]
    start, end = (
        torch.cat([x[key].double().flatten() for key in names]) for x in (run.initial, end)
    )
    drift = (end - found[-1]["theta"]).norm() / (end - start).norm()
    assert drift < job.drift, "parameters"
    check_moments(job, run, found[-1].get("moments"))

    torch.manual_seed(h.seed)
    for key, x in agent(job.script, run.envs, run.args).critic.state_dict().items():
        assert torch.equal(x, run.initial[f"critic.{key}"]), "the seed's weights"

    logged = scalars(run.run_dir)
    logged.pop("charts/SPS", None)
    assert logged.keys() == curves.keys()
    for tag, rows in curves.items():
        assert [step for step, _ in logged[tag]] == [step for step, _ in rows], tag
        values = ([value for _, value in curve] for curve in (logged[tag], rows))
        close(*values, job.tolerance, tag)
    close(run.episodic_returns, returns, job.tolerance, "returns of games")
    assert run.summary["mean_return"] == pytest.approx(np.mean(returns), 1e-4)
    assert run.summary["episodes"] == len(returns)
    return run, found


@pytest.mark.parametrize("name", [pytest.param(x, marks=SLOW if x in IMAGES else ()) for x in JOBS])
def test_script_follows_the_reference(name, tmp_path):
    """And what a mistake would show in happens: ends of all kinds, clipping, early stops."""
    job = JOBS[name]
    run, found = check(job, tmp_path)
    assert len(found) == 3
    dones = np.stack([x["dones"] for x in found])  # (3, T + 1, N)
    ends = np.stack([x["terminations"] for x in found])
    borders = dones[:2, -1]
    assert (dones & ~ends).any() and not borders.all(), "time limits, an episode across a border"
    if name != "cheetah_run":  # whose games end together, in the middle, by their limit
        assert ends.any() and borders.any(), "terminations, an end right at a border"
    norms = [row[-1] for x in found for row in x["logged"]]
    assert min(norms) < job.h.max_grad_norm < max(norms)
    if job.h.target_kl is not None:
        epochs = [len(trace["b_inds"]) for trace in run.trace]
        assert min(epochs) < max(epochs) == job.h.update_epochs, "some updates are stopped"
    assert found[0]["losses"][LOSSES.index("clipfrac")] > 0, "ratios are clipped"
    episodes = [episode for x in found for episode in x["episodes"]]
    if name == "ale_scripted":
        over = np.stack([x["over"] for x in found])
        for what in (ends & ~over, ends & over, over & ~ends):
            assert what[:, -1].any() and what[:, 1:-1].any(), "after a last step, and in between"
    if name in ("atari_breakout", "ale_breakout"):
        lengths = [length for _, _, length in episodes]
        assert max(lengths) == 24 > min(lengths), "a time limit and a game over"


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST_JOBS)
def test_fast_script_follows_the_reference(name, tmp_path):
    """What it does otherwise: channels last, a step and an epoch that can be captured."""
    job = FAST_JOBS[name]
    run, _ = check(job, tmp_path)
    assert run.cudagraphs == (job.mode == "cudagraphs")


def check_adam(first, second):
    """Each parameter goes on with its own moments, of which a frozen one has none."""
    for key, x in first.agent.named_parameters():
        moments = first.optimizer.state[x]
        assert moments.keys() == second.first_moments[key].keys()
        assert bool(moments) == x.requires_grad
        assert all(torch.equal(m, second.first_moments[key][k]) for k, m in moments.items()), key


def check_resumed(job, runs_dir, edit=None):
    """An iteration by a run, one by a run that goes on with it in shorter rollouts: other games,
    all else as it was. The first rollout counts as two of the shorter ones, so that there are not
    more steps than asked for."""
    kept, rows = [], job.steps
    steps = job.h.num_steps - (1 if job.memory else job.h.num_minibatches)  # these stay whole
    fewer = steps * job.h.num_envs
    assert fewer < rows < 2 * fewer

    def games(*args):
        kept.append(job.games(*args))
        return kept[0]

    with mock.patch.object(*job.patch):
        first = job.run(runs_dir, "--total-timesteps", rows, "--update-epochs", 1, edit=edit)
        more = "--resume", first.run_dir, "--num-steps", steps, "--total-timesteps", 3 * fewer
        second = job.run(runs_dir, *more, "--update-epochs", 1, edit=edit)
        assert len(second.trace) == 1 and second.global_step == rows + fewer
        (trace,) = second.trace
        seeds = np.random.SeedSequence([job.h.seed, rows]).generate_state(job.h.num_envs) >> 1
        others = job.games(SimpleNamespace(**vars(job.h) | {"normalise": False}), seeds)
        _, reward, _, _ = others.step(trace["actions"][0].numpy())
    if job.normalise or hasattr(job.h, "int_coef"):
        redraw(first, job.h.num_steps)
        with mock.patch.object(*job.patch):
            (found,) = job.replay(first, games)  # `kept` has earned what the first run earned
        check_moments(job, first, found["moments"])
        more = trace["obs"][1:] if hasattr(job.h, "int_coef") else trace["obs"][:-1]
        more = more[trace["valid"][:-1] == 1].double()
        count = float(found["moments"][2]) + len(more)
        assert float(second.agent.obs_rms.count) == pytest.approx(count), "statistics go on"
        mean = (found["moments"][0] * found["moments"][2] + more.sum(0).numpy()) / count
        size = found["moments"][1] ** 0.5
        close(second.agent.obs_rms.mean.numpy() / size, mean / size, job.tolerance, "its mean")
    close(trace["obs"][0], others.obs, job.tolerance, "the first observation")
    weights = first.agent.state_dict()
    assert all(torch.equal(x, weights[key]) for key, x in second.initial.items())
    assert torch.equal(trace["before"], first.state["rng"]["cpu"]), "random numbers go on"
    check_seeded(second, job.h.seed + rows)
    check_adam(first, second)
    updates = {int(x["step"]) for x in second.optimizer.state.values() if x}
    assert updates == {2 * job.h.num_minibatches}, "of Adam"
    before = len(first.episodic_returns)
    if hasattr(first, "return_rms"):
        counted = second.valid & ~getattr(second, "lost", np.zeros_like(second.valid))
        kept[0].sums.rows += [*second.discounted[-len(counted) :][counted]]
        reward = kept[0].sums.scaled(reward, 10, centre=0)
    close(trace["host"][0][0], reward, job.tolerance, "the first reward")
    for name in ("return_rms", "bonus_rms"):  # go on
        if hasattr(first, name):
            more = second.valid.sum() - getattr(second, "lost", np.zeros(1)).sum()
            counts = [float(getattr(run, name).count) for run in (first, second)]
            assert counts[1] == pytest.approx(counts[0] + more), name
    if hasattr(first, "bonus_sums"):
        sums = job.h.int_gamma * first.bonus_sums[-1] + second.bonus[0]
        close(second.bonus_sums[0], sums, 1e-9, "sums of bonuses go on")
    assert second.episodic_returns[:before] == first.episodic_returns and before > 0
    assert second.summary["episodes"] == len(second.episodic_returns) > before


def check_speed(job, runs_dir, edit=None):
    """By a clock of our own: the first two iterations take 1000 s each, then one 2 and one 8."""
    real, rows = time.time, 6 * job.h.num_envs

    def clock():
        main = sys._getframe(1).f_globals
        if main["__name__"] != "__main__" or "global_step" not in main:
            return real()
        return [0.0, 1000.0, 2000.0, 2002.0, 2010.0][main["global_step"] // rows]

    flags = "--num-steps", 6, "--total-timesteps", 4 * rows, "--update-epochs", 1
    with mock.patch.object(*job.patch), mock.patch.object(time, "time", clock):
        run = job.run(runs_dir, *flags, "--measure-burnin", 2, edit=edit)
    speeds = [round(rows / 2), round(2 * rows / 10)]
    assert scalars(run.run_dir)["charts/SPS"] == [(3 * rows, speeds[0]), (4 * rows, speeds[1])]
    assert run.summary["sps"] == speeds[1] and isinstance(run.summary["sps"], int)


def check_first_weights(job, runs_dir, edit=None):
    """Orthogonal rows or columns, of length sqrt(2), of the actor's head 0.01, the critic's and the
    LSTM's 1;
    standard deviations of 1, with many environments of exp(-0.5); biases of 0."""
    text = (PPO / f"{job.script}.py").read_text()
    path = runs_dir / f"{job.script}.py"
    path.write_text(edit(text) if edit else text)
    agent = runpy.run_path(str(path))["Agent"](spaces(job.script))
    for key, x in agent.named_parameters():
        if key.endswith("weight"):
            x = x.flatten(1)
            x = x if len(x) <= x.shape[1] else x.T
            size = 0.01 if re.fullmatch(r"actor\w*(\.4|\.head)?\.weight", key) else 2**0.5
            size = 1.0 if re.fullmatch(r"critic(\.4|\.head)?\.weight", key) else size
            size = 1.0 if "lstm." in key else size
            torch.testing.assert_close(x @ x.T, size**2 * torch.eye(len(x)), atol=1e-5, rtol=1e-5)
        else:
            log_std = job in (JOBS["many"], JOBS["warp"]) and key == "actor_logstd"
            assert (x == (-0.5 if log_std else 0.0)).all(), key


# what another script has of these is one text with them: test_the_lines_of_all_scripts
ONE_BY_ONE = [(check_speed, x) for x in "atari_scripted cartpole hopper trxl".split()]
RESUMED = "ale_scripted atari_scripted cartpole hopper lstm many pettingzoo rnd trxl warp"
ONE_BY_ONE += [(check_resumed, x) for x in RESUMED.split()]


@pytest.mark.parametrize(("of", "name"), ONE_BY_ONE)
def test_what_one_run_cannot_show(of, name, tmp_path):
    of(JOBS[name], tmp_path)


def swapped(text):
    """A script whose Agent has its actor before its critic."""
    critic, actor = (
        re.search(rf"        self\.{name} = nn\.Sequential\(\n(.*\n)+?        \)\n", text)[0]
        for name in ("critic", r"actor\w*")
    )
    assert critic + actor in text
    return text.replace(critic + actor, actor + critic)


def check_order(job, runs_dir, edit=None):
    """A run goes on with a script whose networks are in another order: by their places moments of
    one would go to the other, unseen where all have the same sizes, as with one action."""
    continuous = job.policy is reference.gaussian
    flags = job.flags | {"env_id": "Pendulum-v1" if continuous else "CartPole-v1"}
    job = replace(job, flags=flags, patch=(gym, "make", gym.make))
    first = job.run(runs_dir, "--total-timesteps", job.steps, edit=edit)
    more = "--total-timesteps", 2 * job.steps, "--resume", first.run_dir
    other = job.run(runs_dir, *more, edit=lambda x: swapped(edit(x) if edit else x))
    assert [*first.agent.state_dict()] != [*other.agent.state_dict()]
    check_adam(first, other)


@pytest.mark.parametrize("name", ["cartpole", "hopper"])
def test_moments_go_by_name(name, tmp_path):
    check_order(JOBS[name], tmp_path)


NETWORKS = "atari_scripted pixels cartpole small hopper many warp lstm lstm_hopper masked"


@pytest.mark.parametrize("name", [*NETWORKS.split(), "pettingzoo", "rnd"])
def test_first_weights(name, tmp_path):
    check_first_weights(JOBS[name], tmp_path)
