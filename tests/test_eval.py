"""ppo_eval: whole games with a trained agent, scored the same way twice, filmed frame by frame."""

import json
import random
import shutil

import imageio.v2 as imageio
import numpy as np
import pytest
from helpers import PAIRS, PPO, load, random_storage, run_main, run_script, spaces

import torch

EVAL = PPO / "ppo_eval.py"
SHORT = {  # an environment whose games are short under an agent that has learned nothing
    "ppo_atari_envpool": "Breakout-v5",
    "ppo_continuous_action": "Hopper-v4",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run's folder of each fast script."""
    found = {}
    for eager, fast in PAIRS:
        folder = tmp_path_factory.mktemp(eager)
        flags = ["--env-id", SHORT[eager], "--num-steps", 64, "--num-minibatches", 2]
        run_main(fast, *flags, "--total-timesteps", 1024, runs_dir=folder)
        (found[eager],) = folder.iterdir()
    return found


@pytest.mark.parametrize("eager", [eager for eager, _ in PAIRS])
def test_the_network_is_the_agents(eager):
    """ppo_eval's actor gives what Agent gives, for the weights of each pair."""
    module = load("ppo_eval")
    agent = load(eager).Agent(spaces(eager))
    obs = random_storage(eager, 3, 2)[0]["obs"][0]  # (N, ...)
    with torch.no_grad():
        expected = agent(obs)[:-1]  # without the value
        if "atari" in eager:
            found = (module.nature_cnn(agent.state_dict(), obs),)
        else:
            found = module.gaussian_mlp(agent.state_dict(), obs)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("eager", [eager for eager, _ in PAIRS])
def test_players_have_formats(eager):
    module = load("ppo_eval")
    assert load(eager).PAIR in module.PLAYERS and load(eager).FORMAT == module.FORMAT


def test_frozen_statistics_scale_as_in_training(tmp_path):
    """Observations are scaled by the mean and variance of training, which they do not move."""
    module = load("ppo_eval")
    run = run_main(
        "ppo_continuous_action", "--env-id", "Hopper-v4", "--num-steps", 64,
        "--num-minibatches", 2, "--total-timesteps", 256, runs_dir=tmp_path,
    )  # fmt: skip
    (run_dir,) = tmp_path.iterdir()
    _, checkpoint = module.load_checkpoint(str(run_dir))
    player = module.Continuous(checkpoint, deterministic=True)
    player.low, player.high = -np.full(3, np.inf), np.full(3, np.inf)
    obs = np.random.default_rng(0).normal(size=(5, 11)) * [100] + 1
    stats = run.normalizer.obs
    scaled = np.clip((obs - stats.mean) / np.sqrt(stats.var + 1e-8), -10, 10).astype(np.float32)
    with torch.no_grad():
        expected = run.agent(torch.from_numpy(scaled))[0].numpy()
        for _ in range(2):
            np.testing.assert_array_equal(player.act(obs, []), expected)


@pytest.mark.parametrize("eager", [eager for eager, _ in PAIRS])
def test_games_are_scored_and_repeat(eager, runs, tmp_path):
    """The same command gives the same games, to the last digit."""
    results = []
    ways = [["--num-envs", 2], ["--num-envs", 2], ["--seed", 2]]
    if "continuous" in eager:  # the likeliest actions of an Atari agent this young never serve
        ways.append(["--deterministic"])
    for flags in ways:
        run_dir = shutil.copytree(runs[eager], tmp_path / str(len(results)))
        done = run_script(EVAL, run_dir, "--episodes", 3, *flags, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        result = json.loads((run_dir / "eval.json").read_text())
        assert result["env_id"] == SHORT[eager] and result["global_step"] == 1024
        assert len(result["returns"]) == len(result["lengths"]) == 3
        assert result["mean"] == pytest.approx(np.mean(result["returns"]))
        assert result["std"] == pytest.approx(np.std(result["returns"]))
        assert result["median"] == np.median(result["returns"])
        table = done.stdout.splitlines()
        assert len(table) == 6 and f"mean {result['mean']:.2f}" in table[-1]
        for i, (total, length) in enumerate(zip(result["returns"], result["lengths"], strict=True)):
            assert table[2 + i].split() == [str(i + 1), f"{total:.2f}", str(length)]
        results.append((result["returns"], result["lengths"]))
    assert results[0] == results[1]
    assert all(result != results[0] for result in results[2:])
    if "atari" in eager:  # five lives each, not one
        assert min(results[0][1]) > 100


def test_atari_actions_are_drawn_or_likeliest(runs):
    module = load("ppo_eval")
    _, checkpoint = module.load_checkpoint(str(runs["ppo_atari_envpool"]))
    checkpoint["agent"]["actor.weight"].mul_(30.0)  # probabilities far from equal
    obs = random_storage("atari", 3, 4)[0]["obs"][0].numpy()  # (4, 4, 84, 84)
    with torch.no_grad():
        logits = module.nature_cnn(checkpoint["agent"], torch.from_numpy(obs))
        likeliest = module.Atari(checkpoint, deterministic=True).act(obs, [])
        generators = [torch.Generator().manual_seed(i) for i in range(4)]
        player = module.Atari(checkpoint, deterministic=False)
        drawn = torch.tensor(np.array([player.act(obs, generators) for _ in range(3000)]))
    assert likeliest.tolist() == logits.argmax(-1).tolist()
    shares = torch.nn.functional.one_hot(drawn, logits.shape[1]).float().mean(0)
    torch.testing.assert_close(shares, logits.softmax(-1), atol=0.04, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("eager", "game"), [("ppo_atari_envpool", "best"), ("ppo_continuous_action", "first")]
)
def test_video(eager, game, runs, tmp_path):
    run_dir = shutil.copytree(runs[eager], tmp_path / "run")
    flags = ["--episodes", 3, "--capture-video", "--video-game", game]
    done = run_script(EVAL, run_dir, *flags, cwd=tmp_path)
    if "no off-screen renderer" in done.stderr:
        pytest.skip("needs libegl1")
    assert done.returncode == 0, done.stderr
    result = json.loads((run_dir / "eval.json").read_text())
    number = int(np.argmax(result["returns"])) if game == "best" else 0
    said = f"game {number + 1}, return {result['returns'][number]:.2f}"
    frames = [*imageio.get_reader(run_dir / "video.mp4").iter_data()]
    assert done.stdout.splitlines()[-1].endswith(f"{said}, {len(frames)} frames")
    assert len(frames) == result["lengths"][number] + 1
    colours = np.abs(np.diff(frames[0].astype(int), axis=-1)).max()
    assert colours > 40, "true colour, not grey"
    assert any((a != b).any() for a, b in zip(frames, frames[5:], strict=False))


def test_no_renderer_names_the_package(runs, tmp_path):
    run_dir = shutil.copytree(runs["ppo_continuous_action"], tmp_path / "run")
    flags = [run_dir, "--episodes", 1, "--capture-video"]
    done = run_script(
        EVAL, *flags, cwd=tmp_path, env={"MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": ""}
    )
    if done.returncode == 0:
        pytest.skip("libosmesa6 is installed")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "libosmesa6" in done.stderr.splitlines()[-1]
    assert len(json.loads((run_dir / "eval.json").read_text())["returns"]) == 1


def test_foreign_checkpoints_are_named(runs, tmp_path, capsys):
    module = load("ppo_eval")
    good = torch.load(runs["ppo_atari_envpool"] / "checkpoint.pt", weights_only=True)
    bad = tmp_path / "checkpoint.pt"

    def refused():
        with pytest.raises(SystemExit) as ended:
            module.load_checkpoint(str(tmp_path))
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "No such file" in refused()
    for content, words in (
        ({**good, "format": 2}, "of a newer format, 2; this script reads 1"),
        ({**good, "pair": "dqn"}, "not a checkpoint of ppo_atari_envpool or ppo_continuous_action"),
        ({"model": 1}, "not a checkpoint of"),
        ({**good, "agent": random.Random(1)}, "more than plain values"),
    ):
        torch.save(content, bad)
        assert words in refused()
    torch.save(good, bad)
    bad.write_bytes(bad.read_bytes()[:-5000])
    assert "not a whole checkpoint" in refused()
