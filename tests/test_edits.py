"""Forks: what someone changes in the eager file is one patch for both, and both act and learn the
same after it; what check says of those that do not.
"""

import re
import subprocess
import sys
from functools import cache, partial

import check
import pytest
from fork import IDEAS
from helpers import ROOT, insert, run_main, text_of
from lib.parity import assert_close, counted, curves
from test_ideas import edit as patched

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
SAMPLES = "    return agent.policy(obs).sample()\n"
ACT = "@torch.no_grad()\ndef act(agent, obs):\n"
HOST = """    own.append(np.random.randint(2))
    action = agent.policy(obs).sample()
    return torch.full_like(action, own[-1]) if own[0] == own[-1] else action
"""
START = "        super().__init__()\n        (obs_size,) = "
ATTRIBUTE = (START, START.replace("(obs", "self.scale = 1.0\n        (obs"))
OWN_BUFFER = 'self.register_buffer("scale", torch.tensor(1.0))\n        (obs'
BUFFER = (START, START.replace("(obs", OWN_BUFFER))
ANNEAL = insert("# Rollout", "agent.scale = 1.0 / iteration")
FILL = insert("# Rollout", "agent.scale.fill_(1.0 / iteration)")
STD = ("self.actor_logstd.exp()", "self.scale * self.actor_logstd.exp()")
TEMPERATURE = ("Categorical(self.actor(obs))", "Categorical(self.actor(obs) / self.scale)")
AVERAGE = insert("# Rollout", """
import copy
average = globals().get("average") or copy.deepcopy(agent)
for p, q in zip(average.parameters(), agent.parameters(), strict=True):
    p.data.lerp_(q.data, 0.5)
""")  # fmt: skip
OPTIMIZER = "    optimizer = optim.Adam(agent.parameters(), lr=lr, eps=1e-5, fused=True)\n"
SECOND = "    second = optim.SGD(agent.critic.parameters(), lr=1e-3, momentum=0.9)\n"
SECOND = swap(
    (OPTIMIZER, OPTIMIZER + SECOND),
    ("        optimizer.step()\n", "        optimizer.step()\n        second.step()\n"),
)


def shown(text):
    """What the guide shows of a diff: the lines of `+`, between the others."""
    (diff,) = re.findall(r"```diff\n(.+?)```", (ROOT / "ppo/README.md").read_text(), re.DOTALL)
    for part in diff.split(" ...\n"):
        lines = part.splitlines(keepends=True)
        kept = [line for line in lines if line[0] == " "]
        text = swap(*[["".join(line[1:] for line in x) for x in (kept, lines)]])(text)
    return text


# of each fork: a script and the edit; others are patches of ppo/ideas
FORKS = {
    "a deviation that a buffer anneals": (MUJOCO, both(swap(BUFFER, STD), FILL)),
    "a temperature that an attribute anneals": (PPO, both(swap(ATTRIBUTE, TEMPERATURE), ANNEAL)),
    "a second optimizer": (PPO, SECOND),
    "dropout": (PPO, swap((LAYER, LAYER + "            nn.Dropout(0.1),\n", 2))),
    "an average acts": (PPO, both(AVERAGE, swap(("= act(agent, obs", "= act(average, obs")))),
    "numbers of the host's": (PPO, swap((ACT, f"own = []\n\n\n{ACT}"), (SAMPLES, HOST))),
    "a number that main gives": (
        PPO, swap(("def act(agent, obs):", "def act(agent, obs, sharpness):"),
                  (SAMPLES, "    logits = sharpness * agent.policy(obs).logits\n"
                   "    return Categorical(logits).sample()\n"),
                  ("act(agent, obs[step])", "act(agent, obs[step], 1.0 + iteration)"))),
    "an average with a memory acts": (
        "ppo_lstm", both(AVERAGE, swap((" = act(\n                agent,",
                                        " = act(\n                average,")))),
    "the guide's extra head": (PPO, shown),
}  # fmt: skip


@pytest.fixture
def uncompiled(monkeypatch):
    """What is compiled rounds otherwise; here it is called as it is."""
    monkeypatch.setattr(torch, "compile", lambda function: function)


def learned(name, text, folder, *flags):
    """The curves of a script with this text."""
    flags = [*SMALL, *flags, *(["--env-id", "Pendulum-v1"] if MUJOCO in name else [])]
    return curves(run_main(name, *flags, runs_dir=folder, edit=lambda _: text))


@cache
def plain(name, folder):
    return learned(name, text_of(name), folder)


@pytest.mark.parametrize("fork", FORKS)
def test_a_fork_is_one_patch(fork, tmp_path, uncompiled):
    """Made by git of the eager file and applied by git to the fast one, which then, with --compile,
    acts and learns as the eager one does, to the last bit, and not as before."""
    name, edit = FORKS[fork]
    before, fast = text_of(name), f"{name}_torchcompile"
    after = edit(before)
    old, new, patch = (tmp_path / x for x in ("old.py", "new.py", "change.patch"))
    for path, of in ((old, before), (new, after)):
        path.write_text(of)
    with open(patch, "w") as out:
        subprocess.run(["git", "diff", "--no-index", "old.py", "new.py"], cwd=tmp_path, stdout=out)
    text = patched(patch, tmp_path / "git")(text_of(fast))
    one = learned(name, after, tmp_path / "eager")
    two = learned(fast, text, tmp_path / "fast", "--compile")
    assert repr(one) == repr(two) != repr(plain(name, tmp_path.parent / name))


@pytest.mark.slow
def test_what_anneals_is_compiled_once_more(tmp_path):
    """A flag and an attribute that change in each iteration become symbols: not a graph for each of
    their numbers, and the losses of the eager version. Without Inductor's kernels."""
    flag = insert("# Rollout", "args.ent_coef = 0.01 / iteration")
    edit = both(swap(ATTRIBUTE, TEMPERATURE), ANNEAL, flag)
    flags = ["--total-timesteps", 6 * 128]
    one = learned(PPO, edit(text_of(PPO)), tmp_path / "eager", *flags)
    torch.compiler.reset()
    with counted("aot_eager") as graphs:
        text = edit(text_of("ppo_torchcompile"))
        two = learned("ppo_torchcompile", text, tmp_path / "fast", *flags, "--compile")
    assert graphs == {"1: compute_gradients": 2}
    assert_close(one, two, 2, 1e-3)


# What check says

SHORT = ["--total-timesteps", 3 * 32]


@pytest.fixture
def forked(tmp_path, monkeypatch):
    """A pair with an edit, checked without Inductor's kernels."""
    monkeypatch.setattr(check, "BACKEND", "eager")
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(edit, *flags, name=PPO, encode=str.encode):
        paths = [tmp_path / "mine.py", tmp_path / "mine_torchcompile.py"]
        for path, script in zip(paths, (name, f"{name}_torchcompile"), strict=True):
            path.write_bytes(encode(edit(text_of(script))))
        return check.Pair(*paths, [*(flags or SHORT)], tmp_path)

    return make


def in_fast(*pairs):
    """An edit of the fast file alone."""
    return lambda text: swap(*pairs)(text) if "torch.compile" in text else text


BACK = "    loss.backward()\n"
CLIP = "ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)"
COMPILES = "        compute_gradients = torch.compile(compute_gradients)\n"
LOADED = ("    if checkpoint:\n", "    if checkpoint:\n"
          "        second.load_state_dict(checkpoint['second'])\n")  # fmt: skip
STATE = '                "agent": agent.state_dict()'
ZEROS = STATE.replace("agent.state_dict()", "{k: 0 * x for k, x in agent.state_dict().items()}")
SAVED = (STATE, f'                "second": second.state_dict(),\n{STATE}')
NAMED = insert("# Rollout", "args.exp_name = str(iteration)")
READ = swap((BACK, f"    loss = loss * 1.0 if args.exp_name > 'a' else loss\n{BACK}"))
SIZE = "actions = int(envs.single_action_space.n)"
# of each: which check sees it, the edit, what is said with the line where it begins
FAILS = {
    "a loss": ("same", in_fast(("v_loss = 0.5 *", "v_loss = 0.4 *")), "losses/"),
    "a flag": ("same", in_fast(("gamma: float", "gamme: float")), "gamma"),
    "printed": ("compiled", swap((BACK, f"    print(loss)\n{BACK}")), "mpile.py:{at}: .*`print`"),
    "branches": ("compiled", swap((BACK, f"    loss = loss if loss > 0 else -loss\n{BACK}")),
                 "mpile.py:{at}: Data-dependent branching"),
    "NumPy's number": ("compiled", lambda text: text.replace(SIZE, SIZE.replace("int", "")),
                       r"\.py:\d+: .* make an int"),
    "another text each time": (
        "compiled", both(NAMED, READ), "anew again and again, for .*exp_name"),
    "never called": (
        "compiled", in_fast((COMPILES, f"{COMPILES}        unused = torch.compile(act)\n")),
        "torch.compile number 2: act made no graph"),
    "a module of PyTorch's": (
        "compiled", in_fast((COMPILES, "        agent.critic.compile()\n")),
        "found no compiled frames"),
    "weights not saved": ("resumed", in_fast((STATE, ZEROS)), "lacks what is in agent"),
    "an optimizer not saved": ("resumed", SECOND, "lacks what is in second"),
    "one not loaded": ("resumed", both(SECOND, swap(SAVED)),
                       "second 0 momentum_buffer is not what was saved"),
    "weights not loaded": (
        "resumed", swap(("        agent.load_state_dict(checkpoint[\"agent\"])\n", "")),
        "agent critic.0.weight is not"),
    "no moments": ("resumed", swap(("    optimizer.state[parameter] = {", "    _ = {")),
                   "optimizer 0 .* is not what was saved"),
    "a tensor of the host's": (
        "on_a_gpu", swap(("self.actor(obs)", "self.actor(obs + torch.zeros(4))")),
        "mine.py:{at}: .*cuda:0 and on cpu"),
    "a number that changes": ("on_a_gpu", swap((CLIP, CLIP.replace("coef", "coef * frac"))),
                              "mpile.py:{at}: .*keep 0.[0-9]+ in place of 0"),
    "no replays": ("on_a_gpu", in_fast(("train_epoch = captured(", "_ = captured(")),
                   "mine_torchcompile.py: --cudagraphs replays no graph"),
    "a wait": ("captured", in_fast((BACK, f"    loss.item()\n{BACK}")),
               "mpile.py:{at}: .*a CUDA graph cannot hold"),
}  # fmt: skip
SLOW = "compiled", "on_a_gpu"
SEEN = [pytest.param(x, marks=[pytest.mark.slow] * (FAILS[x][0] in SLOW)) for x in FAILS]


@pytest.mark.parametrize("what", SEEN)
def test_check_sees(what, forked, capfd):
    sees, edit, said = FAILS[what]
    name = "ppo_masked" if "NumPy" in what else PPO
    more = ["--total-timesteps", 6 * 32] if "each time" in what else SHORT
    pair = forked(edit, *more, name=name)
    script = name if "mine.py" in said else f"{name}_torchcompile"
    lines = zip(text_of(script).splitlines(), edit(text_of(script)).splitlines(), strict=False)
    at = next((i for i, (old, new) in enumerate(lines, 1) if old != new), None)
    pair.captured = partial(pair.simulated, pair.fast, "--cudagraphs", name="fast")
    if sees not in ("same", "captured"):
        pair.same()
    pair.say("it", getattr(pair, sees))
    out = capfd.readouterr().out
    assert pair.failed == 1 and re.search(f"^it +FAIL +.*{said.replace('{at}', str(at))}", out), out


RESUMED = {
    "a rate that follows": partial(patched, IDEAS / "kl_adaptive.patch"),
    "a second optimizer": lambda folder: both(SECOND, swap(LOADED, SAVED)),
    "a buffer that is drawn anew": lambda folder: swap(
        BUFFER,
        ("    episodic_returns = []", "    agent.scale.fill_(2.0)\n    episodic_returns = []"),
    ),
}


@pytest.mark.parametrize("fork", RESUMED)
def test_check_sees_what_a_run_goes_on_with(fork, forked, tmp_path):
    """As the first rollout begins; whatever the optimizer's rate is then."""
    pair = forked(RESUMED[fork](tmp_path / "patched"))
    pair.same()
    assert "agent, optimizer" in pair.resumed()


def test_check_names_lines_that_did_not_run(forked):
    """Of main; all have in the end, but for those that a compiler or a GPU alone asks for."""
    anneals = insert("# Update", "if iteration > 99:\n    args.ent_coef = 0.0")
    pair = forked(anneals, "--total-timesteps", 5 * 32)
    pair.same()
    main = pair.mains[pair.eager]
    for line in ("if checkpoint:", "    agent.load_state_dict", "    args.ent_coef = 0.0"):
        number = main.at(line.strip()) + ("checkpoint" in line)
        assert number in main.missed(), line
    pair.resumed()
    assert main.left_out() == str(main.at("args.ent_coef = 0.0"))
    lines = [pair.mains[pair.fast].lines[x - 1] for x in pair.mains[pair.fast].missed()]
    assert len(lines) == 5 and COMPILES.strip() in lines


@pytest.mark.slow
def test_check_of_a_fork_with_a_module_beside_it(forked, tmp_path):
    (tmp_path / "beside_mine.py").write_text("FACTOR = 0.5\n")
    edit = swap(("import tyro\n", "import beside_mine\nimport tyro\n"),
                (BACK, f"    loss = loss * beside_mine.FACTOR\n{BACK}"))  # fmt: skip
    pair = forked(edit)
    assert "to the last bit" in pair.same()
    pair.runs = {pair.fast: pair.runs[pair.fast]}
    assert "mine_torchcompile" in pair.scored()
    assert "beside_mine" in sys.modules
