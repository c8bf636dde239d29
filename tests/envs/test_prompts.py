"""Formatters and transitions: what agents are shown (C84, and C62 for copies)."""

import asyncio
import functools

import pytest

from marlogue.envs.formatters import Formatters
from marlogue.envs.transitions import EXTRAS, STANDARD, Transition
from tests.support.envs import ROWS, actions, text_env


class TestFormatters:
    def test_none_shows_the_prompt_field(self):
        assert text_env().reset()[0] == actions("x", "x")

    @pytest.mark.parametrize("item", [{"question": "x"}, {}, {"prompt": None}, {"prompt": ["x"]}])
    def test_a_missing_prompt_is_an_error_that_names_row_and_fields(self, item):
        env = text_env(dataset=[ROWS[0], item])
        env.reset()
        with pytest.raises(ValueError, match=r"'prompt'|has the prompt") as caught:
            env.reset()
        assert all(f"'{field}'" in str(caught.value) for field in item)
        assert "row 1" in "".join(caught.value.__notes__)

    def test_one_for_all_or_one_each(self):
        assert text_env(formatters=lambda i: "f" + i["prompt"]).reset()[0] == actions("fx", "fx")
        pair = [lambda i: "a" + i["prompt"], lambda i: "b" + i["prompt"]]
        assert text_env(formatters=pair).reset()[0] == actions("ax", "bx")
        assert text_env(formatters=tuple(pair)).reset()[0] == actions("ax", "bx")

    def test_external_prompts_go_to_those_that_name_them(self):
        seen = []
        env = text_env(
            formatters=[
                lambda item: seen.append((0, dict(item))) or "p",
                lambda item, external_prompts: seen.append((1, external_prompts)) or "q",
                lambda item, **kwargs: seen.append((2, kwargs)) or "r",
            ],
            num_agents=3,
            num_turns=2,
            external_transition=lambda num_agents: ["next"] * num_agents,
        )
        env.reset()
        assert seen == [(0, ROWS[0]), (1, None), (2, {"external_prompts": None})]
        seen.clear()
        env.step(actions("a", "b", "c"))
        modified = {**ROWS[0], "_original_prompt": "x", "prompt": "next"}
        assert seen == [(0, modified), (1, "next"), (2, {"external_prompts": "next"})]

    def test_passthrough_shows_the_transition_s_prompts_as_they_are(self):
        settings = {
            "formatters": lambda item: f"<{item['prompt']}>",
            "num_turns": 2,
            "external_transition": lambda num_agents: ["t0", "t1"],
        }
        for passthrough, shown in ((False, ["<t0>", "<t1>"]), (True, ["t0", "t1"])):
            env = text_env(external_prompt_passthrough=passthrough, **settings)
            env.reset()
            assert env.step(actions("a", "b")).observations == actions(*shown)

    @pytest.mark.parametrize("returned", [None, 3, ["x"], b"x"])
    def test_must_return_a_text(self, returned):
        env = text_env(formatters=[lambda item: "x", lambda item: returned])
        with pytest.raises(ValueError, match=r"returned .*\(agent_1, row 0, turn 0\)"):
            env.reset()

    def test_own_errors_are_noted(self):
        env = text_env(formatters=lambda item: item["question"])
        with pytest.raises(KeyError, match="question") as caught:
            env.reset()
        assert caught.value.__notes__ == ["while formatting the prompt of agent_0, row 0, turn 0"]

    @pytest.mark.parametrize(
        ("formatters", "error", "message"),
        [
            (3, TypeError, "formatters"),
            ("ab", TypeError, "agent_0"),
            ([str, None], TypeError, "agent_1"),
            ([str], ValueError, "as many as agents"),
            (lambda: "x", TypeError, "cannot be called"),
            (lambda item, tokenizer: "x", TypeError, "tokenizer"),
            (lambda item, *, tokenizer: "x", TypeError, "tokenizer"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, formatters, error, message):
        with pytest.raises(error, match=message):
            Formatters(formatters, ["agent_0", "agent_1"])

    def test_async_formatters_are_refused(self):
        async def formatter(item):
            return "x"

        with pytest.raises(TypeError, match="async"):
            Formatters(formatter, ["agent_0"])
        with pytest.raises(ValueError, match="awaitable"):
            Formatters(lambda item: formatter(item), ["agent_0"]).first_prompts({}, 0)

    @pytest.mark.parametrize(
        "formatter",
        [
            functools.partial(lambda mark, item: mark + item["prompt"], "-"),
            functools.partial(lambda item, mark: mark + item["prompt"], mark="-"),
            "-{prompt}".format_map,
        ],
    )
    def test_partials_and_builtins(self, formatter):
        assert text_env(formatters=formatter).reset()[0] == actions("-x", "-x")


def test_a_transition_gets_what_it_names_once_per_turn():
    seen = []

    def transition(**kwargs):
        seen.append(kwargs)
        return [f"{kwargs['turn_idx']}{agent}" for agent in "ab"]

    env = text_env(
        external_transition=transition,
        num_turns=3,
        reward_func=lambda a, b: [1.0, None],
        reward_processor=lambda reward: 2 * reward,
    )
    env.reset()
    env.step(actions("c0", "c1"))
    env.step(actions("d0", "d1"))
    env.step(actions("e0", "e1"))  # nothing comes after the last turn
    assert [set(kwargs) for kwargs in seen] == [{*STANDARD, *EXTRAS}] * 2
    infos = seen[1].pop("infos")
    assert seen[1] == {
        "prompt": "x",
        "agent_completions": ["d0", "d1"],
        "num_agents": 2,
        "prompt_history_per_agent": [["x", "0a"], ["x", "0b"]],
        "response_history_per_agent": [["c0", "d0"], ["c1", "d1"]],
        "item": ROWS[0],
        "rewards": [2.0, None],
        "turn_idx": 1,
    }
    assert infos["agent_1"]["abstained"] is True
    assert infos["agent_0"]["turn"] == 2


def test_a_transition_s_histories_are_copies():
    def spoil(prompt_history_per_agent, response_history_per_agent, agent_completions, num_agents):
        for history in (*prompt_history_per_agent, *response_history_per_agent):
            history[:] = ["spoilt"] * 9
        agent_completions.clear()
        return ["n"] * num_agents

    env = text_env(external_transition=spoil, num_turns=3, render_mode="ansi")
    env.reset()
    for _ in range(3):
        env.step(actions("a", "b"))
    assert "spoilt" not in env.render()


BAD_TURNS = [
    ([None, "x"], "returned None for agent_0"),
    (["x", None], "returned None for agent_1"),
    (["x", 3], "an int for agent_1"),
    (["only one"], "none for agent_1"),
    ([], "none for agent_0, agent_1"),
    (["x", "y", "z"], r"3 prompt\(s\), for 2 agents"),
    ({"agent_0": "x", "agent_1": "y"}, "a dict .*agent_0, agent_1"),
    (None, "None .*agent_0, agent_1"),
    ("xy", "a str .*agent_0, agent_1"),
    (("x" for _ in range(2)), "a generator"),
]


@pytest.mark.parametrize(("returned", "message"), BAD_TURNS)
def test_a_wrong_return_value_is_named_with_agent_and_turn(returned, message):
    env = text_env(external_transition=lambda **_: returned, num_turns=2)
    env.reset(options={"row": 1})
    with pytest.raises(ValueError, match=message) as caught:
        env.step(actions("a", "b"))
    assert "row 1, turn 0" in str(caught.value)
    assert "external_transition" in str(caught.value)


def test_a_transition_may_return_a_tuple():
    env = text_env(external_transition=lambda num_agents: ("p", "q"), num_turns=2)
    env.reset()
    assert env.step(actions("a", "b")).observations == actions("p", "q")


def test_a_transition_s_own_errors_are_noted():
    def transition(prompt):
        raise OSError("disk is full")

    env = text_env(external_transition=transition, num_turns=2)
    env.reset()
    with pytest.raises(OSError, match="disk is full") as caught:
        env.step(actions("a", "b"))
    assert "row 0, turn 0" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "function", [3, None, lambda judge: [], lambda prompt, /: [], lambda *, judge: []]
)
def test_a_transition_that_cannot_be_called_is_refused(function):
    with pytest.raises(TypeError, match="external_transition"):
        Transition(function, ["agent_0"])


def test_an_async_transition_is_awaited():
    async def transition(agent_completions, turn_idx):
        await asyncio.sleep(0)
        return [f"{text}{turn_idx}" for text in agent_completions]

    env = text_env(external_transition=transition, num_turns=2)
    env.reset()
    assert env.step(actions("a", "b")).observations == actions("a0", "b0")
    env.close()


def test_a_transition_method_and_partial():
    class Game:
        def next(self, mark, num_agents, turn_idx):
            return [f"{mark}{turn_idx}"] * num_agents

    env = text_env(external_transition=functools.partial(Game().next, "-"), num_turns=2)
    env.reset()
    assert env.step(actions("a", "b")).observations == actions("-0", "-0")
