"""Reinforcement learning: 16 actions of a tiny policy in a simulator on the host, then one update by their rewards.

Edit: `graph` captures the policy and the update.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import overlapscope
from tests.programs.plain.graphs import captured
from tests.programs.plain.options import options

o = options("graph")
ACTIONS, SEEN = 16, 12

policy = nn.Sequential(nn.Linear(SEEN, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)).to(o.device)
optimizer = torch.optim.SGD(policy.parameters(), lr=1e-3)
generator = np.random.default_rng(0)
moves = generator.standard_normal((4, SEEN)).astype(np.float32)
state = np.zeros(SEEN, np.float32)


def choose(seen: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        best: torch.Tensor = policy(seen).argmax()
        return best


def update(seen: torch.Tensor, chosen: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
    odds = torch.log_softmax(policy(seen), dim=1).gather(1, chosen[:, None]).squeeze(1)
    loss = -(odds * (rewards - rewards.mean())).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


graphed = "graph" in o.edits and o.cuda
if graphed:
    observation = torch.zeros(SEEN, device="cuda")
    many = torch.zeros(ACTIONS, SEEN, device="cuda")
    taken, earned = torch.zeros(ACTIONS, dtype=torch.int64, device="cuda"), torch.zeros(ACTIONS, device="cuda")
    action = torch.zeros((), dtype=torch.int64, device="cuda")
    replay_choose = captured(lambda: action.copy_(choose(observation)))
    replay_update = captured(lambda: update(many, taken, earned))
for _ in range(o.steps):
    states, chosen, rewards = [], [], []
    for _ in range(ACTIONS):
        if graphed:
            observation.copy_(torch.from_numpy(state))
            replay_choose()
            move = int(action.item())
        else:
            move = int(choose(torch.from_numpy(state).to(o.device)).item())
        states.append(state)
        chosen.append(move)
        state = np.tanh(0.9 * state + moves[move] + 0.1 * generator.standard_normal(SEEN).astype(np.float32))
        rewards.append(float(state[0]))
    batch = torch.from_numpy(np.stack(states)), torch.tensor(chosen), torch.tensor(rewards)
    if graphed:
        for target, source in zip((many, taken, earned), batch, strict=True):
            target.copy_(source)
        replay_update()
    else:
        update(*(tensor.to(o.device) for tensor in batch))
    overlapscope.step()
print(f"{state.sum():.6f}")
