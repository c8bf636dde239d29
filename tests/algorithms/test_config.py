"""What a configuration accepts, what it says no to, and how a trainer's arguments go together."""

from __future__ import annotations

import math
import warnings
from copy import deepcopy
from dataclasses import fields, replace
from itertools import combinations

import numpy as np
import pytest
import torch

from marlogue.agents import Critic, LLMPolicy, tiny_model
from marlogue.algorithms import Anneal, Callback, IACConfig, IACTrainer, MAACConfig, MAACTrainer
from tests.support.team import VOCABULARY, again, make_trainer, model, reward, rows, tokenizer

CONFIGS = (MAACConfig, IACConfig)

DEFAULTS = {
    "num_agents": 2,
    "num_turns": 1,
    "num_generations": 1,
    "critic_type": "v",
    "agent_learning_rate": 5e-6,
    "critic_learning_rate": 5e-6,
    "rollout_buffer_size": 8,
    "value_loss_coef": 0.6,
    "advantage_normalization": True,
    "max_new_tokens": 256,
    "min_new_tokens": 0,
    "discount": 1.0,
    "reference_kl_enabled": False,
    "reference_kl_coef": 0.1,
    "eval_interval": 16,
    "eval_num_samples": 4,
    "eval_batch_size": 1,
    "logging_steps": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": None,
    "early_termination_threshold": None,
    "external_prompt_passthrough": False,
    "parallel_training": "none",
    "agent_devices": None,
    "critic_devices": None,
    "reference_devices": None,
    "score_temperature": None,
    "max_grad_norm": None,
    "max_bad_steps": 3,
    "max_reference_kl": None,
    "micro_batch_size": None,
    "max_steps": None,
    "shuffle": False,
    "dtype": "float32",
    "gradient_checkpointing": False,
    "warmup_steps": 0,
    "reward_timeout": None,
    "reward_workers": 0,
    "reward_backend": "thread",
    "on_reward_error": "raise",
    "max_dropped_share": 0.2,
}

#: Whole numbers, the least of each, and whether None will do.
WHOLE = {
    "num_agents": (1, False),
    "num_turns": (1, False),
    "num_generations": (1, False),
    "num_train_epochs": (1, False),
    "max_steps": (1, True),
    "max_bad_steps": (1, False),
    "rollout_buffer_size": (1, False),
    "train_batch_size": (1, True),
    "micro_batch_size": (1, True),
    "generation_batch_size": (1, False),
    "max_new_tokens": (1, False),
    "min_new_tokens": (0, False),
    "top_k": (1, True),
    "max_prompt_tokens": (1, True),
    "eval_interval": (0, False),
    "eval_num_samples": (0, False),
    "eval_batch_size": (1, False),
    "logging_steps": (1, False),
    "num_transcripts": (0, False),
    "warmup_steps": (0, False),
    "seed": (0, False),
    "save_steps": (1, True),
    "save_total_limit": (1, True),
    "reward_workers": (0, False),
}
WHOLE_IAC = {"critic_value_head_hidden_dim": (1, True), "value_head_hidden_dim": (1, True)}

#: Real numbers: values that are out of range, values that are in, and whether None will do.
REAL = {
    "agent_learning_rate": ([-1e-6], [0.0, 1], False),
    "critic_learning_rate": ([-1e-6], [0.0, 1], True),
    "value_loss_coef": ([-0.1], [0, 2.5], False),
    "discount": ([-3, -0.1, 1.1], [0, 1, 0.5], False),
    "temperature": ([0, -1.0], [0.6, 2], False),
    "top_p": ([0, 1.1, -0.5], [0.1, 1], False),
    "score_temperature": ([0, -1], [0.5], True),
    "max_grad_norm": ([0, -1], [1, 0.5], True),
    "early_termination_threshold": ([], [-0.2, 0, 3], True),
    "eval_temperature": ([-0.1], [0, 0.7], True),
    "reference_kl_coef": ([-0.1], [0, 0.5], False),
    "max_reference_kl": ([0, -1], [0.5, 10], True),
    "reward_timeout": ([0, -1.0], [0.5, 3], True),
    "max_dropped_share": ([-0.1, 1.1], [0, 0.5, 1], False),
}
NEEDS = {"max_reference_kl": {"reference_kl_enabled": True}}
REAL_IAC = {"value_clip_range": ([0, -0.2], [0.1, 1], True)}

TRUTH = (
    *("advantage_normalization", "external_prompt_passthrough", "reference_kl_enabled"),
    *("gradient_checkpointing", "shuffle", "verbose", "save_best", "save_on_signal"),
)

CHOICES = {
    "critic_type": ("v", "q"),
    "prompt_overflow": ("error", "truncate"),
    "parallel_training": ("none", "mp"),
    "dtype": ("float32", "bfloat16"),
    "reward_backend": ("thread", "process"),
    "on_reward_error": ("raise", "drop"),
    "lr_scheduler_type": ("constant", "linear", "cosine", "constant_with_warmup"),
}


def refused(config, name, value):
    """The message of the refusal, which must name the field and show the value."""
    with pytest.raises((ValueError, TypeError)) as caught:
        config(**{name: value})
    message = str(caught.value)
    assert message.startswith(name), message
    assert repr(value) in message or str(value) in message, message
    return message


class TestDefaults:
    @pytest.mark.parametrize("config", CONFIGS)
    def test_as_documented(self, config):
        made = config()
        assert {name: getattr(made, name) for name in DEFAULTS} == DEFAULTS
        assert made.batch_size == 8

    def test_of_one_algorithm(self):
        assert MAACConfig().critic_update == "per_agent"
        iac = IACConfig()
        assert iac.use_separate_critic is True
        assert iac.value_clip_range == 0.2
        assert iac.critic_value_head_hidden_dim is None
        assert iac.value_head_hidden_dim is None

    def test_maac_has_no_clip(self):
        with pytest.raises(TypeError, match="value_clip_range"):
            MAACConfig(value_clip_range=0.2)  # type: ignore[call-arg]

    def test_scores_are_those_of_the_sampling_temperature(self):
        """C07."""
        assert MAACConfig(temperature=0.5).scoring_temperature == 0.5
        assert MAACConfig(temperature=0.5, score_temperature=1.0).scoring_temperature == 1.0

    def test_batch_size(self):
        assert MAACConfig(rollout_buffer_size=5).batch_size == 5
        assert MAACConfig(rollout_buffer_size=5, train_batch_size=2).batch_size == 2

    @pytest.mark.parametrize("config", CONFIGS)
    def test_every_field_is_checked_here(self, config):
        tried = {*WHOLE, *REAL, *TRUTH, *CHOICES, *WHOLE_IAC, *REAL_IAC}
        tried |= {"agent_devices", "critic_devices", "reference_devices"}
        tried |= {"critic_update", "use_separate_critic", "guidance_weight"}
        tried |= {"critic_architecture", "credit", "attention_heads", "resume"}
        assert {field.name for field in fields(config)} <= tried


class TestFields:
    @pytest.mark.parametrize("name", [*WHOLE, *WHOLE_IAC])
    def test_whole_numbers(self, name):
        config = IACConfig
        least, optional = {**WHOLE, **WHOLE_IAC}[name]
        for bad in (True, False, 1.0, 2.5, "3", math.nan, math.inf, -math.inf, [1], least - 1, -7):
            refused(config, name, bad)
        if optional:
            assert getattr(config(**{name: None}), name) in (None, 8)  # 8: the batch size
        else:
            refused(config, name, None)
        assert getattr(config(**{name: least}), name) == least

    @pytest.mark.parametrize("name", [*REAL, *REAL_IAC])
    def test_real_numbers(self, name):
        config = IACConfig
        bad, good, optional = {**REAL, **REAL_IAC}[name]
        for value in (True, False, "hot", math.nan, math.inf, -math.inf, [0.1], *bad):
            refused(config, name, value)
        for value in good:
            assert getattr(config(**{name: value}, **NEEDS.get(name, {})), name) == value
        if optional:
            assert getattr(config(**{name: None}), name) is None
        else:
            refused(config, name, None)

    @pytest.mark.parametrize("name", TRUTH)
    def test_truth_values(self, name):
        for bad in (0, 1, "false", "True", None, 1.0):
            refused(MAACConfig, name, bad)
        assert getattr(MAACConfig(**{name: True}), name) is True

    @pytest.mark.parametrize("name", CHOICES)
    def test_choices(self, name):
        for bad in ("V", "", None, True, 3, ["v"]):
            message = refused(MAACConfig, name, bad)
            assert all(choice in message for choice in CHOICES[name])
        for good in CHOICES[name]:
            extra = {"warmup_steps": 1}
            if good == "mp":
                extra = {"agent_devices": "cpu", "critic_devices": "cpu"}
            assert getattr(MAACConfig(**{name: good}, **extra), name) == good

    @pytest.mark.parametrize("name", ["agent_devices", "critic_devices", "reference_devices"])
    def test_devices(self, name):
        for bad in (3, True, 1.5, ["cpu", 3], [], {"cpu": 1}, ""):
            with pytest.raises((TypeError, ValueError), match=name):
                MAACConfig(**{name: bad})
        for good in (None, "cpu", ["cpu"], ("cpu", "cpu")):
            MAACConfig(**{name: good})

    def test_the_fields_of_one_algorithm(self):
        refused(MAACConfig, "critic_update", "both")
        refused(MAACConfig, "critic_architecture", "concat")
        refused(MAACConfig, "credit", "all")
        refused(MAACConfig, "attention_heads", 0)
        refused(IACConfig, "use_separate_critic", "false")
        assert MAACConfig(critic_update="joint").critic_update == "joint"

    @pytest.mark.parametrize("config", CONFIGS)
    def test_a_weight_that_changes(self, config):
        for bad in (True, "0.5", None, 1.5, -0.1, math.nan, [0.1], Anneal(2.0, 0.0)):
            with pytest.raises(ValueError, match="guidance_weight"):
                config(guidance_weight=bad)
        assert config().guidance_weight == Anneal(0.9, 0.2)
        assert config(guidance_weight={"end": 0}).guidance_weight == Anneal(0.9, 0.0)

    @pytest.mark.parametrize("config", CONFIGS)
    def test_a_learning_rate_that_came_as_a_string(self, config):
        """C80: YAML reads 1e-6 as a string; the message says what to write."""
        message = refused(config, "agent_learning_rate", "1e-6")
        assert "string" in message
        assert "1e-06" in message
        assert config(agent_learning_rate=1e-6).agent_learning_rate == 1e-6

    def test_an_unknown_field(self):
        with pytest.raises(TypeError, match="agent_lr"):
            MAACConfig(agent_lr=1e-6)  # type: ignore[call-arg]

    def test_a_copy_is_checked_too(self):
        with pytest.raises(ValueError, match="discount"):
            replace(MAACConfig(), discount=-3)


class TestTogether:
    @pytest.mark.parametrize("config", CONFIGS)
    def test_generations_and_turns(self, config):
        with pytest.raises(ValueError, match=r"num_generations \(2\).*num_turns \(3\).*set num"):
            config(num_turns=3, num_generations=2)
        config(num_turns=3)
        config(num_generations=2)

    def test_tokens(self):
        with pytest.raises(ValueError, match=r"min_new_tokens \(9\)"):
            MAACConfig(min_new_tokens=9, max_new_tokens=8)

    @pytest.mark.parametrize("config", CONFIGS)
    def test_mp_needs_devices(self, config):
        with pytest.raises(ValueError, match=r"agent_devices \(None\).*parallel_training.*set"):
            config(parallel_training="mp")
        with pytest.raises(ValueError, match=r"critic_devices \(None\).*parallel_training.*set"):
            config(parallel_training="mp", agent_devices=["cpu", "cpu"])
        config(parallel_training="mp", agent_devices=["cpu", "cpu"], critic_devices=["cpu"])

    def test_mp_needs_no_critic_devices_where_there_is_no_critic(self):
        IACConfig(parallel_training="mp", agent_devices="cpu", use_separate_critic=False)

    def test_devices_are_one_or_one_each(self):
        with pytest.raises(ValueError, match=r"agent_devices.*2"):
            make_trainer("maac", agent_devices=["cpu"] * 3)
        make_trainer("maac", agent_devices=["cpu"], critic_devices="cpu")

    def test_mp_trains_as_without(self):
        from tests.support.team import weights

        one = make_trainer("separate")
        other = make_trainer(
            "separate",
            parallel_training="mp",
            agent_devices=["cpu", "cpu"],
            critic_devices=["cpu", "cpu"],
        )
        one.train()
        other.train()
        ours, theirs = weights(one), weights(other)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)

    def test_a_schedule_needs_a_known_length(self):
        class Stream:
            def __iter__(self):
                return iter(rows(3))

        with pytest.raises(ValueError, match=r"lr_scheduler_type.*linear.*max_steps"):
            make_trainer("maac", train_dataset=Stream(), lr_scheduler_type="linear")
        make_trainer("maac", train_dataset=Stream(), lr_scheduler_type="linear", max_steps=5)

    @pytest.mark.parametrize("restricted", [{"top_p": 0.9}, {"top_k": 3}, {"min_new_tokens": 1}])
    def test_restricted_sampling_is_said_to_be_biased(self, restricted):
        """C07."""
        with pytest.warns(UserWarning, match="biased") as caught:
            make_trainer("maac", **restricted)
        assert len(caught) == 1

    def test_plain_sampling_says_nothing(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make_trainer("maac")


class TestAgents:
    def test_one_object_for_several_agents_is_refused(self):
        one = model(1)
        with pytest.raises(ValueError, match=r"agents\[1\].*same.*agents\[0\].*copy"):
            make_trainer("maac", agents=[one, one])
        with pytest.raises(ValueError, match=r"agents\[1\].*same"):
            make_trainer("maac", agents=[LLMPolicy(one, tokenizer()), one])
        with pytest.raises(ValueError, match="agent_model"):
            make_trainer("maac", agents=None, agent_model=one)

    def test_either_agents_or_agent_model(self):
        with pytest.raises(ValueError, match="agent_model"):
            make_trainer("maac", agents=None)
        with pytest.raises(ValueError, match="agent_model"):
            make_trainer("maac", agent_model="somewhere")

    @pytest.mark.parametrize("count", [1, 3])
    def test_as_many_as_num_agents(self, count):
        with pytest.raises(ValueError, match=rf"agents \({count} given\).*2"):
            make_trainer("maac", agents=[model(k) for k in range(count)])

    def test_model_objects_need_a_tokenizer(self):
        with pytest.raises(ValueError, match="tokenizer"):
            make_trainer("maac", tokenizer=None)

    def test_as_many_tokenizers_as_agents(self):
        with pytest.raises(ValueError, match="tokenizer"):
            make_trainer("maac", tokenizer=[tokenizer()])

    @pytest.mark.parametrize("source", [3, object()])
    def test_what_is_no_model(self, source):
        with pytest.raises((TypeError, ValueError), match=r"int|object|model"):
            make_trainer("maac", agents=[source, model(1)])

    def test_what_cannot_be_loaded(self):
        with pytest.raises(ValueError, match="nowhere/at-all"):
            make_trainer("maac", agents=["nowhere/at-all", model(1)], tokenizer=tokenizer())

    def test_one_agent(self):
        def one(completions):
            return [1.0] * len(completions)

        for kind in ("maac", "separate", "shared"):
            own = {"critics": [model(3)]} if kind == "separate" else {}
            trainer = make_trainer(
                kind, num_agents=1, agents=None, agent_model=model(1), reward_func=one, **own
            )
            trainer.train()
            assert trainer.updates == 1

    def test_an_identifier_becomes_independent_copies(self, tmp_path):
        model(1).save_pretrained(tmp_path)
        tokenizer().save_pretrained(tmp_path)
        trainer = make_trainer(
            "separate",
            agents=None,
            agent_model=str(tmp_path),
            critics=[str(tmp_path)],
            tokenizer=None,
        )
        parts = [a.model for a in trainer.agents] + [c.model for c in trainer.critics]
        storages = [p.data_ptr() for part in parts for p in part.parameters()]
        assert len(set(storages)) == len(storages)


class TestCritics:
    def test_maac_needs_exactly_one(self):
        with pytest.raises(ValueError, match="critic_model"):
            make_trainer("maac", critic_model=None)
        with pytest.raises(ValueError, match=r"critics \(2 given\).*1"):
            make_trainer("maac", critic_model=None, critics=[model(3), model(4)])
        with pytest.raises(ValueError, match="critics"):
            make_trainer("maac", critics=[model(3)])
        assert len(make_trainer("maac", critic_model=None, critics=[model(3)]).critics) == 1

    def test_iac_needs_one_each(self):
        with pytest.raises(ValueError, match="critics"):
            make_trainer("separate", critics=[model(k) for k in range(3)])
        with pytest.raises(ValueError, match="critic_model"):
            make_trainer("separate", critics=None)

    def test_refused_in_shared_mode(self):
        for argument in ({"critics": [model(3), model(4)]}, {"critic_model": model(3)}):
            with pytest.raises(ValueError, match=r"use_separate_critic=False.*set"):
                make_trainer("shared", **argument)
        trainer = make_trainer("shared")
        assert trainer.critics == []
        assert all(agent.value_head is not None for agent in trainer.agents)

    def test_one_preloaded_critic_is_shared_and_says_so(self):
        """C32."""
        one = model(3)
        for given in ({"critics": [one]}, {"critics": [one, one]}, {"critic_model": one}):
            with pytest.warns(UserWarning, match=r"critic.*share.*identifier"):
                trainer = make_trainer("separate", **{"critics": None, **given})
            assert trainer.critics[0] is trainer.critics[1]

    def test_one_identifier_is_copied(self, tmp_path):
        """C32: three agents, one name: three disjoint sets of parameters, trained apart."""
        model(3).save_pretrained(tmp_path)
        tokenizer().save_pretrained(tmp_path)

        def one_has_learnt(a, b, c):
            return [[1.0, None, None] for _ in a]

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trainer = IACTrainer(
                args=IACConfig(
                    num_agents=3, max_new_tokens=3, verbose=False, critic_learning_rate=1e-2
                ),
                agents=[model(k) for k in range(3)],
                tokenizer=tokenizer(),
                critics=[str(tmp_path)],
                reward_func=one_has_learnt,
                train_dataset=rows(4),
            )
        sets = [{p.data_ptr() for p in critic.parameters()} for critic in trainer.critics]
        assert all(one.isdisjoint(other) for one, other in combinations(sets, 2))
        before = [[p.detach().clone() for p in critic.parameters()] for critic in trainer.critics]
        trainer.train()
        same = [
            all(torch.equal(p, q) for p, q in zip(critic.parameters(), old, strict=True))
            for critic, old in zip(trainer.critics, before, strict=True)
        ]
        assert same == [False, True, True]

    def test_the_agents_own_model_is_refused(self):
        agents = [model(1), model(2)]
        with pytest.raises(ValueError, match=r"critics\[0\].*agent 1"):
            make_trainer("maac", agents=agents, critic_model=agents[1])

    def test_critics_on_the_agents_model_or_on_one_model_are_refused(self):
        agents, one = [model(1), model(2)], model(3)
        words = tokenizer()
        for models in ((agents[0], one), (one, one)):
            with pytest.raises(ValueError, match="critic"):
                make_trainer("separate", agents=agents, critics=[Critic(m, words) for m in models])

    def test_a_history_longer_than_the_context(self):
        short, _ = tiny_model(VOCABULARY, n_positions=6)
        with pytest.raises(ValueError, match="critic"):
            make_trainer("maac", critic_model=short).train()

    def test_new_heads_leave_the_global_generator_alone(self):
        own = {"agents": [model(1), model(2)], "critic_model": model(3), "tokenizer": tokenizer()}
        before = torch.get_rng_state()
        make_trainer("maac", **own)
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_vocabulary_that_is_too_small(self):
        """C86: ids of 17 words do not fit a critic of 5."""
        small, _ = tiny_model(["a", "b"], n_embd=8, n_layer=1)
        with pytest.raises(ValueError, match=r"vocabulary \(5\).*tokenizer"):
            make_trainer("maac", critic_model=small)

    def test_width_of_the_value_heads(self):
        def width(head):
            return head.layers[0].out_features

        maac = make_trainer("maac", model_config={"critic_value_head_hidden_dim": 5})
        assert width(maac.critics[0].value_head) == 5
        separate = make_trainer("separate", critic_value_head_hidden_dim=6)
        assert [width(c.value_head) for c in separate.critics] == [6, 6]
        shared = make_trainer("shared", value_head_hidden_dim=7)
        assert [width(a.value_head) for a in shared.agents] == [7, 7]
        assert width(make_trainer("shared").agents[0].value_head) == 1
        for trainer in (maac, separate, shared):
            trainer.train()

    def test_new_value_heads(self):
        """Weights from N(0, 0.02), biases 0; another head for every agent, by the seed."""
        trainer = make_trainer("separate", critic_value_head_hidden_dim=400)
        heads = [critic.value_head for critic in trainer.critics]
        for head in heads:
            assert head.layers[0].weight.std().item() == pytest.approx(0.02, rel=0.1)
            assert head.layers[0].weight.mean().item() == pytest.approx(0, abs=0.001)
            assert head.layers[0].bias.abs().max() == 0
            assert isinstance(head.layers[1], torch.nn.Tanh)
        assert not torch.equal(heads[0].layers[0].weight, heads[1].layers[0].weight)

    def test_a_critic_with_a_head_of_its_own_keeps_it(self):
        critic = Critic(model(3), tokenizer())
        head = deepcopy(critic.value_head.state_dict())
        trainer = make_trainer("maac", critic_model=critic)
        assert trainer.critics[0] is critic
        kept = trainer.critics[0].value_head.state_dict()
        assert all(torch.equal(kept[name], head[name]) for name in head)


class TestArguments:
    def test_either_dataset_or_env(self):
        from marlogue.envs import coordination_v0

        env = coordination_v0.parallel_env()
        agents = [model(1), model(2)]
        own = {"agents": agents, "tokenizer": tokenizer(), "critic_model": model(3)}
        with pytest.raises(ValueError, match=r"train_dataset.*env"):
            MAACTrainer(reward_func=reward, **own)
        with pytest.raises(ValueError, match="reward_func"):
            MAACTrainer(train_dataset=rows(2), **own)
        with pytest.raises(ValueError, match=r"env.*reward_func.*train_dataset"):
            MAACTrainer(env=env, reward_func=reward, train_dataset=rows(2), **own)
        with pytest.raises(ValueError, match=r"env.*external_transition"):
            MAACTrainer(env=env, external_transition=again, **own)
        with pytest.raises(ValueError, match="eval_env"):
            make_trainer("maac", eval_env=env)

    def test_turns_need_a_transition(self):
        with pytest.raises(ValueError, match=r"num_turns \(2\).*external_transition"):
            make_trainer("maac", num_turns=2, external_transition=None)

    def test_the_environment_knows_better_than_a_default_but_not_than_a_number(self):
        from marlogue.envs import coordination_v0

        env = coordination_v0.parallel_env(num_agents=3, num_turns=2)
        agents = [model(k) for k in range(3)]
        trainer = make_trainer("maac", env=env, agents=agents)
        assert trainer.args.num_agents == 3
        assert trainer.args.num_turns == 2
        with pytest.raises(ValueError, match=r"num_turns \(3\).*environment's \(2\)"):
            make_trainer("maac", env=env, agents=agents, num_turns=3)

    def test_arguments_are_named(self):
        with pytest.raises(TypeError):
            MAACTrainer(MAACConfig())  # type: ignore[misc]

    def test_an_unknown_argument(self):
        with pytest.raises(TypeError, match="train_data"):
            MAACTrainer(train_data=rows(2))

    def test_an_unknown_key_of_model_config_names_the_nearest(self):
        with pytest.raises(ValueError, match=r"attn_implementaton.*attn_implementation"):
            make_trainer("maac", model_config={"attn_implementaton": "sdpa"})

    def test_a_max_new_tokens_that_leaves_no_room(self):
        short, words = tiny_model(VOCABULARY, n_positions=8, n_layer=1, n_embd=8)
        trainer = make_trainer("maac", agents=[short, model(2)], tokenizer=words, max_new_tokens=8)
        with pytest.raises(ValueError, match=r"max_new_tokens \(8\).*8"):
            trainer.train()


class TestReviewed:
    """Mistakes that were once accepted without a word, or met with a bare Python error."""

    def test_policies_bring_their_own_settings(self):
        model, tokenizer = tiny_model(["a", "b"])
        with pytest.raises(ValueError, match=r"max_prompt_tokens.*LLMPolicy"):
            MAACTrainer(
                agents=[LLMPolicy(model, tokenizer)],
                critic_model=tiny_model(["a", "b"])[0],
                train_dataset=[{"prompt": "a"}],
                reward_func=lambda a: [1.0],
                args=MAACConfig(num_agents=1, max_prompt_tokens=3),
            )

    @pytest.mark.parametrize("name", ["cosine_with_min_lr", "reduce_lr_on_plateau", "sawtooth"])
    def test_schedules_that_need_more_than_time(self, name):
        with pytest.raises(ValueError, match="lr_scheduler_type"):
            MAACConfig(lr_scheduler_type=name)

    def test_numbers_of_numpy(self):
        config = MAACConfig(num_agents=np.int64(3), discount=np.float32(0.5))
        assert (config.num_agents, config.discount) == (3, 0.5)

    def test_nothing_learnt_is_said(self):
        with pytest.warns(UserWarning, match="nothing was learnt"):
            MAACTrainer(
                agent_model=tiny_model(["a", "b"])[0],
                critic_model=tiny_model(["a", "b"])[0],
                tokenizer=tiny_model(["a", "b"])[1],
                train_dataset=[{"prompt": "a"}],
                reward_func=lambda a: [None],
                args=MAACConfig(num_agents=1, max_new_tokens=2, verbose=False),
            ).train()

    @pytest.mark.parametrize("callbacks", [Callback(), Callback, [Callback], [print]])
    def test_callbacks_that_are_none(self, callbacks):
        with pytest.raises(TypeError, match="callbacks"):
            make_trainer("maac", callbacks=callbacks)
