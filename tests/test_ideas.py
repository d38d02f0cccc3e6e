"""The patches of ppo/ideas: one change for both versions of every script that a patch names."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from functools import cache, partial
from pathlib import Path

import doors
import envpool
import fork
import gymnasium as gym
import lock
import numpy as np
import pytest
from fork import IDEAS, apply, heading
from helpers import PAIRS, PPO, TINY, ended, insert, run_main, wait_for
from lib.parity import VECTORS, assert_close, assert_the_same, curves
from test_parity import job, short_games  # noqa: F401 - a fixture
from test_reference import ScriptedGames

import torch

NAMES = [eager for eager, _ in PAIRS]
LINES = 45  # at most, changed
TABLE = (IDEAS / "README.md").read_text().partition("<!-- effects -->")[0]


def fits(path):
    """The scripts that a patch names: some, or every one but some."""
    return [name for name in NAMES if fork.fits(path, name)]


def edit(patch, folder):
    """The patch as an edit of a script's text."""

    def change(text):
        path = folder / "patched.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        apply(patch, path, path.name)
        return path.read_text()

    return change


IDEA = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * ("warp" in path.stem))
    for path in sorted(IDEAS.glob("*.patch"))
]


@pytest.mark.parametrize("path", IDEA)
def test_the_form_of_a_patch(path, tmp_path):
    """Says what it is, its source and which scripts it fits; it is short, and applies to both
    versions of every script that it names."""
    said, text = heading(path), path.read_text()
    assert said["Source"] and fits(path)
    body = text[text.index("\n@@") :]
    assert 1 <= len(re.findall(r"(?m)^[+-]", body)) <= LINES
    assert max(len(line) for line in text.splitlines()) <= 101
    for eager, fast in PAIRS:
        if eager in fits(path):
            before = [(PPO / f"{name}.py").read_text() for name in (eager, fast)]
            one, two = (edit(path, tmp_path / eager)(text) for text in before)
            compile(one, eager, "exec")
            compile(two, fast, "exec")
            # and `fork --edited` would have made the same of it
            assert fork.three_ways(before[1], before[0], one, beside=True) == two


def test_the_page_lists_what_fits():
    """Each patch once, with the scripts of its head."""
    rows = re.findall(r"(?m)^\| \[`(\w+)`\]\(\1\.patch\) \| .* \| (.+) \|$", TABLE)
    shown = {idea: re.sub(r"`", "", scripts) for idea, scripts in rows}
    assert shown == {path.stem: heading(path)["Fits"].rstrip(".") for path in IDEAS.glob("*.patch")}


def representative(path):
    """One of the scripts that a patch names."""
    wanted = ["ppo", "ppo_continuous_action_envpool", "ppo_continuous_action"]
    names = fits(path)
    return [*(name for name in wanted if name in names), *names][0]


def trained(name, flags, folder, change, *more):
    return run_main(name, *job(name), *flags, *more, runs_dir=folder, edit=change)


@cache
def plain(name, folder):
    return curves(trained(name, SIZES, folder, None))


def cleanrl_advantages(rewards, values, dones, gamma=0.99, gae_lambda=0.95):
    """CleanRL's formula (ppo.py): every done is terminal and every row is a transition."""
    advantages, last = np.zeros(rewards.shape), 0.0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * values[t + 1] * (1 - dones[t + 1]) - values[t]
        last = delta + gamma * gae_lambda * (1 - dones[t + 1]) * last
        advantages[t] = last
    return advantages


@pytest.mark.parametrize("idea", ["", "cleanrl_time_limits", "cleanrl_autoreset"])
def test_as_in_cleanrl(idea, monkeypatch, tmp_path):
    """Its advantages, and autoreset steps that are learned from, by one patch each."""
    monkeypatch.setattr(envpool, "make", ScriptedGames)
    change = edit(IDEAS / f"{idea}.patch", tmp_path / "patched") if idea else None
    sizes = "--num-envs 4 --num-steps 12 --num-minibatches 2 --update-epochs 1".split()
    run = trained("ppo_atari_envpool", [*sizes, "--total-timesteps", 48], tmp_path, change)
    expected = cleanrl_advantages(run.rewards, run.storage["values"].double().numpy(), run.dones)
    found = np.allclose(run.advantages, expected, rtol=1e-6, atol=1e-6)
    assert found == (idea == "cleanrl_time_limits") and run.dones.any()
    assert (run.storage["valid"][:12].min() == 1) == (idea == "cleanrl_autoreset")


class TwoChoices(gym.Wrapper):
    """CartPole, whose action is the first of two choices."""

    def __init__(self, env):
        super().__init__(env)
        self.action_space = gym.spaces.MultiDiscrete([2, 3])

    def step(self, action):
        return self.env.step(int(action[0]))


gym.register("TwoChoices-v0", lambda: TwoChoices(gym.make("CartPole-v1")))
# flags with which eight updates show the idea
SHOWN = {"dual_clip": ["--dual-clip", 0.9], "multidiscrete": ["--env-id", "TwoChoices-v0"]}
SHOWN |= {"asymmetric_warp": ["--env-id", "my_warp_env:HiddenPendulum"]}
SHOWN |= {"async_envs": ["--async-envs"], "first_visits": ["--env-id", "lock:Lock-v0"]}
SIZES = ["--total-timesteps", 5 * 32, "--update-epochs", 2, "--learning-rate", 2**-9]


REFUSES = "multidiscrete", "minigrid", "asymmetric", "asymmetric_warp"  # the script's own job
LEARNS_THE_SAME = "best", "async_envs", "numpy_acting", "success"


@pytest.mark.parametrize("path", IDEA)
def test_both_versions_have_the_idea(path, tmp_path):
    """They agree to the last bit without flags; turned off it is as if there were no patch, and
    turned on it is not, unless it changes nothing that is learned."""
    eager = representative(path)
    change = edit(path, tmp_path / eager)
    flags = [*SIZES, *heading(path).get("Flags", "").split(), *SHOWN.get(path.stem, [])]
    runs = [
        trained(name, flags, tmp_path / name, change) for name in (eager, f"{eager}_torchcompile")
    ]
    assert_the_same(*map(curves, runs), *runs)
    if path.stem in REFUSES:
        return
    before = plain(eager, tmp_path.parent / eager)
    assert (curves(runs[0]) == before) == (path.stem in LEARNS_THE_SAME)
    if off := heading(path).get("Off", "").split():
        assert curves(trained(eager, SIZES, tmp_path / "off", change, *off)) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "idea", ["categorical", "multidiscrete", "normalize", "rpo", "separate_clip"]
)
def test_an_idea_is_compiled(idea, tmp_path, monkeypatch):
    """Where it changes what is traced: the losses of the eager version, but for rounding. No C++ is
    written: that is PyTorch's own."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    path = IDEAS / f"{idea}.patch"
    eager, change = representative(path), edit(path, tmp_path)
    flags = [*SIZES, *SHOWN.get(path.stem, [])]
    one = trained(eager, flags, tmp_path / "eager", change)
    two = trained(f"{eager}_torchcompile", flags, tmp_path / "fast", change, "--compile")
    assert_close(curves(one), curves(two), 2, 10 * VECTORS)


def test_a_bonus_at_first_visits_alone(tmp_path, capsys):
    """Of a rollout with several episodes: what was met in this one before earns none."""
    name, change = "ppo_rnd", edit(IDEAS / "first_visits.patch", tmp_path)
    gym.register("Lock7-v0", lock.Lock, max_episode_steps=7, kwargs={"size": 3})
    flags = ["--env-id", "Lock7-v0", "--num-envs", 3, "--num-steps", 40, "--total-timesteps", 120]
    flags += ["--num-iterations-obs-norm-init", 1]
    run = run_main(name, *flags, runs_dir=tmp_path / "runs", edit=change)
    obs, paid = run.storage["obs"].numpy(), 0
    for n in range(3):
        met = [obs[0, n].tolist()]
        for t in range(40):
            seen = obs[t + 1, n].tolist()
            if not run.valid[t, n]:
                met = []
            elif seen in met:
                assert run.bonus[t, n] == 0
            else:
                assert run.bonus[t, n] > 0
                paid += 1
            met.append(seen)
    assert 3 < paid < 60 and (~run.valid).sum() > 2
    plain = run_main(name, *flags, "--no-first-visits", runs_dir=tmp_path / "plain", edit=change)
    assert (plain.bonus > 0).sum() == plain.valid.sum()
    raw = run_main(name, *flags, "--no-norm-obs", runs_dir=tmp_path / "raw", edit=change)
    obs = raw.storage["obs"]
    assert torch.equal(raw.agent.obs_rms(obs), obs) and not torch.equal(run.agent.obs_rms(obs), obs)
    counted = run_main(name, *flags, "--visit-counts", runs_dir=tmp_path / "counts", edit=change)
    assert (counted.bonus > 0).tolist() == (run.bonus > 0).tolist()
    obs, times = counted.storage["obs"].numpy(), {}
    for t, n in np.argwhere(counted.bonus > 0):
        times[obs[t + 1, n].tobytes()] = n_th = times.get(obs[t + 1, n].tobytes(), 0) + 1
        assert counted.bonus[t, n] == n_th**-0.5
    assert max(times.values()) > 2
    state = torch.load(f"{counted.run_dir}/checkpoint.pt", weights_only=True)
    assert sorted(state["visits"].values()) == sorted(times.values())
    assert not torch.load(f"{run.run_dir}/checkpoint.pt", weights_only=True)["visits"]
    with pytest.raises(SystemExit):
        run_main(name, "--visit-counts", "--no-first-visits", runs_dir=tmp_path, edit=change)
    assert "counts first visits" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("idea", "env_id", "of", "sizes", "same"),
    [
        ("asymmetric", "Go1JoystickFlatTerrain-v1", "envpool", (48, 123), "state"),
        ("asymmetric_warp", "my_warp_env:HiddenPendulum", "warp", (3, 5), "actor"),
    ],
)
def test_the_critic_alone_sees_what_no_sensor_measures(idea, env_id, of, sizes, same, tmp_path):
    """The policy 48 entries of a Go1, the critic its own 123; 3 and 5 of a pendulum."""
    change, of = edit(IDEAS / f"{idea}.patch", tmp_path), f"ppo_continuous_action_{of}"
    flags = [*TINY, "--env-id", env_id]
    run = run_main(of, *flags, runs_dir=tmp_path / "one", edit=change)
    obs = run.storage["obs"].flatten(0, 1).requires_grad_()
    seen = run.agent.seen
    assert obs.shape[1] == sum(sizes) and seen == sizes[0]
    probs, value = run.agent(obs)
    (of_policy,) = torch.autograd.grad(probs.mean.sum(), obs)
    (of_critic,) = torch.autograd.grad(value.sum(), obs)
    for found, mine, others in (
        (of_policy, slice(seen), slice(seen, None)),
        (of_critic, slice(seen, None), slice(seen)),
    ):
        assert (found[:, mine].abs().amax(0) > 0).all() and (found[:, others] == 0).all()
    run = run_main(of, *flags, "--value-obs-key", same, runs_dir=tmp_path / "two", edit=change)
    assert torch.equal(run.storage["obs"][..., :seen], run.storage["obs"][..., seen:])


def test_the_best_policy_is_kept(tmp_path):
    """By the mean of the last 100 episodes at each checkpoint, through a resumed run."""
    change = edit(IDEAS / "best.patch", tmp_path)
    flags = [*TINY, "--total-timesteps", 512, "--checkpoint-interval", 4]
    run = run_main("ppo", *flags, runs_dir=tmp_path / "runs", edit=change)
    kept = torch.load(f"{run.run_dir}/best/checkpoint.pt", weights_only=True)
    assert np.mean(kept["episodic_returns"][-100:]) == run.best == kept["best"] >= run.mean_return
    path = f"{run.run_dir}/checkpoint.pt"
    torch.save(torch.load(path, weights_only=True) | {"best": 1e3}, path)
    more = ["--resume", run.run_dir, "--total-timesteps", 768]
    again = run_main("ppo", *more, runs_dir="unused", edit=change)
    assert again.best == 1e3 > again.mean_return, "what is worse replaces nothing"
    best = Path(run.run_dir, "best/checkpoint.pt")
    assert torch.load(best, weights_only=True)["best"] == run.best
    before = best.read_bytes()
    more = ["--resume", f"{run.run_dir}/best/", "--total-timesteps", 768]
    other = run_main("ppo", *more, runs_dir=tmp_path / "others", edit=change)
    assert best.read_bytes() == before and not Path(other.run_dir).is_relative_to(run.run_dir)
    assert other.first_iteration == kept["global_step"] // 16 + 1 and other.best >= run.best


class Odd(doors.Still):
    """What its name says happens in its fifth step, but in the tests' own process."""

    length, main = 6, os.getpid()

    def __init__(self, what):
        self.what = what

    def step(self, action):
        odd = self.what if self.t == 4 and os.getpid() != self.main else ""
        if odd == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if odd == "raises":
            error = ZeroDivisionError("two\nlines")
            error.lock = threading.Lock()  # nothing that can be pickled
            raise error
        return super().step(action)


def odd(what, folder):
    gym.register(f"Odd-{what}-v0", partial(Odd, what))
    change, flags = edit(IDEAS / "async_envs.patch", folder), ["--env-id", f"Odd-{what}-v0"]
    return run_main("ppo", *TINY, *flags, "--async-envs", runs_dir=folder / "runs", edit=change)


ENDS = {
    "raises": (RuntimeError, "ZeroDivisionError: two\nlines"),
    "dies": (SystemExit, "\na process of the environments died (signal 9)"),
}


@pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")  # how Gymnasium shows the traceback
@pytest.mark.parametrize("what", ENDS)
def test_what_ends_an_environment_apart_is_said(what, tmp_path):
    kind, said = ENDS[what]
    with pytest.raises(kind) as error:
        odd(what, tmp_path)
    assert str(error.value) == said


class Draws(doors.Still):
    """Shows what it draws from the generators that all share."""

    def look(self):
        return np.array([random.random(), np.random.random(), 1.0], np.float32)


def test_environments_apart_draw_apart(tmp_path, monkeypatch):
    """Of main's generators, which each of their processes has a copy of."""
    monkeypatch.setitem(gym.registry, "Draws-v0", gym.envs.registration.EnvSpec("Draws-v0", Draws))
    change = edit(IDEAS / "async_envs.patch", tmp_path)
    flags = [*TINY, "--async-envs", "--env-id", "Draws-v0"]
    one, two = run_main("ppo", *flags, runs_dir=tmp_path / "runs", edit=change).obs.unbind(1)
    assert (one != two).sum() == one.numel() * 2 / 3


SLOW = """
import os, time
import gymnasium as gym

class Slow(gym.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        open(f"{os.getpid()}.pid", "w").close()

    def step(self, action):
        time.sleep(0.002)
        return self.env.step(action)

gym.register("Slow-v0", lambda: Slow(gym.make("CartPole-v1")))
"""
WAYS = [  # script, how main ends, its status
    ("ppo", "killpg", signal.SIGINT, 130),
    ("ppo_torchcompile", "killpg", signal.SIGTERM, 143),
    ("ppo_torchcompile", "kill", signal.SIGTERM, 143),
    ("ppo", "crash", 0, 1),
    ("ppo_torchcompile", "kill", signal.SIGKILL, -9),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "how", "signum", "status"), WAYS)
def test_environments_apart_end_in_order(name, how, signum, status, tmp_path):
    """A signal to the whole group, as by Ctrl+C or a scheduler, and one to main alone both leave a
    checkpoint and a summary; a crash ends; and none leaves a process behind. They come in the midst
    of a rollout, of 64 steps of 2 ms and more."""
    text = edit(IDEAS / "async_envs.patch", tmp_path)((PPO / f"{name}.py").read_text())
    send = f"__import__('threading').Timer(0.005, os.{how}, (os.getpid(), {signum})).start()"
    send = f"if iteration == 2: {'1 / 0' if how == 'crash' else send}"
    text = insert("# Rollout", send)(text)
    (tmp_path / "script.py").write_text(text)
    (tmp_path / "slow.py").write_text(SLOW)
    words = [sys.executable, "script.py", *TINY, "--async-envs", "--env-id", "slow:Slow-v0"]
    words += ["--num-steps", 64, "--total-timesteps", 3 * 128]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*map(str, words), "--no-cuda"], cwd=tmp_path, env=env, start_new_session=True,
        stderr=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert ("Traceback" in done.stderr) == (status == 1) and "ignored" not in done.stderr
    saved = [json.loads(path.read_text())["complete"] for path in tmp_path.glob("runs/*/s*.json")]
    assert saved == [False] * (status > 1)
    pids = {int(path.stem) for path in tmp_path.glob("*.pid")}
    assert len(pids) == 3, "main makes one too, for what it shows"
    wait_for(lambda: all(map(ended, pids)), 20)


def test_the_rate_follows_the_kl_divergence(tmp_path):
    """Of the optimizer itself, which a resumed run has anew, from learning_rate on."""
    change = edit(IDEAS / "kl_adaptive.patch", tmp_path)
    flags = [*TINY, "--learning-rate", 1e-4, "--total-timesteps", 64]
    run = run_main("ppo", *flags, runs_dir=tmp_path / "runs", edit=change)
    again = run_main(
        "ppo", "--resume", run.run_dir, "--total-timesteps", 128, runs_dir="unused", edit=change
    )
    for one in (run, again):
        rate = one.optimizer.param_groups[0]["lr"].item()
        assert one.lrnow == rate == pytest.approx(1e-4 * 1.5**8)  # slow: it rises in each epoch


def test_a_gru_forgets_where_an_episode_ends(tmp_path):
    """A sequence with ends in it, in one call, is its rows one by one."""
    change = edit(IDEAS / "gru.patch", tmp_path)
    run = run_main("ppo_lstm", *TINY, runs_dir=tmp_path / "runs", edit=change)
    gru, rng = run.agent.actor.lstm, torch.Generator().manual_seed(1)
    x, state = torch.randn(12, 3, 64, generator=rng), torch.randn(1, 3, 64, generator=rng)
    dones = (torch.rand(12, 3, generator=rng) < 0.3).float()
    hidden, after = gru(x.flatten(0, 1), state, dones.flatten())
    for row, over, found in zip(x, dones, hidden.view(12, 3, 64), strict=True):
        expected, state = gru(row, state)
        state = state * (1 - over).unsqueeze(1)
        torch.testing.assert_close(found[over == 0], expected[over == 0])
    torch.testing.assert_close(after, state)


@pytest.mark.parametrize("idea", ["normalize", "normalize_lstm"])
def test_statistics_are_those_of_continuous_actions(idea, tmp_path):
    """The same class, line by line."""
    path = IDEAS / f"{idea}.patch"
    text = (PPO / "ppo_continuous_action.py").read_text()
    kind = re.search(r"(?ms)^class RunningMeanStd.+?\n\n\n", text)[0]
    assert kind in edit(path, tmp_path)((PPO / f"{representative(path)}.py").read_text())


def test_rewards_are_scaled_in_other_scripts(tmp_path):
    """CartPole's, 1 each, by the deviation of their discounted sums, which a resumed run goes on
    with."""
    change = edit(IDEAS / "scale_rewards.patch", tmp_path)
    gym.register("Cut-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=20)
    flags = [*TINY, "--num-steps", 40, "--total-timesteps", 80, "--gamma", 0.9]
    run = run_main("ppo", *flags, "--env-id", "Cut-v0", runs_dir=tmp_path / "runs", edit=change)
    assert (run.dones[1:] > run.terminations[1:]).any(), "cut by the time limit"
    rows, sums = [], np.zeros(2)
    for valid in run.valid:
        sums = np.where(valid, sums * 0.9 + 1, 0.0)
        rows.append(sums)
    assert np.allclose(rows, run.discounted) and 60 < run.valid.sum() < 80
    deviation = np.std(np.array(rows)[run.valid])
    assert run.rewards[run.valid] == pytest.approx(1 / deviation, 1e-3)
    more = ["--resume", run.run_dir, "--total-timesteps", 160]
    again = run_main("ppo", *more, runs_dir="unused", edit=change)
    assert again.of_sums[0] == pytest.approx(run.of_sums[0] + again.valid.sum())


def test_masks_are_not_normalised(tmp_path, monkeypatch):
    """By the patch, which gives Agent the statistics of what stands before them."""
    change, wide = edit(IDEAS / "normalize.patch", tmp_path), gym.spaces.Box(-9.0, 9.0, (3,))
    make = type("Wide", (doors.Doors,), {"observation_space": wide})
    monkeypatch.setitem(gym.registry, "Wide-v0", gym.envs.registration.EnvSpec("Wide-v0", make))
    flags = [*TINY, "--env-id", "Wide-v0"]
    run = run_main("ppo_masked", *flags, runs_dir=tmp_path / "runs", edit=change)
    size, actions = run.agent.sizes
    obs = run.storage["obs"][: run.T, :, :size]
    assert run.agent.obs_rms.mean.shape == (size,) and run.agent.obs_rms is run.agent.actor[0]
    assert not torch.equal(run.agent.obs_rms(obs), obs)
    masks = run.storage["obs"][..., size:]
    assert masks.shape[-1] == actions and {*masks.unique().tolist()} == {0.0, 1.0}


@pytest.mark.parametrize("name", ["ppo", "ppo_masked", "ppo_lstm"])
def test_one_hot_numbers_are_not_normalised(name, tmp_path):
    """Taxi's place, which FlattenObservation makes a vector of; of an LSTM's some are hidden."""
    change = edit(IDEAS / f"normalize{'_lstm' * ('lstm' in name)}.patch", tmp_path)
    flags = [*TINY, "--env-id", "Taxi-v4", *(["--hide", 0, 3] if "lstm" in name else [])]
    run = run_main(name, *flags, runs_dir=tmp_path / "runs", edit=change)
    obs = run.storage["obs"][..., : len(run.agent.obs_rms.mean)]
    assert torch.equal(run.agent.obs_rms(obs), obs) and obs.any()
