"""Mistakes a person could write, a line each: the checks of test_reference must see every one."""

import hashlib
import re
from functools import partial
from unittest import mock

import pytest
import reference
from helpers import PAIRS, PPO
from test_reference import (
    FAST_JOBS,
    JOBS,
    check,
    check_first_weights,
    check_order,
    check_resumed,
    check_speed,
    first_iteration,
    recorded,
)

CHECKS = check, check_first_weights, check_order, check_resumed, check_speed
CHECKS = {of.__name__: of for of in CHECKS}
JOBS = JOBS | FAST_JOBS
# == a check: the jobs that each of the next mistakes is made in; *: its lines are in all scripts
# what is wrong: text that is there once, {{what of it is right=>what is wrong}} && another one
# \n is a line's end; what is too long for its line goes on in lines with four spaces before them
TABLE = r"""
# advantages, loss and gradients
== check *: hopper
ends are not terminal: values[1:]{{ * (1 - terminations[1:])=>}}
time limits are terminal: (1 - {{terminations=>dones}}[1:])
flags of the row before: gae_lambda * (1 - dones[{{1:=>:-1}}])
only terminations stop sums: gae_lambda * (1 - {{dones=>terminations}}
gae_lambda is 1: decay = gamma *{{ gae_lambda *=>}}
rewards of the row after: = {{rewards=>np.roll(rewards, -1, 0)}} + gamma
the last sum is left out: range(len(advantages) - {{1=>2}})
means over all rows: / {{valid.sum().clamp(min=1.0=>len(valid}})
inverse ratio: {{newlogprob - =>}}mb["logprobs"]{{=> - newlogprob}}
advantages' mean of all rows: (advantages - {{masked_mean(advantages, valid=>advantages.mean(}}))
advantages' deviation of all rows: masked_mean(advantages, valid)){{ * valid=>}}
biased deviation: {{(valid.sum() - 1=>valid.sum(}}).clamp
advantages as they are: if {{args.norm_adv=>False}}:
descent: pg_loss1 = {{-=>}}advantages
optimistic policy loss: torch.{{max=>min}}(pg_loss1, pg_loss2)
one-sided clipping: ratio.clamp({{1 - args.clip_coef, =>max=}}1 +
policy loss over all rows: {{masked_mean(=>}}torch.max(pg_loss1, pg_loss2){{, valid=>.mean(}})
value loss over all rows: {{masked_mean(v_loss, valid=>v_loss.mean(}})
value loss not halved: {{0.5 * =>}}masked_mean(v_loss
values not clipped: if {{args.clip_vloss=>False}}:
values clipped on one side: clamp({{-args.clip_coef, =>max=}}args.clip_coef)
optimistic value loss: torch.{{max=>min}}(v_loss
values clipped around returns: v_loss_clipped = (mb["{{values=>returns}}"] +
entropy is punished: {{-=>+}} args.ent_coef * entropy_loss
no entropy bonus: {{- args.ent_coef * entropy_loss =>}}
vf_coef left out: {{args.vf_coef * =>}}v_loss
old_approx_kl over all rows:
    {{masked_mean(-logratio, valid=>(mb["logprobs"] - newlogprob.detach()).mean(}})
k1 for k3: {{(ratio - 1) - =>-}}logratio, valid
clipfrac over all rows:
    {{masked_mean(=>}}((ratio - 1).abs() > args.clip_coef).float(){{, valid=>.mean(}})
gradients add up: {{optimizer.zero_grad()=>}}
one step an epoch: {{        =>    }}optimizer.step()
# continuous actions, their statistics
== check: hopper
one noise for all environments: self.mean + self.std * torch.randn_like(self.mean){{=>[:1]}}
uniform noise:
    self.mean + self.std * torch.{{randn_like(self.mean=>empty_like(self.mean).uniform_(-1.7, 1.7}})
distance without its deviation: {{(=>}}action - self.mean{{) / self.std=>}}
the square not halved: -{{0.5 * =>}}z.square()
a density as high at any width: z.square(){{ - self.std.log()=>}}
a density without its constant: {{ - HALF_LOG_2PI=>}}).sum(-1)
2 pi not under a root: {{0.5 * =>}}math.log(2 * math.pi)
log-density averaged: - HALF_LOG_2PI).{{sum=>mean}}(-1)
entropy without its half: ({{0.5 + =>}}HALF_LOG_2PI + self
entropy of the narrow: HALF_LOG_2PI {{+=>-}} self.std.log()
entropy averaged: self.std.log()).{{sum=>mean}}(-1)
squares around the mean after: {{(before * after=>after.square(}})
the mean of new rows alone: self.mean += before.flatten(0, -2).sum(0) / {{total=>valid.sum()}}
unbiased: .sum(0)) / {{total=>(total - 1)}})
the variance of new rows alone: ({{self.var * self.count + =>}}
rows are not counted: {{self.count.copy_(total)=>}}
over the variance: .{{rsqrt=>reciprocal}}()
deviation for its inverse: .{{rsqrt=>sqrt}}()
not clipped: rsqrt()){{.clamp(-10.0, 10.0)=>}}
counted once in all:
    {{=>if iteration == 1:\n            }}agent.obs_rms.update(obs[:T], storage["valid"][:T])
counted before the pass:
    {{agent.obs_rms.update(obs[:T], storage["valid"][:T])=>}} && {{
    =>agent.obs_rms.update(obs[:T], storage["valid"][:T])
    \n        }}with torch.no_grad():  # the policy
counted as they are seen:
    {{agent.obs_rms.update(obs[:T], storage["valid"][:T])=>}} && ["actions"][step] = action{{=>;
     agent.obs_rms.update(obs[step], torch.from_numpy(dones[step] == 0))}}
log-probability of the clipped action: log_prob(storage["actions"]{{=>.clamp(-1, 1)}})
clipped actions are stored: ["actions"][step] = action{{=>.clamp(-1, 1)}}
clipped below alone: a_max={{space.high=>None}})
new log-probability averaged: probs.log_prob(mb["actions"]){{=> / 3}}
rewards centred: np.clip({{rewards=>(rewards - return_rms.mean.item())}} / 
raw rewards: {{np.clip(rewards / (return_rms.var.item() + 1e-8) ** 0.5, -10.0, 10.0)=>rewards}}
rewards over the variance: (return_rms.var.item() + 1e-8){{ ** 0.5=>}}
sums of autoreset steps count:
    torch.from_numpy(discounted[..., None]), torch.{{from_numpy(valid=>ones(T, N}})
sums change in autoreset steps: {{np.where(valid[step], sums, discounted[step - 1])=>sums}}
sums begin anew in each rollout: sums = discounted[step - 1] {{=>* (step > 0) }}* args.gamma
rewards by what was known before:
    {{return_rms.update(torch.from_numpy(discounted[..., None]), torch.from_numpy(valid))
    \n        =>}}rewards[:] = np.clip && returns = advantages + values[:T]{{=>
    ; return_rms.update(torch.from_numpy(discounted[..., None]), torch.from_numpy(valid))}}
nan at an end is learned from: if {{terminated.any()=>False}}:
inf at an end is a large number: {{, posinf=0.0, neginf=0.0=>}}
== check *: hopper, atari_scripted
no clipping of gradients: {{args.max_grad_norm=>float('inf')}}, foreach
== check *: hopper, atari_scripted, cartpole, warp
the first observation is stale: {{obs[0] = obs[T]=>}}
time limits are kept as terminal: terminations[step + 1] = terminated{{=> | truncated}}
== check *: hopper, pixels, cartpole
mean return of ten games: recent = episodic_returns[-{{max(100=>min(10}}, 
# the rollout
== check: hopper, atari_scripted, cartpole
flags are not carried over: {{dones[0] = dones[T]=>}}
dones and terminations swapped: , {{dones, terminations=>terminations, dones}}, values, args.gamma
dones a row early: dones[step{{ + 1=>}}] =
only terminations are dones: dones[step + 1] = terminated{{ | truncated=>}}
rewards a row late: rewards[{{step=>(step + 1) % T}}] =
flags of the row after, of the rollout before: valid[step] = dones[step{{=> + 1}}] ==
all rows are transitions: valid[step] = {{dones[step] == 0=>True}}
a stale policy:
    = act({{agent=>globals().setdefault('stale', __import__('copy').deepcopy(agent))}}, obs[step])
an observation late: = act(agent, obs[{{step=>max(step - 1, 0)}}])
another environment's observation: = act(agent, obs[step]{{=>.roll(1, 0)}})
steps are not rows: global_step += {{N=>1}}
== check: hopper, atari_scripted, ale_scripted, cartpole
lengths with autoreset steps: running_lengths += {{valid[step]=>1}}
# one pass after a rollout
== check: hopper, cartpole, warp
the last value is stale:
    probs, storage["values"][:{{=>T}}] = agent(storage["obs"]{{=>[:T]}})
    \n            storage["logprobs"][:{{=>T}}] = probs.log_prob(storage["actions"]{{=>[:T]}})
values of the row before: agent(storage["obs"]{{=>.roll(1, 0)}})
values of the row after: agent(storage["obs"]{{=>.roll(-1, 0)}})
values of another environment: agent(storage["obs"]{{=>.roll(1, 1)}})
log-probabilities of the actions before: log_prob(storage["actions"]{{=>.roll(1, 0)}})
log-probabilities of the actions after: log_prob(storage["actions"]{{=>.roll(-1, 0)}})
== check: hopper, pixels, cartpole, lstm, lstm_atari
all rows weigh: storage["valid"][:T] = {{torch.from_numpy(valid)=>1}}
== check: hopper, pixels, cartpole
rows before an end are none: storage["valid"][:T] = torch.from_numpy({{valid=>dones[1:] == 0}})
a time limit ends no episode: np.flatnonzero({{dones[step + 1]=>terminated}})
weights decay: optim.{{Adam=>AdamW}}(
== check: hopper, ale_scripted, pixels, cartpole
seeds that overlap:
    {{np.random.SeedSequence([args.seed, global_step]).generate_state(N) >> 1
    =>args.seed + np.arange(N)}}
one seed for all: generate_state({{=>1).repeat(}}N) >> 1
== check: hopper, atari_scripted, pixels, cartpole
one noise for all rollouts: obs[0] = obs[T]{{=>; torch.manual_seed(1)}}
== check: hopper, warp
acts by the mean: {{self.mean + self.std=>0}} * torch.randn_like(self.mean){{=> + self.mean}}
acts without its deviation: self.mean + {{self.std * =>}}torch.randn_like(self.mean)
acts by its variance: self.mean + self.std{{=>.square()}} * torch.randn_like(self.mean)
one noise for all steps:
    self.mean + self.std * torch.{{randn_like(self.mean
    =>randn(self.mean.shape, generator=torch.Generator().manual_seed(1)}})
rows that are none move the mean: rows = {{valid=>torch.ones_like(valid)}}.unsqueeze(-1) > 0
rows that are none count: self.count + valid.{{sum=>numel}}()
squares around the mean before: {{(before * after=>before.square(}})
the mean is not moved: {{self.mean += before.flatten(0, -2).sum(0) / total=>}}
a heavy first row: torch.tensor({{1e-4=>1.0}},
observations not centred: ({{(x - mean)=>x}} * (var
clipped at 5: rsqrt()).clamp(-{{10.0, 10=>5.0, 5}}.0)
the actor sees raw observations: _mean({{self.obs_rms(obs)=>obs}})
the critic sees raw observations: critic({{self.obs_rms(obs)=>obs}})
sums go on after a fall: args.gamma {{* ~terminated =>}}+ reward
sums start anew after a time limit: args.gamma * ~{{terminated=>(terminated | truncated)}}
== check: hopper, lstm_hopper, warp
the first moments for all: {{agent.obs_rms.update(obs[:T], storage["valid"][:T])=>}}
counted twice: {{=>for _ in range(2): }}agent.obs_rms.update(obs[:T]
autoreset steps are counted:
    agent.obs_rms.update(obs[:T], {{storage["valid"][:T]=>torch.ones(T, N)}})
the row after is counted: agent.obs_rms.update(obs[{{:T=>1:}}], storage["valid"][:T])
the last observation is counted, too:
    agent.obs_rms.update(obs{{[:T], storage["valid"][:T]
    =>, torch.cat([storage['valid'][:T], torch.ones(1, N)])}})
== check: hopper, lstm_hopper
counted before learning:
    {{agent.obs_rms.update(obs[:T], storage["valid"][:T])=>}} && # Update{{=>
    \n        agent.obs_rms.update(obs[:T], storage["valid"][:T])}}
unclipped actions are sent: return {{gym.wrappers.vector.TransformAction(envs, clip)=>envs}}
scaled returns are logged: running_returns += {{reward=>reward / return_rms.var.item() ** 0.5}} *
== check: pixels
scaled returns are logged: running_returns += {{reward=>rewards[step]}} *
# discrete actions
== check: atari_scripted, cartpole
greedy: (self.logits - {{=>0 * }}noise.log())
product for quotient: (self.logits {{-=>+}} noise.log())
noise without its logarithm: (self.logits - noise{{.log()=>}})
one noise for all environments: (self.logits - noise{{=>[:1]}}.log())
one noise for all steps:
    torch.empty_like(self.logits).exponential_({{=>generator=torch.Generator().manual_seed(1)}})
uniform noise: torch.{{empty_like(self.logits).exponential_(=>rand_like(self.logits}})
weights for probabilities: logits{{.log_softmax(-1)=>}}
normalised over environments: logits.log_softmax({{-1=>0}})
log-probability of the likeliest:
    self.logits.{{gather(-1, action.unsqueeze(-1)).squeeze(-1)=>max(-1).values}}
probability for its logarithm: self.logits.gather(-1, action.unsqueeze(-1)).squeeze(-1){{=>.exp()}}
entropy of the certain: return {{-=>}}(self.logits.exp()
entropy averaged: self.logits.exp() * self.logits).{{sum=>mean}}(-1)
entropy of equal actions: -{{(self.logits.exp() * self.logits).sum=>self.logits.mean}}(-1)
new log-probability of another action:
    probs.log_prob({{mb["actions"]=>1 - (mb["actions"] > 0).long()}})
entropy over all rows: {{masked_mean(entropy, valid=>entropy.mean(}})
# lives and games
== check: atari_scripted
values of another game: ["values"][step] = value{{=>.roll(1)}}
another game's actions are stored: ["actions"][step] = action{{=>.roll(1)}}
log-probabilities a row late: ["logprobs"][step{{=> - 1}}] =
rewards not clipped: "reward_clip": {{True=>False}}
lives are no episodes: "episodic_life": {{True=>False}}
seeds that overlap: "seed": {{seeds.tolist()=>[args.seed + i for i in range(4)]}}
pixels not scaled: obs.float(){{ / 255.0=>}}
pixels of 256: obs.float() / {{255=>256}}.0
rows before an end are none: ["valid"][:T] = torch.from_numpy({{valid=>dones[1:] == 0}})
the last value is stale: {{_, storage["values"][T] = agent(obs[T])=>pass}}
the value of the last step for the last value: = agent(obs[T{{=> - 1}}])
a game over at the limit goes on: {{            terminated |= info["terminated"] > 0=>#}}
a lost life goes on: terminations[step + 1] = {{terminated=>(info["terminated"] > 0)}}
a time limit ends no game: {{(=>}}info["terminated"] > 0{{) | truncated=>}}
a life won ends a game: {{& ~valid[step]=>}}
a lost life ends a game: game_over = {{(info["terminated"] > 0)=>terminated}}
two games as one: {{(info["lives"] > lives)=>False}}
lives of the first game: {{            lives = info["lives"]=>}}
games without a step: {{& (running_lengths > 0)=>}}
clipped returns are logged: returns += {{info["reward"]=>reward}}
returns with autoreset steps: info["reward"]{{ * valid[step]=>}}
== check *: atari_scripted, ale_scripted, cartpole
seeds of 32 bits: generate_state(N){{ >> 1=>}}
== check: atari_scripted, ale_scripted
all rows weigh: ["valid"][:T] = {{torch.from_numpy(valid)=>1.0}}
== check: ale_scripted
rewards not clipped: {{np.sign(reward)=>reward}}
clipped returns are logged: running_returns += {{reward=>np.sign(reward)}} *
a lost life is an autoreset step:
    ["valid"][:T] = torch.from_numpy({{valid=>dones[:T] == 0}})
rows before a restart are none: valid[step{{=> - 1}}] =
the frames of the first game: {{            frames = info["episode_frame_number"]=>}}
a lost life does not cut the trace:
    dones[step + 1] = {{terminated=>(terminated & (info["lives"] == 0))}} | truncated
a lost life is no end:
    terminations[step + 1] = {{terminated=>(terminated & (info["lives"] == 0))}}
lives are games: np.flatnonzero({{~valid[step]=>terminated | truncated}})
a time limit ends no game: np.flatnonzero({{~valid[step]=>terminated & (info["lives"] == 0)}})
lives end no episode: "life_loss_info": {{True=>False}}
clipped by the simulator: "reward_clipping": {{False=>True}}
== check: pixels
raw rewards: reward{{ * args.reward_scale=>}}
height and width change places: sorted(axes[2:]), {{y, x=>x, y}}]
bits are nearly black: {{float(space.high.max())=>255.0}}
the first image again: obs[step + 1] = {{torch.from_numpy(next_obs)=>obs[0]}}
the last value is stale: agent(obs[T{{=> - 1}}])  # from which
# main
== check *: cartpole
one network for all seeds: torch.manual_seed({{args.seed + global_step=>0}})
Python's random numbers without a seed: {{random.seed(args.seed + global_step)=>#}}
NumPy's random numbers without one: {{np.random.seed((args.seed + global_step)=>#(}}
Adam's epsilon: eps=1e-{{5=>8}}
targets of the next value: advantages + values[{{:T=>1:}}]
annealed a step early: {{(iteration - 1)=>iteration}} / args.num_iter
never annealed: {{optimizer.param_groups[0]["lr"].fill_(lrnow)=>}}
another rate is logged: "charts/learning_rate", {{lrnow=>frac}}
no shuffling: torch.{{randperm(T * N, device=device=>arange(T * N}})
rows drawn with replacement: torch.{{randperm(T * N, device=device=>randint(T * N, (T * N,)}})
one order for all epochs:
    torch.randperm(T * N, {{device=device=>generator=torch.Generator().manual_seed(1)}})
an epoch less: range({{args.update_epochs=>max(1, args.update_epochs - 1)}})
target_kl is ignored: if {{args.target_kl is not None and approx_kl > args.target_kl=>False}}:
target_kl of the last minibatch: [{{:=>-1}}, LOSSES.index("approx_kl")]{{.mean()=>}}
target_kl of all epochs: {{losses[-1]=>torch.cat(losses)}}[:, LOSSES
target_kl of the old estimate: LOSSES.index("{{=>old_}}approx_kl")
the last minibatch is logged: {{torch.cat(losses).mean(0)=>losses[-1][-1]}}
the last epoch is logged: {{torch.cat(losses)=>losses[-1]}}.mean(0)
explained variance over all rows: advantages{{[valid]=>}}.var()
explained variance of all returns: returns{{[valid]=>}}.var()
mean square for variance: {{advantages[valid].var=>(advantages[valid] ** 2).mean}}()
returns for residual: 1 - {{advantages=>returns}}[valid].var()
== check: cartpole
log-probability of another action: log_prob({{=>1 - }}storage["actions"])
# games cut at first, so that they end apart
== check: small, many
a game goes on unseen: {{torch.from_numpy(first_obs).to(obs)=>obs[T, anew]}}
seeds that overlap: seed={{seeds.tolist()=>args.seed}}
one start for all: np.{{arange(N) * phases // N=>zeros(N)}}
a start too few: {{-(-=>}}envs.spec.config.max_episode_steps // T{{)=>}}
ends of the games before: {{dones[0, anew] = =>}}running_returns
returns of cut games: {{running_returns[anew] = =>}}running_lengths
lengths of cut games: = {{running_lengths[anew] = =>}}0
== check: masked
the mask before:
    {{=>masks = action_masks(self.env, info); now, self.old = getattr(self, 'old', masks), masks;
     }}obs = np.concatenate([obs, {{action_masks(self.env, info)=>now}}], axis=1)
the mask ahead of what is seen:
    obs = np.concatenate([{{obs, =>}}action_masks(self.env, info){{=>, obs}}], axis=1)
the mask backwards: obs = np.concatenate([obs, action_masks(self.env, info){{=>[:, ::-1]}}], axis=1)
masked in acting alone:
    agent({{mb["obs"]=>nn.functional.pad(mb["obs"][:, :-5], (0, 5), value=1.0)}})
masked in learning alone:
    act(agent, {{obs[step]=>nn.functional.pad(obs[step][:, :-5], (0, 5), value=1.0)}})
acts without the mask in one environment:
    act(agent, {{obs[step]
    =>torch.cat([obs[step, :1], nn.functional.pad(obs[step, 1:, :-5], (0, 5), value=1.0)])}})
log-probabilities unmasked:
    agent({{storage["obs"]=>nn.functional.pad(obs[..., :-5], (0, 5), value=1.0)}})
masks of another row:
    agent({{storage["obs"]=>torch.cat([obs[..., :-5], obs[..., -5:].roll(1, 0)], -1)}})
masks of another environment:
    agent({{storage["obs"]=>torch.cat([obs[..., :-5], obs[..., -5:].roll(1, 1)], -1)}})
entropy unmasked: {{probs=>Categorical(agent.actor(mb["obs"][:, :-5]))}}.entropy()
minus infinity: self.actor(obs), -{{1e8=>torch.inf}}
an impossible action has logit 0: self.actor(obs), {{-1e8=>0.0}}
what is 0 is possible: torch.where(mask >{{=>=}} 0,
no mask in one environment:
    return {{masks.astype(np.float32
    =>1.0 * ((masks == 1) | (np.arange(envs.num_envs) == 1)[:, None]}})
log-probabilities unmasked in one environment:
    agent({{storage["obs"]
    =>torch.cat([obs[:, :1], nn.functional.pad(obs[:, 1:, :-5], (0, 5), value=1.0)], 1)}})
== check: pettingzoo
an agent that has left weighs: storage["valid"][:T] = {{torch.from_numpy(valid)=>1}}
who is not there yet weighs: {{dones[T] ==>#}} absent
its return goes on:
    {{(reward * valid[step])=>reward}}.reshape && there = agent in self.envs[e].agents{{=>;
     reward[i] = rewards.get(agent, 0.0)}}
another agent's reward: rewards.get({{agent=>self.agents[k - 1]}}, 0.0)
all have the first one's reward: rewards.get({{agent=>self.agents[0]}}, 0.0)
agents in the order of that step's dictionary:
    for k, agent in enumerate({{self.agents=>[*seen, *set(self.agents) - {*seen}]}}):
an action of another agent: dict(zip(self.{{=>envs[e].}}agents, chosen{{, strict=True=>}}))
the episode ends with its first agent: envs), -1).{{all=>any}}(1)
the return is a sum: running_returns[e, took_part].{{mean=>sum}}()
who did not come counts: running_returns[e{{, took_part=>}}].mean()
who earns nothing does not count: took_part = {{running_lengths[e] >=>running_returns[e] !=}} 0
the first agent's length: running_lengths[e{{].max()=>, 0]}}
not there is there: terminated = np.{{ones=>zeros}}(
whoever is told of is there: if agent not in acted and {{not there=>agent not in seen}}:
whoever sees is there: there = {{agent in self.envs[e].agents=>seen.get(agent) is not None}}
who comes later is not there: if agent not in acted{{ and not there=>}}:
who leaves without a flag is there: left = {{not there and not truncated[i]=>False}}
a truncation is a termination: left = not there{{ and not truncated[i]=>}}
a seed for all: for env, x in zip(self.envs, seed{{=>[:1] * len(seed)}}, strict=True)
seeds of 32 bits: generate_state(E){{ >> 1=>}}
steps are rows: global_step += {{E=>N}}
who is reset says the list of agents: if {{self.over[e]=>not env.agents}}:
== check: rnd
bonus of the observation acted on: agent.novelty(obs[{{1:=>:-1}}])
the predictor learns the row before: ["next_obs"] = obs[{{1:=>:-1}}]
statistics before the bonus:
    {{agent.obs_rms.update(obs[1:], storage["valid"][:T])=>}} && {{
    =>agent.obs_rms.update(obs[1:], torch.from_numpy(valid)); }}novelty = agent.novelty(obs[1:])
statistics after the predictor:
    {{agent.obs_rms.update(obs[1:], storage["valid"][:T])=>}} && # Log{{=>
    \n        agent.obs_rms.update(obs[1:], storage["valid"][:T])}}
statistics of autoreset steps:
    agent.obs_rms.update(obs[1:], {{storage["valid"][:T]=>torch.ones(T, N)}})
statistics of what is acted on: agent.obs_rms.update(obs[{{1:=>:-1}}], storage["valid"][:T])
warm-up with autoreset steps: torch.{{from_numpy(~done=>ones(N}})
no warm-up: obs_norm_init * {{T=>0}}
an input of any size: {{.clamp(-5.0, 5.0)=>}}
the predictor sees raw observations: self.predictor({{seen=>obs}})
the target sees raw observations: self.target({{seen=>obs}})
statistics are those of the rollout: ({{self.var * self.count + =>}}
bonus of autoreset steps: .numpy(){{ * valid  # sync=>}}
ends cut the bonuses: int_rewards, {{never, never=>dones, terminations}},
ends cut the sums that scale: * bonus_sums[t - 1] {{=>* valid[t] }}+
sums begin with each rollout: * bonus_sums[t - 1] {{=>* (t > 0) }}+
sums of autoreset steps count:
    bonus_rms.update(torch.from_numpy(bonus_sums[..., None]), torch.from_numpy(valid{{=> | True}}))
bonus as it is: int_rewards = bonus{{ / bonus_rms.var.item() ** 0.5=>}}
bonus by its variance: int_rewards = bonus / bonus_rms.var.item(){{ ** 0.5=>}}
bonus by the deviation before:
    {{=>int_rewards = bonus / bonus_rms.var.item() ** 0.5;
     }}bonus_rms.update(torch.from_numpy(bonus_sums[..., None]), torch.from_numpy(valid)){{
    \n        int_rewards = bonus / bonus_rms.var.item() ** 0.5=>}}
the bonus has the rewards' discount: int_values, args.{{int_gamma=>gamma}}, args.gae
a value that no row learns:
    {{np.where(valid, int_values[:T], args.int_gamma * =>int_values[:T] + 0 * (}}int_values[1:
weights swapped: args.{{ext_coef=>int_coef}} * advantages + args.{{int_coef=>ext_coef}}
one head: values[..., 0], values[..., {{1=>0}}]
intrinsic value of all rows:
    mb["int_returns"]).square(), {{mb["valid"]=>torch.ones_like(mb["valid"])}})
vf_coef left out of the bonus: {{args.vf_coef * =>}}int_v_loss
no intrinsic value is learned: {{args.vf_coef=>0}} * int_v_loss
the predictor learns all rows: mb["{{trains"] * mb["=>}}valid"]
the predictor learns autoreset rows: mb["trains"]{{ * mb["valid"]=>}}
the predictor learns nothing: int_v_loss{{ + fwd_loss=>}}
one share for all epochs: (args.update_proportion{{=>, generator=torch.Generator().manual_seed(1)}})
the target learns, too: ){{.requires_grad_(False)=>}}\n        self.predictor
# memories
== check: lstm, lstm_atari, lstm_hopper
never zeroed: lstm_state{{ * keep=>}}
acting is told of ends: probs, value, lstm_state = agent(obs, lstm_state{{=>, dones}})
learning is not told of ends: initial_lstm_state[..., mb_inds, :], {{=>0 * }}mb["dones"])
== check: lstm
zeroed a row early:
    probs, value, lstm_state = agent(obs, lstm_state{{=> * (1 - dones).unsqueeze(1)}})
zeroed a row late: storage["dones"][step] = torch.from_numpy(dones[step{{=> - 1}}])
half of it zeroed: lstm_state * {{keep=>torch.stack([keep, torch.ones_like(keep)])}}
the actor's memory alone is zeroed:
    lstm_state * {{keep=>torch.stack([keep, torch.ones_like(keep)]).unsqueeze(1)}}
not handed on: action, logprob, value, {{lstm_state=>_}} = act(
advanced by the last value: _, storage["values"][T], {{_=>lstm_state}} =
the first flags are stale: storage["dones"][{{step=>max(step, 1)}}] = torch.from_numpy(dones[step])
learning starts a row late:
    {{=>step or initial_lstm_state.copy_(lstm_state); }}storage["actions"][step] = action
learning starts from the rollout's end: batch, {{initial_lstm_state=>lstm_state}}, args, b_inds))
rows out of order: rows[:, mb_inds].{{=>transpose(0, 1).}}flatten(0, 1)
rows backwards: rows[:, mb_inds].{{=>flip(0).}}flatten(0, 1)
blind to ends: value={{-1e9=>0.0}})
h for c: ({{h[None], c=>c[None], h}}[None])
h for c in acting: x, ({{h, c=>c, h}}), w_x
c for h in acting: return h, torch.stack([{{h, c=>c, h}}])
what is kept is shown: return {{h=>c}}, torch.stack
gates in another order: [w_x{{=>.roll(self.hidden_size, 0)}}, *weights]
the forget gate's sign:
    [{{w_x, *weights=>torch.cat([w[:64], -w[64:128], w[128:]]) for w in (w_x, *weights)}}]
acting's gates in another order: (h, c), w_x{{=>.roll(self.hidden_size, 0)}},
the memory's gates in another order:
    self.from_x.weight, self.from_h.weight{{=>.roll(self.hidden_size, 0)}}
no gradient through the memory's weights: self.from_x.weight, self.from_h.weight{{=>.detach()}}
a bias without effect: {{=>0 * }}self.from_x.bias, self.from_h
no gradient into what is read: torch.cat([x{{=>.detach()}}, dones
the critic has the actor's memory: (obs, lstm_state[{{1=>0}}], dones)
one memory for both: torch.stack([actor_state, {{critic_state=>actor_state}}])
a permutation of rows: {{torch.randperm(N, device=device=>(torch.randperm(T * N) % N}})
environments drawn with replacement: torch.{{randperm(N, device=device=>randint(N, (N,)}})
no shuffling: torch.{{randperm(N, device=device=>arange(N}})
== check: lstm, lstm_hopper
zero at a rollout's start: {{=>lstm_state = 0 * lstm_state; }}initial_lstm_state[:] = lstm_state
zero before learning: initial_lstm_state[:] = {{lstm_state=>0}}
the last value has no memory: agent(obs[T], {{=>0 * }}lstm_state)
other environments' state: [..., {{mb_inds=>: len(mb_inds)}}, :]
== check: lstm, trxl
the last value is stale: _{{, storage["values"][T], _=>}} =
log-probabilities of other actions: probs.log_prob(action{{=>.roll(1)}})
values of another environment: ["values"][step] = value{{=>.roll(1)}}
velocities are seen: ({{1, 3=>0, 2}}) if
== check: lstm, lstm_atari
the last value is told of ends: agent(obs[T], lstm_state{{=>, torch.from_numpy(dones[T]).float()}})
learning is told of ends a row late:
    initial_lstm_state[..., mb_inds, :], mb["dones"]{{=>.roll(len(mb_inds))}})
ends open the gates: value={{-=>}}1e9)
ends are a hint: value=-{{1e9=>1.0}})
== check: lstm_hopper
raw observations: {{obs = self.obs_rms(obs)=>}}
counted before the last value:
    {{agent.obs_rms.update(obs[:T], storage["valid"][:T])=>}} && {{
    =>storage['valid'][:T] = torch.from_numpy(valid)
    \n        agent.obs_rms.update(obs[:T], storage["valid"][:T])
    \n        }}with torch.no_grad():  # the value
the entries before are hidden: obs_space.shape[0]), {{args.hide=>np.array(args.hide) - 1}})
clipped actions are stored: ["actions"][step] = action{{=>.clamp(-1, 1)}}
log-probabilities of the clipped actions: probs.log_prob(action{{=>.clamp(-1, 1)}})
== check: trxl
sees the episode before: {{(ages + 1) * (dones == 0)=>ages + 1}}
an end's last row sees nothing: probs, value, added = agent(obs, window, ages{{=> * (dones == 0)}})
ages are not counted: {{(ages + 1)=>ages}} * (dones == 0)
sees the last row of the episode before: lags > ages.unsqueeze(1){{=> + 1}}
does not see the episode's first row: lags > {{ages=>(ages - 1).clamp(min=0)}}.unsqueeze(1)
sees all: lags > {{=>99 + }}ages.unsqueeze(1)
ages are counted from a rollout's start:
    memory[:L] = window.transpose(0, 1){{=>; ages = 0 * ages; trxl_state = window, ages}}
the first ages are stale: ["ages"][{{step=>max(step, 1)}}] = ages
ages of the row after:
    {{storage["ages"][step] = ages=>}} && memory[L + step] = window[:, -1]{{=>;
     storage["ages"][step] = ages}}
windows a row late: memory[{{L + step=>(L + step + 1) % (L + T)}}] = window[:, -1]
the rollout before is dropped: memory[:L] = {{window.transpose(0, 1)=>0}}
the rollout before that: {{memory[:L] = window.transpose(0, 1)=>}}
carried a row late: memory[:L] = window.transpose(0, 1){{=>.roll(1, 0)}}
carried with a row too many: memory[:L] = window.transpose(0, 1){{=>.roll(-1, 0)}}
not written: {{memory[L + step] = window[:, -1]=>pass}}
another environment's rows: memory[L + step] = window[:, -1]{{=>.roll(1, 0)}}
acting adds another environment's rows:
    torch.cat([window[:, 1:], added.{{=>roll(1, 0).}}unsqueeze(1)], dim=1)
the window is in another order:
    torch.cat([{{window[:, 1:], =>}}added.unsqueeze(1){{=>, window[:, :-1]}}], dim=1)
the window's newest row is lost: torch.cat([window[:, {{1:=>:-1}}], added.unsqueeze(1)], dim=1)
the memory before is handed on: probs.log_prob(action), value, {{(window, ages)=>trxl_state}}
the layers' rows are one: window[:, :, {{i=>0}}]
the last value has no memory: agent(obs[T], window, {{=>0 * }}ages)
the last value's window is the step's before:
    agent(obs[T], {{window=>storage["window"][T - 1]}}, ages)
the last age is stale: agent(obs[T], window, {{ages=>storage["ages"][T - 1]}})
windows of other rows are learned from: mb["window"]{{=>.roll(1, 0)}}, mb
ages of other rows are learned from: mb["ages"]{{=>.roll(1, 0)}})
lags in the order of time: query @ self.lag.{{=>flip(0).}}T
blind to lags: scores = {{scores + query @ self.lag.T=>1.0 * scores}}
scores not scaled: {{/ x.shape[1] ** 0.5=>}}
does not read itself: {{+ weights[..., -1:] * x.unsqueeze(1)=>}}
what is read is not relative: self.norm(read{{ - x.unsqueeze(1)=>}})
no gradient through its own key: query @ x.{{=>detach().}}unsqueeze(2)
== check: trxl_long
rows are carried onto themselves:
    {{memory[:L] = window.transpose(0, 1)=>for k in range(L):
    \n            memory[L - 1 - k] = memory[T + L - 1 - k]}}
a rollout's rows alone are carried:
    memory[{{:L] = window.transpose(0, 1=>L - T : L] = memory[L : T + L].clone(}})
== check: cheetah_run
--no-stagger is ignored: {{args.stagger * =>}}(np
# worlds on the device
== check: warp
flags are not carried over: {{signals[:, 0] = signals[:, T]=>}}
dones and terminations swapped:
    rewards, {{dones, terminations=>terminations, dones}}, discounted, 
    running_returns, running_lengths, lost = on_host
only terminations are dones: dones[step + 1] = terminated |{{ truncated |=>}}
rewards a row late: rewards[step{{=> + 1}}] =
rewards of the row after: = rewards[{{:T=>1:}}], lost
flags of the row after: valid = dones[step{{=> + 1}}] ==
all rows weigh: storage["valid"][step] = {{valid=>1.0}}
rows before an end are none: storage["valid"][step] = {{valid=>~(terminated | truncated)}}
a stale policy:
    action = act({{agent=>globals().setdefault('stale', __import__('copy').deepcopy(agent))}},
clipped actions are stored: ["actions"][step] = action{{=>.clamp(-0.4, 1.5)}}
unclipped actions are sent: {{envs.step = lambda action: step(action.clamp(low, high))=>}}
actions within ±1: envs.step = lambda action: step(action.clamp({{low, high=>-1, 1}}))
what diverged is seen: {{torch.where(sound.unsqueeze(1), next_obs, obs[step])=>next_obs}}
what diverged is seen as zeros: torch.where(sound.unsqueeze(1), next_obs, {{obs[step]=>0.0}})
what diverged earns: {{torch.where(sound | terminated, reward, 0.0)=>reward}}
to end on nan is to terminate: terminated = terminated{{ & paid=>}}
an odd end earns nothing: sound{{ | terminated=>}},
what diverged has earned before: {{sound | terminated=>paid}}
rewards do not diverge: .all(1){{ & paid=>}}
1e11 is sound: DIVERGED = {{1e10=>1e12}}
a diverged world goes on: truncated{{ | ~sound=>}}
a diverged world has time: masked_fill_(~sound{{=> & False}},
to diverge is to terminate: terminations[step + 1] = terminated{{=> | ~sound}}
an odd end is lost: = ~sound{{ & ~terminated=>}}  # in later steps
to diverge costs nothing: {{rewards[lost] = rewards.min()=>}}
to diverge pays as the mean step: rewards[lost] = rewards.{{min=>mean}}()
to diverge is worth what V is:
    rewards[lost] = {{rewards.min()=>(1 - args.gamma) * values[:T][lost]}}
a lost step is a sample: torch.from_numpy(valid{{ & ~lost=>}}))
lost episodes count: & ~{{lost & ~=>}}np.isnan
raw rewards: np.clip(rewards{{ / (return_rms.var.item() + 1e-8) ** 0.5=>}}, -10
rewards centred: np.clip({{rewards=>(rewards - return_rms.mean.item())}} /
rewards over the variance: (return_rms.var.item() + 1e-8){{ ** 0.5=>}}, -10
sums of autoreset steps count: torch.from_numpy({{valid & =>}}~lost))
sums change in autoreset steps: {{torch.where(valid, sums, discounted[step])=>sums}}
scaled returns are logged: running_returns[step] + reward{{=> / 2}}, 0.0
returns are not zeroed:
    {{torch.where(valid, =>}}running_returns[step] + reward{{,=>}} {{0.0)=>* valid}}
lengths with autoreset steps:
    {{torch.where(valid, =>}}running_lengths[step] {{=>* valid }}+ 1{{, 0.0)=>}}
returns before the last reward: = running_returns[{{1:=>:-1}}][ended]
terminations alone end games: ({{dones=>terminations}}[1:] == 1) &
first episodes that are cut count: {{signals[4, T] = torch.nan=>pass}}
steps are not rows: global_step += T{{ * N=>}}
one start for all: {{=>0 * }}torch.arange(N) * envs
== check: warp_off
--no-stagger is ignored: if {{args.stagger=>True}}:
rewards clipped at 5: ** 0.5, -{{10.0, 10=>5.0, 5}}.0)
# going on, the clock, first weights
== check_resumed: rnd, warp, hopper
observations' moments are not saved:
    "mean", torch.zeros(size, dtype=torch.float64){{=>, persistent=False}})
== check_resumed: rnd
bonuses' moments forgotten: {{bonus_rms.load_state_dict(checkpoint["bonus_rms"])=>pass}}
sums of bonuses forgotten: {{np.resize(checkpoint["bonus_sums"], N)=>0}}
== check_resumed *: trxl, lstm, hopper, atari_scripted, cartpole
weights forgotten: {{agent.load_state_dict(checkpoint["agent"])=>pass}}
== check_resumed *: trxl, lstm, hopper, cartpole
Adam's moments forgotten: moments = {{checkpoint["adam"][name]=>{}}}
== check_resumed *: trxl, hopper, cartpole
squared gradients forgotten: {key: x.to(device) {{=>* (key != "exp_avg_sq") }}for key
the same noise: {{rng.set_rng_state(checkpoint["rng"][device.type])=>pass}}
Python's random numbers again: random.seed(args.seed{{ + global_step=>}})
== check_resumed: warp, hopper
returns' moments forgotten: {{return_rms.load_state_dict(checkpoint["return_rms"])=>pass}}
returns' moments are not saved: "return_rms": {{return_rms=>RunningMeanStd(1)}}.state_dict()
== check_resumed *: hopper, many, ale_scripted, atari_scripted, cartpole
the same games: [args.seed, {{global_step=>0}}]
== check_resumed *: hopper, atari_scripted, cartpole
returns forgotten: {{episodic_returns = checkpoint["episodic_returns"]=>}}
== check_resumed *: hopper, cartpole
moments of another parameter: checkpoint["adam"][{{name=>re.sub(r"actor\w*\.0", "critic.0", name)}}]
NumPy's random numbers again: np.random.seed((args.seed{{ + global_step=>}})
an iteration too many: = {{-(-=>}}global_step // args.batch_size{{)=>}}
from the first iteration: first_iteration = {{-(-global_step // args.batch_size) + =>}}1
steps from 0: {{checkpoint["global_step"] if checkpoint else =>}}0
== check_order: hopper
moments by a parameter's place:
    {{checkpoint["adam"][name
    =>[*checkpoint["adam"].values()][[x for x, _ in agent.named_parameters()].index(name)}}]
== check_speed *: trxl, hopper, atari_scripted, cartpole
burn-in counts: if iteration == first_iteration{{ + args.measure_burnin=>}}:
== check_speed *: hopper, cartpole
time of all, rows of some:
    {{=>begun = time.time()\n    }}for iteration in range( && (time.time() - {{start_time=>begun}})
rows of all, time of some: {{(global_step - start_step)=>global_step}}
the last iteration's time:
    # Rollout{{=>\n        begun = time.time()}} && (time.time() - {{start_time=>begun}})
steps without environments: {{=>(}}(global_step - start_step){{=> // N)}}
not measured at first: iteration {{>= first=>> first}}_iteration + args.measure_burnin:
== check_first_weights: lstm
the LSTM's gain: from_h = layer_init(nn.Linear(hidden_size, 4 * hidden_size){{, std=1.0=>}})
== check_first_weights: hopper, atari_scripted, cartpole
a bold policy: std={{0.01=>1.0}})
a loud critic: std={{1=>2}}
hidden gain of 1: std={{2**0.5=>1.0}}
biases of 1: bias_const={{0=>1}}.0
== check_first_weights: warp, many
a deviation of 1: torch.{{full(=>zeros}}(1, action_size){{, -0.5)=>}}
# the fast versions
== check: cartpole+cudagraphs, atari_scripted+cudagraphs
minibatches in another order: graph(*{{=>[x.flip(0) for x in }}args[len(fixed) :]{{=>]}})
== check: atari_scripted+cudagraphs, lstm_atari+cudagraphs
the first weights for ever: {{from_module(agent).data.to_module(agent_inference)=>}}
== check: atari_scripted+cudagraphs
rows are not counted: {{step += 1=>}}
rows are counted from 1: next_row.{{zero_(=>fill_(1}})
observations stay on the host: {{obs.copy_(obs_host, non_blocking=True)=>}}
the first observation for ever: {{np.copyto(obs_host.numpy(), next_obs)=>pass}}
the last observation stays on the host: {{obs[T] = obs_host  # sync=>pass}}
stored a row late: storage[key][step{{=> - 1}}] = x
actions stay on the device: {{action_host.copy_(action, non_blocking=True)=>}}
another game's actions: action_host.copy_(action{{=>.roll(1)}}, non_blocking=True)
== check: lstm_atari+cudagraphs
flags stay on the host: {{dones.copy_(dones_host, non_blocking=True)=>}}
flags of the row before: np.copyto(dones_host.numpy(), dones[step{{=> - 1}}])
memory is not handed on: {{lstm_state.copy_(next_lstm_state)=>}}
== check: atari_scripted+compile
a batch that is no view: rows.unflatten(0, ({{T + 1, N)=>N, T + 1)).transpose(0, 1}})
== check: atari_scripted, atari_scripted+compile
log-probability of another action: probs.log_prob(action{{=>.roll(1)}})
"""


def edited(text, column):
    """A mistake's lines as they are, column 1, or as they have become, column 2."""
    return re.sub(r"(?s)\{\{(.*?)=>(.*?)\}\}(?!\})", lambda found: found[column], text)


def mistakes(table):
    """Yields of each one its heading, a job, what it is, and its changes, pairs of texts."""
    table = re.sub(r"\n    (?=&&)", " ", table).replace("\n    ", "")
    for line in table.strip().splitlines():
        head, _, text = line.partition(":")
        if head.startswith("== "):
            heading, jobs = head[3:], text.split(",")
        if head.startswith(("== ", "#")):
            continue
        parts = text.removeprefix(" ").replace(r"\n", "\n").split(" && ")
        for job in jobs:
            changes = [(edited(x, 1), edited(x, 2)) for x in parts]
            yield heading, job.strip(), head, changes


def mutate(text, changes):
    for old, new in changes:
        assert text.count(old) == 1 and old != new
        text = text.replace(old, new)
    return text


MISTAKES = [*mistakes(TABLE)]
SHORT = {job for heading, job, *_ in MISTAKES if heading in ("check", "check *")}
SHORT -= {"cheetah_run"}  # no episode has ended then
FOLLOWED = {}


def follow(h, *parts, anew=reference.follow):
    """The reference's, once for equal first weights and draws: most mistakes leave these alone."""
    *parts, initial, trace = parts
    drawn = [x for each in trace for x in (each["noise"], *each["b_inds"], *each["trains"])]
    numbers = b"".join(x.numpy().tobytes() for x in [*initial.values(), *drawn])
    key = str(h), *parts, hashlib.sha256(numbers).digest()
    if len(FOLLOWED) > 20:  # of one job most are the same
        FOLLOWED.clear()
    if key not in FOLLOWED:
        FOLLOWED[key] = [*anew(h, *parts, initial, trace)]
    return FOLLOWED[key]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "name", "changes"),
    [
        pytest.param(CHECKS[heading.split()[0]], job, changes, id=f"{JOBS[job].script}: {what}")
        for heading, job, what, changes in MISTAKES
    ],
)
def test_mutant_is_seen(of, name, changes, tmp_path):
    job, edit = JOBS[name], partial(mutate, changes=changes)
    text = (PPO / f"{job.script}.py").read_text()
    recorded(edit(text), job.start)  # what is recorded is still there
    with (
        mock.patch.object(reference, "follow", follow),
        pytest.raises((AssertionError, FloatingPointError)),
    ):
        if of is check and name in SHORT:
            of(first_iteration(job), tmp_path / "1", edit=edit)
        of(job, tmp_path, edit=edit)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHORT))
def test_a_first_iteration_without_a_mistake(name, tmp_path):
    """Passes, so that what test_mutant_is_seen sees there is the mistake."""
    check(first_iteration(JOBS[name]), tmp_path)


# what stands in all scripts, but for these
OTHERWISE = dict.fromkeys(
    ("no shuffling", "rows drawn with replacement", "one order for all epochs"), "lstm"
) | dict.fromkeys(
    ("explained variance over all rows", "explained variance of all returns",
     "mean square for variance", "returns for residual"), "multigpu",
) | {"the same games": "warp", "seeds of 32 bits": "multigpu|pettingzoo|warp"}  # fmt: skip


@pytest.mark.parametrize("name", [eager for eager, _ in PAIRS])
def test_the_lines_of_all_scripts(name):
    """What is mutated in one script alone stands in the others too."""
    text = (PPO / f"{name}.py").read_text()
    for heading, _, what, changes in MISTAKES:
        if heading.endswith("*") and not re.search(OTHERWISE.get(what, "no script"), name):
            assert all(text.count(old) == 1 for old, _ in changes), what
