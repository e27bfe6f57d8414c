"""Drawing batches."""

import torch
from conftest import seeded
from plain import TASK, rows

from offline_gntd.tasks import Task
from offline_gntd.transitions import Sampler, from_rows, row_width

CARTPOLE = Task("CartPole-v1", 4, 2, True, 0.0, 500.0, "test")


def test_rows_are_drawn_uniformly_and_unchanged():
    data, sample = rows(50), Sampler(TASK, 1_000, seeded(0))
    counts = torch.zeros(len(data))
    for _ in range(10):
        batch = sample(data)
        drawn = (
            (batch.reward[0, :, None] == from_rows(data, TASK).reward).float().argmax(1)
        )  # which row it is
        for column, expected in zip(batch, from_rows(data[drawn], TASK), strict=True):
            assert torch.equal(column[0], expected)
        counts += drawn.bincount(minlength=len(data))
    assert ((counts - 200) ** 2 / 200).sum() < 85.4  # χ² with 49 degrees of freedom: one time in a thousand


def test_draws_of_a_seed_do_not_depend_on_other_seeds():
    data = rows()
    alone, together = Sampler(TASK, 32, seeded(5))(data), Sampler(TASK, 32, seeded(1, 5))(data)
    for one, both in zip(alone, together, strict=True):
        assert torch.equal(both[1], one[0])


def test_batch_is_valid_until_the_next_draw():
    data = torch.arange(30.0)[:, None].expand(30, row_width(CARTPOLE))
    sample = Sampler(CARTPOLE, 8, seeded(0))
    first = sample(data)
    kept = first.reward.clone()
    second = sample(data)
    assert torch.equal(second.action, second.reward.long())
    assert torch.equal(first.reward, second.reward)
    assert not torch.equal(first.reward, kept)


def test_next_action_is_that_of_the_row_after_in_the_same_episode():
    data = rows(20)
    columns = from_rows(data, TASK)
    columns.next_obs[:9] = columns.obs[1:10]  # an episode of ten rows; the others stand alone
    batch = Sampler(TASK, 500, seeded(0, 1))(data)
    for i, part in enumerate([batch.of_seed(0), batch.of_seed(1)]):
        action, known = part.next_action()
        assert torch.equal(known, part.row_index < 9)
        assert torch.equal(action[known], columns.action[part.row_index + 1 - (~known).long()][known])
        assert torch.equal(batch.next_action()[0][i], action)
    changed = batch.of_seed(1, obs=2 * batch.obs)
    assert torch.equal(changed.obs, 2 * batch.obs[1])
    assert torch.equal(changed.next_action()[1], batch.next_action()[1][1])
