"""How reward functions are called: settled once, from the signature (C40)."""

import functools
import traceback

import pytest

from marlogue.envs import batched_reward
from marlogue.envs.rewards import JointAction, Reward, is_batched, settle_call

AGENTS = ("agent_0", "agent_1")
ITEM = {"prompt": "x", "id": 7}
TWO = (
    JointAction(7, 1, dict(ITEM), ("Pa", "Pb"), ("x1", "y1")),
    JointAction(7, 1, dict(ITEM), ("Qa", "Qb"), ("x2", "y2")),
)
A, B = ["x1", "x2"], ["y1", "y2"]
PROMPTS = [["Pa", "Qa"], ["Pb", "Qb"]]


def called_with(make):
    """Call what `make(seen)` returns through the contract; what it put into `seen`."""
    seen = []
    Reward(make(seen), AGENTS).score([TWO])
    (call,) = seen
    return call


def ok(seen, *call):
    seen.append(call)
    return [0.0, 0.0]


class Scorer:
    def __init__(self, seen):
        self.seen = seen

    def __call__(self, a, b, *, batch_items):
        return ok(self.seen, a, b, batch_items)

    def method(self, a, b, prompts):
        return ok(self.seen, a, b, prompts)

    @staticmethod
    def static(seen, a, b):
        return ok(seen, a, b)


def wrapped(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs)

    return inner


FORMS = {
    "plain": (lambda s: lambda a, b: ok(s, a, b), (A, B)),
    "prompts last": (lambda s: lambda a, b, prompts: ok(s, a, b, prompts), (A, B, PROMPTS)),
    "prompts first": (lambda s: lambda prompts, a, b=None: ok(s, a, b, prompts), (A, B, PROMPTS)),
    "in the middle": (lambda s: lambda a, prompts, b: ok(s, a, b, prompts), (A, B, PROMPTS)),
    "keyword-only": (
        lambda s: lambda a, b, *, batch_items: ok(s, a, b, batch_items),
        (A, B, [ITEM]),
    ),
    "any keyword": (
        lambda s: lambda a, b, **kw: ok(s, a, b, kw),
        (A, B, {"prompts": PROMPTS, "batch_items": [ITEM]}),
    ),
    "varargs": (lambda s: lambda *c: ok(s, c), ((A, B),)),
    "one and varargs": (lambda s: lambda a, *c: ok(s, a, c), (A, (B,))),
    "varargs and prompts": (
        lambda s: lambda *c, prompts=None: ok(s, c, prompts),
        ((A, B), PROMPTS),
    ),
    "positional-only": (lambda s: lambda a, b, /: ok(s, a, b), (A, B)),
    "unused default": (lambda s: lambda a, b, c=3: ok(s, a, b, c), (A, B, 3)),
    "keyword default": (lambda s: lambda a, b, *, c=3: ok(s, a, b, c), (A, B, 3)),
    "callable object": (Scorer, (A, B, [ITEM])),
    "bound method": (lambda s: Scorer(s).method, (A, B, PROMPTS)),
    "partial": (lambda s: functools.partial(Scorer.static, s), (A, B)),
    "partial keyword": (
        lambda s: functools.partial(lambda a, b, weight: ok(s, a, b, weight), weight=2),
        (A, B, 2),
    ),
    "partial settles prompts": (
        lambda s: functools.partial(lambda a, b, prompts: ok(s, a, b, prompts), prompts="mine"),
        (A, B, "mine"),
    ),
    "wrapped": (
        lambda s: wrapped(lambda a, b, prompts: ok(s, a, b, prompts)),
        (A, B, PROMPTS),
    ),
    "wrapped method": (lambda s: wrapped(Scorer(s).method), (A, B, PROMPTS)),
}


@pytest.mark.parametrize("form", FORMS)
def test_calling_form(form):
    make, expected = FORMS[form]
    assert called_with(make) == expected


def test_a_wrapper_that_takes_no_keywords_gets_none():
    seen = []

    def inner(a, b, prompts=None):
        return ok(seen, a, b, prompts)

    @functools.wraps(inner)
    def outer(*completions):
        return inner(*completions)

    Reward(outer, AGENTS).score([TWO])
    assert seen == [(A, B, None)]


def test_a_builtin_without_a_signature_gets_the_completions_by_position():
    assert settle_call(max, 2) == ((), ())
    with pytest.raises(ValueError, match="a str"):
        Reward(max, AGENTS).score([TWO])


def test_a_builtin_with_a_signature():
    one = JointAction(0, 0, {}, ("p",), ("abc",))
    assert Reward(len, ["agent_0"]).score([[one]])[0][0].raw == (1.0,)


REFUSED = {
    "too few": lambda a: 0,
    "too many": lambda a, b, c: 0,
    "none at all": lambda: 0,
    "only prompts": lambda prompts, batch_items: 0,
    "unknown keyword": lambda a, b, *, tokenizer: 0,
    "prompts ahead of varargs": lambda prompts, *completions: 0,
    "too many ahead of varargs": lambda a, b, c, *rest: 0,
    "prompts by position only": eval("lambda prompts, a, b, /: 0"),
    "bound too late": functools.partial(lambda prompts, a, b: 0, prompts=None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_signature_that_cannot_fit_is_refused_before_any_call(case):
    with pytest.raises(TypeError, match="reward_func"):
        Reward(REFUSED[case], AGENTS)


def test_the_refusal_says_what_to_change():
    with pytest.raises(
        TypeError, match=r"takes 3 list\(s\) of completions, but there are 2 agents"
    ):
        Reward(lambda a, b, c: 0, AGENTS)
    with pytest.raises(TypeError, match=r"demands the keyword tokenizer.*functools\.partial"):
        Reward(lambda a, b, *, tokenizer: 0, AGENTS)


async def async_reward(a, b):
    return [0.0, 0.0]


class AsyncScorer:
    async def __call__(self, a, b):
        return [0.0, 0.0]


@pytest.mark.parametrize(
    "function",
    [async_reward, functools.partial(async_reward), AsyncScorer(), AsyncScorer().__call__],
)
def test_async_functions_are_awaited(function):
    reward = Reward(function, AGENTS)
    assert reward.score([TWO])[0][0].raw == (0.0, 0.0)
    reward.close()


async def async_generator(a, b):
    yield [0.0, 0.0]


def test_an_async_generator_is_refused():
    with pytest.raises(TypeError, match="async generator"):
        Reward(async_generator, AGENTS)


def test_a_hidden_coroutine_is_refused_when_it_comes_back():
    with pytest.raises(ValueError, match="awaitable"):
        Reward(lambda a, b: async_reward(a, b), AGENTS).score([TWO])


@pytest.mark.parametrize("function", [None, 3, "reward", [1.0]])
def test_what_cannot_be_called_is_refused(function):
    with pytest.raises(TypeError, match=r"reward_func \(.*\) must be callable"):
        Reward(function, AGENTS)


def test_a_type_error_of_the_user_is_raised_once_with_its_own_traceback():
    calls = []

    def r(prompts, a, b=None):
        calls.append((prompts, a, b))
        if prompts[0][0].startswith("P"):
            return None + 1
        return [1.0 if "x" in a[0] else 0.0]

    with pytest.raises(TypeError, match="unsupported operand") as caught:
        Reward(r, AGENTS).score([TWO[:1]])
    assert calls == [([["Pa"], ["Pb"]], ["x1"], ["y1"])]
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "r"
    (note,) = caught.value.__notes__
    assert "reward_func" in note
    assert "row 7, turn 1" in note


def test_what_the_function_does_to_its_arguments_stays_with_it():
    def spoil(a, b, prompts, batch_items):
        for argument in (a, b, *prompts):
            argument.clear()
        batch_items[0].clear()
        return [1.0]

    action = JointAction(0, 0, dict(ITEM), ("p", "q"), ("a", "b"))
    Reward(spoil, AGENTS).score([[action]])
    assert action.prompts == ("p", "q")
    assert action.completions == ("a", "b")


class TestBatched:
    def test_marks_functions_methods_objects_and_partials(self):
        class Marked:
            @batched_reward
            def __call__(self, a):
                return [0.0]

            @batched_reward
            def method(self, a):
                return [0.0]

        @batched_reward
        def function(a):
            return [0.0]

        assert is_batched(function)
        assert is_batched(Marked())
        assert is_batched(Marked().method)
        assert is_batched(functools.partial(functools.partial(function)))
        assert is_batched(wrapped(function))
        assert not is_batched(lambda a: 0)
        assert not is_batched(len)
        assert not is_batched(Scorer([]))

    def test_gets_one_row_per_joint_action(self):
        seen = []

        @batched_reward
        def r(a, b, batch_items):
            seen.append([item["id"] for item in batch_items])
            return [0.0, 0.0]

        other = JointAction(8, 0, {"id": 8}, ("p", "q"), ("a", "b"))
        Reward(r, AGENTS).score([[TWO[0], other]])
        assert seen == [[7, 8]]
