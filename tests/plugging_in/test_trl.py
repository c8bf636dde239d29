"""TRL: GRPO trains one model in a team, by rollouts of ours and by its own tool calls."""

import os
import subprocess
import sys

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import pytest

from tests.support.command_line import ROOT
from tests.support.libraries import needs

trl = needs("trl")

from marlogue.agents import LLMPolicy, SamplingParams, tiny_model  # noqa: E402
from marlogue.envs import TextEnv, coordination_v0  # noqa: E402
from marlogue.wrappers.trl import (  # noqa: E402
    Rollouts,
    dataset,
    environment_factory,
    episode_reward,
)
from tests.support.strangers import EchoGame, Pension, TakingTurns  # noqa: E402

pytestmark = pytest.mark.optional

ANSWER = coordination_v0.ANSWERS.get
CHAT = (
    "{% for m in messages %}"
    "{% if m['role'] == 'assistant' %} says {{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %} {{ c['function']['name'] }}"
    "{% for k, v in c['function']['arguments'].items() %} {{ k }} {{ v }}{% endfor %}"
    "{% endfor %}{{ eos_token }}"
    "{% elif m['role'] == 'tool' %} told {{ m['content'] }}"
    "{% else %} asked {{ m['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %} says {% endif %}"
)
# What the tiny model says is an argument of the tool: it is too small to write JSON.
ALWAYS_CALLS = {
    "defaults": {"role": "assistant"},
    "start_anchor": "says",
    "fields": {
        "tool_calls": {
            "close_pattern": r"\s*<eos>\s*",
            "content": "text",
            "repeats": True,
            "transform": {
                "type": "function",
                "function": {"name": "answer", "arguments": {"text": "{content}"}},
            },
        }
    },
}


def tiny(*, chat=False):
    if not chat:
        return tiny_model(coordination_v0.VOCABULARY)
    model, tokenizer = tiny_model([*coordination_v0.VOCABULARY, "asked", "told", "says"])
    tokenizer.chat_template = CHAT
    tokenizer.response_template = ALWAYS_CALLS
    return model, tokenizer


def trainer(tmp_path, train_dataset, *, chat=False, steps=1, learning_rate=1e-2, tokens=1, **own):
    model, tokenizer = tiny(chat=chat)
    model.save_pretrained(tmp_path / "model")
    settings = trl.GRPOConfig(
        str(tmp_path / "out"),
        learning_rate=learning_rate,
        lr_scheduler_type="constant",
        max_steps=steps,
        per_device_train_batch_size=32,
        num_generations=8,
        max_completion_length=tokens,
        max_tool_calling_iterations=1,
        logging_steps=5,
        report_to="none",
        save_strategy="no",
        seed=0,
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    return trl.GRPOTrainer(
        model=str(tmp_path / "model"),
        processing_class=tokenizer,
        train_dataset=train_dataset,
        args=settings,
        **own,
    )


def rewards_of(trained):
    trained.train()
    return [entry["reward"] for entry in trained.state.log_history if "reward" in entry]


def prompts_of(rows, times=1):
    return [entry["prompt"] for entry in rows for _ in range(times)]


def test_the_dataset_says_who_learns_from_which_row():
    env = coordination_v0.parallel_env()
    rows = dataset(env)
    assert rows.column_names == ["prompt"]
    assert len(rows) == 8
    shown = {"role": "user", "content": "noon", "agent": "agent_1", "row": 1}
    assert rows[3]["prompt"] == [shown]
    seeded = dataset(EchoGame(), ["bob"], seeds=[7, 8])
    assert [entry["prompt"][0]["seed"] for entry in seeded] == [7, 8]
    assert [entry["prompt"][0]["content"] for entry in seeded] == ["ant", "bee"]


def test_bad_datasets():
    with pytest.raises(ValueError, match=r"agents \(\['bob'\]\) must be some of"):
        dataset(coordination_v0.parallel_env(), ["bob"])
    with pytest.raises(ValueError, match=r"seeds \(None\) must be given"):
        dataset(EchoGame())
    with pytest.raises(TypeError, match="must be a PettingZoo ParallelEnv"):
        dataset("coordination_v0")
    with pytest.raises(TypeError, match=r"seeds \(5\) must be integers"):
        dataset(EchoGame(), seeds=5)


def test_bad_arguments_of_the_factory():
    env = coordination_v0.parallel_env()
    with pytest.raises(ValueError, match=r"unfinished is 'x' .* must be a number"):
        environment_factory(env, others=ANSWER, unfinished="x")
    with pytest.raises(ValueError, match=r"seed \(-1\) must be 0 or more"):
        environment_factory(env, others=ANSWER, seed=-1)


def test_grpo_learns_beside_a_frozen_agent(tmp_path):
    env = coordination_v0.parallel_env()
    trained = trainer(
        tmp_path,
        dataset(env, ["agent_0"]),
        steps=80,
        learning_rate=3e-3,
        reward_funcs=episode_reward,
        rollout_func=Rollouts(env, ANSWER),
    )
    rewards = rewards_of(trained)
    assert rewards[0] < 0.45  # 0.25 for the other one's answer, and a guess among 13 tokens
    assert sum(rewards[-3:]) / 3 > 0.85


def test_grpo_learns_by_calling_the_tool(tmp_path):
    env = coordination_v0.parallel_env()
    trained = trainer(
        tmp_path,
        dataset(env, ["agent_1"]),
        chat=True,
        steps=100,
        learning_rate=3e-3,
        environment_factory=environment_factory(env, "agent_1", ANSWER),
    )
    rewards = rewards_of(trained)
    assert rewards[0] < 0.45
    assert sum(rewards[-3:]) / 3 > 0.85
    assert trained.reward_func_names == ["TextGame"]


@pytest.mark.parametrize("chat", [False, True])
def test_a_sequence_holds_the_dialogue_and_only_its_own_words_count(tmp_path, chat):
    env = coordination_v0.parallel_env(num_turns=2)
    rows = dataset(env, ["agent_1"])
    rollouts = Rollouts(env, {"agent_0": lambda prompt: "red"})
    made = trainer(
        tmp_path, rows, chat=chat, tokens=2, reward_funcs=episode_reward, rollout_func=rollouts
    )
    output = rollouts(prompts_of(rows, 3), made)
    assert output["logprobs"] is None
    assert output["episode_turns"] == [2] * 12
    tokenizer = made.processing_class
    own_env = coordination_v0.parallel_env(num_turns=2)
    for k in range(12):
        cue = rows[k // 3]["prompt"][0]["content"]
        first = tokenizer.decode(output["prompt_ids"][k])
        assert first.split() == (["asked", cue, "says"] if chat else [cue])
        ids, mask = output["completion_ids"][k], output["env_mask"][k]
        assert len(ids) == len(mask)
        start = mask.index(0)
        stop = len(mask) - mask[::-1].index(0)
        said = [
            tokenizer.decode(part, skip_special_tokens=True) for part in (ids[:start], ids[stop:])
        ]
        assert mask == [1] * start + [0] * (stop - start) + [1] * (len(ids) - stop)
        # The texts that the ids stand for earn what the rollout says they earned.
        own_env.reset(options={"row": k // 3})
        turns = [own_env.step({"agent_0": "red", "agent_1": text}) for text in said]
        assert output["episode_reward"][k] == sum(turn.rewards["agent_1"] for turn in turns)
        heard = ["asked"] * chat + [cue, "heard", "red"] + ["says"] * chat
        between = tokenizer.decode(ids[start:stop]).replace("<eos>", "").split()
        assert between == heard
        # A template closes the model's turn, once, whether or not the model did.
        ends = ids[: stop - len(heard)].count(tokenizer.eos_token_id)
        assert ends == 1 if chat else ids[start:stop].count(tokenizer.eos_token_id) == 0


def test_training_over_two_turns_changes_the_model(tmp_path):
    env = coordination_v0.parallel_env(num_turns=2)
    made = trainer(
        tmp_path, dataset(env), steps=2, reward_funcs=episode_reward, rollout_func=Rollouts(env)
    )
    before = {name: value.clone() for name, value in made.model.named_parameters()}
    made.train()
    assert any(not value.equal(before[name]) for name, value in made.model.named_parameters())


def test_the_reward_is_that_of_the_agent_that_learns(tmp_path):
    env = coordination_v0.parallel_env(reward_func=lambda a, b: [[1.0, 4.0]] * len(a))
    rows = dataset(env)
    rollouts = Rollouts(env)
    made = trainer(tmp_path, rows, reward_funcs=episode_reward, rollout_func=rollouts)
    assert rollouts(prompts_of(rows), made)["episode_reward"] == [1.0, 4.0] * 4
    game = environment_factory(env, "agent_1", lambda prompt: "red")()
    game.reset(**rows[1])
    game.answer("red")
    assert game.get_reward() == 4.0


def test_only_who_moves_speaks(tmp_path):
    rows = dataset(TakingTurns(), ["bob"], seeds=range(2))
    rollouts = Rollouts(TakingTurns(), {"ann": lambda prompt: prompt})
    made = trainer(tmp_path, rows, reward_funcs=episode_reward, rollout_func=rollouts)
    output = rollouts(prompts_of(rows), made)
    env = TakingTurns()
    _, infos = env.reset(seed=0)
    moves = 0
    while "bob" in env.agents:
        moves += not infos["bob"].get("waits", False)
        *_, infos = env.step(dict.fromkeys(env.agents, ""))
    assert 0 < moves < env.turns
    assert output["episode_turns"] == [moves, moves]


def test_a_learner_is_paid_after_it_left(tmp_path):
    rows = dataset(Pension(), ["bob"], seeds=range(2))
    for rollouts in (Rollouts(Pension()), Rollouts(Pension(), lambda prompt: prompt)):
        made = trainer(tmp_path, rows, reward_funcs=episode_reward, rollout_func=rollouts)
        output = rollouts(prompts_of(rows), made)
        assert output["episode_reward"] == [5.0, 5.0]
        assert output["episode_turns"] == [1, 1]
    game = environment_factory(Pension(), "bob", lambda prompt: prompt)()
    game.reset(**rows[0])
    assert game.answer("ant") == "The episode is over."
    assert game.get_reward() == 5.0


def test_an_episode_without_a_turn_of_the_learner_trains_nothing(tmp_path):
    """Who moves second has no turn where the first one leaves at once, and both are out."""

    class Ending(TakingTurns):
        def step(self, actions):
            shown, rewards, ended, *rest = super().step(actions)
            if self.seed % 2:
                self.agents, ended = [], dict.fromkeys(ended, True)
            return (shown, rewards, ended, *rest)

        def reset(self, seed=None, options=None):
            self.seed = seed
            return super().reset(seed, options)

    env = Ending(turns=2)
    made = trainer(tmp_path, dataset(env, seeds=[0, 1]), tokens=2, reward_funcs=episode_reward)
    second = prompts_of(dataset(env, ["bob"], seeds=[0, 1]))
    output = Rollouts(env)(second, made)
    assert output["episode_turns"] == [1, 0]
    assert [any(own) for own in output["env_mask"]] == [True, False]
    assert all(len(ids) > 0 for ids in output["prompt_ids"] + output["completion_ids"])
    with pytest.raises(ValueError, match="bob never had a turn in 2 episodes"):
        Rollouts(env)([second[1]] * 2, made)
    learning = trainer(
        tmp_path,
        dataset(env, seeds=[0, 1]),
        tokens=2,
        reward_funcs=episode_reward,
        rollout_func=Rollouts(env),
    )
    learning.train()
    assert all(weights.isfinite().all() for weights in learning.model.parameters())
    assert learning.state.global_step == 1


def test_a_frozen_language_model_depends_on_the_seed_alone(tmp_path):
    env = coordination_v0.parallel_env()
    heard = []

    def reward(first, second):
        heard.extend(second)
        return [0.0] * len(first)

    env = coordination_v0.parallel_env(reward_func=reward)
    model, tokenizer = tiny_model(coordination_v0.VOCABULARY, seed=1)
    policy = LLMPolicy(model, tokenizer)
    rows = dataset(env, ["agent_0"])
    for _ in range(2):
        rollouts = Rollouts(env, policy, sampling=SamplingParams(max_new_tokens=3))
        made = trainer(tmp_path, rows, reward_funcs=episode_reward, rollout_func=rollouts)
        rollouts(prompts_of(rows, 4), made)
    assert heard[:16] == heard[16:]
    assert len(set(heard[:16])) > 8


def test_what_rollouts_refuse(tmp_path):
    env = coordination_v0.parallel_env()
    rows = dataset(env)
    made = trainer(tmp_path, rows, tokens=600, reward_funcs=episode_reward)
    with pytest.raises(ValueError, match=r"max_completion_length \(600\) must fit into .* of 512"):
        Rollouts(env)(prompts_of(rows), made)
    with pytest.raises(ValueError, match="lets agent_1 learn, but only agent_0 can"):
        Rollouts(env, {"agent_1": ANSWER})(prompts_of(rows), made)
    with pytest.raises(ValueError, match=r"must be one of marlogue\.wrappers\.trl\.dataset"):
        Rollouts(env)([[{"role": "user", "content": "dawn"}]], made)
    with pytest.raises(ValueError, match=r"others .* names bob"):
        Rollouts(env, {"bob": ANSWER})
    with pytest.raises(ValueError, match="must leave out an agent"):
        Rollouts(env, dict.fromkeys(env.possible_agents, ANSWER))
    with pytest.raises(ValueError, match=r"chat \(True\) must be False"):
        Rollouts(env, chat=True)(prompts_of(rows), made)
    with pytest.raises(ValueError, match="rollout_func=marlogue"):
        episode_reward(prompts=[], completions=[])


def test_the_tool_plays_an_episode():
    env = coordination_v0.parallel_env(num_turns=2)
    rows = dataset(env, ["agent_0"])
    others = lambda prompt: ANSWER(prompt.split()[0])  # noqa: E731
    game = environment_factory(env, "agent_0", others, unfinished=-1.0)()
    assert game.reset(**rows[2]) is None
    assert game.answer("blue") == "dusk heard blue"
    assert game.get_reward() == 0.0  # 1 earned, 1 lost for not going on
    assert game.answer("red") == "The episode is over."
    assert game.get_reward() == 1.25
    assert game.answer("blue") == "The episode is over."
    assert game.get_reward() == 1.25
    with pytest.raises(ValueError, match="lets agent_1 learn, but this environment is that of"):
        game.reset(**dataset(env, ["agent_1"])[0])


def test_faults_of_the_environment_reach_the_user_and_those_of_the_model_do_not():
    def reward(first, second):
        if first == ["fail"]:
            raise KeyError("no such answer")
        return [1.0]

    env = TextEnv([{"prompt": "go"}], reward, max_completion_chars=5)
    game = environment_factory(env, "agent_0", lambda prompt: "x")()
    entry = dataset(env, ["agent_0"])[0]
    game.reset(**entry)
    with pytest.raises(ValueError, match="text must be in UnicodeText"):
        game.answer("too long")
    assert game.get_reward() == 0.0
    with pytest.raises(KeyError, match="no such answer"):
        game.answer("fail")
    with pytest.raises(KeyError, match="no such answer"):
        game.get_reward()
    game.reset(**entry)
    assert game.answer("fine") == "The episode is over."
    assert game.get_reward() == 1.0


def test_example(tmp_path):
    """One model plays both agents and learns to agree with itself."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/plugging_in/trl_grpo.py"), "--steps", "100"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("mean return")]
    before, after = (float(line.split()[-1]) for line in said)
    assert before < 0.2
    assert after > 0.8
