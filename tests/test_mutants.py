"""Mistakes a person could write, a line each: the checks of test_reference must see every one."""

from dataclasses import replace

import pytest
from helpers import PPO
from test_reference import (
    JOBS,
    check,
    check_first_weights,
    check_resumed,
    check_speed,
    recorded,
)

# what is wrong, text that is there once, text in its place
LOSS = [
    ("ends are not terminal", "values[1:] * (1 - terminations[1:])", "values[1:]"),
    ("time limits are terminal", "(1 - terminations[1:])", "(1 - dones[1:])"),
    ("flags of the row before", "gae_lambda * (1 - dones[1:])", "gae_lambda * (1 - dones[:-1])"),
    ("only terminations stop sums", "gae_lambda * (1 - dones", "gae_lambda * (1 - terminations"),
    ("gae_lambda is 1", "decay = gamma * gae_lambda *", "decay = gamma *"),
    ("rewards of the row after", "rewards[:-1] + gamma", "rewards[1:] + gamma"),
    ("the last sum is left out", "range(len(advantages) - 1)", "range(len(advantages) - 2)"),
    ("mean square for variance", "(residual - masked_mean(residual, valid)).square()",
     "residual.square()"),
    ("returns for residual", "residual = returns - values", "residual = returns"),
    ("means over all rows", "/ valid.sum().clamp(min=1.0)", "/ len(valid)"),
    ("inverse ratio", 'newlogprob - mb["logprobs"]', 'mb["logprobs"] - newlogprob'),
    ("advantages' mean of all rows", "(advantages - masked_mean(advantages, valid))",
     "(advantages - advantages.mean())"),
    ("advantages' deviation of all rows", "masked_mean(advantages, valid)) * valid",
     "masked_mean(advantages, valid))"),
    ("biased deviation", "(valid.sum() - 1).clamp", "valid.sum().clamp"),
    ("advantages as they are", "if args.norm_adv:", "if False:"),
    ("descent", "pg_loss1 = -advantages", "pg_loss1 = advantages"),
    ("optimistic policy loss", "torch.max(pg_loss1, pg_loss2)", "torch.min(pg_loss1, pg_loss2)"),
    ("one-sided clipping", "ratio.clamp(1 - args.clip_coef, 1 +", "ratio.clamp(max=1 +"),
    ("policy loss over all rows", "masked_mean(torch.max(pg_loss1, pg_loss2), valid)",
     "torch.max(pg_loss1, pg_loss2).mean()"),
    ("value loss over all rows", "masked_mean(v_loss, valid)", "v_loss.mean()"),
    ("value loss not halved", "0.5 * masked_mean(v_loss", "masked_mean(v_loss"),
    ("values not clipped", "if args.clip_vloss:", "if False:"),
    ("optimistic value loss", "torch.max(v_loss", "torch.min(v_loss"),
    ("values clipped around returns", "v_clipped = values +", "v_clipped = returns +"),
    ("entropy is punished", "- args.ent_coef * entropy_loss", "+ args.ent_coef * entropy_loss"),
    ("no entropy bonus", "- args.ent_coef * entropy_loss ", ""),
    ("vf_coef left out", "args.vf_coef * v_loss", "v_loss"),
    ("old_approx_kl over all rows", "masked_mean(-logratio, valid)", "(newlogprob.detach() * 0"
     ' + mb["logprobs"] - newlogprob).mean()'),
    ("k1 for k3", "(ratio - 1) - logratio, valid", "-logratio, valid"),
    ("clipfrac over all rows", "masked_mean(((ratio - 1).abs() > args.clip_coef).float(), valid)",
     "((ratio - 1).abs() > args.clip_coef).float().mean()"),
    ("gradients add up", "        optimizer.zero_grad()\n", ""),
    ("one step an epoch", "        optimizer.step()\n", "    optimizer.step()\n"),
    ("no clipping of gradients", "args.max_grad_norm, foreach", "float('inf'), foreach"),
]  # fmt: skip
ROLLOUT = [
    ("the first observation is stale", "        obs[0] = obs[T]\n", ""),
    ("flags are not carried over", "        host[:, 0] = host[:, T]\n", ""),
    ("dones and terminations swapped", "rewards, dones, terminations = torch",
     "rewards, terminations, dones = torch"),
    ("dones a row early", "host_dones[step + 1] =", "host_dones[step] ="),
    ("only terminations are dones", "host_dones[step + 1] = terminated | truncated",
     "host_dones[step + 1] = terminated"),
    ("time limits are kept as terminal", "(truncated & args.cleanrl_semantics)", "truncated"),
    ("rewards a row late", "host_rewards[step] =", "host_rewards[step + 1] ="),
    ("a stale policy", "partial(act, agent,", "partial(act, __import__('copy').deepcopy(agent),"),
    ("steps are not rows", "global_step += args.num_envs", "global_step += 1"),
    ("lengths with reset rows", "episode_lengths += valid", "episode_lengths += 1"),
]  # fmt: skip
MAIN = [
    ("one network for all seeds", "torch.manual_seed(args.seed)", "torch.manual_seed(0)"),
    ("Adam's epsilon", "eps=1e-5", "eps=1e-8"),
    ("targets of the next value", "advantages + values[:T]", "advantages + values[1:]"),
    ("annealed a step early", "(iteration - 1) / args.num_iter", "iteration / args.num_iter"),
    ("never annealed", '        optimizer.param_groups[0]["lr"] = lrnow\n', ""),
    ("another rate is logged", '"charts/learning_rate", lrnow', '"charts/learning_rate", frac'),
    ("no shuffling", "torch.randperm(T * N, device=device)",
     "torch.arange(args.batch_size)"),
    ("rows drawn with replacement", "torch.randperm(T * N, device=device)",
     "torch.randint(args.batch_size, (args.batch_size,))"),
    ("one order for all epochs", "torch.randperm(T * N, device=device)",
     "torch.randperm(T * N, generator=torch.Generator().manual_seed(1))"),
    ("an epoch less", "range(args.update_epochs)", "range(args.update_epochs - 1)"),
    ("target_kl is ignored", "if args.target_kl is not None:", "if False:"),
    ("target_kl of the last minibatch", '[:, LOSSES.index("approx_kl")].mean()',
     '[-1, LOSSES.index("approx_kl")]'),
    ("target_kl of all epochs", 'losses[-1][:, LOSSES', 'torch.cat(losses)[:, LOSSES'),
    ("target_kl of the old estimate", 'LOSSES.index("approx_kl")', 'LOSSES.index("old_approx_kl")'),
    ("the last minibatch is logged", "torch.cat(losses).mean(0)", "losses[-1][-1]"),
    ("the last epoch is logged", "torch.cat(losses).mean(0)", "losses[-1].mean(0)"),
    ("variance over all rows", 'batch["returns"], batch["valid"])',
     'batch["returns"], torch.ones(args.batch_size))'),
]  # fmt: skip
CONTINUOUS = [
    ("weights decay", "optim.Adam(", "optim.AdamW("),
    ("acts by the mean", "mean + std * noise[step]", "mean"),
    ("acts without its deviation", "mean + std * noise[step]", "mean + noise[step]"),
    ("one noise for all steps", "std * noise[step]", "std * noise[0]"),
    ("log-probability of the clipped action", "probs.log_prob(action)",
     "probs.log_prob(action.clamp(-1, 1))"),
    ("log-probability averaged", "log_prob(action).sum(-1)", "log_prob(action).mean(-1)"),
    ("clipped actions are stored", '["actions"][step] = action',
     '["actions"][step] = action.clamp(-1, 1)'),
    ("unclipped actions are sent", "envs.step(clipped)", "envs.step(action)"),
    ("entropy averaged", "probs.entropy().sum(-1)", "probs.entropy().mean(-1)"),
    ("new log-probability averaged", 'log_prob(mb["actions"]).sum(-1)',
     'log_prob(mb["actions"]).mean(-1)'),
    ("noise drawn once", "noise.normal_()", "iteration > 1 or noise.normal_()"),
    ("uniform noise", "noise.normal_()", "noise.uniform_(-1.7, 1.7)"),
    ("all rows are transitions", '["valid"][:T] = 1 - dones[:T]', '["valid"][:T] = 1'),
    ("rows before an end are none", '["valid"][:T] = 1 - dones[:T]',
     '["valid"][:T] = 1 - dones[1:]'),
    ("the last value is stale",
     "        policy(T)  # for values[T], from which the last step bootstraps; actions unused\n",
     ""),
    ("seeds that overlap",
     "np.random.SeedSequence([args.seed, global_step]).generate_state(N).tolist()",
     "[args.seed + i for i in range(N)]"),
    ("one seed for all", "generate_state(N).tolist()", "generate_state(1).tolist() * N"),
    ("raw observations", "scaled = obs_rms.scale(next_obs - obs_rms.mean)", "scaled = next_obs"),
    ("observations not centred", "scaled = obs_rms.scale(next_obs - obs_rms.mean)",
     "scaled = obs_rms.scale(next_obs)"),
    ("scaled by the moments before", "            obs_rms.update(next_obs)\n            scaled",
     "            scaled"),
    ("rewards centred", "return_rms.scale(reward)", "return_rms.scale(reward - return_rms.mean)"),
    ("raw rewards", "return_rms.scale(reward)", "reward"),
    ("sums go on after a fall", "args.gamma * ~terminated + reward", "args.gamma + reward"),
    ("sums start anew after a time limit", "args.gamma * ~terminated",
     "args.gamma * ~(terminated | truncated)"),
    ("sums of reset rows", "return_rms.update(discounted[valid])", "return_rms.update(discounted)"),
    ("sum of squares", "delta * (x - self.mean)", "delta * delta"),
    ("a heavy first row", "count=1e-4", "count=1.0"),
    ("clipped at 5", "-10.0), 10.0)", "-5.0), 5.0)"),
    ("scaled returns are logged", "episode_returns += reward *",
     "episode_returns += host_rewards[step] *"),
    ("mean return of ten games", "[-max(100, args.num_envs) :]", "[-10:]"),
    ("a time limit ends no episode", "(terminated | truncated) & valid", "terminated & valid"),
]  # fmt: skip
ATARI = [
    ("no clipping of gradients", "args.max_grad_norm, foreach", "float('inf'), foreach"),
    ("greedy", "(probs.probs / exponential).argmax", "probs.probs.argmax"),
    ("product for quotient", "(probs.probs / exponential)", "(probs.probs * exponential)"),
    ("one noise for all steps", "noise[step][0]", "noise[0]"),
    ("log-probability of another action", "probs.log_prob(action)",
     "probs.log_prob(action.roll(1))"),
    ("new log-probability of another action", 'probs.log_prob(mb["actions"])',
     'probs.log_prob((mb["actions"] + 1) % 4)'),
    ("rewards not clipped", '"reward_clip": True', '"reward_clip": False'),
    ("lives are no episodes", '"episodic_life": True', '"episodic_life": False'),
    ("seeds that overlap", '"seed": seeds.tolist()', '"seed": [args.seed + i for i in range(4)]'),
    ("pixels not scaled", "obs.float().div_(255.0)", "obs.float()"),
    ("pixels of 256", "obs.float().div_(255.0)", "obs.float().div_(256.0)"),
    ("noise drawn once", "noise.exponential_()", "iteration > 1 or noise.exponential_()"),
    ("uniform noise", "noise.exponential_()", "noise.uniform_()"),
    ("entropy over all rows", "masked_mean(entropy, valid)", "entropy.mean()"),
    ("all rows are transitions", "1.0 if args.cleanrl_semantics else 1 - dones[:T]", "1.0"),
    ("rows before an end are none", "else 1 - dones[:T]", "else 1 - dones[1:]"),
    ("the last value is stale",
     "        policy(steps[T])  # for values[T], from which the last step bootstraps; "
     "actions unused\n", ""),
    ("a game over at the limit goes on", '            terminated |= info["terminated"] > 0', "#"),
    ("a lost life goes on", "host_terminations[step + 1] = terminated |",
     'host_terminations[step + 1] = (info["terminated"] > 0) |'),
    ("a time limit ends no game", '(info["terminated"] > 0) | truncated', 'info["terminated"] > 0'),
    ("a life won ends a game", "& ~valid", ""),
    ("a lost life ends a game", 'game_over = (info["terminated"] > 0)', "game_over = terminated"),
    ("two games as one", '(info["lives"] > lives)', "False"),
    ("clipped returns are logged", 'returns += info["reward"]', "returns += reward"),
    ("returns with reset rows", 'info["reward"] * valid', 'info["reward"]'),
]  # fmt: skip
DISCRETE = [
    ("weights decay", "optim.Adam(", "optim.AdamW("),
    ("greedy", "(probs.probs / noise[step]).argmax", "probs.probs.argmax"),
    ("product for quotient", "(probs.probs / noise[step])", "(probs.probs * noise[step])"),
    ("one noise for all steps", "noise[step]", "noise[0]"),
    ("log-probability of another action", "probs.log_prob(action)",
     "probs.log_prob(action.roll(1))"),
    ("new log-probability of another action", 'probs.log_prob(mb["actions"])',
     'probs.log_prob(1 - mb["actions"])'),
    ("noise drawn once", "noise.exponential_()", "iteration > 1 or noise.exponential_()"),
    ("uniform noise", "noise.exponential_()", "noise.uniform_()"),
    ("entropy over all rows", "masked_mean(entropy, valid)", "entropy.mean()"),
    ("all rows are transitions", '["valid"][:T] = 1 - dones[:T]', '["valid"][:T] = 1'),
    ("rows before an end are none", '["valid"][:T] = 1 - dones[:T]',
     '["valid"][:T] = 1 - dones[1:]'),
    ("the last value is stale",
     "        policy(T)  # for values[T], from which the last step bootstraps; actions unused\n",
     ""),
    ("seeds that overlap",
     "np.random.SeedSequence([args.seed, global_step]).generate_state(N).tolist()",
     "[args.seed + i for i in range(N)]"),
    ("one seed for all", "generate_state(N).tolist()", "generate_state(1).tolist() * N"),
    ("mean return of ten games", "[-max(100, args.num_envs) :]", "[-10:]"),
    ("a time limit ends no episode", "(terminated | truncated) & valid", "terminated & valid"),
]  # fmt: skip
MANY = [
    ("seeds that overlap", "seed=seeds.tolist()", "seed=args.seed"),
    ("one start for all", "np.arange(N) * phases // N", "np.zeros(N)"),
    ("a start too few", "-(-envs.spec.config.max_episode_steps // T)",
     "envs.spec.config.max_episode_steps // T"),
    ("--no-stagger is ignored", "args.stagger * (np", "(np"),
    ("a game goes on unseen", "torch.from_numpy(obs_rms.scale(first_obs - obs_rms.mean)).to(obs)",
     "obs[T, anew]"),
    ("raw first observations", "obs_rms.scale(first_obs - obs_rms.mean)", "first_obs"),
    ("ends of the games before", "host[:, 0, anew] = episode_returns", "episode_returns"),
    ("returns of cut games", "episode_returns[anew] = episode_lengths", "episode_lengths"),
    ("lengths of cut games", "= episode_lengths[anew] = 0", "= 0"),
]  # fmt: skip
ZEROED = "            h, c = h * keep, c * keep\n"
CELL = """            i, f, g, o = (row + self.from_h(h)).chunk(4, dim=1)  # (E, H) each
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            hidden.append(h)
"""
MEMORY = [
    ("never zeroed", ZEROED, ""),
    ("zeroed a row early", CELL + ZEROED, ZEROED + CELL),
    ("zeroed a row late", "torch.from_numpy(host_dones[step + 1])",
     "torch.from_numpy(host_dones[step])"),
    ("half of it zeroed", "h, c = h * keep, c * keep", "c = c * keep"),
    ("zero at a rollout's start", "lstm_states[0] = lstm_states[T]", "lstm_states[0] = 0"),
    ("advanced by the last value", "lstm_states[0] = lstm_states[T]\n",
     "lstm_states[0] = lstm_states[T + 1]\n"),
    ("the first flags are stale", "        ends[0] = ends[T]\n", ""),
    ("learning starts a row late", "batch, lstm_states[0])", "batch, lstm_states[1])"),
    ("other environments' state", "initial_lstm_state[:, :, mb_inds]",
     "initial_lstm_state[:, :, : len(mb_inds)]"),
    ("rows out of order", "rows[:, mb_inds].flatten(0, 1)",
     "rows[:, mb_inds].transpose(0, 1).flatten(0, 1)"),
    ("rows backwards", "rows[:, mb_inds].flatten(0, 1)", "rows[:, mb_inds].flip(0).flatten(0, 1)"),
    ("no gradient through time", "h, c = h * keep, c * keep",
     "h, c = h.detach() * keep, c.detach() * keep"),
    ("the forget gate's sign", "c = f.sigmoid()", "c = (-f).sigmoid()"),
    ("h for c", "f.sigmoid() * c +", "f.sigmoid() * h +"),
    ("gates in another order", "i, f, g, o =", "f, i, g, o ="),
    ("a permutation of rows", "torch.randperm(N, device=device)", "(torch.randperm(T * N) % N)"),
    ("environments drawn with replacement", "torch.randperm(N, device=device)",
     "torch.randint(N, (N,))"),
    ("no shuffling", "torch.randperm(N, device=device)", "torch.arange(N)"),
]  # fmt: skip
ALE = [
    ("rewards not clipped", "np.sign(reward)", "reward"),
    ("clipped returns are logged", "episode_returns += reward *",
     "episode_returns += np.sign(reward) *"),
    ("lengths with reset rows", "episode_lengths += valid", "episode_lengths += 1"),
    ("a lost life is a reset row", "else valid[:T]", "else 1 - dones[:T]"),
    ("all rows are transitions", "1.0 if args.cleanrl_semantics else valid[:T]", "1.0"),
    ("rows before a restart are none", "host_valid[step] =", "host_valid[step - 1] ="),
    ("the frames of the first game", '            frames = info["episode_frame_number"]\n', ""),
    ("a lost life does not cut the trace", "host_dones[step + 1] = terminated | truncated",
     'host_dones[step + 1] = (terminated & (info["lives"] == 0)) | truncated'),
    ("a lost life is no end", "host_terminations[step + 1] = terminated |",
     'host_terminations[step + 1] = (terminated & (info["lives"] == 0)) |'),
    ("lives are games", "np.flatnonzero(~valid)", "np.flatnonzero(terminated | truncated)"),
    ("a time limit ends no game", "np.flatnonzero(~valid)",
     'np.flatnonzero(terminated & (info["lives"] == 0))'),
    ("lives end no episode", '"life_loss_info": True', '"life_loss_info": False'),
    ("clipped by the simulator", "reward_clipping=False", "reward_clipping=True"),
    ("one seed for all", "generate_state(N) >> 1", "generate_state(1).repeat(N) >> 1"),
    ("seeds that overlap",
     "np.random.SeedSequence([args.seed, global_step]).generate_state(N) >> 1",
     "args.seed + np.arange(N)"),
]  # fmt: skip
MASKED = [
    ("mask of the row after", "masks[step + 1] = action_masks", "masks[step] = action_masks"),
    ("the first mask is stale", "        masks[0] = masks[T]\n", ""),
    ("masked in acting alone", 'mb["masks"])', 'torch.ones_like(mb["masks"]))'),
    ("masked in learning alone", 'storage["masks"][step])', 'storage["masks"][step] < 2)'),
    ("entropy unmasked", "entropy = probs.entropy()",
     'entropy = Categorical(logits=agent.actor(mb["obs"])).entropy()'),
    ("minus infinity", "self.actor(obs), -1e8", "self.actor(obs), -torch.inf"),
]  # fmt: skip
TOGETHER = [
    ("an agent that has left weighs", '["valid"][:T] = 1 - dones[:T]', '["valid"][:T] = 1'),
    ("who is not there yet weighs", "    host_dones[T] = absent  # the", "    # the"),
    ("its return goes on", "episode_returns += reward * valid", "episode_returns += reward"),
    ("another agent's reward", "self.of_all(reward, 0.0)", "self.of_all(reward, 0.0)[::-1]"),
    ("all have the first one's reward", "self.of_all(reward, 0.0), np.float64)",
     "self.of_all(reward, 0.0), np.float64).reshape(-1, 3)[:, [0, 0, 0]].ravel()"),
    ("agents in the order of that step's dictionary",
     "for by_agent in found for agent in self.agents]",
     "for by_agent in found for agent in [*by_agent, *set(self.agents) - {*by_agent}]]"),
    ("an action of another agent", "zip(self.agents, chosen.tolist(), strict=True)",
     "zip(env.agents, chosen.tolist())"),
    ("the episode ends with its first agent", "envs), -1).all(1)", "envs), -1).any(1)"),
    ("the return is a sum", "returns[lengths > 0].mean()", "returns.sum()"),
    ("who did not come counts", "returns[lengths > 0].mean()", "returns.mean()"),
    ("the first agent's length", "lengths.max()", "lengths[0]"),
    ("not there is there", "agent not in env.agents for agent in self.agents}",
     "False for agent in self.agents}"),
    ("who comes later is not there", "agent not in env.agents for agent in self.agents}",
     "True for agent in self.agents}"),
    ("a seed for all", "for env, x in zip(self.envs, seed, strict=True)]",
     "for env, x in zip(self.envs, seed[:1] * len(seed), strict=True)]"),
    ("steps are rows", "global_step += args.num_envs", "global_step += N"),
    ("who is reset says the list of agents", "if over:", "if not env.agents:"),
]  # fmt: skip
RESUMED = [
    ("the same games", "[args.seed, global_step]", "[args.seed, 0]"),
    ("returns forgotten", 'episodic_returns = checkpoint["episodic_returns"]',
     "episodic_returns = []"),
    ("weights forgotten", 'agent.load_state_dict(checkpoint["agent"])', "pass"),
]  # fmt: skip
MOMENTS = [
    ("observations' moments forgotten", 'RunningMeanStd(*map(np.array, checkpoint["obs_rms"]))',
     "obs_rms"),
    ("returns' moments forgotten", 'RunningMeanStd(*map(np.array, checkpoint["return_rms"]))',
     "return_rms"),
]  # fmt: skip
SPEED = [
    ("burn-in counts", "first_iteration + args.measure_burnin", "first_iteration"),
    ("time of all, rows of some", "phase_s += np.diff(times)", "phase_s = np.diff(times)"),
    ("rows of all, time of some", "(iteration - first_measured + 1)", "iteration"),
    ("steps without environments", "* args.batch_size / phase_s", "* args.num_steps / phase_s"),
]  # fmt: skip
WEIGHTS = [
    ("a bold policy", "std=0.01)", "std=1.0)"),
    ("a loud critic", "std=1", "std=2"),
    ("hidden gain of 1", "std=2**0.5", "std=1.0"),
    ("biases of 1", "bias_const=0.0", "bias_const=1.0"),
]  # fmt: skip
TABLE = {  # the texts of LOSS are one in all scripts, and so are those of MAIN
    ("hopper", check): [*LOSS, *ROLLOUT, *CONTINUOUS],
    ("atari_scripted", check): [*ROLLOUT, *ATARI],
    ("ale_scripted", check): ALE,
    ("cartpole", check): [*ROLLOUT, *MAIN, *DISCRETE],
    ("masked", check): MASKED,
    ("pettingzoo", check): TOGETHER,
    ("lstm", check): [
        *MEMORY,
        ("velocities are seen", "(1, 3) if", "(0, 2) if"),
        ("all rows are transitions", '["valid"][:T] = 1 - dones[:T]', '["valid"][:T] = 1'),
    ],
    ("lstm_atari", check): [
        *MEMORY[:1],
        ("all rows are transitions", "1.0 if args.cleanrl_semantics else 1 - dones[:T]", "1.0"),
    ],
    ("lstm", check_first_weights): [
        (
            "the LSTM's gain",
            "(hidden_size, 4 * hidden_size, device=device), std=1.0)",
            "(hidden_size, 4 * hidden_size, device=device))",
        ),
    ],
    ("many", check): [*MANY[:3], *MANY[4:]],
    ("cheetah_run", check): MANY[3:4],
    ("hopper", check_resumed): [*RESUMED, *MOMENTS],
    ("many", check_resumed): RESUMED[:1],
    ("ale_scripted", check_resumed): RESUMED[:1],
    ("atari_scripted", check_resumed): RESUMED,
    ("cartpole", check_resumed): RESUMED,
    ("hopper", check_speed): SPEED,
    ("atari_scripted", check_speed): SPEED,
    ("cartpole", check_speed): SPEED,
    ("hopper", check_first_weights): WEIGHTS,
    ("atari_scripted", check_first_weights): WEIGHTS,
    ("cartpole", check_first_weights): WEIGHTS,
}
CASES = [
    pytest.param(name, of, old, new, id=f"{JOBS[name].script}: {what}")
    for (name, of), mutants in TABLE.items()
    for what, old, new in mutants
]


SHORT = {name for name, of in TABLE if of is check} - {"cheetah_run"}  # no episode has ended then


def first_iteration(name):
    """A job's run, ended after one iteration, which most mistakes show in already."""
    return replace(JOBS[name], flags=JOBS[name].flags | {"total_timesteps": JOBS[name].steps})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "of", "old", "new"), CASES)
def test_mutant_is_seen(name, of, old, new, tmp_path):
    job = JOBS[name]
    text = (PPO / f"{job.script}.py").read_text()
    assert text.count(old) == 1
    recorded(text.replace(old, new), job.start)  # what is recorded is still there
    with pytest.raises((AssertionError, SystemExit)):  # or the run ends itself
        if of is check and name in SHORT:
            of(first_iteration(name), tmp_path, edit=lambda text: text.replace(old, new))
        of(job, tmp_path, edit=lambda text: text.replace(old, new))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHORT))
def test_a_first_iteration_without_a_mistake(name, tmp_path):
    """Passes, so that what test_mutant_is_seen sees there is the mistake."""
    check(first_iteration(name), tmp_path)


@pytest.mark.parametrize("name", ["ppo_atari_envpool", "ppo_continuous_action"])
def test_the_lines_of_all_scripts(name):
    """What is mutated in one script alone stands in the others too."""
    text = (PPO / f"{name}.py").read_text()
    assert all(text.count(old) == 1 for _, old, _ in [*LOSS, *MAIN])
