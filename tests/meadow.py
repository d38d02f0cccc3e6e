"""A parallel environment of our own, as a module, as --env-id takes one: agents come and go."""

import gymnasium as gym
import numpy as np


class parallel_env:
    """Sheep that graze: each comes when it likes, and leaves by a termination, by a truncation, or
    with all others after `limit` steps. Of one who comes a step tells what it sees alone.

    All hangs on the seed and the actions so far. Dictionaries are in another order at each step.
    Whoever has left is paid 100 at each step, which nobody may count. Some leave without a flag. At
    times all are told of, as of a team: whoever is not there then sees something, and no flag of
    it is set. An action of one that is not there, or none of one that is, raises. Whom the limit
    takes stay in `agents`, as in PettingZoo's Atari. `wolf` gives the last one other spaces. Whom
    `blind` names, "terminated" or "truncated", are not told what they saw last. `poor` pays the
    last one nothing.
    """

    possible_agents = ("sheep_0", "sheep_1", "sheep_2")
    metadata = {"render_fps": 5}

    def __init__(self, limit=12, stay=0.85, wolf=None, blind=None, poor=False, render_mode=None):
        self.limit, self.stay, self.wolf, self.render_mode = limit, stay, wolf, render_mode
        self.blind, self.poor = blind, poor
        self.agents, self.rng = [], np.random.default_rng(0)

    def space(self, kind, agent):
        other = gym.spaces.Box(-1.0, 1.0, (2,))
        if self.wolf == kind and agent == self.possible_agents[-1]:
            return other
        return gym.spaces.Discrete(4) if kind == "action_space" else gym.spaces.Box(-3.0, 3.0, (3,))

    def observation_space(self, agent):
        return self.space("observation_space", agent)

    def action_space(self, agent):
        return self.space("action_space", agent)

    def shuffled(self, agents):
        return [agents[i] for i in self.rng.permutation(len(agents))]

    def look(self, agents):
        return {agent: self.rng.normal(size=3).astype(np.float32) for agent in agents}

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t, self.left = 0, []
        first = self.rng.integers(3)
        came = [i == first or self.rng.random() < 0.6 for i in range(3)]
        self.agents = self.shuffled(
            [x for x, y in zip(self.possible_agents, came, strict=True) if y]
        )
        return self.look(self.told(self.agents)), {agent: {} for agent in self.agents}

    def told(self, agents):
        """These, or at times all that are possible."""
        away = [agent for agent in self.possible_agents if agent not in agents]
        return self.shuffled([*agents, *(away if self.rng.random() < 0.5 else [])])

    def step(self, actions):
        assert actions.keys() == set(self.agents), "those who are there act"
        acted = [actions.get(agent, 4) for agent in self.possible_agents]
        self.rng = np.random.default_rng([*acted, self.rng.integers(2**32)])
        self.t += 1
        rewards = {agent: float(self.rng.normal() + actions[agent]) for agent in self.agents}
        if self.poor and "sheep_2" in rewards:
            rewards["sheep_2"] = 0.0
        rewards |= dict.fromkeys(self.left, 100.0)
        leave = {agent: self.rng.random() > self.stay for agent in self.agents}
        if self.rng.random() < 0.1:
            leave = dict.fromkeys(leave, True)  # all of them at once
        cut = {agent: x and self.rng.random() < 0.5 for agent, x in leave.items()}
        over = {agent: x and not cut[agent] for agent, x in leave.items()}
        if self.t == self.limit:
            over, cut = dict.fromkeys(over, False), dict.fromkeys(over, True)
        seen = self.shuffled(self.agents)
        self.left += [agent for agent in self.agents if over[agent] or cut[agent]]
        if self.t < self.limit:
            self.agents = [agent for agent in self.agents if agent not in self.left]
        absent = [x for x in self.possible_agents if x not in self.left + self.agents]
        if self.t < self.limit and self.agents and absent and self.rng.random() < 0.3:
            self.agents.append(absent[0])
            seen.append(absent[0])
        self.agents = self.shuffled(self.agents)
        unsaid = [agent for agent in over if over[agent] and self.rng.random() < 0.3]
        told = self.told(seen)
        ended = {"terminated": over, "truncated": cut}.get(self.blind, {})
        blind = [agent for agent in told if ended.get(agent)]
        over = {agent: over.get(agent, False) for agent in told if agent not in unsaid}
        cut = {agent: cut.get(agent, False) for agent in over}
        look = self.look(told)
        look |= dict.fromkeys(blind[::2])
        for agent in blind[1::2]:
            del look[agent]
        return look, rewards, over, cut, {agent: {} for agent in told}

    def render(self):
        return np.full((16, 16, 3), self.t, np.uint8)

    def close(self):
        self.agents = None
