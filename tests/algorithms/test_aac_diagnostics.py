"""Figures of an update of actor-attention-critic against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from marlogue.agents import AttentionCritic
from marlogue.algorithms import aac_diagnostics as diagnostics
from marlogue.algorithms.aac_diagnostics import floats
from marlogue.algorithms.prioritized_replay import PrioritizedReplayBuffer
from marlogue.algorithms.replay_data import ReplayLayout
from tests.support.teams import batch_of, seeded, team_of

NAN = math.nan


class TestCritic:
    def test_ranges_errors_and_explained_variance(self):
        """Q = 1, 2, 3, 6 and y = 2, 2, 5, 3: errors 1, 0, 2, -3; Var(y) = 1.5, Var(error) = 3.5."""
        figures = floats(
            diagnostics.critic_figures(
                torch.tensor([[1.0, 2.0], [3.0, 6.0]]), torch.tensor([[2.0, 2.0], [5.0, 3.0]])
            )
        )
        assert figures == pytest.approx(
            {
                "critic/q_mean": 3.0,
                "critic/q_min": 1.0,
                "critic/q_max": 6.0,
                "critic/target_mean": 3.0,
                "critic/target_min": 2.0,
                "critic/target_max": 5.0,
                "critic/td_error_mean": 0.0,
                "critic/td_error_std": math.sqrt(3.5),
                "critic/td_error_abs": 1.5,
                "critic/explained_variance": 1 - 3.5 / 1.5,
            }
        )

    def test_absent_agents_count_for_nothing(self):
        """The two that are there: Q = 1, 3 and y = 2, 6."""
        mask = torch.tensor([[[True, False]], [[True, False]]])  # [B, T, N]
        figures = floats(
            diagnostics.critic_figures(
                torch.tensor([[[1.0, NAN]], [[3.0, -99.0]]]),
                torch.tensor([[[2.0, NAN]], [[6.0, 99.0]]]),
                mask,
            )
        )
        assert figures["critic/q_mean"] == 2.0
        assert (figures["critic/q_min"], figures["critic/q_max"]) == (1.0, 3.0)
        assert figures["critic/td_error_mean"] == 2.0
        assert figures["critic/explained_variance"] == pytest.approx(1 - 1.0 / 4.0)

    def test_nobody_is_there(self):
        q = torch.full((2, 3), NAN)
        assert diagnostics.critic_figures(q, q, torch.zeros(2, 3, dtype=torch.bool)) == {}

    def test_targets_that_do_not_vary_explain_nothing(self):
        """Rounding leaves a variance of 1e-15 or so of these."""
        targets = torch.full((7, 3), 0.1)
        figures = diagnostics.critic_figures(torch.randn(7, 3, generator=seeded(0)), targets)
        assert "critic/explained_variance" not in figures
        assert "critic/td_error_abs" in figures


class TestActors:
    def test_mean_over_entries_and_over_each_agents(self):
        """Of agent b one entry counts, of c none."""
        entropies = torch.tensor([[1.0, 2.0, NAN], [3.0, NAN, NAN]])
        mask = torch.tensor([[True, True, False], [True, False, False]])
        figures = floats(diagnostics.entropy_figures(entropies, ["a", "b", "c"], mask))
        assert figures == {"actor/entropy": 2.0, "a/entropy": 2.0, "b/entropy": 2.0}

    def test_queries_say_whose_an_entry_is(self):
        queries = torch.tensor([[2, 0], [2, 1]])
        figures = floats(
            diagnostics.by_agent(
                "x", torch.tensor([[1.0, 10.0], [2.0, 7.0]]), ["a", "b", "c"], None, queries
            )
        )
        assert figures == {"actor/x": 5.0, "a/x": 10.0, "b/x": 7.0, "c/x": 1.5}

    def test_of_many_agents_the_extremes(self):
        count = diagnostics.MOST_NAMED + 1
        values = torch.arange(2.0 * count).reshape(2, count)  # agent i: i and i + count
        mask = torch.ones(2, count, dtype=torch.bool)
        mask[:, 0] = False
        names = [f"agent_{i}" for i in range(count)]
        figures = floats(diagnostics.by_agent("x", values, names, mask))
        assert figures == {
            "actor/x": count / 2 + count / 2,  # mean of i is count / 2 without agent 0
            "actor/x_min": 1 + count / 2,
            "actor/x_max": count - 1 + count / 2,
        }

    def test_share_of_the_most_frequent_action(self):
        """a takes 0, 0, 2, 0; b takes 1, 2 while it is there; c never is."""
        actions = torch.tensor([[0, 1, 0], [0, 2, 0], [2, 0, 0], [0, 0, 0]])
        mask = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 0, 0]]).bool()
        figures = floats(diagnostics.choice_figures(actions, 3, ["a", "b", "c"], mask))
        assert figures == {
            "actor/top_action_share": 0.625,
            "a/top_action_share": 0.75,
            "b/top_action_share": 0.5,
        }
        assert diagnostics.choice_figures(actions, 3, ["a", "b", "c"], ~mask | mask) != {}
        assert diagnostics.choice_figures(actions, 3, ["a", "b", "c"], mask & ~mask) == {}

    def test_share_of_numbers_at_the_edge(self):
        """a has two numbers, b one; the padding of b counts for nothing."""
        actions = torch.tensor([[[0.98, -1.0], [0.5, 1.0]], [[0.97, -0.971], [-0.99, 1.0]]])
        exists = torch.tensor([[True, True], [True, False]])
        figures = floats(diagnostics.saturation_figures(actions, exists, ["a", "b"]))
        assert figures == {"actor/saturation": 0.625, "a/saturation": 0.75, "b/saturation": 0.5}


class TestAttention:
    def test_entropy_by_the_log_of_the_number_of_others(self):
        """Head 0 is uniform over two others; head 1 gives 3/4 and 1/4."""
        weights = torch.zeros(1, 2, 3, 3)
        for i, j, k in ((0, 1, 2), (1, 0, 2), (2, 0, 1)):
            weights[0, 0, i, [j, k]] = 0.5
            weights[0, 1, i, [j, k]] = torch.tensor([0.75, 0.25])
        figures = floats(diagnostics.attention_figures(weights))
        entropy = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
        assert figures == pytest.approx(
            {
                "attention/entropy_head_0": 1.0,
                "attention/entropy_head_1": entropy,
                "attention/largest_weight": 0.625,
            }
        )

    def test_absent_agents_and_those_without_a_choice(self):
        """Sample 0: of four agents three are there and attend to one alone. Sample 1: two are
        there, whose weight of 1 is no choice."""
        weights = torch.zeros(2, 1, 4, 4)
        for i, j in ((0, 1), (1, 2), (2, 0)):
            weights[0, 0, i, j] = 1.0
        weights[0, 0, 3] = NAN
        weights[1, 0, 0, 1] = weights[1, 0, 1, 0] = 1.0
        present = torch.tensor([[True, True, True, False], [True, True, False, False]])
        figures = floats(diagnostics.attention_figures(weights, present))
        assert figures == {"attention/entropy_head_0": 0.0, "attention/largest_weight": 1.0}
        assert diagnostics.attention_figures(weights[1:], present[1:]) == {}

    def test_weights_of_a_critic_for_some_agents(self):
        team = team_of([3] * 5, [2] * 5)
        critic = AttentionCritic(team, num_heads=2, generator=seeded(0)).double()
        observations, actions = batch_of(team, 4)
        queries = critic.random_queries(2, 4, generator=seeded(1))
        with torch.no_grad():
            weights = critic.attention_weights(observations, actions, queries=queries)
        figures = floats(diagnostics.attention_figures(weights, None, queries))
        for head in range(2):
            total = 0.0
            for sample in range(4):
                for row in range(2):
                    others = [w for w in weights[sample, head, row].tolist() if w > 0]
                    assert len(others) == 4
                    total -= sum(w * math.log(w) for w in others) / math.log(4)
            assert figures[f"attention/entropy_head_{head}"] == pytest.approx(total / 8)

    def test_local_attention_is_measured_by_its_reach(self):
        weights = torch.zeros(1, 1, 5, 5)
        for i in range(5):
            weights[0, 0, i, [(i + 1) % 5, (i + 2) % 5]] = 0.5
        far = floats(diagnostics.attention_figures(weights))
        near = floats(diagnostics.attention_figures(weights, reach=2))
        assert far["attention/entropy_head_0"] == pytest.approx(math.log(2) / math.log(4))
        assert near["attention/entropy_head_0"] == pytest.approx(1.0)


class TestTheRest:
    def test_priorities(self):
        assert diagnostics.priority_figures([1.0, 1.0, 2.0, 4.0]) == pytest.approx(
            {
                "replay/priority_mean": 2.0,
                "replay/priority_max": 4.0,
                "replay/effective_share": 64 / (4 * 22),
            }
        )
        assert diagnostics.priority_figures([]) == {}

    def test_priorities_of_an_empty_buffer(self):
        buffer = PrioritizedReplayBuffer(8, ReplayLayout(num_agents=2))
        assert diagnostics.priority_figures(buffer.held_priorities()) == {}

    def test_guidance(self):
        """(3, 4) and (4, 3) at the agent that is there: 24 / 25. Values 1 and 5 spread by 2."""
        first = torch.tensor([[[3.0, 4.0], [9.0, 9.0]]])
        second = torch.tensor([[[4.0, 3.0], [-9.0, 0.0]]])
        mask = torch.tensor([[True, False]])
        values = torch.tensor([[[1.0, 5.0], [0.0, 70.0]]])
        figures = floats(diagnostics.guidance_figures(first, second, mask, values=values))
        assert figures == pytest.approx({"guidance/cosine": 0.96, "guidance/spread": 2.0})
        assert list(diagnostics.guidance_figures(first, second)) == ["guidance/cosine"]

    def test_schedules(self):
        figures = diagnostics.schedule_figures(
            temperature=torch.tensor([0.1, 0.3]), epsilon=0.5, guidance_weight=0.9
        )
        assert floats(figures) == pytest.approx(
            {"actor/temperature": 0.2, "exploration/epsilon": 0.5, "guidance/weight": 0.9}
        )
        assert diagnostics.schedule_figures() == {}

    def test_numbers_and_tensors_in_order(self):
        weight = torch.tensor(2.0, requires_grad=True)
        given = {"a": 1.5, "b": weight * 2, "c": torch.tensor([3.0], dtype=torch.float64), "d": 7}
        made = floats(given)
        assert list(made.items()) == [("a", 1.5), ("b", 4.0), ("c", 3.0), ("d", 7.0)]
        assert all(type(value) is float for value in made.values())
        assert floats({}) == {}
