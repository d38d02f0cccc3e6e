"""The siblings follow one trajectory: same seed, real games, whole processes on the CPU."""

import json

import pytest
from helpers import PAIRS, PPO, run_script, scalars

ITERATIONS = 6
# relative to the metric, or to its largest value for the ones that cross 0
ROUNDING, COMPILED = 1e-4, 1e-3
JOBS = {"ppo_atari_envpool": ["--env-id", "Breakout-v5", "--total-timesteps", ITERATIONS * 1024]}


def train(name, *flags, folder):
    """Runs a script; returns its curves, without the ones that are clock times, and its summary."""
    job = JOBS[name.removesuffix("_torchcompile")]
    done = run_script(PPO / f"{name}.py", *job, *flags, "--no-cuda", cwd=folder)
    assert done.returncode == 0, done.stderr
    (run_dir,) = (folder / "runs").iterdir()
    curves = scalars(run_dir)
    del curves["charts/SPS"]
    return curves, json.loads((run_dir / "summary.json").read_text())


def compare(one, two, tolerance):
    assert one.keys() == two.keys()
    assert len(one["losses/value_loss"]) == ITERATIONS
    assert len(one["charts/episodic_return"]) > 10
    for tag in one:
        steps, values = zip(*one[tag], strict=True)
        other_steps, other_values = zip(*two[tag], strict=True)
        assert steps == other_steps, tag
        scale = max(map(abs, values))
        assert other_values == pytest.approx(values, rel=tolerance, abs=tolerance * scale), tag


@pytest.mark.slow
@pytest.mark.parametrize(("eager", "fast"), PAIRS)
def test_parity(eager, fast, tmp_path):
    runs = {}
    for key, name, flags in (
        ("eager", eager, []),
        ("again", eager, []),
        ("fast", fast, []),
        ("compiled", fast, ["--compile"]),
    ):
        (tmp_path / key).mkdir()
        runs[key], summary = train(name, *flags, folder=tmp_path / key)
        assert summary["mode"] == ("compile" if flags else "eager")
    assert runs["eager"] == runs["again"], "the same script twice gives the same numbers"
    compare(runs["eager"], runs["fast"], ROUNDING)
    compare(runs["eager"], runs["compiled"], COMPILED)
    lrs = [value for _, value in runs["eager"]["charts/learning_rate"]]
    assert lrs == pytest.approx([2.5e-4 * (1 - i / ITERATIONS) for i in range(ITERATIONS)])
