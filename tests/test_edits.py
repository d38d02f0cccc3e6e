"""Forks: what someone changes in a copy of a script, the same lines in both versions.

The fast version acts by the policy that its agent has now, whatever was changed: its losses are the
eager version's. NumPy acts where it does the same, PyTorch elsewhere, and a warning says so.
"""

import re
import runpy
import warnings

import numpy as np
import pytest
from fork import three_ways
from helpers import PPO as PPO_FOLDER
from helpers import git_applied, insert, run_main, scalars
from test_parity import differences

import torch

SMALL = "--num-envs 4 --num-steps 64 --num-minibatches 2 --update-epochs 2".split()
SMALL += ["--total-timesteps", 3 * 256]
IN_PYTORCH, IN_ITS_LOOP = "PyTorch acts", "the LSTM learns in its loop"


def swap(*pairs):
    """An edit: texts that stand in a script once, each for another; a number says how often."""

    def edit(text):
        for old, new, *count in pairs:
            assert text.count(old) == (count or [1])[0], old
            text = text.replace(old, new)
        return text

    return edit


def both(*edits):
    """One edit after the other."""

    def edit(text):
        for change in edits:
            text = change(text)
        return text

    return edit


LAYER = "            layer_init(nn.Linear(64, 64)),\n            nn.Tanh(),\n"
RESIDUAL = """class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Agent(nn.Module):
"""
WIDE = both(
    swap(
        ("            nn.Tanh(),\n", "            nn.LayerNorm(256),\n            nn.SiLU(),\n", 4)
    ),
    swap(("nn.Linear(64, 64)", "nn.Linear(256, 256)", 2), ("nn.Linear(64, ", "nn.Linear(256, ", 2)),
    swap(("nn.Linear(obs_size, 64)", "nn.Linear(obs_size, 256)", 2)),
)
EPSILON = """    probs = agent.policy(obs)
    random = torch.rand(len(obs), device=obs.device) < 0.1
    uniform = torch.randint(0, probs.logits.shape[-1], (len(obs),), device=obs.device)
    return torch.where(random, uniform, probs.sample())
"""
HOST = """    action = agent.policy(obs).sample()
    if random.random() < 0.2:
        action = torch.full_like(action, np.random.randint(2))
    return action
"""
HEADS = '''class Heads:
    """Independent choices: logits (..., 2 * 2)."""

    def __init__(self, logits):
        self.parts = [Categorical(logits=x, validate_args=False) for x in logits.chunk(2, -1)]

    def sample(self):
        return torch.stack([x.sample() for x in self.parts], -1)

    def log_prob(self, actions):
        return sum(x.log_prob(a) for x, a in zip(self.parts, actions.unbind(-1), strict=True))

    def entropy(self):
        return sum(x.entropy() for x in self.parts)


class Agent(nn.Module):
'''
TWO = """
        env = gym.wrappers.TransformAction(
            env, lambda action: int(action[0]), gym.spaces.MultiDiscrete([2, 2])
        )
        return env if obs_space.shape"""
MULTI = swap(
    ("\n        return env if obs_space.shape", TWO),
    ("class Agent(nn.Module):\n", HEADS),
    ("Categorical(logits=self.actor(obs), validate_args=False)", "Heads(self.actor(obs))"),
    ("envs.single_action_space.n), std", "4), std"),
    ('"actions": torch.zeros((T + 1, N), dt', '"actions": torch.zeros((T + 1, N, 2), dt'),
    ("isinstance(space, gym.spaces.Discrete) and space.start == 0", "True"),
)
LARGE = swap(
    ("\n        return env if obs_space.shape", """
        grow = np.random.default_rng(0).standard_normal((4, 32)) * 1e5
        env = gym.wrappers.TransformObservation(
            env,
            lambda obs: (obs @ grow).astype(np.float32),
            gym.spaces.Box(-np.inf, np.inf, (32,)),
        )
        return env if obs_space.shape"""),
)  # fmt: skip
ATTRIBUTE = (
    "        super().__init__()\n        (obs_size,) = ",
    "        super().__init__()\n        self.scale = 1.0\n        (obs_size,) = ",
)
BUFFER = (
    ATTRIBUTE[0],
    '        super().__init__()\n        self.register_buffer("scale", torch.tensor(1.0))\n'
    "        (obs_size,) = ",
)
ANNEAL = insert("# Rollout", "agent.scale = 1.0 / iteration")
FILL = insert("# Rollout", "agent.scale.fill_(1.0 / iteration)")
STD = ("self.actor_logstd.exp()", "self.scale * self.actor_logstd.exp()")
TEMPERATURE = ("logits=self.actor(obs)", "logits=self.actor(obs) / self.scale")
COUNTED = (
    "    probs = agent.policy(obs)\n    return probs.sample()\n",
    """    agent.scale += 1
    return agent.policy(obs).sample()
""",
)
KEPT = (
    "    probs = agent.policy(obs)\n    return probs.sample()\n",
    """    last = getattr(agent, "last", None)
    again = torch.rand(len(obs)) < 0.5
    agent.last = agent.policy(obs).sample()
    agent.last = agent.last if last is None else torch.where(again, last, agent.last)
    return agent.last
""",
)
HOOK = (
    "    agent = Agent(envs).to(device)\n",
    "    agent = Agent(envs).to(device)\n"
    "    agent.actor[0].register_forward_hook(lambda layer, x, y: 2 * y.sin())\n",
)
FORWARD = (
    "    agent = Agent(envs).to(device)\n",
    "    agent = Agent(envs).to(device)\n"
    "    agent.actor[2].forward = lambda x, y=agent.actor[2]: nn.Linear.forward(y, 9 * x)\n",
)
NOISY = """class Noisy(nn.Module):
    def forward(self, x):
        return x + 0.1 * torch.randn_like(x)


class Agent(nn.Module):
"""
DECORATED = """def greedily(function):
    @functools.wraps(function)
    def wrapped(agent, obs):
        action = function(agent, obs)
        action[0] = 0
        return action

    return wrapped


@greedily
@torch.no_grad()
def act(agent, obs):
"""
DECORATED = f"import functools\n\n\n{DECORATED}"
MASKS = swap((LAYER, LAYER + "            nn.Dropout(0.1),\n", 2))
PPO, MUJOCO = "ppo", "ppo_continuous_action"
# of each fork: a script, the edit, and who acts in the fast version
FORKS = {
    "a deviation that an attribute anneals": (
        MUJOCO, both(swap(ATTRIBUTE, STD), ANNEAL), "PyTorch"),
    "a deviation that a buffer anneals": (MUJOCO, both(swap(BUFFER, STD), FILL), "PyTorch"),
    "a deviation that main sets in each step": (
        MUJOCO, swap(("            action = act(agent, obs[step])",
                      "            agent.actor_logstd.data.fill_(-1.5 * step / args.num_steps)\n"
                      "            action = act(agent, obs[step])")), "NumPy"),
    "all tanh replaced": (PPO, lambda text: text.replace("nn.Tanh", "nn.ReLU"), "NumPy"),
    "all Linear replaced": (
        PPO, both(lambda text: text.replace("nn.Linear", "Double"),
                  swap(("class Agent(nn.Module):\n",
                        "class Double(nn.Linear):\n    def forward(self, x):\n"
                        "        return 2 * super().forward(x)\n\n\nclass Agent(nn.Module):\n"))),
        "PyTorch"),
    "one of the environments alone, first": (
        PPO, insert("# Rollout", "act(agent, obs[T][:1])"), "NumPy"),
    "a partial function": (
        PPO, swap(("    agent = Agent(envs).to(device)\n",
                   "    agent = Agent(envs).to(device)\n"
                   "    agent.policy = __import__('functools').partial(Agent.policy, agent)\n")),
        "PyTorch"),
    "a deviation that depends on what is seen": (
        MUJOCO, swap(("self.actor_logstd.exp()", "(self.actor_logstd + obs[..., :1]).exp()")),
        "PyTorch"),
    "ReLU": (PPO, swap(("nn.Tanh()", "nn.ReLU()", 4)), "NumPy"),
    "LayerNorm, SiLU, 256 units": (PPO, WIDE, "NumPy"),
    "a residual layer": (
        PPO, swap(("class Agent(nn.Module):\n", RESIDUAL),
                  (LAYER, LAYER.replace("layer_init(nn.Linear(64, 64))",
                                        "Residual(layer_init(nn.Linear(64, 64)))"), 2)), "PyTorch"),
    "a third layer": (PPO, swap((LAYER, 2 * LAYER, 2)), "NumPy"),
    "no bias": (PPO, swap(("nn.Linear(64, 64)", "nn.Linear(64, 64, bias=False)", 2),
                          ("    nn.init.constant_(layer.bias, bias_const)\n",
                           "    if layer.bias is not None:\n"
                           "        nn.init.constant_(layer.bias, bias_const)\n")), "NumPy"),
    "epsilon-greedy": (
        PPO, swap(("    probs = agent.policy(obs)\n    return probs.sample()\n", EPSILON)),
        "PyTorch"),
    "random numbers of Python and NumPy": (
        PPO, swap(("    probs = agent.policy(obs)\n    return probs.sample()\n", HOST)), "PyTorch"),
    "the most likely action": (PPO, swap(("return probs.sample()", "return probs.mode")),
                               "PyTorch"),
    "a temperature": (PPO, both(swap(ATTRIBUTE, TEMPERATURE), ANNEAL), "PyTorch"),
    "two choices a step": (PPO, MULTI, "PyTorch"),
    "32 numbers of 1e5": (PPO, LARGE, "NumPy"),
    "dropout": (PPO, MASKS, "PyTorch"),
    "an attribute that counts": (PPO, swap(ATTRIBUTE, COUNTED), "PyTorch"),
    "a buffer that counts": (PPO, swap(BUFFER, COUNTED), "PyTorch"),
    "the last action is kept": (PPO, swap(KEPT), "PyTorch"),
    "a layer with a hook": (PPO, swap(HOOK), "PyTorch"),
    "a layer with a forward of its own": (PPO, swap(FORWARD), "PyTorch"),
    "a policy in bfloat16": (
        PPO, swap(("    probs = agent.policy(obs)\n    return probs.sample()\n",
                   "    with torch.autocast('cpu', torch.bfloat16):\n"
                   "        return agent.policy(obs).sample()\n")), "PyTorch"),
    "arguments by their names": (
        PPO, swap(("act(agent, obs[step])", "act(obs=obs[step], agent=agent)")), "NumPy"),
    "batch normalisation": (
        PPO, swap(("            nn.Tanh(),\n",
                   "            nn.BatchNorm1d(64),\n            nn.Tanh(),\n", 4),
                  ("agent(storage[\"obs\"])", "agent(storage[\"obs\"].flatten(0, 1))"),
                  ("probs, storage[\"values\"][:] =", "probs, storage[\"values\"].view(-1)[:] ="),
                  ("storage[\"logprobs\"][:] = probs", "storage[\"logprobs\"].view(-1)[:] = probs"),
                  ("(storage[\"actions\"])", "(storage[\"actions\"].view(-1))")), "PyTorch"),
    "noise in the network": (
        PPO, both(swap(("class Agent(nn.Module):\n", NOISY)),
                  swap((LAYER, LAYER + "            Noisy(),\n", 2))), "PyTorch"),
    "a number that main gives": (
        PPO, swap(("def act(agent, obs):", "def act(agent, obs, sharpness):"),
                  ("    probs = agent.policy(obs)\n    return probs.sample()\n",
                   "    logits = sharpness * agent.policy(obs).logits\n"
                   "    return Categorical(logits=logits).sample()\n"),
                  ("act(agent, obs[step])", "act(agent, obs[step], 1.0 + iteration)")), "PyTorch"),
    "a rule that few rows meet": (
        PPO, swap(("    return probs.sample()\n",
                   "    return torch.where(obs[:, 2].abs() > 0.2, 0, probs.sample())\n")),
        "PyTorch"),
    "actions changed by NumPy": (
        PPO, swap(("    return probs.sample()\n",
                   "    action = probs.sample()\n"
                   "    action.numpy()[0] = 1 - action.numpy()[0]\n    return action\n")),
        "PyTorch"),
    "the actor by another name": (
        PPO, swap(("        self.actor = nn.Sequential(", "        self.pi = nn.Sequential("),
                  ("self.actor(obs)", "self.pi(obs)")), "PyTorch"),
    "a count in the script": (
        PPO, swap(("@torch.no_grad()\ndef act(agent, obs):\n",
                   "steps = []\n\n\n@torch.no_grad()\ndef act(agent, obs):\n    steps.append(0)\n"),
                  ("    return probs.sample()\n",
                   "    return probs.mode if len(steps) % 3 == 0 else probs.sample()\n")),
        "PyTorch"),
    "a generator of its own": (
        PPO, swap(("@torch.no_grad()\ndef act(agent, obs):\n",
                   "own = np.random.default_rng(3)\n\n\n@torch.no_grad()\ndef act(agent, obs):\n"),
                  ("    return probs.sample()\n",
                   "    return probs.sample() if own.random() < 0.5 else probs.mode\n")),
        "PyTorch"),
    "a decorator of its own": (
        PPO, swap(("@torch.no_grad()\ndef act(agent, obs):\n", DECORATED)), "PyTorch"),
    "a distribution of the same name": (
        PPO, swap(("class Agent(nn.Module):\n",
                   "class Categorical(Categorical):\n    def sample(self):\n"
                   "        return self.mode\n\n\nclass Agent(nn.Module):\n")), "PyTorch"),
    "all of a name replaced": (
        PPO, both(lambda text: text.replace("Categorical(logits", "Sharp(logits"),
                  swap(("class Agent(nn.Module):\n",
                        "class Sharp(Categorical):\n    def sample(self):\n"
                        "        return self.mode\n\n\nclass Agent(nn.Module):\n"))), "PyTorch"),
    "other names of variables": (
        PPO, swap(("    probs = agent.policy(obs)\n    return probs.sample()\n",
                   "    policy = agent.policy(obs)\n    # drawn\n    return policy.sample()\n")),
        "NumPy"),
    "a value that is read": (
        PPO, swap(("    return probs.sample()\n",
                   "    return probs.sample() if obs.abs().max() < 0.05 else probs.mode\n")),
        "PyTorch"),
}  # fmt: skip


def trained(name, *flags, folder, edit):
    """A run's curves and variables, and the warnings about who acts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = run_main(name, *SMALL, *flags, runs_dir=folder, edit=edit)
    said = [str(x.message) for x in caught]
    return scalars(run.run_dir), run, [x for x in said if IN_PYTORCH in x or IN_ITS_LOOP in x]


@pytest.mark.parametrize("fork", FORKS)
def test_a_fork_acts_by_its_own_policy(fork, tmp_path, monkeypatch):
    """Eager beside fast: the losses of the first two updates, but for rounding; without compiling,
    as what is compiled is not what acts."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    name, edit, acts = FORKS[fork]
    flags = ["--env-id", "Pendulum-v1"] if name == MUJOCO else []
    one, plain, _ = trained(name, *flags, folder=tmp_path / "eager", edit=edit)
    fast = f"{name}_torchcompile"
    two, run, said = trained(fast, *flags, "--compile", folder=tmp_path / "fast", edit=edit)
    assert bool(said) == (acts == "PyTorch") == (not run.act.in_numpy), said
    # sums of 1e5 lose their seventh digit, in both; of all others see test_parity
    bound = 2e-2 if "1e5" in fork else 1e-3
    for tag in (tag for tag in one if tag.startswith("losses/")):
        assert max(differences(one, two, tag)[:2]) < bound, tag
    if name == PPO:
        ended = [curves["charts/episodic_return"][:3] for curves in (one, two)]
        assert ended[0] == ended[1], "the same actions"


def test_another_network_acts(tmp_path, monkeypatch):
    """An average of the agent's weights acts, in NumPy too; of two in turn each acts by its
    own."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    edit = both(
        insert("# Rollout", """
import copy
average = globals().get("average") or copy.deepcopy(agent)
for p, q in zip(average.parameters(), agent.parameters(), strict=True):
    p.data.lerp_(q.data, 0.5)
"""),
        swap(("action = act(agent, obs[step])", "action = act(average, obs[step])")),
    )  # fmt: skip
    one, *_ = trained(PPO, folder=tmp_path / "eager", edit=edit)
    fast = f"{PPO}_torchcompile"
    two, run, _ = trained(fast, "--compile", folder=tmp_path / "fast", edit=edit)
    assert run.act.in_numpy
    assert one["charts/episodic_return"] == two["charts/episodic_return"]
    # in turns: each by its own weights, and the average has a mind of its own
    turns = both(
        swap(("act(average, obs[step])", "act((agent, average)[step % 2], obs[step])")),
        insert("# Rollout", "average.actor[-1].bias.data[1] = 1e4"),
    )
    _, run, _ = trained(fast, "--compile", folder=tmp_path / "turns", edit=both(edit, turns))
    actions = run.storage["actions"][: run.T]
    assert (actions[1::2] == 1).all() and (actions[::2] == 0).float().mean() > 0.3


@pytest.mark.parametrize("name", ["ppo_lstm", "ppo_trxl", "ppo_continuous_action_lstm"])
def test_an_average_with_a_memory_acts(name, tmp_path, monkeypatch):
    """As above; what is drawn from is the average's memory, too."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    edit = both(
        insert("# Rollout", """
import copy
average = globals().get("average") or copy.deepcopy(agent)
for p, q in zip(average.parameters(), agent.parameters(), strict=True):
    p.data.lerp_(q.data, 0.5)
"""),
        swap((" = act(agent, ", " = act(average, ")),
    )  # fmt: skip
    flags = ["--learning-rate", 0.01]
    one, *_ = trained(name, *flags, folder=tmp_path / "eager", edit=edit)
    fast = f"{name}_torchcompile"
    two, run, said = trained(fast, *flags, "--compile", folder=tmp_path / "fast", edit=edit)
    assert run.act.in_numpy and not said
    for tag in (tag for tag in one if tag.startswith("losses/")):
        assert max(differences(one, two, tag)[:2]) < 1e-3, tag


@pytest.mark.parametrize("name", ["ppo_lstm", "ppo_trxl"])
def test_what_counts_within_a_rollout_with_a_memory(name, tmp_path, monkeypatch):
    """A count in the script: PyTorch acts, as the code of act is another one."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    edit = swap(
        ("@torch.no_grad()\ndef act(", "count = []\n\n\n@torch.no_grad()\ndef act("),
        ("    action = probs.sample()\n",
         "    count.append(0)\n"
         "    action = probs.mode if len(count) % 5 == 0 else probs.sample()\n"),
    )  # fmt: skip
    one, *_ = trained(name, folder=tmp_path / "eager", edit=edit)
    fast = f"{name}_torchcompile"
    two, run, said = trained(fast, "--compile", folder=tmp_path / "fast", edit=edit)
    assert said and not run.act.in_numpy
    for tag in (tag for tag in one if tag.startswith("losses/")):
        assert max(differences(one, two, tag)[:2]) < 1e-3, tag


def test_another_actor_within_a_rollout(tmp_path, monkeypatch):
    """An agent whose actor main changes for some steps acts by that one there."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    edit = insert("action = act(agent, obs[step])", """
if step == 0:
    pair = agent.actor, Agent(envs).actor
    pair[1][-1].bias.data[1] = 1e4
agent.actor = pair[step % 2]
""")  # fmt: skip
    edit = both(edit, insert("# Advantages", "agent.actor = pair[0]"))
    run = trained(f"{PPO}_torchcompile", "--compile", folder=tmp_path, edit=edit)[1]
    actions = run.storage["actions"][: run.T]
    assert run.act.in_numpy and (actions[1::2] == 1).all()
    assert 0.3 < (actions[::2] == 0).float().mean() < 0.7


def test_other_rows_than_a_rollouts_have_noise_of_their_own(tmp_path, monkeypatch):
    """Where main asks act for one environment first, a rollout's environments still act apart."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    edit = insert("# Rollout", "act(agent, obs[T][:1])")
    flags = ["--compile", "--num-envs", 16, "--total-timesteps", 2 * 1024]
    run = trained(f"{PPO}_torchcompile", *flags, folder=tmp_path, edit=edit)[1]
    actions = run.storage["actions"][: run.T]
    alike = (actions == actions[:, :1]).all(1).float().mean()
    assert alike < 0.05, alike


def test_a_fork_with_a_memory_acts_by_its_own_policy(tmp_path, monkeypatch):
    """As above, with an LSTM and with attention, whose form in NumPy is held against the agent."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    edits = {
        "ppo_lstm": swap(("self.layer(obs).tanh()", "self.layer(obs).relu()")),
        "ppo_trxl": swap(("return x + self.hidden(x).relu()", "return self.hidden(x).tanh()")),
        "ppo_continuous_action_lstm": both(swap(ATTRIBUTE, STD), ANNEAL),
    }
    for name, edit in edits.items():
        for fork in (None, edit):
            folder = tmp_path / name / str(fork is None)
            one, *_ = trained(name, folder=folder / "eager", edit=fork)
            fast = f"{name}_torchcompile"
            two, run, said = trained(fast, "--compile", folder=folder / "fast", edit=fork)
            assert bool(said) == (fork is not None) and run.act.in_numpy == (fork is None), said
            for tag in (tag for tag in one if tag.startswith("losses/")):
                assert max(differences(one, two, tag)[:2]) < 1e-3, (name, tag)


CELL = ("c = f.sigmoid() * c", "c = (f + 1).sigmoid() * c")
KEPT_ON = ("            h, c = h * keep, c * keep\n", "")


@pytest.mark.parametrize("edit", [CELL, KEPT_ON])
@pytest.mark.parametrize("name", ["ppo_lstm", "ppo_continuous_action_lstm"])
def test_another_cell_is_learned_too(name, edit, tmp_path, monkeypatch):
    """One call of PyTorch's own LSTM would learn the cell as it was."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    one, *_ = trained(name, folder=tmp_path / "eager", edit=swap(edit))
    fast = f"{name}_torchcompile"
    two, run, said = trained(fast, "--compile", folder=tmp_path / "fast", edit=swap(edit))
    assert not run.LSTM.fused and not run.act.in_numpy
    assert [text in x for text, x in zip((IN_ITS_LOOP, IN_PYTORCH), said, strict=True)] == [1, 1]
    for tag in (tag for tag in one if tag.startswith("losses/")):
        assert max(differences(one, two, tag)[:2]) < 1e-3, tag


@pytest.mark.parametrize(
    "name", ["ppo_lstm", "ppo_continuous_action_lstm", "ppo_atari_envpool_lstm"]
)
def test_one_call_is_the_loop(name):
    """For each script's own LSTM, and not for another."""
    script = runpy.run_path(str(PPO_FOLDER / f"{name}_torchcompile.py"))
    torch.manual_seed(2)
    lstm = script["LSTM"](5, 6)
    state = torch.get_rng_state()
    assert script["fusable"](lstm)
    lstm.peephole = torch.nn.Parameter(torch.zeros(6))  # of which one call would learn nothing
    with pytest.warns(UserWarning, match=IN_ITS_LOOP):
        assert not script["fusable"](lstm)
    del lstm.peephole
    assert script["fusable"](lstm)
    lstm.from_h.register_forward_hook(lambda layer, x, y: 2 * y)
    with pytest.warns(UserWarning, match=IN_ITS_LOOP):
        assert not script["fusable"](lstm) and not script["LSTM"].fused
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("name", ["ppo_lstm", "ppo_trxl", "ppo_continuous_action_lstm"])
def test_what_act_stores_besides(name, tmp_path, monkeypatch):
    """A field of the storage's that a fork fills in act: PyTorch acts."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    value, field = '    row["values"][:] = value\n', '        "logprobs": torch.zeros'
    seen = '        "seen": torch.zeros((T + 1, N), device=device),\n'
    edit = swap((value, f'{value}    row["seen"][:] = 1\n'), (field, seen + field))
    fast = f"{name}_torchcompile"
    _, run, said = trained(fast, "--compile", folder=tmp_path, edit=edit)
    assert "forward and act" in said[0] and run.storage["seen"][: run.T].all()


@pytest.mark.parametrize("name", ["ppo_lstm", "ppo_trxl"])
def test_a_rule_of_few_rows_with_a_memory(name, tmp_path, monkeypatch):
    """Seen before the first rollout, as rows of noise are among those that are tried."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    rule = '    action = torch.where(row["obs"][:, 1].abs() > 1.5, 0, action)\n'
    edit = swap(('    row["actions"][:] = action\n', f'{rule}    row["actions"][:] = action\n'))
    one, flags = f"{name}_torchcompile", ["--compile", "--total-timesteps", 256]  # a single rollout
    _, run, said = trained(one, *flags, folder=tmp_path, edit=edit)
    assert said and not run.act.in_numpy


def test_a_deviation_is_that_of_the_rollout(tmp_path, monkeypatch):
    """The noise of actions that NumPy drew, over the deviation that Agent.policy has, is standard
    normal."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    look = """
with torch.no_grad():
    probs = agent.policy(storage["obs"][:T])
drawn = globals().get("drawn", []) + [((actions[:T] - probs.mean) / probs.stddev).std().item()]
"""
    edit = insert("# Update", look)
    flags = ["--compile", "--env-id", "Pendulum-v1", "--num-envs", 8, "--num-steps", 256]
    flags += ["--total-timesteps", 3 * 2048]
    run = run_main(f"{MUJOCO}_torchcompile", *SMALL, *flags, runs_dir=tmp_path, edit=edit)
    assert run.act.in_numpy and len(run.drawn) == 3
    np.testing.assert_allclose(run.drawn, 1, atol=0.06)


@pytest.mark.slow
def test_what_anneals_is_compiled_once_more(tmp_path):
    """A flag and an attribute that change in each iteration become symbols: not a graph for each of
    their numbers, and the losses of the eager version."""
    flag = insert("# Rollout", "args.ent_coef = 0.01 / iteration")
    edit = both(swap(ATTRIBUTE, TEMPERATURE), ANNEAL, flag)
    sizes = ["--total-timesteps", 6 * 256]
    one, *_ = trained(PPO, *sizes, folder=tmp_path / "eager", edit=edit)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    two, *_ = trained(
        f"{PPO}_torchcompile", *sizes, "--compile", folder=tmp_path / "fast", edit=edit
    )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    for tag in (tag for tag in one if tag.startswith("losses/")):
        assert max(differences(one, two, tag)[:2]) < 1e-3, tag


def test_a_graph_does_not_keep_what_changes(monkeypatch):
    """With a module that keeps the numbers of its first call, as a CUDA graph does."""
    import ppo_torchcompile as script

    kept = []
    args = script.Args()
    agent = torch.nn.Linear(2, 2)
    agent.scale = 1.0
    optimizer = torch.optim.Adam(agent.parameters(), lr=torch.tensor(1e-3))

    def train_epoch(agent, optimizer, batch, args, b_inds):
        return args.ent_coef, agent.scale, b_inds

    class Kept:
        def __init__(self, function, warmup):
            self.function = function

        def __call__(self, b_inds):
            kept.append(self.function(b_inds)[:2])
            return *kept[0], b_inds

    monkeypatch.setattr(script, "CudaGraphModule", Kept)
    inputs = agent, optimizer, {}, args
    epoch = script.captured(train_epoch, *inputs)
    optimizer.param_groups[0]["lr"].fill_(1e-4)  # a tensor, which a replay reads
    assert epoch(*inputs, 1) == (0.01, 1.0, 1) and epoch(*inputs, 2) == (0.01, 1.0, 2)
    assert len(kept) == 2
    for owner, name in ((args, "ent_coef"), (agent, "scale")):
        before = getattr(owner, name)
        setattr(owner, name, 7.0)
        with pytest.warns(UserWarning, match=re.escape(f"it would keep ['{name}']")):
            assert 7.0 in epoch(*inputs, 3)
        setattr(owner, name, before)
    assert len(kept) == 2 and epoch(*inputs, 4)[2] == 4 and len(kept) == 3
    other = agent, optimizer, {"of": "another phase"}, args
    with pytest.warns(UserWarning, match="it would keep what it was first given"):
        assert epoch(*other, 4)[2] == 4
    assert len(kept) == 3
    optimizer.param_groups[0]["lr"] = 1e-4  # CleanRL's line
    with pytest.warns(UserWarning, match="lr"):
        epoch(*inputs, 5)
    assert len(kept) == 3


END = "\n\n    def __post_init__(self):"


def flag(line):
    """Appends a flag where one appends it, at the end of Args."""

    def edit(text):
        head, rest = text.split(END, 1)
        return f"{head}\n    {line}{END}{rest}"

    return edit


LOSS = "    pg_loss = masked_mean(torch.max(pg_loss1, pg_loss2), valid)\n"
RATE = "        lrnow = frac * args.learning_rate\n"
KL = "            approx_kl = losses[-1][:, LOSSES.index("
ADV = '        storage["advantages"][:T] = torch.from_numpy(advantages)  # sync\n'
CLIP = "    grad_norm = nn.utils.clip_grad_norm_("
ADAM = "optim.Adam(agent.parameters(), lr=lr, eps=1e-5, fused=True)"
SAVE = "        last = iteration == args.num_iterations or len(stop_signals) > 0\n"
VARIANCE = "        var_returns = returns[valid].var() if valid.any() else 0.0\n"
EVERY = ["ppo", "ppo_continuous_action", "ppo_atari_envpool"]
WITH_MEMORY = ["ppo_lstm", "ppo_trxl"]
# what people change, as they would in the eager file: the edit, and for which scripts
PATCHES = {
    "anneal the entropy": (
        both(
            flag("ent_coef_end: float = 0.0  # weight of the entropy bonus at the end"),
            swap(("        # Update\n",
                  "        # Update\n        args.ent_coef += args.ent_coef_end / 9\n")),
        ), EVERY),
    "dual clip": (
        both(flag("dual_clip: float = 3.0  # arXiv:1912.09729"), swap((LOSS, LOSS.replace(
            "torch.max(pg_loss1, pg_loss2)",
            "torch.max(pg_loss1, pg_loss2).clamp(max=args.dual_clip)"
        )))), EVERY),
    "no clipping, a penalty": (swap((LOSS, LOSS.replace(
        "torch.max(pg_loss1, pg_loss2)",
        "pg_loss1 + advantages.abs() * (ratio - 1).square() / (2 * args.clip_coef)"))), EVERY),
    "warm the learning rate up": (
        swap((RATE, f"{RATE}        lrnow *= min(1.0, iteration / 10)\n")), EVERY),
    "follow the KL divergence": (
        both(flag("desired_kl: float = 0.01  # KL divergence that the learning rate follows"),
             lambda text: text.replace(
                 KL, "            rate = optimizer.param_groups[0]['lr']\n"
                 "            low = losses[-1][:, 4].mean() < args.desired_kl / 2\n"
                 "            rate *= 1.5 if low else 1.0\n" + KL)),
        EVERY),
    "normalise over the batch": (swap((
        ADV, "        real = advantages[valid]\n"
        "        advantages = (advantages - real.mean()) / real.std()\n" + ADV)),
        EVERY),
    "clip the critic's gradient apart": (
        lambda text: text.replace(
            CLIP, "    nn.utils.clip_grad_norm_(agent.critic.parameters(), 0.1)\n" + CLIP), EVERY),
    "decay weights": (
        swap((ADAM, ADAM.replace("Adam(", "AdamW(").replace("fused", "weight_decay=0.01, fused"))),
        EVERY),
    "log a scalar": (swap((
        VARIANCE,
        '        writer.add_scalar("charts/mean_value", values.mean(), global_step)\n' + VARIANCE)),
        EVERY),
    "keep each checkpoint": (
        swap((SAVE, f"{SAVE}        kept = [iteration, *globals().get('kept', [])]\n")), EVERY),
    "scale rewards": (
        swap(("            rewards[step] = reward\n", "            rewards[step] = reward / 10\n")),
        EVERY[:1] + WITH_MEMORY),
    "anneal an attribute": (
        both(swap(ATTRIBUTE, STD), lambda text: text.replace(
            "        # Rollout\n", "        agent.scale = 0.99**iteration\n\n        # Rollout\n")),
        EVERY[1:2]),
    "perturb means (RPO)": (
        both(flag("rpo_alpha: float = 0.5  # range of the noise on means, arXiv:2212.07536"), swap((
            '    probs, newvalue = agent(mb["obs"])\n',
            '    probs, newvalue = agent(mb["obs"])\n'
            "    shift = torch.empty_like(probs.mean).uniform_(-args.rpo_alpha, args.rpo_alpha)\n"
            "    probs = Independent(Normal(probs.mean + shift, probs.stddev), 1)\n"))),
        EVERY[1:2]),
    "LayerNorm": (
        swap(("            nn.Tanh(),\n",
              "            nn.LayerNorm(64),\n            nn.Tanh(),\n", 4)), EVERY[:2]),
    "a narrow network": (
        swap(("64 * 7 * 7, 512", "64 * 7 * 7, 64"), ("nn.Linear(512,", "nn.Linear(64,", 2)),
        EVERY[2:]),
    "epsilon-greedy": (FORKS["epsilon-greedy"][1], EVERY[:1]),
    "imports, also of what the fast version imports": (
        swap(("import json\n", "import copy\nimport json\nimport math\n"),
             ("import time\n", "import time\nimport warnings\nfrom collections import deque\n"),
             ("import torch.nn as nn\n",
              "import torch.nn as nn\nimport torch.nn.functional as F\n"),
             ('#   "numpy>=2",\n', '#   "numpy>=2",\n#   "scipy",\n')), EVERY),
    "what main calls to act": (
        swap(("action = act(agent, obs[step])", "action = act(agent, obs[step] + 0)")), EVERY[:2]),
    "a line after acting": (
        swap(("action = act(agent, obs[step])", "action = act(agent, obs[step])\n"
              "            kept = action.clone()")), EVERY[:1]),
    "a line above the rollout": (
        insert("# Rollout", "pass"), EVERY + WITH_MEMORY),
    "the first line of the rollout": (
        swap(("        # Rollout\n", "        # Rollout\n        began = 0\n")),
        EVERY[:2] + WITH_MEMORY),
    "a field of the storage": (swap((
        '        "valid": torch.zeros((T + 1, N), device=device),\n',
        '        "valid": torch.zeros((T + 1, N), device=device),\n'
        '        "seen": torch.zeros((T + 1, N), device=device),\n')), EVERY),
}  # fmt: skip
APPLIED = [
    pytest.param(what, name, id=f"{name}: {what}")
    for what, (_, names) in PATCHES.items()
    for name in names
]


@pytest.mark.parametrize(("what", "name"), APPLIED)
def test_one_patch_fits_both(what, name, tmp_path):
    """Made by git against the eager version, applied by git to the fast one: the lines that are
    added and taken away are the same, and both files still do the same, to the last bit."""
    edit, _ = PATCHES[what]
    before, other = ((PPO_FOLDER / f"{x}.py").read_text() for x in (name, f"{name}_torchcompile"))
    after = edit(before)
    assert after != before
    patched = git_applied(before, after, other, tmp_path / "git")
    assert patched == three_ways(other, before, after, beside=True), "as fork --edited has it"
    if name == "ppo_atari_envpool" and what not in ("a narrow network", "anneal the entropy"):
        compile(patched, name, "exec")  # the same text in the same places; Atari takes seconds
        return
    texts = {name: after, f"{name}_torchcompile": patched}
    sizes = ["--num-envs", 2, "--num-steps", 16, "--num-minibatches", 2, "--total-timesteps", 96]
    sizes += ["--env-id", "Pendulum-v1"] if name == MUJOCO else []
    one, two = (
        run_main(x, *sizes, runs_dir=tmp_path / x, edit=lambda _, x=x: texts[x]) for x in texts
    )
    for a, b in zip(one.agent.parameters(), two.agent.parameters(), strict=True):
        assert torch.equal(a, b)
    assert one.losses == two.losses
