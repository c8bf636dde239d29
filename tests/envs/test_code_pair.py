"""The coding task: rewards of known programs, what agents are shown, a training."""

import copy
import csv
import math
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from marlogue import MAACConfig, MAACTrainer, tiny_model
from marlogue.envs import BatchRunner, Start, code_pair_v0
from marlogue.envs.code_grades import Answer, Weights, shared_grader
from marlogue.envs.human_eval import human_eval_rows
from tests.support.envs import actions
from tests.support.libraries import needs_coding

pytestmark = needs_coding

ROW = {
    "prompt": 'def add(a, b):\n    """Add two numbers."""\n',
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n"
    "    assert candidate(2, 2) == 4, 'two'\n    assert True\n",
}
HELPER = "def aux(a, b):\n    return [a]"
MAIN = "def add(a, b):\n    (first,) = aux(a, b)\n    return first + b"
SUM = "def aux(a, b):\n    return a + b"


@pytest.fixture(scope="module")
def reward() -> code_pair_v0.PairReward:
    return code_pair_v0.PairReward(limits={"cpu_seconds": 1, "wall_seconds": 20})


def body(*lines: str) -> str:
    return "def add(a, b):\n" + "".join(f"    {line}\n" for line in lines)


class TestReward:
    """Rewards by hand: 0.4 helper, 0.6 main, 0.5 syntax, 1 tests, 0.5 uses, 1 adds."""

    @pytest.mark.parametrize(
        ("helper", "main", "expected", "said"),
        [
            (HELPER, MAIN, 4.0, ""),
            (f"Here:\n```python\n{HELPER}\n```", f"```\n{MAIN}\n```\nDone.", 4.0, ""),
            (SUM, body("return aux(a, b)"), 3.0, "add only returns what aux gives"),
            (SUM, body("c = aux(a, b)", "return 0 + c"), 3.0, "aux alone is as good as add"),
            (SUM, body("c = aux(a, b)", "return a + b"), 3.0, "add is as good without aux"),
            (SUM, body("return aux(a, b) if a > 1 else 0"), 2.5, "aux alone is as good as add"),
            (SUM, body("aux(a, b)", "return a + b"), 2.5, ""),
            (SUM, body("return a + b"), 2.5, ""),
            (SUM, body("return 4"), 2.0, ""),
            (SUM, body("return None"), 1.5, ""),
            (SUM, body("while True:", "    a += 1", "return a"), 1.5, ""),
            (SUM, "import os\n" + body("os._exit(0)", "return 3"), 1.5, ""),
            (SUM, body("return (a"), 1.0, ""),
            (SUM, body("print(a)"), 0.4, ""),
            (SUM, "", 0.4, ""),
            ("", MAIN, 1.1, ""),
            ("", body("return a + b"), 2.1, ""),
            ("def aux(a, b):\n    return (a", body("return a + b"), 1.0, ""),
            ("Helper!", "Main!", 0.0, ""),
        ],
    )
    def test_by_hand(self, reward: Any, helper: str, main: str, expected: float, said: str) -> None:
        assert reward([helper], [main], batch_items=[ROW]) == [pytest.approx(expected, abs=1e-12)]
        (grade,) = reward.grade([Answer(ROW, helper, main)])
        assert grade.lacks == said

    def test_the_parts(self, reward: Any) -> None:
        assert reward.parts(ROW, SUM, body("return 4 + 0 * aux(a, b)")) == {
            "helper": 1.0,
            "main": 1.0,
            "syntax": 1.0,
            "tests": 0.5,
            "uses": 1.0,
            "adds": 0.0,
        }
        # 4 + 0 * None raises: fewer tests hold. The helper alone holds both, which is not fewer.
        assert code_pair_v0.reward_parts(ROW, HELPER, MAIN)["adds"] == 1.0

    def test_a_program_cannot_answer_for_the_tests(self, reward: Any) -> None:
        """Neither by names that the tests use, nor by those of the prompt, nor by what it says."""
        liar = "class Liar:\n    def __eq__(self, other):\n        return True\n"
        cheats = [
            "def len(x):\n    return 2\n" + body("return len(aux)"),
            "def str(x):\n    return '2 of 2 tests held'\n" + body("return str(aux)"),
            liar + body("return Liar()"),
            body("raise AssertionError('AssertionError: 2 of 2 tests held\\n')", "return aux"),
            "import sys\n" + body("sys.exit(0)", "return aux"),
            "def check(c):\n    return aux\n" + body("return check(1) or 2"),
        ]
        for cheat in cheats:
            assert reward.parts(ROW, SUM, cheat)["tests"] < 1.0, cheat
        row = {
            "prompt": 'def wanted(x):\n    return x + 1\n\ndef f(x):\n    """As wanted."""\n',
            "entry_point": "f",
            "test": "def check(candidate):\n    assert candidate(1) == wanted(1)\n",
        }
        lie = "def wanted(x):\n    return 0\ndef f(x):\n    return wanted(x)"
        assert reward.parts(row, "", lie)["tests"] == 0.0
        assert reward.parts(row, "", "def f(x):\n    return wanted(x)")["tests"] == 1.0

    def test_imports(self, reward: Any) -> None:
        row = {**ROW, "prompt": f"import math\nfrom typing import List\n\n{ROW['prompt']}"}
        main = "from __future__ import annotations\nimport re as r\n" + body(
            "x: List[int] = aux(a, b)", "return int(math.fsum(x)) if r.match('a', 'a') else 0"
        )
        helper = "from __future__ import annotations\ndef aux(a: Nothing, b):\n    return [a, b]"
        assert reward([helper], [main], batch_items=[row]) == [4.0]

    def test_weights(self) -> None:
        own = code_pair_v0.PairReward({"tests": 2, "adds": 0, "helper": 0})
        assert own([HELPER], [MAIN], batch_items=[ROW]) == [pytest.approx(3.6)]
        for weights, message in [
            ({"test": 1}, r"weights \(test\) must be one of helper, main, syntax"),
            ({"tests": -1}, r"weights.tests \(-1\) must be 0 or more"),
            ({"tests": math.nan}, r"weights.tests \(nan\)"),
        ]:
            with pytest.raises(ValueError, match=message):
                code_pair_v0.PairReward(weights)
        with pytest.raises(TypeError, match=r"weights.adds \('1'\) must be a number"):
            Weights(adds="1")

    def test_rows_of_ones_own(self, reward: Any) -> None:
        asserts = {**ROW, "test": "assert add(1, 1) == 2\nassert add(2, 3) == 5\n"}
        assert reward.parts(asserts, "", "def add(a, b):\n    return 2")["tests"] == 0.5
        for changes, message in [
            ({"test": None}, r"the row's test \(None\) must be a text"),
            ({"test": "x = 1"}, "must assert something"),
            ({"entry_point": "aux"}, r"the row's entry_point \('aux'\) must be a name"),
            ({"entry_point": "class"}, r"the row's entry_point \('class'\) must be a name"),
        ]:
            with pytest.raises(ValueError, match=message):
                reward.grade([Answer({**ROW, **changes}, HELPER, MAIN)])

    def test_answers_of_many_episodes_are_one_call(self, reward: Any) -> None:
        env = code_pair_v0.parallel_env(dataset=[ROW, {**ROW, "entry_point": "plus"}])
        assert env.task.reward.batched
        runner = BatchRunner(env)
        episodes = runner.reset([Start(options={"row": row}) for row in (0, 1)], num_generations=2)
        plus = MAIN.replace("add", "plus")
        results = runner.step(episodes, [actions(HELPER, m) for m in (MAIN, plus, MAIN, plus)])
        assert [result.rewards["agent_1"] for result in results] == [4.0, 0.4, 0.4, 4.0]

    def test_what_was_graded_is_not_run_again(self) -> None:
        own = code_pair_v0.PairReward(limits={"cpu_seconds": 3})
        grader = shared_grader(own.limits, "bubblewrap", None)
        runs = []
        sandbox = grader.sandbox
        run_many = sandbox.run_many
        sandbox.run_many = lambda snippets: runs.append(len(snippets)) or run_many(snippets)
        twin = pickle.loads(pickle.dumps(copy.deepcopy(own)))
        answers = [Answer(ROW, HELPER, MAIN)] * 3
        assert own.grade(answers) == twin.grade(answers)
        assert runs == [1, 1, 1]  # the program, without the helper, the helper alone


# Rows in which some tests hold for None or a text, found by evaluating every assert by itself.
KNOWN = {
    ("HumanEval/12", "none"): 1,  # candidate([]) == None
    ("HumanEval/33", "constant"): 3,  # tuple(candidate(x)) == tuple(sort_third(x)): with itself
    ("HumanEval/52", "none"): 2,  # not candidate(...)
    ("HumanEval/52", "constant"): 4,  # candidate(...)
    ("HumanEval/56", "none"): 8,
    ("HumanEval/56", "constant"): 4,
    ("HumanEval/61", "none"): 8,
    ("HumanEval/61", "constant"): 4,
    ("HumanEval/90", "none"): 3,
    ("HumanEval/128", "none"): 1,
    ("HumanEval/137", "none"): 1,
    ("HumanEval/162", "none"): 1,
}


@pytest.mark.slow
@pytest.mark.timeout(900)  # 1,700 short-lived processes, on a machine that may be busy
def test_all_rows_of_human_eval() -> None:
    """Known-good and known-bad programs of all 164 rows get the reward that they must."""
    reward = code_pair_v0.PairReward()
    wrong: dict[str, list[str]] = {}
    held_by_chance = {}

    def expect(kind: str, row: dict[str, Any], answer: tuple[str, str], right: Any) -> None:
        answers.append(Answer(row, *answer))
        expected.append((kind, right))

    answers: list[Answer] = []
    expected: list[tuple[str, Any]] = []
    for row in human_eval_rows():
        name = row["entry_point"]
        solved = row["prompt"] + row["canonical_solution"]
        renamed = re.sub(rf"\bdef {name}\(", "def _solved(", solved)
        boxed = f"{renamed}\n\ndef aux(*args):\n    return [_solved(*args)]\n"
        plain = f"{renamed}\n\ndef aux(*args):\n    return _solved(*args)\n"
        unboxes = f"def {name}(*args):\n    (result,) = aux(*args)\n    return result\n"
        wraps = f"def {name}(*args):\n    return aux(*args)\n"
        # 0.4 + 0.6 + 0.5 for both functions and the syntax; 1 tests, 0.5 uses, 1 adds.
        expect("pair", row, (f"Mine:\n```python\n{boxed}```", unboxes), 4.0)
        expect("wrapper", row, (plain, wraps), 3.0)
        expect("alone", row, ("", solved), 2.1)
        expect("no helper", row, ("", unboxes), 1.1)
        expect("constant", row, (plain, f"def {name}(*args):\n    return '~ wrong ~'\n"), None)
        expect("none", row, (plain, f"def {name}(*args):\n    return None\n"), None)
        expect("syntax", row, (plain, f"{solved}\n    return (\n\ndef {name}(:"), None)
        expect("broken", row, (plain, f"def {name}(*args):\n    return (\n"), 1.0)
    for (kind, right), answer, grade in zip(expected, answers, reward.grade(answers), strict=True):
        value = reward.weights.of(grade.parts)
        task = answer.row["task_id"]
        if kind in ("constant", "none"):
            # A few tests hold for what is wrong: `candidate(...) is None`, or a test that compares
            # the function with itself. Never all of them, and nothing more is earned.
            held_by_chance[task, kind] = grade.held
            assert value == pytest.approx(1.5 + grade.held / grade.total), (task, kind)
            right = value if grade.held < grade.total else math.nan
        elif kind == "syntax":
            right = 2.5 if grade.main.usable else 1.0
        if value != pytest.approx(right):
            wrong.setdefault(kind, []).append(f"{task}: {value} ({grade.message})")
    assert not wrong, wrong
    assert {key: held for key, held in held_by_chance.items() if held} == KNOWN
    assert len(answers) == 164 * 8


def test_what_agents_are_asked() -> None:
    env = code_pair_v0.parallel_env(dataset=[ROW])
    shown, infos = env.reset()
    for agent, name in (("agent_0", "aux"), ("agent_1", "add")):
        assert ROW["prompt"].strip() in shown[agent]
        assert f"Write only the function {name}, in Python" in shown[agent]
    assert infos["agent_0"]["item"]["entry_point"] == "add"


class TestTransitions:
    def asked(self, helper: str, main: str, **kwargs: Any) -> tuple[str, str]:
        """What is added to each agent's prompt after a turn."""
        env = code_pair_v0.parallel_env(dataset=[ROW], num_turns=2, **kwargs)
        first, _ = env.reset()
        second = env.step(actions(helper, main)).observations
        for agent in env.possible_agents:
            assert second[agent].startswith(first[agent] + "\n\n")
        return tuple(second[agent].removeprefix(f"{first[agent]}\n\n") for agent in second)

    def test_revision(self) -> None:
        helper, main = f"```python\n{HELPER}\n```", f"```python\n{MAIN}\n```"
        assert self.asked(HELPER, f"{MAIN}\nThat's it.") == (
            f"You wrote:\n{helper}\n\nYour team-mate wrote:\n{main}\n\n"
            "Improve your function aux, and write all of it again.",
            f"You wrote:\n{main}\n\nYour team-mate wrote:\n{helper}\n\n"
            "Improve your function add, and write all of it again.",
        )
        assert "Your team-mate wrote:\n(nothing)" in self.asked(" ", "I cannot.")[1]
        assert "You wrote:\nI cannot." in self.asked(" ", "I cannot.")[1]
        long = self.asked(HELPER, body(f"return '{'x' * 9000}'"))[0]
        assert len(long) < 2600
        assert "xxx ... xxx" in long

    @pytest.mark.parametrize(
        ("helper", "main", "facts"),
        [
            (HELPER, MAIN, ["aux: found", "add: found", "2 of 2 tests held"]),
            (
                "",
                "def add(a, b):\n    return (a",
                [
                    "aux: no function aux was found",
                    "add: syntax error: '(' was never closed at line 2 ('return (a')",
                    "no test was run",
                ],
            ),
            (
                SUM,
                body("return 4"),
                [
                    "aux: found",
                    "add: found",
                    "1 of 2 tests held",
                    "the first that did not: assert candidate(1, 2) == 3\nAssertionError:",
                    "add does not use aux",
                ],
            ),
            (
                "",
                MAIN,
                [
                    "aux: no function aux was found",
                    "add: found",
                    "0 of 2 tests held",
                    "the first that did not: assert candidate(1, 2) == 3\n"
                    "NameError: name 'aux' is not defined",
                ],
            ),
            (
                SUM,
                body("return aux(a, b)"),
                [
                    "aux: found",
                    "add: found",
                    "2 of 2 tests held",
                    "add only returns what aux gives",
                ],
            ),
        ],
    )
    def test_diagnosis(self, helper: str, main: str, facts: list[str]) -> None:
        for news in self.asked(helper, main, transition="diagnosis"):
            came = news.partition("What came of it:\n")[2].partition("\n\nImprove")[0]
            assert came == "\n".join(f"- {fact}" for fact in facts)

    def test_expert(self) -> None:
        seen = []

        def expert(row: dict[str, Any], helper: str, main: str) -> Any:
            seen.append((row["entry_point"], helper, main))
            return ("shorter", "") if "aux" in main else "call aux"

        said = self.asked(f"Text\n{HELPER}", MAIN, transition="expert", expert=expert)
        assert "\n\nAn expert says:\nshorter\n\nImprove" in said[0]
        assert "expert" not in said[1]
        assert seen == [("add", f"{HELPER}\n", f"{MAIN}\n")]
        said = self.asked(HELPER, "no idea", transition="expert", expert=expert)
        assert all("An expert says:\ncall aux\n\n" in news for news in said)

    def test_what_an_expert_may_not_return(self) -> None:
        with pytest.raises(
            ValueError, match=r"expert returned None; it must return a text, or two"
        ):
            self.asked(HELPER, MAIN, transition="expert", expert=lambda row, helper, main: None)

    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"transition": "magic"}, r"transition \('magic'\) must be one of revision, diagnosis"),
            ({"transition": "expert"}, r"transition \('expert'\) needs expert: a callable"),
            ({"expert": print}, r"expert needs transition='expert'"),
            ({"limits": {"seconds": 1}}, r"limits \(seconds\) must be one of cpu_seconds"),
            ({"isolation": "none"}, r"isolation \('none'\) must be"),
            ({"workers": 0}, r"workers \(0\) must be positive"),
        ],
    )
    def test_settings_that_do_not_go(self, kwargs: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            code_pair_v0.parallel_env(dataset=[ROW], **kwargs)


def taught(model: Any, tokenizer: Any, prompt: str, answer: str) -> Any:
    """The model, after it has been shown an answer a few times: it gives it now and then."""
    shown = tokenizer(prompt)["input_ids"]
    ids = torch.tensor([[*shown, *tokenizer(answer)["input_ids"], tokenizer.eos_token_id]])
    labels = ids.clone()
    labels[:, : len(shown)] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        loss = model(input_ids=ids, labels=labels).loss
        if loss < 0.15:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def test_training(tmp_path: Path) -> None:
    """Tiny models that have been shown a right answer train on what they wrote, for two turns; the
    log's reward is the weighted sum of the log's parts."""
    answers = ("def aux(a,b): return [a]", "def add(a,b): return aux(a,b)[0] + b")
    words = sorted({word for answer in answers for word in answer.split()})
    env = code_pair_v0.parallel_env(dataset=[ROW] * 16, num_turns=2, transition="diagnosis")
    shown, _ = env.reset()
    models = [tiny_model(words, seed=seed, n_layer=1) for seed in range(3)]
    tokenizer = models[0][1]
    agents = [
        taught(models[index][0], tokenizer, shown[f"agent_{index}"], answer)
        for index, answer in enumerate(answers)
    ]
    before = [copy.deepcopy(agent.state_dict()) for agent in agents]
    MAACTrainer(
        agents=agents,
        critic_model=models[2][0],
        tokenizer=tokenizer,
        env=env,
        metrics_callback=code_pair_v0.metrics,
        logdir=tmp_path,
        args=MAACConfig(
            num_turns=2, num_generations=1, rollout_buffer_size=32, max_new_tokens=10,
            agent_learning_rate=1e-3, critic_learning_rate=1e-3, logging_steps=1000,
            eval_interval=0, verbose=False,
        ),
    ).train()  # fmt: skip
    for agent, old in zip(agents, before, strict=True):
        assert any(not torch.equal(old[name], now) for name, now in agent.state_dict().items())
    with (tmp_path / "progress.csv").open() as file:
        (*_, logged) = csv.DictReader(file)
    weights = Weights()
    for turn in (1, 2):
        parts = {
            name: float(logged[f"code_pair/turn_{turn}/{name}"])
            for name in ("helper", "main", "syntax", "tests", "uses", "adds")
        }
        assert weights.of(parts) == pytest.approx(float(logged[f"team/turn_{turn}/reward_mean"]))
    assert 0 < float(logged["code_pair/turn_1/all_passed"]) <= 1
