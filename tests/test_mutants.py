"""Mistakes a person could write, a line each: the checks of test_reference must see every one."""

import pytest
import test_reference
from helpers import PPO
from test_pettingzoo import check_forms
from test_reference import (
    FAST_JOBS,
    check,
    check_first_weights,
    check_resumed,
    check_speed,
    first_iteration,
    recorded,
)

JOBS = test_reference.JOBS | FAST_JOBS

# what is wrong, text that is there once, text in its place; and more of these two
LOSS = [
    ("ends are not terminal", "values[1:] * (1 - terminations[1:])", "values[1:]"),
    ("time limits are terminal", "(1 - terminations[1:])", "(1 - dones[1:])"),
    ("flags of the row before", "gae_lambda * (1 - dones[1:])", "gae_lambda * (1 - dones[:-1])"),
    ("only terminations stop sums", "gae_lambda * (1 - dones", "gae_lambda * (1 - terminations"),
    ("gae_lambda is 1", "decay = gamma * gae_lambda *", "decay = gamma *"),
    ("rewards of the row after", "= rewards + gamma", "= np.roll(rewards, -1, 0) + gamma"),
    ("the last sum is left out", "range(len(advantages) - 1)", "range(len(advantages) - 2)"),
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
    ("values clipped on one side", "clamp(-args.clip_coef, args.clip_coef)",
     "clamp(max=args.clip_coef)"),
    ("optimistic value loss", "torch.max(v_loss", "torch.min(v_loss"),
    ("values clipped around returns", 'v_loss_clipped = (mb["values"] +',
     'v_loss_clipped = (mb["returns"] +'),
    ("entropy is punished", "- args.ent_coef * entropy_loss", "+ args.ent_coef * entropy_loss"),
    ("no entropy bonus", "- args.ent_coef * entropy_loss ", ""),
    ("vf_coef left out", "args.vf_coef * v_loss", "v_loss"),
    ("old_approx_kl over all rows", "masked_mean(-logratio, valid)",
     '(mb["logprobs"] - newlogprob.detach()).mean()'),
    ("k1 for k3", "(ratio - 1) - logratio, valid", "-logratio, valid"),
    ("clipfrac over all rows", "masked_mean(((ratio - 1).abs() > args.clip_coef).float(), valid)",
     "((ratio - 1).abs() > args.clip_coef).float().mean()"),
    ("gradients add up", "        optimizer.zero_grad()\n", ""),
    ("one step an epoch", "        optimizer.step()\n", "    optimizer.step()\n"),
    ("no clipping of gradients", "args.max_grad_norm, foreach", "float('inf'), foreach"),
]  # fmt: skip
ROLLOUT = [
    ("the first observation is stale", "        obs[0] = obs[T]\n", ""),
    ("flags are not carried over", "        dones[0] = dones[T]\n", ""),
    ("dones and terminations swapped", "= compute_gae(rewards, dones, terminations,",
     "= compute_gae(rewards, terminations, dones,"),
    ("dones a row early", "dones[step + 1] =", "dones[step] ="),
    ("only terminations are dones", "dones[step + 1] = terminated | truncated",
     "dones[step + 1] = terminated"),
    ("time limits are kept as terminal", "(truncated & args.cleanrl_semantics)", "truncated"),
    ("rewards a row late", " rewards[step] =", " rewards[(step + 1) % T] ="),
    ("flags of the row after, of the rollout before", "valid[step] = dones[step] ==",
     "valid[step] = dones[step + 1] =="),
    ("all rows are transitions", "valid[step] = dones[step] == 0", "valid[step] = True"),
    ("a stale policy", "action = act(agent,",
     "action = act(globals().setdefault('stale', __import__('copy').deepcopy(agent)),"),
    ("steps are not rows", "global_step += N", "global_step += 1"),
    ("lengths with autoreset steps", "running_lengths += valid[step]", "running_lengths += 1"),
]  # fmt: skip
SEEDS = "np.random.SeedSequence([args.seed, global_step]).generate_state(N) >> 1"
RANDPERM = "torch.randperm(T * N, device=device)"
MAIN = [
    ("one network for all seeds", "torch.manual_seed(args.seed)", "torch.manual_seed(0)"),
    ("Python's random numbers without a seed", "    random.seed(args.seed + global_step)", "    #"),
    ("NumPy's random numbers without one", "    np.random.seed((args.seed + global_step)",
     "    #("),
    ("seeds of 32 bits", "generate_state(N) >> 1", "generate_state(N)"),
    ("Adam's epsilon", "eps=1e-5", "eps=1e-8"),
    ("targets of the next value", "advantages + values[:T]", "advantages + values[1:]"),
    ("annealed a step early", "(iteration - 1) / args.num_iter", "iteration / args.num_iter"),
    ("never annealed", "        optimizer.param_groups[0][\"lr\"].fill_(lrnow)\n", ""),
    ("another rate is logged", '"charts/learning_rate", lrnow', '"charts/learning_rate", frac'),
    ("no shuffling", RANDPERM, "torch.arange(T * N)"),
    ("rows drawn with replacement", RANDPERM, "torch.randint(T * N, (T * N,))"),
    ("one order for all epochs", RANDPERM,
     "torch.randperm(T * N, generator=torch.Generator().manual_seed(1))"),
    ("an epoch less", "range(args.update_epochs)",
     "range(max(1, args.update_epochs - 1))"),
    ("target_kl is ignored", "if args.target_kl is not None and approx_kl > args.target_kl:",
     "if False:"),
    ("target_kl of the last minibatch", '[:, LOSSES.index("approx_kl")].mean()',
     '[-1, LOSSES.index("approx_kl")]'),
    ("target_kl of all epochs", 'losses[-1][:, LOSSES', 'torch.cat(losses)[:, LOSSES'),
    ("target_kl of the old estimate", 'LOSSES.index("approx_kl")', 'LOSSES.index("old_approx_kl")'),
    ("the last minibatch is logged", "torch.cat(losses).mean(0)", "losses[-1][-1]"),
    ("the last epoch is logged", "torch.cat(losses).mean(0)", "losses[-1].mean(0)"),
    ("explained variance over all rows", "advantages[valid].var()", "advantages.var()"),
    ("explained variance of all returns", "returns[valid].var()", "returns.var()"),
    ("mean square for variance", "advantages[valid].var()", "(advantages[valid] ** 2).mean()"),
    ("returns for residual", "1 - advantages[valid].var()", "1 - returns[valid].var()"),
]  # fmt: skip
PASS = """            probs, storage["values"][:] = agent(storage["obs"])
            storage["logprobs"][:] = probs.log_prob(storage["actions"])
"""
VECTOR = [
    ("the last value is stale", PASS, PASS.replace("[:]", "[:T]").replace('s"])', 's"][:T])')),
    ("values of the row before", 'agent(storage["obs"])', 'agent(storage["obs"].roll(1, 0))'),
    ("values of the row after", 'agent(storage["obs"])', 'agent(storage["obs"].roll(-1, 0))'),
    ("values of another environment", 'agent(storage["obs"])', 'agent(storage["obs"].roll(1, 1))'),
    ("log-probabilities of the actions before", 'log_prob(storage["actions"])',
     'log_prob(storage["actions"].roll(1, 0))'),
    ("log-probabilities of the actions after", 'log_prob(storage["actions"])',
     'log_prob(storage["actions"].roll(-1, 0))'),
    ("all rows weigh", 'storage["valid"][:T] = torch.from_numpy(valid)',
     'storage["valid"][:T] = 1'),
    ("rows before an end are none", 'storage["valid"][:T] = torch.from_numpy(valid)',
     'storage["valid"][:T] = torch.from_numpy(dones[1:] == 0)'),
    ("seeds that overlap", SEEDS, "args.seed + np.arange(N)"),
    ("one seed for all", "generate_state(N) >> 1", "generate_state(1).repeat(N) >> 1"),
    ("mean return of ten games", "[-max(100, N) :]", "[-10:]"),
    ("a time limit ends no episode", "np.flatnonzero(dones[step + 1])",
     "np.flatnonzero(terminated)"),
    ("one noise for all rollouts", "        obs[0] = obs[T]\n",
     "        obs[0] = obs[T]\n        torch.manual_seed(1)\n"),
    ("weights decay", "optim.Adam(", "optim.AdamW("),
]  # fmt: skip
SAMPLE = "probs.sample()"
OUR_NORMAL = "probs.mean + probs.stddev * torch.randn(probs.mean.shape, generator="
COUNTED_HERE = "            obs_rms.update(next_obs)\n"
CLEANED_HERE = """\
            if terminated.any():  # a diverged simulator may end on nan, and nan * 0 is nan
                next_obs[terminated] = np.nan_to_num(next_obs[terminated], posinf=0.0, neginf=0.0)
"""
SCALED_HERE = """\
            obs[step + 1] = torch.from_numpy(obs_rms.scale(next_obs - obs_rms.mean))  # sync
"""
CONTINUOUS = [
    ("acts by the mean", SAMPLE, "probs.mean"),
    ("acts without its deviation", SAMPLE, "probs.mean + torch.randn_like(probs.mean)"),
    ("one noise for all steps", SAMPLE, f"{OUR_NORMAL}torch.Generator().manual_seed(1))"),
    ("uniform noise", SAMPLE,
     "probs.mean + probs.stddev * torch.empty_like(probs.mean).uniform_(-1.7, 1.7)"),
    ("log-probability of the clipped action", 'log_prob(storage["actions"])',
     'log_prob(storage["actions"].clamp(-1, 1))'),
    ("log-probability averaged", 'log_prob(storage["actions"])',
     'log_prob(storage["actions"]) / 3'),
    ("clipped actions are stored", "actions[step] = action\n",
     "actions[step] = action.clamp(-1, 1)\n"),
    ("unclipped actions are sent", "envs.step(clipped)", "envs.step(action.numpy())"),
    ("entropy averaged", "probs.entropy()", "probs.entropy() / 3"),
    ("new log-probability averaged", 'probs.log_prob(mb["actions"])',
     'probs.log_prob(mb["actions"]) / 3'),
    ("raw observations", "obs[step + 1] = torch.from_numpy(obs_rms.scale(next_obs - obs_rms.mean))",
     "obs[step + 1] = torch.from_numpy(next_obs)"),
    ("observations not centred", "obs[step + 1] = torch.from_numpy(obs_rms.scale(next_obs -",
     "obs[step + 1] = torch.from_numpy(obs_rms.scale(next_obs - 0 *"),
    ("the first moments for all", COUNTED_HERE, ""),
    ("scaled by the moments before", COUNTED_HERE + CLEANED_HERE + SCALED_HERE,
     CLEANED_HERE + SCALED_HERE + COUNTED_HERE),
    ("a diverged end is counted as zeros", COUNTED_HERE + CLEANED_HERE,
     CLEANED_HERE + COUNTED_HERE),
    ("rewards centred", "return_rms.scale(reward)", "return_rms.scale(reward - return_rms.mean)"),
    ("raw rewards", "return_rms.scale(reward)", "reward"),
    ("sums go on after a fall", "args.gamma * ~terminated + reward", "args.gamma + reward"),
    ("sums start anew after a time limit", "args.gamma * ~terminated",
     "args.gamma * ~(terminated | truncated)"),
    ("sums of autoreset steps count", "return_rms.update(discounted[valid[step]])",
     "return_rms.update(discounted)"),
    ("sums change in autoreset steps", "np.where(valid[step], sums, discounted)", "sums"),
    ("sum of squares", "delta * (x - self.mean)", "delta * delta"),
    ("a heavy first row", "count=1e-4", "count=1.0"),
    ("clipped at 5", "-10.0), 10.0)", "-5.0), 5.0)"),
    ("inf enters the moments", "        x = x[np.isfinite(x).all(tuple(range(1, x.ndim)))]\n", ""),
    ("rows with one finite entry", ".all(tuple(", ".any(tuple("),
    ("a row with inf stops the moments", "x[np.isfinite(x).all(tuple(range(1, x.ndim)))]",
     "x[:len(x) * np.isfinite(x).all()]"),
    ("nan at an end is learned from", "if terminated.any():", "if False:"),
    ("inf at an end is a large number", ", posinf=0.0, neginf=0.0", ""),
    ("scaled returns are logged", "running_returns += reward *",
     "running_returns += rewards[step] *"),
]  # fmt: skip
OUR_CLOCKS = "torch.empty_like(probs.probs).exponential_("
CATEGORICAL = [
    ("greedy", SAMPLE, "probs.probs.argmax(-1)"),
    ("product for quotient", SAMPLE, f"(probs.probs * {OUR_CLOCKS})).argmax(-1)"),
    ("one noise for all steps", SAMPLE,
     f"(probs.probs / {OUR_CLOCKS}generator=torch.Generator().manual_seed(1))).argmax(-1)"),
    ("uniform noise", SAMPLE, "(probs.probs / torch.rand_like(probs.probs)).argmax(-1)"),
    ("new log-probability of another action", 'probs.log_prob(mb["actions"])',
     'probs.log_prob(1 - (mb["actions"] > 0).long())'),
    ("entropy over all rows", "masked_mean(entropy, valid)", "entropy.mean()"),
]  # fmt: skip
ATARI = [
    ("no clipping of gradients", "args.max_grad_norm, foreach", "float('inf'), foreach"),
    ("log-probability of another action", "probs.log_prob(action)",
     "probs.log_prob(action.roll(1))"),
    ("values of another game", 'row["values"][:] = value', 'row["values"][:] = value.roll(1)'),
    ("another game's actions are stored", 'row["actions"][:] = action',
     'row["actions"][:] = action.roll(1)'),
    ("rewards not clipped", '"reward_clip": True', '"reward_clip": False'),
    ("lives are no episodes", '"episodic_life": True', '"episodic_life": False'),
    ("seeds that overlap", '"seed": seeds.tolist()', '"seed": [args.seed + i for i in range(4)]'),
    ("seeds of 32 bits", "generate_state(N) >> 1", "generate_state(N)"),
    ("pixels not scaled", "obs.float() / 255.0", "obs.float()"),
    ("pixels of 256", "obs.float() / 255.0", "obs.float() / 256.0"),
    ("one noise for all rollouts", "        obs[0] = obs[T]\n",
     "        obs[0] = obs[T]\n        torch.manual_seed(1)\n"),
    ("all rows weigh", "torch.from_numpy(valid | args.cleanrl_semantics)", "1.0"),
    ("rows before an end are none", "torch.from_numpy(valid | args.cleanrl_semantics)",
     "torch.from_numpy(dones[1:] == 0)"),
    ("the last value is stale", '            _, storage["values"][T] = agent(obs[T])',
     "            pass"),
    ("the value of the last step for the last value", "= agent(obs[T])", "= agent(obs[T - 1])"),
    ("a game over at the limit goes on", '            terminated |= info["terminated"] > 0', "#"),
    ("a lost life goes on", " terminations[step + 1] = terminated |",
     ' terminations[step + 1] = (info["terminated"] > 0) |'),
    ("a time limit ends no game", '(info["terminated"] > 0) | truncated', 'info["terminated"] > 0'),
    ("a life won ends a game", " & ~valid[step]", ""),
    ("a lost life ends a game", 'game_over = (info["terminated"] > 0)', "game_over = terminated"),
    ("two games as one", '(info["lives"] > lives)', "False"),
    ("lives of the first game", '            lives = info["lives"]\n', ""),
    ("games without a step", " & (running_lengths > 0)", ""),
    ("clipped returns are logged", 'returns += info["reward"]', "returns += reward"),
    ("returns with autoreset steps", 'info["reward"] * valid[step]', 'info["reward"]'),
]  # fmt: skip
DISCRETE = [
    ("log-probability of another action", 'log_prob(storage["actions"])',
     'log_prob(1 - storage["actions"])'),
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
    ("first observations are counted", "            obs[0, anew] =",
     "            obs_rms.update(first_obs)\n            obs[0, anew] ="),
    ("ends of the games before", "dones[0, anew] = running_returns", "running_returns"),
    ("returns of cut games", "running_returns[anew] = running_lengths", "running_lengths"),
    ("lengths of cut games", "= running_lengths[anew] = 0", "= 0"),
]  # fmt: skip
IMAGES = [
    ("scaled returns are logged", "running_returns += reward *",
     "running_returns += rewards[step] *"),
    ("raw rewards", "reward * args.reward_scale", "reward"),
    ("height and width change places", "sorted(axes[2:]), y, x]", "sorted(axes[2:]), x, y]"),
    ("bits are nearly black", "float(space.high.max())", "255.0"),
    ("the first image again", "obs[step + 1] = torch.from_numpy(next_obs)",
     "obs[step + 1] = obs[0]"),
    ("the last value is stale", "agent(obs[T])  # from which", "agent(obs[T - 1])  # from which"),
]  # fmt: skip
SMALL = [("a game goes on unseen", "torch.from_numpy(first_obs).to(obs)", "obs[T, anew]")]
ZEROED = "            h, c = h * keep, c * keep\n"
CELL = """            i, f, g, o = (row + self.from_h(h)).chunk(4, dim=1)  # (E, H) each
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            hidden.append(h)
"""
KEPT = "        initial_lstm_state[:] = lstm_state\n"
ACTED = "            action, lstm_state = act(agent, row, lstm_state)\n"
FLAGS = 'storage["dones"][step] = torch.from_numpy(dones[step])'
MEMORY = [
    ("never zeroed", ZEROED, ""),
    ("zeroed a row early", CELL + ZEROED, ZEROED + CELL),
    ("zeroed a row late", FLAGS, FLAGS.replace("(dones[step])", "(dones[step - 1])")),
    ("half of it zeroed", "h, c = h * keep, c * keep", "c = c * keep"),
    ("zero at a rollout's start", KEPT, f"        lstm_state = 0 * lstm_state\n{KEPT}"),
    ("zero before learning", "initial_lstm_state[:] = lstm_state", "initial_lstm_state[:] = 0"),
    ("not handed on", "action, lstm_state = act(", "action, _ = act("),
    ("advanced by the last value", '_, storage["values"][T], _ =',
     '_, storage["values"][T], lstm_state ='),
    ("the last value has no memory", 'storage["dones"][T], lstm_state\n',
     'storage["dones"][T], 0 * lstm_state\n'),
    ("the last value is stale", '_, storage["values"][T], _ =', "_ ="),
    ("the first flags are stale", FLAGS, FLAGS.replace("[step] =", "[max(step, 1)] =")),
    ("learning starts a row late", ACTED,
     f"{ACTED}            if step == 0:\n                initial_lstm_state[:] = lstm_state\n"),
    ("learning starts from the rollout's end", "batch, initial_lstm_state, args, b_inds))",
     "batch, lstm_state, args, b_inds))"),
    ("other environments' state", "[..., mb_inds, :]", "[..., : len(mb_inds), :]"),
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
    ("log-probabilities of other actions", "probs.log_prob(action)",
     "probs.log_prob(action.roll(1))"),
    ("values of another environment", 'row["values"][:] = value',
     'row["values"][:] = value.roll(1)'),
]  # fmt: skip
HIDDEN = [
    ("velocities are seen", "(1, 3) if", "(0, 2) if"),
    ("all rows weigh", 'storage["valid"][:T] = torch.from_numpy(valid)',
     'storage["valid"][:T] = 1'),
]  # fmt: skip
MEMORY_GAUSSIAN = [
    MEMORY[0],
    *MEMORY[4:6],
    MEMORY[8],
    MEMORY[13],
    ("the entries before are hidden", "env.observation_space.shape[0]), hide)",
     "env.observation_space.shape[0]), np.array(hide) - 1)"),
    ("clipped actions are stored", 'row["actions"][:] = action',
     'row["actions"][:] = action.clamp(-1, 1)'),
    ("log-probabilities of the clipped actions", "probs.log_prob(action)",
     "probs.log_prob(action.clamp(-1, 1))"),
]  # fmt: skip
AGES = "ages[step + 1] = (ages[step] + 1) * valid[step]"
OTHER = "lags > ages.unsqueeze(1)"
CARRIED = "memory[:L] = memory[T : T + L].clone()"
LAST = "agent(*row)"
AT_LAST = 'agent(obs[T], storage["window"][T], storage["ages"][T])'
ATTENTION = [
    ("sees the episode before", AGES, AGES.replace(" * valid[step]", "")),
    ("an end's last row sees nothing", AGES, AGES.replace("valid[step]", "(dones[step + 1] == 0)")),
    ("sees the last row of the episode before", OTHER, f"{OTHER} + 1"),
    ("does not see the episode's first row", OTHER, "lags > (ages - 1).clamp(min=0).unsqueeze(1)"),
    ("sees all", OTHER, "lags > 99 + ages.unsqueeze(1)"),
    ("ages are counted from a rollout's start", "ages[0] = ages[T]", "ages[0] = 0"),
    ("the first ages are stale", "        ages[0] = ages[T]\n", ""),
    ("windows a row late", "memory[:-1].unfold", "memory[1:].unfold"),
    ("the rollout before is dropped", CARRIED, "memory[:L] = 0"),
    ("the rollout before that", f"        {CARRIED}\n", ""),
    ("carried a row late", CARRIED, CARRIED.replace("[T : T + L]", "[T - 1 : T + L - 1]")),
    ("carried with row T", CARRIED, CARRIED.replace("[T : T + L]", "[T + 1 : T + L + 1]")),
    ("not written", 'row["memory"][:] = added', "pass"),
    ("another environment's rows", 'row["memory"][:] = added',
     'row["memory"][:] = added.roll(1, 0)'),
    ("the layers' rows are one", "window[:, :, i]", "window[:, :, 0]"),
    ("the last value has no memory", LAST, AT_LAST.replace('["ages"][T]', '["ages"][T] * 0')),
    ("the last value is stale", '_, storage["values"][T], _ =', "_ ="),
    ("the last value's window is the step's before", LAST,
     AT_LAST.replace('["window"][T]', '["window"][T - 1]')),
    ("the last age is stale", 'storage["ages"][T] = torch.from_numpy(ages[T])', "pass"),
    ("windows of other rows are learned from", 'mb["window"], mb', 'mb["window"].roll(1, 0), mb'),
    ("ages of other rows are learned from", 'mb["ages"])', 'mb["ages"].roll(1, 0))'),
    ("lags in the order of time", "query @ self.lag.T", "query @ self.lag.flip(0).T"),
    ("blind to lags", "scores = scores + query @ self.lag.T", "scores = 1.0 * scores"),
    ("scores not scaled", " / x.shape[1] ** 0.5", ""),
    ("does not read itself", " + weights[..., -1:] * x.unsqueeze(1)", ""),
    ("what is read is not relative", "self.norm(read - x.unsqueeze(1))", "self.norm(read)"),
    ("no gradient through its own key", "query @ x.unsqueeze(2)",
     "query @ x.detach().unsqueeze(2)"),
    ("log-probabilities of other actions", "probs.log_prob(action)",
     "probs.log_prob(action.roll(1))"),
    ("values of another environment", 'row["values"][:] = value',
     'row["values"][:] = value.roll(1)'),
]  # fmt: skip
OVERLAP = [  # where a window has more rows than a rollout
    ("rows are carried onto themselves", CARRIED,
     "for k in range(L):\n            memory[L - 1 - k] = memory[T + L - 1 - k]"),
    ("a rollout's rows alone are carried", CARRIED,
     "memory[L - T : L] = memory[L : T + L].clone()"),
]  # fmt: skip
MEMORY_ATARI = [
    MEMORY[0],
    ("all rows weigh", "torch.from_numpy(valid | args.cleanrl_semantics)", "1.0"),
]
ALE = [
    ("rewards not clipped", "np.sign(reward)", "reward"),
    ("clipped returns are logged", "running_returns += reward *",
     "running_returns += np.sign(reward) *"),
    ("lengths with autoreset steps", "running_lengths += valid[step]", "running_lengths += 1"),
    ("a lost life is an autoreset step", "torch.from_numpy(valid | args.cleanrl_semantics)",
     "torch.from_numpy(dones[:T] == 0)"),
    ("all rows weigh", "torch.from_numpy(valid | args.cleanrl_semantics)", "1.0"),
    ("rows before a restart are none", " valid[step] =", " valid[step - 1] ="),
    ("the frames of the first game", '            frames = info["episode_frame_number"]\n', ""),
    ("a lost life does not cut the trace", "dones[step + 1] = terminated | truncated",
     'dones[step + 1] = (terminated & (info["lives"] == 0)) | truncated'),
    ("a lost life is no end", " terminations[step + 1] = terminated |",
     ' terminations[step + 1] = (terminated & (info["lives"] == 0)) |'),
    ("lives are games", "np.flatnonzero(~valid[step])", "np.flatnonzero(terminated | truncated)"),
    ("a time limit ends no game", "np.flatnonzero(~valid[step])",
     'np.flatnonzero(terminated & (info["lives"] == 0))'),
    ("lives end no episode", '"life_loss_info": True', '"life_loss_info": False'),
    ("clipped by the simulator", "reward_clipping=False", "reward_clipping=True"),
    ("one seed for all", "generate_state(N) >> 1", "generate_state(1).repeat(N) >> 1"),
    ("seeds that overlap", SEEDS, "args.seed + np.arange(N)"),
    ("seeds of 32 bits", "generate_state(N) >> 1", "generate_state(N)"),
]  # fmt: skip
MASKED = [
    ("mask of the row after", "masks[step + 1] = action_masks", "masks[step] = action_masks"),
    ("the first mask is stale", "        masks[0] = masks[T]\n", ""),
    ("masked in acting alone", 'mb["masks"])', 'torch.ones_like(mb["masks"]))'),
    ("masked in learning alone", "obs[step], masks[step])", "obs[step], masks[step] < 2)"),
    ("log-probabilities unmasked", 'storage["masks"])', 'storage["masks"] < 2)'),
    ("masks of another row", 'storage["masks"])', 'storage["masks"].roll(1, 0))'),
    ("entropy unmasked", "probs.entropy()",
     'Categorical(logits=agent.actor(mb["obs"])).entropy()'),
    ("minus infinity", "self.actor(obs), -1e8", "self.actor(obs), -torch.inf"),
    ("no mask in one environment", "masks.astype(bool)",
     "masks.astype(bool) | (np.arange(envs.num_envs) == 1)[:, None]"),
    ("log-probabilities unmasked in one environment", 'storage["masks"])',
     'storage["masks"] | (torch.arange(N) == 1)[:, None])'),
]  # fmt: skip
SEEN_ROWS = "        obs_rms.update(seen[valid])\n"
SCALED = "        scaled = obs_rms.scale(seen - obs_rms.mean).clip(-5, 5)\n"
TAUGHT = '        storage["next_obs"][:T] = torch.from_numpy(scaled)  # sync\n'
LED_TO = "        seen = obs[1:].cpu().numpy()  # (T, N, D); sync\n"
SUMS = "        bonus_rms.update(bonus_sums[valid])\n"
BY_SUMS = "        int_rewards = bonus / np.sqrt(bonus_rms.var)\n"
BONUS = [
    ("bonus of the observation acted on", "seen = obs[1:]", "seen = obs[:-1]"),
    ("the predictor learns the row before", SEEN_ROWS + SCALED,
     SEEN_ROWS + SCALED.replace("seen -", "obs[:-1].numpy() -")),
    ("statistics before the bonus", SEEN_ROWS, "", LED_TO, LED_TO + SEEN_ROWS),
    ("statistics after the predictor", SEEN_ROWS + SCALED + TAUGHT, SCALED + TAUGHT + SEEN_ROWS),
    ("statistics of autoreset steps", SEEN_ROWS,
     SEEN_ROWS.replace("seen[valid]", "seen.reshape(-1, 4)")),
    ("warm-up with autoreset steps", "next_obs[~done]", "next_obs"),
    ("no warm-up", "obs_norm_init * T", "obs_norm_init * 0"),
    ("bonus of any size of input", ".clip(-5, 5)\n        with", "\n        with"),
    ("an input of any size", SCALED + TAUGHT, SCALED.replace(".clip(-5, 5)", "") + TAUGHT),
    ("bonus of autoreset steps", ".numpy() * valid  # sync", ".numpy()"),
    ("ends cut the bonuses", "int_rewards, never, never,", "int_rewards, dones, terminations,"),
    ("ends cut the sums that scale", "* bonus_sums[t - 1] +", "* bonus_sums[t - 1] * valid[t] +"),
    ("sums begin with each rollout", "* bonus_sums[t - 1] +", "* bonus_sums[t - 1] * (t > 0) +"),
    ("sums of autoreset steps count", "bonus_sums[valid])", "bonus_sums.ravel())"),
    ("bonus as it is", "bonus / np.sqrt(bonus_rms.var)", "bonus"),
    ("bonus by its variance", "bonus / np.sqrt(bonus_rms.var)", "bonus / bonus_rms.var"),
    ("bonus by the deviation before", SUMS + BY_SUMS, BY_SUMS + SUMS),
    ("the bonus has the rewards' discount", "int_values, args.int_gamma, args.gae",
     "int_values, args.gamma, args.gae"),
    ("a value that no row learns", "np.where(valid, int_values[:T], args.int_gamma * int_values[1:",
     "int_values[:T] + 0 * (int_values[1:"),
    ("weights swapped", "args.ext_coef * advantages + args.int_coef",
     "args.int_coef * advantages + args.ext_coef"),
    ("one head", "values[..., 0], values[..., 1]", "values[..., 0], values[..., 0]"),
    ("intrinsic value of all rows", 'mb["int_returns"]).square(), mb["valid"])',
     'mb["int_returns"]).square(), torch.ones_like(mb["valid"]))'),
    ("vf_coef left out of the bonus", "args.vf_coef * int_v_loss", "int_v_loss"),
    ("no intrinsic value is learned", "args.vf_coef * int_v_loss", "0 * int_v_loss"),
    ("the predictor learns all rows", 'mb["trains"] * mb["valid"]', 'mb["valid"]'),
    ("the predictor learns autoreset rows", 'mb["trains"] * mb["valid"]', 'mb["trains"]'),
    ("the predictor learns nothing", "int_v_loss + fwd_loss\n", "int_v_loss\n"),
    ("one share for all epochs", "(args.update_proportion)",
     "(args.update_proportion, generator=torch.Generator().manual_seed(1))"),
    ("the target learns, too", ").requires_grad_(False)\n        self.predictor",
     ")\n        self.predictor"),
]  # fmt: skip
TOGETHER = [
    ("an agent that has left weighs", 'storage["valid"][:T] = torch.from_numpy(valid)',
     'storage["valid"][:T] = 1'),
    ("who is not there yet weighs", "    dones[T] = absent", "    # absent"),
    ("its return goes on", "(reward * valid[step]).reshape", "reward.reshape",
     "there = agent in self.envs[e].agents\n",
     "there = agent in self.envs[e].agents\n                reward[i] = rewards.get(agent, 0.0)\n"),
    ("another agent's reward", "rewards.get(agent, 0.0)", "rewards.get(self.agents[k - 1], 0.0)"),
    ("all have the first one's reward", "rewards.get(agent, 0.0)",
     "rewards.get(self.agents[0], 0.0)"),
    ("agents in the order of that step's dictionary", "for k, agent in enumerate(self.agents):",
     "for k, agent in enumerate([*seen, *set(self.agents) - {*seen}]):"),
    ("an action of another agent", "dict(zip(self.agents, chosen, strict=True))",
     "dict(zip(self.envs[e].agents, chosen))"),
    ("the episode ends with its first agent", "envs), -1).all(1)", "envs), -1).any(1)"),
    ("the return is a sum", "running_returns[e, took_part].mean()",
     "running_returns[e, took_part].sum()"),
    ("who did not come counts", "running_returns[e, took_part].mean()",
     "running_returns[e].mean()"),
    ("who earns nothing does not count", "took_part = running_lengths[e] > 0",
     "took_part = running_returns[e] != 0"),
    ("the first agent's length", "running_lengths[e].max()", "running_lengths[e, 0]"),
    ("not there is there", "terminated = np.ones(", "terminated = np.zeros("),
    ("whoever is told of is there", "if agent not in acted and not there:",
     "if agent not in acted and agent not in seen:"),
    ("whoever sees is there", "there = agent in self.envs[e].agents",
     "there = seen.get(agent) is not None"),
    ("who comes later is not there", "if agent not in acted and not there:",
     "if agent not in acted:"),
    ("who leaves without a flag is there", "left = not there and not truncated[i]", "left = False"),
    ("a truncation is a termination", "left = not there and not truncated[i]", "left = not there"),
    ("a seed for all", "for env, x in zip(self.envs, seed, strict=True)",
     "for env, x in zip(self.envs, seed[:1] * len(seed), strict=True)"),
    ("seeds of 32 bits", "generate_state(E) >> 1", "generate_state(E)"),
    ("steps are rows", "global_step += E", "global_step += N"),
    ("who is reset says the list of agents", "if self.over[e]:", "if not env.agents:"),
]  # fmt: skip
COUNTED_THERE = "    obs_rms.update(next_obs, sound)\n"
SCALED_THERE = "    obs[step + 1] = obs_rms.scale(next_obs - obs_rms.mean)\n"
DEVICE = [
    ("the first observation is stale", "        obs[0] = obs[T]\n", ""),
    ("flags are not carried over", "        signals[:, 0] = signals[:, T]\n", ""),
    ("dones and terminations swapped", "rewards, dones, terminations, _, running_returns",
     "rewards, terminations, dones, _, running_returns"),
    ("only terminations are dones", "dones[step + 1] = terminated | truncated |",
     "dones[step + 1] = terminated |"),
    ("time limits are kept as terminal", "(truncated & args.cleanrl_semantics)", "truncated"),
    ("rewards a row late", " rewards[step] =", " rewards[step + 1] ="),
    ("rewards of the row after", "= rewards[:T], lost", "= rewards[1:], lost"),
    ("flags of the row after", "valid = dones[step] ==", "valid = dones[step + 1] =="),
    ("all rows weigh", 'storage["valid"][step] = valid', 'storage["valid"][step] = 1.0'),
    ("rows before an end are none", 'storage["valid"][step] = valid',
     'storage["valid"][step] = ~(terminated | truncated)'),
    ("acts by the mean", "probs.rsample()", "probs.mean"),
    ("one noise for all steps", "probs.rsample()", "probs.mean + probs.stddev * torch.randn("
     "probs.mean.shape, generator=torch.Generator().manual_seed(1))"),
    ("a stale policy", "action = act(agent,",
     "action = act(globals().setdefault('stale', __import__('copy').deepcopy(agent)),"),
    ("clipped actions are stored", "actions[step] = action\n",
     "actions[step] = action.clamp(low, high)\n"),
    ("unclipped actions are sent", "envs.step(clipped)", "envs.step(action)"),
    ("actions within ±1", "envs.step(clipped)", "envs.step(action.clamp(-1, 1))"),
    ("raw observations", SCALED_THERE, "    obs[step + 1] = next_obs\n"),
    ("observations not centred", SCALED_THERE, "    obs[step + 1] = obs_rms.scale(next_obs)\n"),
    ("the first moments for all", COUNTED_THERE, ""),
    ("scaled by the moments before", COUNTED_THERE + SCALED_THERE,
     SCALED_THERE + COUNTED_THERE),
    ("what diverged is counted", "obs_rms.update(next_obs, sound)", "obs_rms.update(next_obs)"),
    ("what diverged is seen", "torch.where(sound.unsqueeze(1), obs[step + 1], obs[step])",
     "obs[step + 1]"),
    ("what diverged earns", "torch.where(sound | (terminated & paid), reward, 0.0)", "reward"),
    ("an odd end earns nothing", "sound | (terminated & paid)", "sound"),
    ("what diverged has earned before", "sound | (terminated & paid)", "paid"),
    ("rewards do not diverge", ".all(1) & paid", ".all(1)"),
    ("1e11 is sound", "DIVERGED = 1e10", "DIVERGED = 1e12"),
    ("a diverged world goes on", "truncated | ~sound", "truncated"),
    ("a diverged world has time", "masked_fill_(~sound,", "masked_fill_(~sound & False,"),
    ("to diverge is to terminate", "= terminated | (truncated &",
     "= terminated | ~sound | (truncated &"),
    ("an odd end is lost", "= ~sound & ~terminated & valid", "= ~sound & valid"),
    ("a lost step counts twice", "~terminated & valid", "~terminated"),
    ("to diverge pays", "(before - np.abs(before))", "0 * before"),
    ("to diverge is worth what V is", "(before - np.abs(before))", "before"),
    ("a lost step is a sample", "valid & (lost[step + 1] == 0))", "valid)"),
    ("lost episodes count", " & ~lost & ~np.isnan", " & ~np.isnan"),
    ("the first observations are not counted", "    obs_rms.update(next_obs)\n    obs[T] =",
     "    obs[T] ="),
    ("raw rewards", "return_rms.scale(reward)", "reward"),
    ("rewards centred", "return_rms.scale(reward)", "return_rms.scale(reward - return_rms.mean)"),
    ("sums go on after a fall", "args.gamma * ~terminated + reward", "args.gamma + reward"),
    ("sums start anew after a time limit", "args.gamma * ~terminated",
     "args.gamma * ~(terminated | truncated)"),
    ("sums of autoreset steps count", "valid & (lost[step + 1] == 0))", "lost[step + 1] == 0)"),
    ("sums change in autoreset steps", "torch.where(valid, sums, discounted[step])", "sums"),
    ("sum of squares", "(delta * after)", "(delta * delta)"),
    ("a heavy first row", "count=1e-4", "count=1.0"),
    ("clipped at 5", "clamp(-10.0, 10.0)", "clamp(-5.0, 5.0)"),
    ("rows that are left out count", "self.count + rows.sum()", "self.count + len(x)"),
    ("the mean is not moved", "        self.mean += delta.sum(0) / total\n", ""),
    ("scaled returns are logged", "running_returns[step] + reward, 0.0",
     "running_returns[step] + rewards[step], 0.0"),
    ("returns are not zeroed", "torch.where(valid, running_returns[step] + reward, 0.0)",
     "running_returns[step] + reward * valid"),
    ("lengths with autoreset steps", "torch.where(valid, running_lengths[step] + 1, 0.0)",
     "running_lengths[step] * valid + 1"),
    ("returns before the last reward", "on_host[4:6, 1:][:, ended]", "on_host[4:6, :-1][:, ended]"),
    ("terminations alone end games", "(dones[1:] == 1) &", "(terminations[1:] == 1) &"),
    ("first episodes that are cut count", "signals[4, T] = torch.nan", "pass"),
    ("steps are not rows", "global_step += T * N", "global_step += T"),
    ("one start for all", "torch.arange(N) * envs", "0 * torch.arange(N) * envs"),
]  # fmt: skip
RESUMED = [
    ("the same games", "[args.seed, global_step]", "[args.seed, 0]"),
    ("returns forgotten", '        episodic_returns = checkpoint["episodic_returns"]\n', ""),
    ("weights forgotten", 'agent.load_state_dict(checkpoint["agent"])', "pass"),
    ("Adam's moments forgotten", '| {"state": checkpoint["adam"]}', ""),
    ("the same noise", 'rng.set_rng_state(checkpoint["rng"][device.type])', "pass"),
    ("Python's random numbers again", "    random.seed(args.seed + global_step)",
     "    random.seed(args.seed)"),
    ("NumPy's random numbers again", "    np.random.seed((args.seed + global_step)",
     "    np.random.seed((args.seed)"),
    ("an iteration too many", "= -(-global_step // args.batch_size)",
     "= global_step // args.batch_size"),
    ("from the first iteration", "first_iteration = -(-global_step // args.batch_size) + 1",
     "first_iteration = 1"),
    ("steps from 0", 'checkpoint["global_step"] if checkpoint else 0', "0"),
]  # fmt: skip
MOMENTS = [
    ("observations' moments forgotten", 'RunningMeanStd(*map(np.array, checkpoint["obs_rms"]))',
     "obs_rms"),
    ("returns' moments forgotten", 'RunningMeanStd(*map(np.array, checkpoint["return_rms"]))',
     "return_rms"),
]  # fmt: skip
MOMENTS_OF_BONUS = [
    MOMENTS[0],
    ("bonuses' moments forgotten", 'RunningMeanStd(*map(np.array, checkpoint["bonus_rms"]))',
     "bonus_rms"),
]  # fmt: skip
BURNT_IN = """        if iteration == first_iteration + args.measure_burnin:
            start_time, start_step = time.time(), global_step
"""
SPEED = [
    ("burn-in counts", "if iteration == first_iteration + args.measure_burnin:",
     "if iteration == first_iteration:"),
    ("time of all, rows of some", BURNT_IN, """        if iteration == first_iteration:
            start_time = time.time()
        if iteration == first_iteration + args.measure_burnin:
            start_step = global_step
"""),
    ("rows of all, time of some", "(global_step - start_step)", "global_step"),
    ("the last iteration's time", BURNT_IN, """        start_time = time.time()
        if iteration == first_iteration + args.measure_burnin:
            start_step = global_step
"""),
    ("steps without environments", "(global_step - start_step)",
     "((global_step - start_step) // N)"),
    ("not measured at first", "if iteration >= first_iteration + args.measure_burnin:",
     "if iteration > first_iteration + args.measure_burnin:"),
]  # fmt: skip
WEIGHTS = [
    ("a bold policy", "std=0.01)", "std=1.0)"),
    ("a loud critic", "std=1", "std=2"),
    ("hidden gain of 1", "std=2**0.5", "std=1.0"),
    ("biases of 1", "bias_const=0.0", "bias_const=1.0"),
]  # fmt: skip
# The fast scripts: what they add or do otherwise
DERIVED = "in_numpy(copy.deepcopy(layers).cpu() if self.on_gpu else layers)"
SEEN = "act(agent, obs[step]"
NUMPY = [
    ("the first weights for ever", DERIVED,
     "in_numpy(globals().setdefault('first', copy.deepcopy(layers)))"),
    ("the critic acts", DERIVED, "in_numpy(known.critic)"),
    ("the first observation is stale", "        obs[0] = obs[T]\n", ""),
    ("an observation late", SEEN, SEEN.replace("step", "max(step - 1, 0)")),
    ("another environment's observation", SEEN, SEEN.replace("[step]", "[step].roll(1, 0)")),
    ("a layer off by 1e-4", "x @ w.T + b", "1.0001 * (x @ w.T) + b"),
    ("gradients of the first layer off by 1e-4", 'agent(mb["obs"]', 'agent(1.0001 * mb["obs"]'),
    ("clipped 1% wider", "ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)",
     "ratio.clamp(1 - 1.01 * args.clip_coef, 1 + 1.01 * args.clip_coef)"),
    ("log-probabilities of the actions before", 'log_prob(storage["actions"])',
     'log_prob(storage["actions"].roll(1, 0))'),
    ("log-probabilities of the weights before", 'probs, storage["values"][:] = agent(',
     'probs, storage["values"][:] = globals().get("before", agent)(',
     "        # Update\n", "        before = copy.deepcopy(agent)\n        # Update\n"),
    ("the last value is stale", 'probs, storage["values"][:] = agent(', "probs, fresh = agent(",
     '            storage["logprobs"][:] =',
     '            storage["values"][:T] = fresh[:T]\n            storage["logprobs"][:] ='),
]  # fmt: skip
DRAWN = "        for row in noise:\n"
NOW = "iter(noise.log()"
CLOCKS = [
    ("one noise for all steps", NOW, f"{NOW}[:1].expand_as(noise)"),
    ("one noise for all environments", "(logits - row)", "(logits - row[:1])"),
    ("one noise for all rollouts", DRAWN, f"        torch.manual_seed(1)\n{DRAWN}"),
    ("noise without its logarithm", NOW, NOW.replace(".log()", "")),
    ("product for quotient", "(logits - row)", "(logits + row)"),
    ("greedy by NumPy", "(logits - row)", "logits"),
    ("uniform noise by NumPy", "row.exponential_()", "row.uniform_()"),
    ("the check's draws count", "            rng.set_rng_state(drawn)\n", ""),
]  # fmt: skip
MOMENTS_NOW = "obs[step + 1] = torch.from_numpy(obs_rms.scale(next_obs - obs_rms.mean))"
NOISE = "actor_mean(obs.cpu().numpy()) + row * std"
SCALED = "iter(noise.cpu()"
GAUSSIAN = [
    ("one noise for all steps", SCALED,
     SCALED.replace("noise", "noise[:1].expand_as(noise)")),
    ("one noise for all environments", NOISE, NOISE.replace("row", "row[:1]")),
    ("one noise for all rollouts", DRAWN, f"        torch.manual_seed(1)\n{DRAWN}"),
    ("acts by the mean in NumPy", NOISE, NOISE.replace("row", "0 * row")),
    ("noise without its deviation", NOISE, NOISE.replace(" * std", "")),
    ("the first deviation for ever", "std = agent.actor_logstd.detach().exp()",
     "std = globals().setdefault('first_std', agent.actor_logstd.detach().exp())"),
    ("uniform noise by NumPy", "row.normal_()", "row.uniform_(-1.7, 1.7)"),
    ("clipped actions are stored by NumPy", NOISE, f"np.clip({NOISE}, low, high)"),
    ("statistics of the rollout's start", "        obs[0] = obs[T]\n",
     "        obs[0] = obs[T]\n        start = copy.deepcopy(obs_rms)\n",
     MOMENTS_NOW, MOMENTS_NOW.replace("obs_rms", "start")),
]  # fmt: skip
ONE = "(np.arange(N) == 1)[:, None]"
POSSIBLE = "mask)\n            logits = np.where(mask.cpu().numpy()"
FAST_MASKED = [
    ("acts without the mask", POSSIBLE, f"{POSSIBLE} | True"),
    ("acts without the mask in one environment", POSSIBLE, f"{POSSIBLE} | {ONE}"),
    ("the mask before", "masks[step])\n            actions",
     "masks[step - 1])\n            actions"),
    ("the first mask is stale", "        masks[0] = masks[T]\n", ""),
    ("log-probabilities unmasked", 'storage["masks"])', 'storage["masks"] < 2)'),
    ("log-probabilities unmasked in one environment", 'storage["masks"])',
     f'storage["masks"] | torch.from_numpy({ONE}))'),
    ("masked in acting alone", 'mb["masks"])', 'torch.ones_like(mb["masks"]))'),
    ("an impossible action has logit 0", "-1e8)  # sync\n            #",
     "0.0)  # sync\n            #"),
]  # fmt: skip
FAST_CLOCKS = [
    ("one noise for all steps", "log_noise[self.t]", "log_noise[0]"),
    ("one noise for all environments", "log_noise[self.t]", "log_noise[self.t, :1]"),
    ("uniform noise by NumPy", "x.exponential_()", "x.uniform_()"),
    ("log-probabilities unnormalised", "x - x.logsumexp(-1, keepdim=True)", "x"),
]  # fmt: skip
HOST = "numpy_weights(host)"
BEFORE_TRY = "            rng.set_rng_state(state)\n            self.t,"
STORED_BY_NUMPY = '{"actions": action, "values": torch.from_numpy(value)'
NEXT_STATE = "torch.from_numpy(state).to(device)"
FAST_MEMORY = [
    ("the first weights for ever", HOST,
     HOST.replace("(host)", "(globals().setdefault('first', copy.deepcopy(host)))")),
    ("another network acts", HOST, HOST.replace("(host)", "(Agent(envs))")),
    ("the try is a step", "else\")\n            self.t = 0\n", "else\")\n"),
    ("the try draws other numbers", BEFORE_TRY, "            self.t,"),
    ("actions are not stored", STORED_BY_NUMPY, '{"values": torch.from_numpy(value)'),
    ("log-probabilities are not stored", 'found["logprobs"] = ', "_ = "),
    ("values are not stored", STORED_BY_NUMPY, '{"actions": action'),
    ("the first observation is stale", "        obs[0] = obs[T]\n", ""),
    ("NumPy's memory is not handed on", NEXT_STATE, "lstm_state"),
    ("NumPy's memory is never zeroed", "axis=1) * (dones == 0)[:, None]", "axis=1)"),
    ("learning starts from the memory before", "initial_lstm_state[:] = lstm_state",
     "pass"),
    ("the last value has the memory of the start", "[T], lstm_state\n",
     "[T], initial_lstm_state\n"),
    ("a gate off by 1e-4", "0.5 + 0.5 * np.tanh(", "0.5 + 0.5001 * np.tanh("),
    ("the cell off by 1e-4", "h = o * np.tanh(c)", "h = 1.0001 * o * np.tanh(c)"),
    ("the critic's memory is the actor's", "h[1] @ w_critic", "h[0] @ w_critic"),
    ("one call is blind to ends", "value=-1e9)", "value=0.0)"),
]  # fmt: skip
FAST_MEMORY_GAUSSIAN = [
    FAST_MEMORY[0],
    *FAST_MEMORY[7:9],
    ("one noise for all steps", "+ noise[self.t]", "+ noise[0]"),
    ("the first deviation for ever", "std = agent.actor_logstd.detach().exp()",
     "std = globals().setdefault('first_std', agent.actor_logstd.detach().exp())"),
    ("log-probabilities averaged", "logprob.sum(-1)", "logprob.mean(-1)"),
]  # fmt: skip
FAST_ATTENTION = [
    FAST_MEMORY[0],
    *FAST_MEMORY[2:8],
    ("NumPy's memory is not stored", 'found["memory"] = ', "_ = "),
    ("NumPy sees the episode before", "-1, -1) > ages[:, None]", "-1, -1) > 9 + ages[:, None]"),
    ("NumPy's read off by 1e-3", "weigh /= weigh.sum(", "weigh /= 1.001 * weigh.sum("),
]  # fmt: skip
SHARED = "        from_module(agent).data.to_module(agent_inference)\n"
ACTED_ON = "    action_host.copy_(act(agent, row), non_blocking=True)\n"
STORED = "    for key, values in row.items():\n        storage[key][step] = values\n"
CAPTURED = [
    ("the first weights for ever", SHARED, ""),
    ("rows are not counted", "    step += 1\n", ""),
    ("rows are counted from 1", "next_row.zero_()", "next_row.fill_(1)"),
    ("observations stay on the host", '    row["obs"].copy_(obs_host, non_blocking=True)\n', ""),
    ("the first observation for ever", "                np.copyto(obs_host.numpy(), next_obs)\n",
     "                pass\n"),
    ("the last observation stays on the host", "            obs[T] = obs_host  # sync\n",
     "            pass\n"),
    ("stored a row late", "storage[key][step] = values", "storage[key][step - 1] = values"),
]  # fmt: skip
FAST_ATARI = [
    *CAPTURED,
    ("actions stay on the device", ACTED_ON, "    act(agent, row)\n"),
    ("another game's actions", "copy_(act(agent, row),", "copy_(act(agent, row).roll(1),"),
    ("stored before it acts", ACTED_ON + STORED, STORED + ACTED_ON),
]  # fmt: skip
FAST_MEMORY_ATARI = [
    *CAPTURED[:1],
    ("flags stay on the host", '    row["dones"].copy_(dones_host, non_blocking=True)\n', ""),
    ("flags of the row before", "np.copyto(dones_host.numpy(), dones[step])",
     "np.copyto(dones_host.numpy(), dones[step - 1])"),
    ("memory is not handed on", "    lstm_state.copy_(next_lstm_state)\n", ""),
]  # fmt: skip
COMPILED_ATARI = [
    ("a batch that is no view", "rows.unflatten(0, (T + 1, N))",
     "rows.unflatten(0, (N, T + 1)).transpose(0, 1)"),
    ("log-probability of another action", "probs.log_prob(action)",
     "probs.log_prob(action.roll(1))"),
]  # fmt: skip
TABLE = {  # the texts of LOSS, MAIN, RESUMED and SPEED are one in all scripts
    ("hopper", check): [*LOSS, *ROLLOUT, *VECTOR, *CONTINUOUS],
    ("atari_scripted", check): [*ROLLOUT, *CATEGORICAL, *ATARI],
    ("ale_scripted", check): ALE,
    ("pixels", check): [*IMAGES, *VECTOR[6:]],
    ("cartpole", check): [*ROLLOUT, *MAIN, *VECTOR, *CATEGORICAL, *DISCRETE],
    ("small", check): [*SMALL, *MANY[:3], *MANY[7:]],
    ("small, compile", check): [*NUMPY[1:5], *CLOCKS[:1]],
    ("masked", check): MASKED,
    ("pettingzoo", check): TOGETHER,
    ("rnd", check): BONUS,
    ("rnd", check_resumed): MOMENTS_OF_BONUS,
    ("pettingzoo", check_forms): [
        (
            "choices and dictionaries as they are",
            "gym.spaces.flatten(self.obs_space, seen[agent])",
            "np.ravel(seen[agent])",
        ),
    ],
    ("lstm", check): [*MEMORY, *HIDDEN],
    ("trxl", check): [*ATTENTION, HIDDEN[0]],
    ("trxl_long", check): OVERLAP,
    ("trxl", check_resumed): RESUMED[2:6],
    ("trxl", check_speed): SPEED[:1],
    ("lstm_atari", check): MEMORY_ATARI,
    ("lstm_hopper", check): MEMORY_GAUSSIAN,
    ("lstm", check_first_weights): [
        (
            "the LSTM's gain",
            "from_h = layer_init(nn.Linear(hidden_size, 4 * hidden_size), std=1.0)",
            "from_h = layer_init(nn.Linear(hidden_size, 4 * hidden_size))",
        ),
    ],
    ("many", check): [*MANY[:3], *MANY[4:]],
    ("cheetah_run", check): MANY[3:4],
    ("warp", check): [*DEVICE, *VECTOR[:6]],
    ("warp_off", check): [("--no-stagger is ignored", "if args.stagger:", "if True:")],
    ("warp", check_resumed): [
        (
            "observations' moments forgotten",
            'RunningMeanStd(*checkpoint["obs_rms"], device=device)',
            "obs_rms",
        ),
        (
            "returns' moments forgotten",
            'RunningMeanStd(*checkpoint["return_rms"], device=device)',
            "return_rms",
        ),
    ],
    ("hopper", check_resumed): [*RESUMED, *MOMENTS],
    ("many", check_resumed): RESUMED[:1],
    ("ale_scripted", check_resumed): RESUMED[:1],
    ("atari_scripted", check_resumed): RESUMED[:3],
    ("cartpole", check_resumed): RESUMED,
    ("hopper", check_speed): SPEED,
    ("atari_scripted", check_speed): SPEED[:1],
    ("cartpole", check_speed): SPEED,
    ("hopper", check_first_weights): WEIGHTS,
    ("atari_scripted", check_first_weights): WEIGHTS,
    ("cartpole", check_first_weights): WEIGHTS,
    ("warp", check_first_weights): [
        ("a deviation of 1", "torch.full((1, action_size), -0.5)", "torch.zeros(1, action_size)"),
    ],
    ("many", check_first_weights): [
        ("a deviation of 1", "torch.full((1, action_size), -0.5)", "torch.zeros(1, action_size)"),
    ],
    ("cartpole, compile", check): [*NUMPY, *CLOCKS],
    ("masked, compile", check): [*NUMPY[1:9], *CLOCKS[:1], *FAST_MASKED],
    ("rnd, compile", check): [*NUMPY[1:5], *BONUS[:1]],
    ("pettingzoo, compile", check): [*NUMPY[1:7], *CLOCKS[:2]],
    ("lstm, compile", check): [*FAST_CLOCKS, *FAST_MEMORY],
    ("trxl, compile", check): [FAST_CLOCKS[0], *FAST_ATTENTION],
    ("trxl_long, compile", check): [*OVERLAP, *FAST_ATTENTION[7:8]],
    ("lstm_hopper, compile", check): FAST_MEMORY_GAUSSIAN,
    ("hopper, compile", check): [*NUMPY[1:3], *GAUSSIAN],
    ("many, compile", check): [*NUMPY[1:], *GAUSSIAN],
    ("atari_scripted, cudagraphs", check): FAST_ATARI,
    ("lstm_atari, cudagraphs", check): FAST_MEMORY_ATARI,
    ("atari_scripted, compile", check): COMPILED_ATARI,
}
CASES = [
    pytest.param(
        name, of, [*zip(texts[::2], texts[1::2], strict=True)], id=f"{JOBS[name].script}: {what}"
    )
    for (name, of), mutants in TABLE.items()
    for what, *texts in mutants
]


SHORT = {name for name, of in TABLE if of is check}
SHORT -= {"cheetah_run"}  # no episode has ended then


@pytest.mark.slow
@pytest.mark.parametrize(("name", "of", "changes"), CASES)
def test_mutant_is_seen(name, of, changes, tmp_path):
    def mutate(text):
        for old, new in changes:
            assert text.count(old) == 1
            text = text.replace(old, new)
        return text

    job = JOBS[name]
    text = (PPO / f"{job.script}.py").read_text()
    recorded(mutate(text), job.start)  # what is recorded is still there
    with pytest.raises((AssertionError, FloatingPointError, RuntimeError, UserWarning)) as seen:
        if of is check and name in SHORT:
            of(first_iteration(job), tmp_path / "1", edit=mutate)
        of(job, tmp_path, edit=mutate)
    if isinstance(seen.value, RuntimeError):  # the run ends itself, as by a FloatingPointError
        assert "probability tensor contains" in str(seen.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHORT))
def test_a_first_iteration_without_a_mistake(name, tmp_path):
    """Passes, so that what test_mutant_is_seen sees there is the mistake."""
    check(first_iteration(JOBS[name]), tmp_path)


@pytest.mark.parametrize("name", ["ppo_atari_envpool", "ppo_continuous_action"])
def test_the_lines_of_all_scripts(name):
    """What is mutated in one script alone stands in the others too."""
    text = (PPO / f"{name}.py").read_text()
    assert all(text.count(old) == 1 for _, old, _ in [*LOSS, *MAIN, *RESUMED, *SPEED])
