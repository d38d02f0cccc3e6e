"""Time limits, masks, statistics, seeds and normalisation of the scripts on Gymnasium."""

import re

import doors  # noqa: F401, registers Doors-v0
import gymnasium as gym
import numpy as np
import pytest
from helpers import FAST, SCRIPTS, TINY, agent, insert, kind, load, run_main, scalars, seen, task

import torch

ON_GYMNASIUM = [name for name in SCRIPTS if task(name) in ("", "masked", "continuous")]
# test_parity holds the others: they follow these to the last bit
each_eager = pytest.mark.parametrize("name", [x for x in ON_GYMNASIUM if x not in FAST])


class Counter(gym.Env):
    """Counts its steps, pays as many or 1 for each, and ends after `length` of them.

    Takes the actions of the script that is tested, all of which are possible.
    """

    discrete = False

    def __init__(self, length, terminal, pay=lambda t: 1.0):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (1,))
        box, choice = gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Discrete(3)
        self.action_space = choice if self.discrete else box
        self.length, self.terminal, self.pay = length, terminal, pay
        self.total = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.total = 0, 0 if seed is not None else self.total
        return np.zeros(1, dtype=np.float32), {"action_mask": np.ones(3, np.int8)}

    def step(self, action):
        assert self.action_space.contains(action), "clipped to the space"
        self.t += 1
        self.total += 1
        end = self.t == self.length
        obs = np.full(1, self.t, dtype=np.float32)
        info = {"action_mask": np.ones(3, np.int8)}
        return obs, self.pay(self.total), end and self.terminal, end and not self.terminal, info


class DictCounter(Counter):
    def __init__(self):
        super().__init__(3, False)
        box = self.observation_space
        self.observation_space = gym.spaces.Dict({"one": box, "two": box})

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return {"one": obs, "two": 2 * obs}, info

    def step(self, action):
        obs, *rest = super().step(action)
        return {"one": obs, "two": 2 * obs}, *rest


@pytest.fixture(autouse=True)
def actions_of_the_script(name, monkeypatch):
    monkeypatch.setattr(Counter, "discrete", kind(name) != "continuous")


gym.register("Cut-v0", lambda: Counter(3, False))
gym.register("Ends-v0", lambda: Counter(3, True))
gym.register("Game-v0", lambda: Counter(1, True, pay=float))  # its returns are 1, 2, 3, ...
gym.register("Dict-v0", DictCounter)
gym.register("Falls-v0", "gymnasium.envs.mujoco.hopper_v4:HopperEnv", max_episode_steps=25)


@pytest.mark.parametrize("name", ["ppo_continuous_action"])
def test_normalisation_equals_gymnasium(name, tmp_path):
    """130 steps of 3 Hoppers that fall or are cut at 25, against Gymnasium's vector wrappers."""
    flags = "--env-id Falls-v0 --num-envs 3 --num-steps 130 --total-timesteps 390".split()
    flags += "--num-minibatches 2 --update-epochs 1 --gamma 0.97".split()
    run = run_main(name, *flags, runs_dir=tmp_path)
    envs = gym.vector.SyncVectorEnv([lambda: gym.make("Falls-v0", disable_env_checker=True)] * 3)
    wrapped = gym.wrappers.vector.NormalizeReward(envs, gamma=0.97)
    ends = np.zeros(2, dtype=int)
    obs, _ = wrapped.reset(seed=run.seeds.tolist())
    close = dict(rtol=1e-5, atol=1e-5)
    for t, actions in enumerate(run.storage["actions"][:-1].numpy()):
        np.testing.assert_allclose(run.storage["obs"][t], obs, **close)
        obs, reward, terminated, truncated, _ = wrapped.step(actions.clip(-1, 1))
        np.testing.assert_allclose(run.rewards[t], reward.clip(-10, 10), **close)
        ends += terminated.sum(), truncated.sum()
    assert ends[0] > 3 and ends[1] > 0
    # Gymnasium sums the discounted rewards in float32
    np.testing.assert_allclose(run.return_rms.var[0], wrapped.return_rms.var, rtol=1e-5)
    # observations: rows that are transitions, and a small weight for a mean of 0, a variance of 1
    rows, prior = run.storage["obs"][:-1][torch.from_numpy(run.valid)].double(), 1e-4
    total, found = len(rows) + prior, run.agent.obs_rms
    mean = rows.sum(0) / total
    var = (prior * (1 + mean.square()) + (rows - mean).square().sum(0)) / total
    assert found.count == pytest.approx(total)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.var, var, rtol=1e-9)
    scale = run.RunningMeanStd(1)
    scale.var.fill_(4.0)
    scaled = scale(torch.tensor([[-50.0], [-6.0], [6.0], [50.0]])).flatten()
    assert scaled.tolist() == pytest.approx([-10, -3, 3, 10]) and scaled.dtype == torch.float32


GAMMA, VALUE = 0.75, 4.0  # 1 / (1 - GAMMA): the value of a reward of 1 for ever


def known_value(text):
    """The script with the critic's answer set to VALUE and rewards left as they are."""
    value = r"(self\.critic\(.*\)\.squeeze\(-1\)|value\.squeeze\(-1\)|values\[\.\.\., 0\])"
    text, count = re.subn(value, rf"\1 * 0 + {VALUE}", text)
    assert count == 1
    return re.sub(r"np\.clip\(reward / .*\)", "reward", text)


@each_eager
def test_time_limits_bootstrap(name, tmp_path):
    """A reward of 1 for ever is worth 4 at a discount of 0.75, cut into episodes of 3 or not.

    With that value every advantage is 0; where the end is taken as terminal, its row has 1 - 4.
    """
    flags = "--num-envs 2 --num-steps 10 --num-minibatches 2 --total-timesteps 20".split()
    flags += ["--gamma", GAMMA, "--gae-lambda", 0.5]
    flags += ["--ext-coef", 1, "--int-coef", 0] if "rnd" in name else []
    for env_id, extra, last in (
        ("Cut-v0", [], 0.0),
        ("Ends-v0", [], 1 - VALUE),
        ("Cut-v0", ["--cleanrl-semantics"], 1 - VALUE),
    ):
        run = run_main(
            name,
            *flags,
            "--env-id",
            env_id,
            *extra,
            runs_dir=tmp_path / f"{env_id}{len(extra)}",
            edit=known_value,
        )
        # rows 0 to 2 are an episode's steps, row 3 its last observation, and so on
        ends = [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]
        assert run.dones[:, 0].tolist() == run.dones[:, 1].tolist() == ends
        advantages = run.storage["advantages"][:10, 0].tolist()
        decay = GAMMA * 0.5
        expected = [last * decay**2, last * decay, last]
        assert advantages[0:3] == advantages[4:7] == pytest.approx(expected, abs=1e-6)
        assert advantages[8:] == pytest.approx([0, 0], abs=1e-6), "the rollout's end bootstraps"
        valid = run.storage["valid"][:10, 0].tolist()
        assert valid == [1, 1, 1, 0, 1, 1, 1, 0, 1, 1], "the mask stays with --cleanrl-semantics"


@each_eager
def test_statistics_and_carry(name, tmp_path):
    """3 rollouts of 3 steps of episodes of 3: row 0 of the second is the reset row."""
    flags = "--num-envs 2 --num-steps 3 --num-minibatches 2 --total-timesteps 18".split()
    run = run_main(
        name, *flags, "--env-id", "Cut-v0", runs_dir=tmp_path,
        edit=insert("# Advantages", "kept = [*(kept if iteration > 1 else []), obs.clone()]"),
    )  # fmt: skip
    assert run.storage["valid"][:3, 0].tolist() == [1, 0, 1]
    assert torch.equal(run.kept[1][0], run.kept[0][3]) and torch.equal(run.obs[0], run.kept[1][3])
    curves = scalars(*tmp_path.iterdir())
    assert run.episodic_returns == [3.0] * 4
    assert curves["charts/episodic_return"] == [(6, 3.0)] * 2 + [(14, 3.0)] * 2
    assert curves["charts/episodic_length"] == [(6, 3.0)] * 2 + [(14, 3.0)] * 2


@each_eager
def test_mean_return_is_of_the_last_100_games(name, tmp_path):
    """Of the last N where there are more environments: 100 would hold just the short games."""
    flags = ["--env-id", "Game-v0", "--num-minibatches", 1, "--update-epochs", 1]
    flags += ["--num-iterations-obs-norm-init", 0] if "rnd" in name else []  # no games before
    sizes = ["--num-envs", 1, "--num-steps", 220, "--total-timesteps", 220]
    run = run_main(name, *flags, *sizes, runs_dir=tmp_path)
    assert run.episodic_returns == [*range(1, 111)]
    assert run.summary["mean_return"] == np.mean(range(11, 111))
    sizes = ["--num-envs", 120, "--num-steps", 3, "--total-timesteps", 360]
    run = run_main(name, *flags, *sizes, runs_dir=tmp_path / "many")
    assert run.episodic_returns == [1] * 120 + [2] * 120 and run.summary["mean_return"] == 2
    assert len(run.recent) == 120


@each_eager
def test_dictionary_observations_are_flattened(name, tmp_path):
    run = run_main(name, *TINY, "--env-id", "Dict-v0", runs_dir=tmp_path)
    masks = 3 * ("masked" in name)  # behind what is seen
    assert run.storage["obs"].shape == (9, 2, 2 + masks)


OTHERS = {"masked": "Doors-v0", "together": "meadow"}  # masks vary; agents come and go


def by_rows(name, network, run):
    """A network's distribution and values of all rows of a rollout, the memory as in acting."""
    rows, module = run.storage, load(name)
    if "lstm" not in name:
        flat = [x.flatten(0, 1) for x in seen(name, rows)]
        probs, values, *_ = network(*flat)
        found = [(probs, values)]
    else:
        state, found = run.initial_lstm_state, []
        for obs, dones in zip(rows["obs"], rows["dones"], strict=True):
            probs, values, state = network(obs, state)
            found.append((probs, values))
            state = state * (dones == 0)[:, None]
    shape = rows["values"].shape
    values = torch.cat([x for _, x in found]).view(shape)
    if Counter.discrete:
        logits = torch.cat([x.logits for x, _ in found])
        return module.Categorical(logits.view(*shape, -1)), values
    mean = torch.cat([x.mean for x, _ in found])
    return module.Gaussian(mean.view(*shape, -1), found[0][0].std), values


@pytest.mark.parametrize("name", [*[x for x in ON_GYMNASIUM if x not in FAST], "ppo_pettingzoo"])
def test_rows_are_of_the_policy_that_acted(name, tmp_path):
    """Actions, their log-probabilities before clipping, and values, of the second of two rollouts;
    what is drawn is drawn anew from the generator's state. Statistics of observations move between
    acting and the one pass after a rollout."""
    keep = insert("# Rollout", """
before = {k: v.clone() for k, v in agent.state_dict().items()}
drawn_from = torch.get_rng_state()
""")  # fmt: skip
    keep_too = insert("# Update", "after = {k: v.clone() for k, v in agent.state_dict().items()}")
    rate = 0.05 if "lstm" in name or not Counter.discrete else 0.01
    rate = 1e-3 if "trxl" in name else rate
    env_id = OTHERS.get(task(name), "Cut-v0")
    flags = [*TINY, "--env-id", env_id, "--total-timesteps", 32, "--learning-rate", rate]
    flags += ["--no-anneal-lr", "--max-grad-norm", 100]
    run = run_main(name, *flags, runs_dir=tmp_path, edit=lambda text: keep_too(keep(text)))
    found = []
    for state in (run.before, run.before if "lstm" in name else run.after):
        network = agent(name, run.envs, run.args)
        network.load_state_dict(state)
        with torch.no_grad():
            found.append(by_rows(name, network, run))
    (acted, _), (probs, values) = found
    torch.set_rng_state(run.drawn_from)
    close = dict(rtol=1e-5, atol=1e-5)
    actions = run.storage["actions"]
    there = torch.from_numpy(run.dones == 0)  # (T + 1, N); who is not acts in vain
    if Counter.discrete:
        chances = acted.logits.exp()
        possible = torch.ones(chances.shape, dtype=torch.bool)
        if "masked" in name:
            possible = run.obs[..., -chances.shape[-1] :] > 0
        uniform = possible / possible.sum(-1, keepdim=True)
        moved = (chances - uniform)[there]
        assert moved.abs().max() > 0.05, "the first update has moved it"
        assert chances[there][possible[there]].min() > 0.01, "all actions are drawn"
        noise = torch.stack([torch.empty_like(x).exponential_() for x in chances[:8]])
        drawn = (chances[:8] / noise).argmax(-1)
        assert torch.equal(actions[:8][there[:8]], drawn[there[:8]])
        assert not there.all() and possible[there].all() == ("masked" not in name)
    else:
        least = 0.03 if "lstm" in name else 0.05
        assert (acted.std - 1).abs().min() > least, "the first update has moved it"
        noise = torch.stack([torch.empty(2, 2).normal_() for _ in range(8)])
        torch.testing.assert_close(actions[:8], acted.mean[:8] + acted.std * noise, **close)
        assert (actions[:8].abs() > 1).any(), "which the simulator gets clipped"
    logprobs, there = probs.log_prob(actions), there[:8]
    torch.testing.assert_close(run.storage["logprobs"][:8][there], logprobs[:8][there], **close)
    torch.testing.assert_close(run.storage["values"], values, **close)


@each_eager
def test_seeds_share_no_environment(name, tmp_path, monkeypatch):
    """What main gives to reset; nor do the two parts of a run that went on."""
    reset, seeds = gym.vector.SyncVectorEnv.reset, []

    def note(self, *, seed=None, **kwargs):
        seeds.extend(seed or [])
        return reset(self, seed=seed, **kwargs)

    monkeypatch.setattr(gym.vector.SyncVectorEnv, "reset", note)
    flags = "--env-id Cut-v0 --num-envs 16 --num-steps 2 --num-minibatches 2".split()
    flags += ["--total-timesteps", 32]
    for seed in (1, 2, 3):
        run = run_main(name, *flags, "--seed", seed, runs_dir=tmp_path)
    run_main(name, "--resume", run.run_dir, "--total-timesteps", 64, runs_dir=tmp_path)
    assert len(set(seeds)) == len(seeds) == 4 * 16
    assert min(seeds) >= 0 and max(seeds) < 2**31, "as EnvPool and old environments need them"
