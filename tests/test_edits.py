"""Forks: what someone changes in the eager file is one patch for both, and both act and learn the
same after it; what check says of those that do not.
"""

import sys

import check
import numpy as np
import pytest
from fork import IDEAS, apply, three_ways
from helpers import PPO as PPO_FOLDER
from helpers import git_applied, insert, run_main
from lib.parity import assert_close, counted, curves

import torch

SMALL = "--num-envs 4 --num-steps 32 --num-minibatches 2 --update-epochs 2".split()
SMALL += ["--total-timesteps", 3 * 128, "--learning-rate", 0.01]
PPO, MUJOCO = "ppo", "ppo_continuous_action"


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
WIDE = both(
    swap(
        ("            nn.Tanh(),\n", "            nn.LayerNorm(256),\n            nn.SiLU(),\n", 4)
    ),
    swap(("nn.Linear(64, 64)", "nn.Linear(256, 256)", 2), ("nn.Linear(64, ", "nn.Linear(256, ", 2)),
    swap(("nn.Linear(obs_size, 64)", "nn.Linear(obs_size, 256)", 2)),
)
SAMPLES = "    return agent.policy(obs).sample()\n"
AGENT = "class Agent(nn.Module):\n"
ACT = "@torch.no_grad()\ndef act(agent, obs):\n"
EPSILON = """    probs = agent.policy(obs)
    random = torch.rand(len(obs), device=obs.device) < 0.1
    uniform = torch.randint(0, probs.logits.shape[-1], (len(obs),), device=obs.device)
    return torch.where(random, uniform, probs.sample())
"""
HOST = """    own.append(np.random.randint(2))
    action = agent.policy(obs).sample()
    return torch.full_like(action, own[-1]) if own[0] == own[-1] else action
"""
HEADS = '''class Heads:
    """Independent choices: logits (..., 2 * 2)."""

    def __init__(self, logits):
        self.parts = [Categorical(x) for x in logits.chunk(2, -1)]

    def sample(self):
        return torch.stack([x.sample() for x in self.parts], -1)

    def log_prob(self, actions):
        return sum(x.log_prob(a) for x, a in zip(self.parts, actions.unbind(-1), strict=True))

    def entropy(self):
        return sum(x.entropy() for x in self.parts)


'''
TWO = """
        env = gym.wrappers.TransformAction(
            env, lambda action: int(action[0]), gym.spaces.MultiDiscrete([2, 2])
        )
        return env if obs_space.shape"""
MULTI = swap(
    ("\n        return env if obs_space.shape", TWO),
    (AGENT, HEADS + AGENT),
    ("Categorical(self.actor(obs))", "Heads(self.actor(obs))"),
    ("int(envs.single_action_space.n)), std", "4), std"),
    ('"actions": torch.zeros((T + 1, N), dt', '"actions": torch.zeros((T + 1, N, 2), dt'),
    ("isinstance(space, gym.spaces.Discrete) and space.start == 0", "True"),
)
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
TEMPERATURE = ("Categorical(self.actor(obs))", "Categorical(self.actor(obs) / self.scale)")
KEPT = """    last = getattr(agent, "last", None)
    again = torch.rand(len(obs)) < 0.5
    agent.last = agent.policy(obs).sample()
    agent.last = agent.last if last is None else torch.where(again, last, agent.last)
    return agent.last
"""
NOISY = """class Noisy(nn.Module):
    def forward(self, x):
        return x + 0.1 * torch.randn_like(x)


"""
AVERAGE = insert("# Rollout", """
import copy
average = globals().get("average") or copy.deepcopy(agent)
for p, q in zip(average.parameters(), agent.parameters(), strict=True):
    p.data.lerp_(q.data, 0.5)
""")  # fmt: skip
GRU = """class GRU(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size, self.cell = hidden_size, nn.GRUCell(input_size, hidden_size)

    def forward(self, x, state, dones=None):
        (h, c), rows = state, []
        ends = torch.zeros(len(x)) if dones is None else dones
        for row, end in zip(x.split(len(h)), ends.split(len(h)), strict=True):
            h = self.cell(row, h)
            rows.append(h)
            h = h * (1 - end).unsqueeze(1)
        return torch.cat(rows), torch.stack([h, c])


class Recurrent("""
OPTIMIZER = "    optimizer = optim.Adam(agent.parameters(), lr=lr, eps=1e-5, fused=True)\n"
SECOND = "    second = optim.SGD(agent.critic.parameters(), lr=1e-3, momentum=0.9)\n"
SECOND = swap(
    (OPTIMIZER, OPTIMIZER + SECOND),
    ("        optimizer.step()\n", "        optimizer.step()\n        second.step()\n"),
)
# of each fork: a script and the edit
FORKS = {
    "a deviation that depends on what is seen": (
        MUJOCO, swap(("self.actor_logstd.exp()", "(self.actor_logstd + obs[..., :1]).exp()"))),
    "a deviation that a buffer anneals": (MUJOCO, both(swap(BUFFER, STD), FILL)),
    "a temperature that an attribute anneals": (PPO, both(swap(ATTRIBUTE, TEMPERATURE), ANNEAL)),
    "LayerNorm, SiLU, 256 units": (PPO, WIDE),
    "two choices a step": (PPO, MULTI),
    "a second optimizer": (PPO, SECOND),
    "dropout": (PPO, swap((LAYER, LAYER + "            nn.Dropout(0.1),\n", 2))),
    "noise in the network": (
        PPO, swap((AGENT, NOISY + AGENT), (LAYER, LAYER + "            Noisy(),\n", 2))),
    "an average acts": (PPO, both(AVERAGE, swap(("= act(agent, obs", "= act(average, obs")))),
    "epsilon-greedy": (PPO, swap((SAMPLES, EPSILON))),
    "numbers of the host's": (PPO, swap((ACT, f"own = []\n\n\n{ACT}"), (SAMPLES, HOST))),
    "the last action is kept": (PPO, swap((SAMPLES, KEPT))),
    "a number that main gives": (
        PPO, swap(("def act(agent, obs):", "def act(agent, obs, sharpness):"),
                  (SAMPLES, "    logits = sharpness * agent.policy(obs).logits\n"
                   "    return Categorical(logits).sample()\n"),
                  ("act(agent, obs[step])", "act(agent, obs[step], 1.0 + iteration)"))),
    "a GRU": ("ppo_lstm", swap(("class Recurrent(", GRU), ("= LSTM(64, 64)", "= GRU(64, 64)"))),
    "an average with a memory acts": (
        "ppo_lstm", both(AVERAGE, swap((" = act(\n                agent,",
                                        " = act(\n                average,")))),
    "another layer of attention": (
        "ppo_trxl", swap(("return x + self.hidden(x).relu()", "return self.hidden(x).tanh()"))),
}  # fmt: skip


@pytest.fixture
def uncompiled(monkeypatch):
    """What is compiled rounds otherwise; here it is called as it is."""
    monkeypatch.setattr(torch, "compile", lambda function: function)


@pytest.mark.parametrize("fork", FORKS)
def test_a_fork_is_one_patch(fork, tmp_path, uncompiled):
    """Made by git of the eager file and applied by git to the fast one, which then, with --compile,
    acts and learns as the eager one does, to the last bit, and not as before."""
    name, edit = FORKS[fork]
    flags = ["--env-id", "Pendulum-v1"] if name == MUJOCO else []
    before, other = ((PPO_FOLDER / f"{x}.py").read_text() for x in (name, f"{name}_torchcompile"))
    texts = {"eager": edit(before), "plain": before}
    texts["fast"] = git_applied(before, texts["eager"], other, tmp_path / "git")
    runs = {}
    for version, text in texts.items():
        stem, more = (f"{name}_torchcompile", ["--compile"]) if version == "fast" else (name, [])
        runs[version] = run_main(
            stem, *SMALL, *flags, *more, runs_dir=tmp_path / version, edit=lambda _, text=text: text
        )
    assert runs["fast"].mode == "compile"
    one, two, plain = (curves(runs[version]) for version in ("eager", "fast", "plain"))
    assert one.keys() == two.keys() and one != plain
    for tag, points in one.items():
        np.testing.assert_array_equal(points, two[tag], tag)


def test_of_two_in_turn_each_acts_by_its_own(tmp_path, uncompiled):
    """The average has a mind of its own, and acts in every second step."""
    turns = both(
        AVERAGE,
        swap(("act(agent, obs[step])", "act((agent, average)[step % 2], obs[step])")),
        insert("# Rollout", "average.actor[-1].bias.data[1] = 1e4"),
    )
    run = run_main("ppo_torchcompile", *SMALL, "--compile", runs_dir=tmp_path, edit=turns)
    actions = run.storage["actions"][: run.T]
    assert (actions[1::2] == 1).all() and (actions[::2] == 0).float().mean() > 0.3


@pytest.mark.slow
def test_what_anneals_is_compiled_once_more(tmp_path):
    """A flag and an attribute that change in each iteration become symbols: not a graph for each of
    their numbers, and the losses of the eager version. Without Inductor's kernels."""
    flag = insert("# Rollout", "args.ent_coef = 0.01 / iteration")
    edit = both(swap(ATTRIBUTE, TEMPERATURE), ANNEAL, flag)
    flags = [*SMALL, "--total-timesteps", 6 * 128]
    one = run_main("ppo", *flags, runs_dir=tmp_path / "eager", edit=edit)
    torch.compiler.reset()
    with counted("aot_eager") as graphs:
        two = run_main(
            "ppo_torchcompile", *flags, "--compile", runs_dir=tmp_path / "fast", edit=edit
        )
    assert graphs == {"1: compute_gradients": 2}
    assert_close(curves(one), curves(two), 2, 1e-3)


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
            "    probs = Gaussian(probs.mean + shift, probs.std)\n"))),
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
    """Made by git against the eager version, applied by git to the fast one: as `fork --edited` has
    it, and Python reads it. What both do then is the same where the lines are; FORKS run."""
    edit, _ = PATCHES[what]
    before, other = ((PPO_FOLDER / f"{x}.py").read_text() for x in (name, f"{name}_torchcompile"))
    after = edit(before)
    assert after != before
    compile(after, name, "exec")
    patched = git_applied(before, after, other, tmp_path / "git")
    compile(patched, name, "exec")
    assert patched == three_ways(other, before, after, beside=True)


# What check says

SHORT = ["--total-timesteps", 3 * 32]


@pytest.fixture
def forked(tmp_path, monkeypatch):
    """A pair with an edit, checked without Inductor's kernels."""
    monkeypatch.setattr(check, "BACKEND", "aot_eager")
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name, edit, *flags, encode=str.encode):
        paths = [tmp_path / "mine.py", tmp_path / "mine_torchcompile.py"]
        for path, script in zip(paths, (name, f"{name}_torchcompile"), strict=True):
            path.write_bytes(encode(edit((PPO_FOLDER / f"{script}.py").read_text())))
        return check.Pair(*paths, list(flags), tmp_path)

    return make


BACK = "    loss.backward()\n"
SPLIT = ("actions = int(envs.single_action_space.n)", "actions = envs.single_action_space.n")
UNUSED = ("        compute_gradients = torch.compile(compute_gradients)\n",
          "        compute_gradients = torch.compile(compute_gradients)\n"
          "        unused = torch.compile(act)\n")  # fmt: skip
LAYERS = ("        compute_gradients = torch.compile(compute_gradients)\n",
          "        agent.critic.compile()\n")  # fmt: skip
NAMED = insert("# Rollout", "args.exp_name = str(iteration)")
READ = swap((BACK, f"    loss = loss * 1.0 if args.exp_name > 'a' else loss\n{BACK}"))


def in_fast(*pairs):
    """An edit of the fast file alone."""
    return lambda text: swap(*pairs)(text) if "torch.compile" in text else text


# of each: script, edit and what is said
BROKEN = {
    "printed": ("ppo", swap((BACK, f"    print(loss)\n{BACK}")), r"\.py:\d+: .*`print`"),
    "branches": ("ppo", swap((BACK, f"    loss = loss if loss > 0 else -loss\n{BACK}")),
                 r"\.py:\d+: Data-dependent branching"),
    "NumPy's number": ("ppo_masked", swap(SPLIT), r"\.py:\d+: .* make an int"),
    "another text each time": ("ppo", both(NAMED, READ), "anew again and again, for .*exp_name"),
    "never called": ("ppo", in_fast(UNUSED), "torch.compile number 2: act made no graph"),
    "a module of PyTorch's": ("ppo", in_fast(LAYERS), "found no compiled frames"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN)
def test_check_names_what_is_not_compiled(broken, forked):
    name, edit, said = BROKEN[broken]
    pair = forked(name, edit)
    pair.same()
    with pytest.raises((check.Failure, AssertionError), match=said):
        pair.compiled()


@pytest.mark.slow
def test_check_counts_graphs(forked):
    """Of both functions that the fast version of attention compiles."""
    pair = forked("ppo_trxl", lambda text: text, *SHORT)
    pair.same()
    assert pair.compiled().endswith("act, compute_gradients compiled whole")


def test_check_names_lines_that_did_not_run(forked):
    """Of main; all have in the end, but for those that a compiler or a GPU alone asks for."""
    anneals = insert("# Update", "if iteration > 99:\n    args.ent_coef = 0.0")
    pair = forked("ppo", anneals, "--total-timesteps", 5 * 32)
    pair.same()
    main = pair.mains[pair.eager]
    for line in ("if checkpoint:", "    agent.load_state_dict", "    args.ent_coef = 0.0"):
        number = main.at(line.strip()) + ("checkpoint" in line)
        assert number in main.missed(), line
    pair.resumed()
    assert main.left_out() == str(main.at("args.ent_coef = 0.0"))
    lines = [pair.mains[pair.fast].lines[x - 1] for x in pair.mains[pair.fast].missed()]
    assert len(lines) == 6 and "compute_gradients = torch.compile(compute_gradients)" in lines


FOLLOWS = IDEAS / "kl_adaptive.patch"
LOADED = ("    if checkpoint:\n", "    if checkpoint:\n"
          "        second.load_state_dict(checkpoint['second'])\n")  # fmt: skip
SAVED = ('                "agent": agent', '                "second": second.state_dict(),\n'
         '                "agent": agent')  # fmt: skip
SUM = ("    loss, losses = ", "    agent.scale += mb['obs'].mean().detach()\n    loss, losses = ")
RESUMED = {
    "a rate that follows": (None, None),
    "a second optimizer": (both(SECOND, swap(LOADED, SAVED)), None),
    "not saved": (SECOND, "lacks what is in second"),
    "not loaded": (both(SECOND, swap(SAVED)), "second 0 momentum_buffer is not what was saved"),
    "other weights": (swap(("        agent.load_state_dict(checkpoint[\"agent\"])\n", "")),
                      "agent critic.0.weight is not"),
    "no moments": (swap(("            optimizer.state[parameter] = {", "            _ = {")),
                   "optimizer 0 .* is not what was saved"),
    "a buffer that is drawn anew": (
        swap(BUFFER, ("    episodic_returns = []\n    rng", "    agent.scale.fill_(2.0)\n"
                      "    episodic_returns = []\n    rng")), None),
}  # fmt: skip


@pytest.mark.parametrize("fork", RESUMED)
def test_check_sees_what_a_run_goes_on_with(fork, forked, tmp_path):
    """As the first rollout begins; whatever the optimizer's rate is then."""
    edit, said = RESUMED[fork]

    def with_patch(text):
        (tmp_path / "other").mkdir(exist_ok=True)
        path = tmp_path / "other" / "script.py"
        path.write_text(text)
        apply(FOLLOWS, path, path.name)
        return path.read_text()

    pair = forked("ppo", edit or with_patch, *SHORT)
    pair.same()
    if said is None:
        assert "agent, optimizer" in pair.resumed()
    else:
        with pytest.raises((check.Failure, AssertionError), match=said):
            pair.resumed()


def test_check_asks_for_replays(forked):
    """A script that takes --cudagraphs and captures nothing is no fast one."""
    edit = in_fast(("        train_epoch = captured(", "        _ = captured("))
    pair = forked("ppo", edit, *SHORT)
    pair.same()
    with pytest.raises(AssertionError, match="mine_torchcompile.py: --cudagraphs replays no graph"):
        pair.on_a_gpu()


SOLVES = f"    solved = torch.linalg.inv(torch.eye(2, device=loss.device))\n{BACK}"
GRAPHS = {
    "a solver": (SOLVES, "cannot hold this"),
    "a generator": (
        "    own = torch.Generator(loss.device)\n"
        f"    loss = loss + 0 * torch.rand((), device=loss.device, generator=own)\n{BACK}",
        "cannot hold a generator of one's own"),
    "a copy": (f"    seen = loss.detach().to('cpu', non_blocking=True) + 1\n{BACK}",
               "read before its copy"),
}  # fmt: skip


@pytest.mark.parametrize("fork", GRAPHS)
def test_check_names_what_no_graph_can_hold(fork, forked):
    lines, said = GRAPHS[fork]
    pair = forked("ppo", swap((BACK, lines)), *SHORT)
    with pytest.raises(check.Failure, match=rf"\.py:\d+: .*{said}"):
        pair.simulated(pair.fast, "--cudagraphs", name="fast")


@pytest.mark.slow
def test_check_of_a_fork_with_a_module_beside_it(forked, tmp_path):
    """And with a byte order mark, or another coding: text as Python reads it."""
    (tmp_path / "beside_mine.py").write_text("FACTOR = 0.5\n")
    edit = swap(("import tyro\n", "import beside_mine\nimport tyro\n"),
                (BACK, f"    loss = loss * beside_mine.FACTOR\n{BACK}"))  # fmt: skip
    for encode in (
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: b"# coding: latin-1\n" + text.replace("±", "\xe4").encode("latin-1"),
    ):
        pair = forked("ppo", edit, *SHORT, encode=encode)
        pair.folder = tmp_path / str(len(pair.eager.read_bytes()))
        assert "to the last bit" in pair.same()
        assert pair.mains[pair.eager].at("# Rollout") < pair.mains[pair.eager].at("# Log")
        pair.runs = {pair.fast: pair.runs[pair.fast]}
    assert "mine_torchcompile" in pair.scored()
    assert "beside_mine" in sys.modules
