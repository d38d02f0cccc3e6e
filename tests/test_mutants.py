"""Mistakes a person could write, a line each: the checks of test_reference must see every one."""

import pytest
import test_reference
from helpers import PPO
from test_pettingzoo import check_forms
from test_reference import (
    FAST_JOBS,
    check,
    check_first_weights,
    check_order,
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
    ("a stale policy", "= act(agent, obs[step])",
     "= act(globals().setdefault('stale', __import__('copy').deepcopy(agent)), obs[step])"),
    ("an observation late", "= act(agent, obs[step])", "= act(agent, obs[max(step - 1, 0)])"),
    ("another environment's observation", "= act(agent, obs[step])",
     "= act(agent, obs[step].roll(1, 0))"),
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
DRAWN = "self.mean + self.std * torch.randn_like(self.mean)"
SAME = "torch.Generator().manual_seed(1)"
NORMAL = [
    ("acts by the mean", DRAWN, "0 * torch.randn_like(self.mean) + self.mean"),
    ("acts without its deviation", DRAWN, DRAWN.replace("self.std * ", "")),
    ("acts by its variance", DRAWN, DRAWN.replace("self.std", "self.std.square()")),
    ("one noise for all steps", DRAWN,
     f"self.mean + self.std * torch.randn(self.mean.shape, generator={SAME})"),
    ("one noise for all environments", DRAWN, f"{DRAWN}[:1]"),
    ("uniform noise", DRAWN,
     "self.mean + self.std * torch.empty_like(self.mean).uniform_(-1.7, 1.7)"),
    ("distance without its deviation", "(action - self.mean) / self.std", "action - self.mean"),
    ("the square not halved", "-0.5 * z.square()", "-z.square()"),
    ("a density as high at any width", "z.square() - self.std.log()", "z.square()"),
    ("a density without its constant", " - HALF_LOG_2PI).sum(-1)", ").sum(-1)"),
    ("2 pi not under a root", "0.5 * math.log(2 * math.pi)", "math.log(2 * math.pi)"),
    ("log-density averaged", "- HALF_LOG_2PI).sum(-1)", "- HALF_LOG_2PI).mean(-1)"),
    ("entropy without its half", "(0.5 + HALF_LOG_2PI + self", "(HALF_LOG_2PI + self"),
    ("entropy of the narrow", "HALF_LOG_2PI + self.std.log()", "HALF_LOG_2PI - self.std.log()"),
    ("entropy averaged", "self.std.log()).sum(-1)", "self.std.log()).mean(-1)"),
]  # fmt: skip
WEIGHED = "(before * after)"
MOVED = "        self.mean += before.flatten(0, -2).sum(0) / total\n"
STATISTICS = [  # running means and variances, as Agent has them
    ("rows that are none move the mean", "rows = valid.unsqueeze(-1) > 0",
     "rows = torch.ones_like(valid).unsqueeze(-1) > 0"),
    ("rows that are none count", "self.count + valid.sum()", "self.count + valid.numel()"),
    ("squares around the mean before", WEIGHED, "before.square()"),
    ("squares around the mean after", WEIGHED, "after.square()"),
    ("the mean is not moved", MOVED, ""),
    ("the mean of new rows alone", MOVED, MOVED.replace("total", "valid.sum()")),
    ("unbiased", ".sum(0)) / total)", ".sum(0)) / (total - 1))"),
    ("the variance of new rows alone", "(self.var * self.count + ", "("),
    ("rows are not counted", "        self.count.copy_(total)\n", ""),
    ("a heavy first row", "torch.tensor(1e-4,", "torch.tensor(1.0,"),
    ("observations not centred", "((x - self.mean) * (self.var", "(x * (self.var"),
    ("over the variance", ".rsqrt()", ".reciprocal()"),
    ("deviation for its inverse", ".rsqrt()", ".sqrt()"),
    ("clipped at 5", "rsqrt()).clamp(-10.0, 10.0)", "rsqrt()).clamp(-5.0, 5.0)"),
    ("not clipped", "rsqrt()).clamp(-10.0, 10.0)", "rsqrt())"),
]  # fmt: skip
COUNTED = '        agent.obs_rms.update(obs[:T], storage["valid"][:T])\n'
NOT_YET = f"        # Log\n{COUNTED}"
SEEN = [  # when main counts what was seen, and who sees it so
    ("the actor sees raw observations", "_mean(self.obs_rms(obs))", "_mean(obs)"),
    ("the critic sees raw observations", "critic(self.obs_rms(obs))", "critic(obs)"),
    ("the first moments for all", COUNTED, ""),
    ("counted twice", COUNTED, COUNTED + COUNTED),
    ("counted once in all", COUNTED, f"        if iteration == 1:\n    {COUNTED}"),
    ("counted after the pass", COUNTED + "        with torch", "        with torch",
     "        values = storage", f"{COUNTED}        values = storage"),
    ("counted after learning", COUNTED, "", "        # Log\n", NOT_YET),
    ("counted as they are seen", COUNTED, "", "            actions[step] = action\n",
     "            actions[step] = action\n"
     "            agent.obs_rms.update(obs[step], torch.from_numpy(dones[step] == 0))\n"),
    ("autoreset steps are counted", COUNTED,
     COUNTED.replace('storage["valid"][:T]', "torch.ones(T, N)")),
    ("the row after is counted", COUNTED, COUNTED.replace("obs[:T]", "obs[1:]")),
    ("the last observation is counted, too", COUNTED,
     "        agent.obs_rms.update(obs, torch.cat([storage['valid'][:T], torch.ones(1, N)]))\n"),
]  # fmt: skip
CLIP = "return gym.wrappers.vector.TransformAction(envs, clip)"
SUMMED = "torch.from_numpy(discounted[:, None])"
CONTINUOUS = [
    *NORMAL,
    *STATISTICS,
    *SEEN,
    ("log-probability of the clipped action", 'log_prob(storage["actions"])',
     'log_prob(storage["actions"].clamp(-1, 1))'),
    ("clipped actions are stored", "actions[step] = action\n",
     "actions[step] = action.clamp(-1, 1)\n"),
    ("unclipped actions are sent", CLIP, "return envs"),
    ("clipped below alone", "a_max=space.high)", "a_max=None)"),
    ("new log-probability averaged", 'probs.log_prob(mb["actions"])',
     'probs.log_prob(mb["actions"]) / 3'),
    ("rewards centred", "np.clip(reward / ", "np.clip((reward - return_rms.mean.item()) / "),
    ("raw rewards", "np.clip(reward / (return_rms.var.item() + 1e-8) ** 0.5, -10.0, 10.0)",
     "reward"),
    ("rewards over the variance", "(return_rms.var.item() + 1e-8) ** 0.5",
     "(return_rms.var.item() + 1e-8)"),
    ("rewards clipped at 5", "** 0.5, -10.0, 10.0)", "** 0.5, -5.0, 5.0)"),
    ("sums go on after a fall", "args.gamma * ~terminated + reward", "args.gamma + reward"),
    ("sums start anew after a time limit", "args.gamma * ~terminated",
     "args.gamma * ~(terminated | truncated)"),
    ("sums of autoreset steps count", f"{SUMMED}, torch.from_numpy(valid[step])",
     f"{SUMMED}, torch.ones(N)"),
    ("sums change in autoreset steps", "np.where(valid[step], sums, discounted)", "sums"),
    ("nan at an end is learned from", "if terminated.any():", "if False:"),
    ("inf at an end is a large number", ", posinf=0.0, neginf=0.0", ""),
    ("scaled returns are logged", "running_returns += reward *",
     "running_returns += rewards[step] *"),
]  # fmt: skip
CLOCKS = "torch.empty_like(self.logits).exponential_()"
FIRST = "(self.logits - noise.log())"
OF_ACTION = "self.logits.gather(-1, action.unsqueeze(-1)).squeeze(-1)"
CATEGORICAL = [
    ("greedy", FIRST, "(self.logits - 0 * noise.log())"),
    ("product for quotient", FIRST, FIRST.replace("-", "+")),
    ("noise without its logarithm", FIRST, FIRST.replace(".log()", "")),
    ("one noise for all environments", FIRST, FIRST.replace("noise", "noise[:1]")),
    ("one noise for all steps", CLOCKS, CLOCKS.replace("()", f"(generator={SAME})")),
    ("uniform noise", CLOCKS, "torch.rand_like(self.logits)"),
    ("weights for probabilities", "logits.log_softmax(-1)", "logits"),
    ("normalised over environments", "logits.log_softmax(-1)", "logits.log_softmax(0)"),
    ("log-probability of the likeliest", OF_ACTION, "self.logits.max(-1).values"),
    ("probability for its logarithm", OF_ACTION, f"{OF_ACTION}.exp()"),
    ("entropy of the certain", "return -(self.logits.exp()", "return (self.logits.exp()"),
    ("entropy averaged", "self.logits.exp() * self.logits).sum(-1)",
     "self.logits.exp() * self.logits).mean(-1)"),
    ("entropy of equal actions", "-(self.logits.exp() * self.logits).sum(-1)",
     "-self.logits.mean(-1)"),
    ("new log-probability of another action", 'probs.log_prob(mb["actions"])',
     'probs.log_prob(1 - (mb["actions"] > 0).long())'),
    ("entropy over all rows", "masked_mean(entropy, valid)", "entropy.mean()"),
]  # fmt: skip
ATARI = [
    ("no clipping of gradients", "args.max_grad_norm, foreach", "float('inf'), foreach"),
    ("log-probability of another action", "probs.log_prob(action)",
     "probs.log_prob(action.roll(1))"),
    ("values of another game", '["values"][step] = value', '["values"][step] = value.roll(1)'),
    ("another game's actions are stored", '["actions"][step] = action',
     '["actions"][step] = action.roll(1)'),
    ("log-probabilities a row late", '["logprobs"][step] =', '["logprobs"][step - 1] ='),
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
    ("a game goes on unseen", "torch.from_numpy(first_obs).to(obs)", "obs[T, anew]"),
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
SMALL = [MANY[4]]
KEPT = "        initial_lstm_state[:] = lstm_state\n"
ACTED = """            action, logprob, value, lstm_state = act(
                agent, obs[step], storage["dones"][step], lstm_state
            )
"""
FLAGS = 'storage["dones"][step] = torch.from_numpy(dones[step])'
BEFORE = "probs, value, lstm_state = agent(obs, lstm_state)"
AT_LAST = "agent(obs[T], lstm_state)"
WEIGHTS_OF_H = "self.from_x.weight, self.from_h.weight"
SHUT = "value=-1e9)"
LEARNED = 'initial_lstm_state[..., mb_inds, :], mb["dones"])'
MEMORY = [
    ("never zeroed", "lstm_state * keep", "lstm_state"),
    ("zeroed a row early", BEFORE,
     BEFORE.replace("lstm_state)", "lstm_state * (1 - dones).unsqueeze(1))")),
    ("zeroed a row late", FLAGS, FLAGS.replace("(dones[step])", "(dones[step - 1])")),
    ("half of it zeroed", "lstm_state * keep",
     "lstm_state * torch.stack([keep, torch.ones_like(keep)])"),
    ("the actor's memory alone is zeroed", "lstm_state * keep",
     "lstm_state * torch.stack([keep, torch.ones_like(keep)]).unsqueeze(1)"),
    ("zero at a rollout's start", KEPT, f"        lstm_state = 0 * lstm_state\n{KEPT}"),
    ("zero before learning", "initial_lstm_state[:] = lstm_state", "initial_lstm_state[:] = 0"),
    ("not handed on", "action, logprob, value, lstm_state = act(",
     "action, logprob, value, _ = act("),
    ("advanced by the last value", '_, storage["values"][T], _ =',
     '_, storage["values"][T], lstm_state ='),
    ("the last value has no memory", AT_LAST, AT_LAST.replace("lstm", "0 * lstm")),
    ("the last value is stale", '_, storage["values"][T], _ =', "_ ="),
    ("the last value is told of ends", AT_LAST,
     AT_LAST.replace(")", ", torch.from_numpy(dones[T]).float())")),
    ("acting is told of ends", BEFORE, BEFORE.replace("lstm_state)", "lstm_state, dones)")),
    ("learning is not told of ends", LEARNED, LEARNED.replace('mb["dones"]', '0 * mb["dones"]')),
    ("learning is told of ends a row late", LEARNED,
     LEARNED.replace('mb["dones"]', 'mb["dones"].roll(len(mb_inds))')),
    ("the first flags are stale", FLAGS, FLAGS.replace("[step] =", "[max(step, 1)] =")),
    ("learning starts a row late", ACTED,
     f"{ACTED}            if step == 0:\n                initial_lstm_state[:] = lstm_state\n"),
    ("learning starts from the rollout's end", "batch, initial_lstm_state, args, b_inds))",
     "batch, lstm_state, args, b_inds))"),
    ("other environments' state", "[..., mb_inds, :]", "[..., : len(mb_inds), :]"),
    ("rows out of order", "rows[:, mb_inds].flatten(0, 1)",
     "rows[:, mb_inds].transpose(0, 1).flatten(0, 1)"),
    ("rows backwards", "rows[:, mb_inds].flatten(0, 1)", "rows[:, mb_inds].flip(0).flatten(0, 1)"),
    ("ends open the gates", SHUT, "value=1e9)"),
    ("ends are a hint", SHUT, "value=-1.0)"),
    ("blind to ends", SHUT, "value=0.0)"),
    ("h for c", "(h[None], c[None])", "(c[None], h[None])"),
    ("h for c in acting", "x, (h, c), w_x", "x, (c, h), w_x"),
    ("c for h in acting", "return h, torch.stack([h, c])", "return h, torch.stack([c, h])"),
    ("what is kept is shown", "return h, torch.stack", "return c, torch.stack"),
    ("gates in another order", "[w_x, *weights]", "[w_x.roll(self.hidden_size, 0), *weights]"),
    ("the forget gate's sign", "[w_x, *weights]",
     "[torch.cat([w[:64], -w[64:128], w[128:]]) for w in (w_x, *weights)]"),
    ("acting's gates in another order", "(h, c), w_x,", "(h, c), w_x.roll(self.hidden_size, 0),"),
    ("the memory's gates in another order", WEIGHTS_OF_H,
     f"{WEIGHTS_OF_H}.roll(self.hidden_size, 0)"),
    ("no gradient through the memory's weights", WEIGHTS_OF_H, f"{WEIGHTS_OF_H}.detach()"),
    ("a bias without effect", "self.from_x.bias, self.from_h", "0 * self.from_x.bias, self.from_h"),
    ("no gradient into what is read", "torch.cat([x, dones", "torch.cat([x.detach(), dones"),
    ("the critic has the actor's memory", "(obs, lstm_state[1], dones)",
     "(obs, lstm_state[0], dones)"),
    ("one memory for both", "torch.stack([actor_state, critic_state])",
     "torch.stack([actor_state, actor_state])"),
    ("a permutation of rows", "torch.randperm(N, device=device)", "(torch.randperm(T * N) % N)"),
    ("environments drawn with replacement", "torch.randperm(N, device=device)",
     "torch.randint(N, (N,))"),
    ("no shuffling", "torch.randperm(N, device=device)", "torch.arange(N)"),
    ("log-probabilities of other actions", "probs.log_prob(action)",
     "probs.log_prob(action.roll(1))"),
    ("values of another environment", '["values"][step] = value',
     '["values"][step] = value.roll(1)'),
]  # fmt: skip
HIDDEN = [
    ("velocities are seen", "(1, 3) if", "(0, 2) if"),
    ("all rows weigh", 'storage["valid"][:T] = torch.from_numpy(valid)',
     'storage["valid"][:T] = 1'),
]  # fmt: skip
MEMORY_SEEN = [  # statistics that acting does not know yet
    ("raw observations", "        obs = self.obs_rms(obs)\n", ""),
    SEEN[2],
    SEEN[3],
    SEEN[6],
    *SEEN[8:],
    (
        "counted before the last value",
        COUNTED,
        "",
        "        with torch.no_grad():  # the value",
        f"        storage['valid'][:T] = torch.from_numpy(valid)\n{COUNTED}"
        "        with torch.no_grad():  # the value",
    ),
]
MEMORY_GAUSSIAN = [
    MEMORY[0],
    *MEMORY[5:7],
    MEMORY[9],
    *MEMORY[12:14],
    MEMORY[18],
    *MEMORY_SEEN,
    ("the entries before are hidden", "env.observation_space.shape[0]), hide)",
     "env.observation_space.shape[0]), np.array(hide) - 1)"),
    ("clipped actions are stored", '["actions"][step] = action',
     '["actions"][step] = action.clamp(-1, 1)'),
    ("unclipped actions are sent", CLIP, "return envs"),
    ("log-probabilities of the clipped actions", "probs.log_prob(action)",
     "probs.log_prob(action.clamp(-1, 1))"),
]  # fmt: skip
AGES = "(ages + 1) * (dones == 0)"
OTHER = "lags > ages.unsqueeze(1)"
CARRIED = "memory[:L] = window.transpose(0, 1)"
WRITTEN = "memory[L + step] = window[:, -1]"
LAST = "agent(obs[T], window, ages)"
READ = "probs, value, added = agent(obs, window, ages)"
ADDED = "torch.cat([window[:, 1:], added.unsqueeze(1)], dim=1)"
ATTENTION = [
    ("sees the episode before", AGES, "ages + 1"),
    ("an end's last row sees nothing", READ, READ.replace("ages)", "ages * (dones == 0))")),
    ("ages are not counted", AGES, "ages * (dones == 0)"),
    ("sees the last row of the episode before", OTHER, f"{OTHER} + 1"),
    ("does not see the episode's first row", OTHER, "lags > (ages - 1).clamp(min=0).unsqueeze(1)"),
    ("sees all", OTHER, "lags > 99 + ages.unsqueeze(1)"),
    ("ages are counted from a rollout's start", f"        {CARRIED}\n",
     f"        {CARRIED}\n        ages = 0 * ages\n        trxl_state = window, ages\n"),
    ("the first ages are stale", '["ages"][step] = ages', '["ages"][max(step, 1)] = ages'),
    ("ages of the row after", '            storage["ages"][step] = ages\n', "",
     WRITTEN, f'{WRITTEN}\n            storage["ages"][step] = ages'),
    ("windows a row late", f"            {WRITTEN}\n",
     "            memory[(L + step + 1) % (L + T)] = window[:, -1]\n"),
    ("the rollout before is dropped", CARRIED, "memory[:L] = 0"),
    ("the rollout before that", f"        {CARRIED}\n", ""),
    ("carried a row late", CARRIED, f"{CARRIED}.roll(1, 0)"),
    ("carried with a row too many", CARRIED, f"{CARRIED}.roll(-1, 0)"),
    ("not written", WRITTEN, "pass"),
    ("another environment's rows", WRITTEN, f"{WRITTEN}.roll(1, 0)"),
    ("acting adds another environment's rows", ADDED, ADDED.replace("added", "added.roll(1, 0)")),
    ("the window is in another order", ADDED,
     "torch.cat([added.unsqueeze(1), window[:, :-1]], dim=1)"),
    ("the window's newest row is lost", ADDED,
     "torch.cat([window[:, :-1], added.unsqueeze(1)], dim=1)"),
    ("the memory before is handed on", "probs.log_prob(action), value, (window, ages)",
     "probs.log_prob(action), value, trxl_state"),
    ("the layers' rows are one", "window[:, :, i]", "window[:, :, 0]"),
    ("the last value has no memory", LAST, LAST.replace("ages", "0 * ages")),
    ("the last value is stale", '_, storage["values"][T], _ =', "_ ="),
    ("the last value's window is the step's before", LAST,
     LAST.replace("window", 'storage["window"][T - 1]')),
    ("the last age is stale", LAST, LAST.replace("ages", 'storage["ages"][T - 1]')),
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
    ("values of another environment", '["values"][step] = value',
     '["values"][step] = value.roll(1)'),
]  # fmt: skip
OVERLAP = [  # where a window has more rows than a rollout
    ("rows are carried onto themselves", CARRIED,
     "for k in range(L):\n            memory[L - 1 - k] = memory[T + L - 1 - k]"),
    ("a rollout's rows alone are carried", CARRIED,
     "memory[L - T : L] = memory[L : T + L].clone()"),
]  # fmt: skip
MEMORY_ATARI = [
    MEMORY[0],
    *MEMORY[11:15],
    *MEMORY[21:23],
    HIDDEN[1],
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
    ("clipped by the simulator", '"reward_clipping": False', '"reward_clipping": True'),
    ("one seed for all", "generate_state(N) >> 1", "generate_state(1).repeat(N) >> 1"),
    ("seeds that overlap", SEEDS, "args.seed + np.arange(N)"),
    ("seeds of 32 bits", "generate_state(N) >> 1", "generate_state(N)"),
]  # fmt: skip
MASK = "obs[..., -5:]"
ALL = 'agent(storage["obs"])'
OF_BATCH = 'agent(mb["obs"])'


def remade(call, mask):
    """A call of agent, whose observations have another mask."""
    name, rows = call[:-1].split("(", 1)
    return f"{name}((lambda obs: torch.cat([obs[..., :-5], {mask}], -1))({rows}))"


OPEN = "torch.ones_like(obs[..., -5:])"
JOINED = "np.concatenate([obs, action_masks(self.env, info)], axis=1)"
MASKED = [
    ("the mask before", f"        obs = {JOINED}\n",
     "        masks = action_masks(self.env, info)\n"
     "        now, self.old = getattr(self, 'old', masks), masks\n"
     "        obs = np.concatenate([obs, now], axis=1)\n"),
    ("the mask ahead of what is seen", f"        obs = {JOINED}\n",
     "        obs = np.concatenate([action_masks(self.env, info), obs], axis=1)\n"),
    ("the mask backwards", f"        obs = {JOINED}\n",
     f"        obs = {JOINED}\n".replace("info)]", "info)[:, ::-1]]")),
    ("masked in acting alone", OF_BATCH, remade(OF_BATCH, OPEN)),
    ("masked in learning alone", "act(agent, obs[step])",
     f"act(agent, {remade('(obs[step])', OPEN)})"),
    ("acts without the mask in one environment", "act(agent, obs[step])",
     f"act(agent, {remade('(obs[step])', OPEN + ' * (torch.arange(N) == 1)[:, None] + ' + MASK)})"),
    ("log-probabilities unmasked", ALL, remade(ALL, OPEN)),
    ("masks of another row", ALL, remade(ALL, f"{MASK}.roll(1, 0)")),
    ("masks of another environment", ALL, remade(ALL, f"{MASK}.roll(1, 1)")),
    ("entropy unmasked", "probs.entropy()",
     'Categorical(agent.actor(mb["obs"][:, :-5])).entropy()'),
    ("minus infinity", "self.actor(obs), -1e8", "self.actor(obs), -torch.inf"),
    ("an impossible action has logit 0", "self.actor(obs), -1e8", "self.actor(obs), 0.0"),
    ("what is 0 is possible", "torch.where(mask > 0,", "torch.where(mask >= 0,"),
    ("no mask in one environment", "    return masks.astype(np.float32)\n",
     "    return 1.0 * ((masks == 1) | (np.arange(envs.num_envs) == 1)[:, None])\n"),
    ("log-probabilities unmasked in one environment", ALL,
     remade(ALL, f"{OPEN} * (torch.arange(N) == 1)[:, None] + {MASK}")),
]  # fmt: skip
COUNTED_LATE = '        agent.obs_rms.update(obs[1:], storage["valid"][:T])\n'
LEARNS = '        batch["next_obs"] = obs[1:].flatten(0, 1)\n'
SUMS = (
    "        bonus_rms.update(torch.from_numpy(bonus_sums[..., None]), torch.from_numpy(valid))\n"
)
BY_SUMS = "        int_rewards = bonus / bonus_rms.var.item() ** 0.5\n"
NEW = "agent.novelty(obs[1:])"
BONUS = [
    ("bonus of the observation acted on", NEW, "agent.novelty(obs[:-1])"),
    ("the predictor learns the row before", '["next_obs"] = obs[1:]', '["next_obs"] = obs[:-1]'),
    ("statistics before the bonus", COUNTED_LATE, "", f"            novelty = {NEW}\n",
     "            agent.obs_rms.update(obs[1:], torch.from_numpy(valid))\n"
     f"            novelty = {NEW}\n"),
    ("statistics after the predictor", COUNTED_LATE, "", "        # Log\n",
     f"        # Log\n{COUNTED_LATE}"),
    ("statistics of autoreset steps", COUNTED_LATE,
     COUNTED_LATE.replace('storage["valid"][:T]', "torch.ones(T, N)")),
    ("statistics of what is acted on", COUNTED_LATE, COUNTED_LATE.replace("[1:]", "[:-1]")),
    ("warm-up with autoreset steps", "torch.from_numpy(~done)", "torch.ones(N)"),
    ("no warm-up", "obs_norm_init * T", "obs_norm_init * 0"),
    ("an input of any size", ".clamp(-5.0, 5.0)", ""),
    ("the predictor sees raw observations", "self.predictor(seen)", "self.predictor(obs)"),
    ("the target sees raw observations", "self.target(seen)", "self.target(obs)"),
    ("statistics are those of the rollout", "(self.var * self.count + ", "("),
    ("bonus of autoreset steps", ".numpy() * valid  # sync", ".numpy()"),
    ("ends cut the bonuses", "int_rewards, never, never,", "int_rewards, dones, terminations,"),
    ("ends cut the sums that scale", "* bonus_sums[t - 1] +", "* bonus_sums[t - 1] * valid[t] +"),
    ("sums begin with each rollout", "* bonus_sums[t - 1] +", "* bonus_sums[t - 1] * (t > 0) +"),
    ("sums of autoreset steps count", SUMS, SUMS.replace("(valid)", "(valid | True)")),
    ("bonus as it is", BY_SUMS, "        int_rewards = bonus\n"),
    ("bonus by its variance", BY_SUMS, BY_SUMS.replace(" ** 0.5", "")),
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
EARNED = "(reward / (return_rms.var + 1e-8).sqrt()).clamp(-10.0, 10.0)"
SENT = "envs.step = lambda action: step(action.clamp(low, high))"
SOUND = "torch.where(sound.unsqueeze(1), next_obs, obs[step])"
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
    ("a stale policy", "action = act(agent,",
     "action = act(globals().setdefault('stale', __import__('copy').deepcopy(agent)),"),
    ("clipped actions are stored", "actions[step] = action\n",
     "actions[step] = action.clamp(-0.4, 1.5)\n"),
    ("unclipped actions are sent", SENT, ""),
    ("actions within ±1", SENT, SENT.replace("low, high", "-1, 1")),
    ("what diverged is seen", SOUND, "next_obs"),
    ("what diverged is seen as zeros", SOUND, SOUND.replace("obs[step]", "0.0")),
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
    ("raw rewards", EARNED, "reward"),
    ("rewards centred", EARNED, EARNED.replace("(reward /", "((reward - return_rms.mean) /")),
    ("rewards over the variance", EARNED, EARNED.replace(".sqrt()", "")),
    ("sums go on after a fall", "args.gamma * ~terminated + reward", "args.gamma + reward"),
    ("sums start anew after a time limit", "args.gamma * ~terminated",
     "args.gamma * ~(terminated | truncated)"),
    ("sums of autoreset steps count", "valid & (lost[step + 1] == 0))", "lost[step + 1] == 0)"),
    ("sums change in autoreset steps", "torch.where(valid, sums, discounted[step])", "sums"),
    *NORMAL[:4],
    *STATISTICS[:3],
    STATISTICS[4],
    *STATISTICS[9:11],
    STATISTICS[13],
    *SEEN[:4],
    *SEEN[8:],
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
    ("Adam's moments forgotten", 'moments = checkpoint["adam"][name]', "moments = {}"),
    ("moments of another parameter", 'checkpoint["adam"][name]',
     'checkpoint["adam"][re.sub(r"actor\\w*\\.0", "critic.0", name)]'),
    ("squared gradients forgotten", "{key: x.to(device) for key",
     '{key: x.to(device) * (key != "exp_avg_sq") for key'),
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
    ("returns' moments forgotten", 'return_rms.load_state_dict(checkpoint["return_rms"])', "pass"),
    ("returns' moments are not saved", '"return_rms": return_rms.state_dict()',
     '"return_rms": RunningMeanStd(1).state_dict()'),
    ("observations' moments are not saved", '"mean", torch.zeros(size, dtype=torch.float64))',
     '"mean", torch.zeros(size, dtype=torch.float64), persistent=False)'),
]  # fmt: skip
MOMENTS_OF_BONUS = [
    MOMENTS[2],
    ("bonuses' moments forgotten", 'bonus_rms.load_state_dict(checkpoint["bonus_rms"])', "pass"),
    ("sums of bonuses forgotten", 'np.resize(checkpoint["bonus_sums"], N)', "0"),
]  # fmt: skip
BY_PLACE = [
    ("moments by a parameter's place", 'checkpoint["adam"][name]',
     '[*checkpoint["adam"].values()][[x for x, _ in agent.named_parameters()].index(name)]'),
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
SHARED = "        from_module(agent).data.to_module(agent_inference)\n"
ACTED_ON = "    action_host.copy_(action, non_blocking=True)\n"
STORED = "storage[key][step] = x"
EPOCH = "graph(inputs[-1])"
CAPTURED = [
    ("the first weights for ever", SHARED, ""),
    ("rows are not counted", "    step += 1\n", ""),
    ("rows are counted from 1", "next_row.zero_()", "next_row.fill_(1)"),
    ("observations stay on the host", "    obs.copy_(obs_host, non_blocking=True)\n", ""),
    ("the first observation for ever", "                np.copyto(obs_host.numpy(), next_obs)\n",
     "                pass\n"),
    ("the last observation stays on the host", "            obs[T] = obs_host  # sync\n",
     "            pass\n"),
    ("stored a row late", STORED, STORED.replace("[step]", "[step - 1]")),
    ("actions stay on the device", ACTED_ON, ""),
    ("another game's actions", ACTED_ON, ACTED_ON.replace("action,", "action.roll(1),")),
    ("minibatches in another order", EPOCH, EPOCH.replace("]", "].flip(0)")),
]  # fmt: skip
FAST_MEMORY_ATARI = [
    *CAPTURED[:1],
    ("flags stay on the host", "    dones.copy_(dones_host, non_blocking=True)\n", ""),
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
    ("small", check): [*SMALL, *MANY[:3], *MANY[5:]],
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
    ("trxl", check_resumed): [*RESUMED[2:4], *RESUMED[5:8]],
    ("trxl", check_speed): SPEED[:1],
    ("lstm_atari", check): MEMORY_ATARI,
    ("lstm_hopper", check): MEMORY_GAUSSIAN,
    ("lstm", check_resumed): RESUMED[2:4],
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
    ("warp_off", check): [
        ("--no-stagger is ignored", "if args.stagger:", "if True:"),
        ("rewards clipped at 5", EARNED, EARNED.replace("10.0", "5.0")),
    ],
    ("warp", check_resumed): MOMENTS,
    ("hopper", check_resumed): [*RESUMED, *MOMENTS],
    ("hopper", check_order): BY_PLACE,
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
    ("cartpole, cudagraphs", check): CAPTURED[-1:],
    ("atari_scripted, cudagraphs", check): CAPTURED,
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
    with pytest.raises((AssertionError, FloatingPointError)):
        if of is check and name in SHORT:
            of(first_iteration(job), tmp_path / "1", edit=mutate)
        of(job, tmp_path, edit=mutate)


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
